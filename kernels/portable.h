// Macros by which one source serves the host compiler and nvcc.
#pragma once

#ifdef __CUDACC__
#define SHOAL_HOST_DEVICE __host__ __device__ __forceinline__
#define SHOAL_UNROLL _Pragma("unroll")
#define SHOAL_NO_UNROLL _Pragma("unroll 1")
#else
#define SHOAL_HOST_DEVICE inline
#define SHOAL_UNROLL
#define SHOAL_NO_UNROLL
#endif
