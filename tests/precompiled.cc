// The source of the target from which all tests reuse the compiled precompiled.h.
