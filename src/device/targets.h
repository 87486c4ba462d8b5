// The instruction sets that the kernels are compiled for. Include it before any header of Highway, identically in every
// kernel file.
#pragma once

// Each target costs build time. Folding is memory-bound, so targets close to those kept would gain nothing: current x86-64
// machines have AVX2 or AVX-512, Arm ones NEON; all other machines use the portable lanes, which the compiler vectorises
// itself.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
