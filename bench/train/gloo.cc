#include "bench/train/gloo.h"

#ifdef SHOAL_TORCH_HAS_GLOO  // set by CMake if Gloo's headers are found; torch itself always has Gloo
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {

#ifdef SHOAL_TORCH_HAS_GLOO

Result<c10::intrusive_ptr<c10d::Backend>> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout) {
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options));
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, "gloo on " + address + ": " + torch::plain_message(error));
  }
}

#else

Result<c10::intrusive_ptr<c10d::Backend>> make_gloo(const c10::intrusive_ptr<c10d::Store>&, int, int, const std::string&,
                                                    std::chrono::milliseconds) {
  return Status(StatusCode::unsupported, "gloo: this program was built without Gloo's headers (Debian: libgloo-dev)");
}

#endif

}  // namespace shoal::train
