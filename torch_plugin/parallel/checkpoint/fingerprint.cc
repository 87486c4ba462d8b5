#include "torch_plugin/parallel/checkpoint/fingerprint.h"

namespace shoal::parallel {

std::uint64_t fingerprint_of(const std::vector<at::Tensor>& tensors) {
  constexpr std::uint64_t kPrime = 0x100000001b3;  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor bytes = tensor.detach().cpu().contiguous().view({-1}).view(at::kByte);
    for (std::int64_t at = 0; at < bytes.numel(); ++at) hash = (hash ^ bytes.const_data_ptr<std::uint8_t>()[at]) * kPrime;
  }
  return hash;
}

}  // namespace shoal::parallel
