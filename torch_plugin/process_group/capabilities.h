// What the backend tells c10d that it can do. Versions of c10d ask in different ways; this is the one place that knows.
#pragma once

/// Declarations for the body of ProcessGroupShoal. supportsCoalescing makes batch_isend_irecv one work; supportsTensorAlloc
/// lets FSDP and DDP take their buffers from allocateTensor.
#define SHOAL_C10D_CAPABILITIES                             \
  bool supportsSplitting() const override { return true; }  \
  bool supportsShrinking() const override { return true; }  \
  bool supportsCoalescing() const override { return true; } \
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
