// Exists so that precompiled.h is compiled once, for a target that every test takes it from.
