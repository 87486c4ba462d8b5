#include "src/cuda/summary.h"

#include <vector>

#include <fmt/format.h>

namespace shoal::cuda {
namespace {

std::string abilities_of(const DeviceDescription& device) {
  std::vector<std::string> able;
  if (device.ipc) able.emplace_back("cudaIpc");
  if (device.descriptors) able.emplace_back("memory as descriptors");
  if (device.stream_memory) able.emplace_back("stream memory operations");
  if (device.mps) able.emplace_back("MPS");
  return able.empty() ? "none of cudaIpc, memory as descriptors, stream memory operations"
                      : fmt::format("{}", fmt::join(able, ", "));
}

}  // namespace

Result<std::string> summary_of(CudaApi& api) {
  const auto driver = api.driver_version();
  if (!driver.ok()) return driver.status();
  const auto count = api.device_count();
  if (!count.ok()) return count.status();
  std::string text = fmt::format("driver for CUDA {}.{}", *driver / 1000, *driver % 1000 / 10);
  int reaching = 0;
  for (int device = 0; device < *count; ++device) {
    const auto found = api.describe_device(device);
    if (!found.ok()) return found.status();
    text += fmt::format("; {} {} ({} SMs, {}.{}): {}", device, found->name, found->processors, found->major, found->minor,
                        abilities_of(*found));
    for (int other = 0; other < *count; ++other) {
      const auto reaches = api.can_access_peer(device, other);
      if (other != device && reaches.ok() && *reaches) ++reaching;
    }
  }
  const int pairs = *count * (*count - 1);
  if (pairs != 0) text += fmt::format("; peer access between {} of {} pairs", reaching / 2, pairs / 2);
  return text;
}

std::string cuda_summary() {
  const auto api = load_cuda_api();
  const auto summary = api.ok() ? summary_of(**api) : Result<std::string>(api.status());
  if (summary.ok()) return "cuda: " + *summary;
  const std::string& why = summary.status().message();
  return "cuda: not available: " + (why.starts_with("CUDA: ") ? why.substr(6) : why);
}

}  // namespace shoal::cuda
