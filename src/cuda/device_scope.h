// Sets the device that a thread works on, for a scope.
#pragma once

#include "src/cuda/cuda_api.h"

namespace shoal::cuda {

/// While it lives, the calling thread works on `device`; afterwards on its device of before.
class OnDevice {
 public:
  OnDevice(CudaApi& api, int device) : api_(api) {
    const auto current = api.current_device();
    if (!current.ok() || *current == device) return;
    before_ = *current;
    static_cast<void>(api.use_device(device));  // where this fails, so does what follows
  }
  ~OnDevice() {
    if (before_ >= 0) static_cast<void>(api_.use_device(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  CudaApi& api_;
  int before_ = -1;
};

}  // namespace shoal::cuda
