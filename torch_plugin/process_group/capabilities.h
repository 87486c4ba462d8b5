// The capabilities that the backend reports to c10d. Versions of c10d query them in different ways, which only this file
// handles.
#pragma once

#include <torch/headeronly/version.h>

/// Declarations for the body of ProcessGroupShoal. supportsCoalescing makes batch_isend_irecv one work; supportsTensorAlloc
/// lets FSDP and DDP take their buffers from allocateTensor.
#define SHOAL_C10D_CAPABILITIES                                 \
  bool supportsSplitting() const override { return true; }      \
  bool supportsShrinking() const override { return true; }      \
  bool supportsCoalescing() const override { return true; }     \
  bool supportsTimeEstimation() const override { return true; } \
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

/// "override" for functions that are virtual in c10d's classes from that version on. Before, Python finds the function by its
/// name.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
#define SHOAL_C10D_SINCE_2_14 override
#else
#define SHOAL_C10D_SINCE_2_14
#endif
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#define SHOAL_C10D_SINCE_2_15 override
#else
#define SHOAL_C10D_SINCE_2_15
#endif
