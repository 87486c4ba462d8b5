#include "bench/train/batch_tensors.h"

#include <memory>

namespace shoal::train {

std::pair<at::Tensor, at::Tensor> to_tensors(data::Batch batch, const data::Dataset& dataset, at::Device device) {
  auto shared = std::make_shared<data::Batch>(std::move(batch));
  const auto size = static_cast<std::int64_t>(shared->size());
  const auto keep = [shared](void*) {};
  const at::Tensor pixels =
      ::torch::from_blob(shared->images.data(), {size, dataset.channels, dataset.height, dataset.width}, keep, at::kFloat);
  return {pixels.to(device), ::torch::from_blob(shared->labels.data(), {size}, keep, at::kLong).to(device)};
}

}  // namespace shoal::train
