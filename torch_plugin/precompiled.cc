// Exists so that precompiled.h is compiled once, for a target that everybody else takes it from.
