// Which instruction sets the kernels are compiled for. To be included before anything of Highway, alike in every kernel file.
#pragma once

// Each target costs build time. Folding is bound by memory, so the neighbours of those kept would gain nothing: x86-64 machines
// in use have AVX2 or AVX-512, Arm ones NEON; everything else takes the portable lanes, which the compiler vectorises itself.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
