#include "torch_plugin/parallel/runtime/tensor_layout.h"

#include <algorithm>
#include <vector>

namespace shoal::parallel {

at::Tensor TensorLayout::allocate(std::int64_t images, at::Device device) const {
  std::vector<std::int64_t> shape{images};
  shape.insert(shape.end(), sizes.begin(), sizes.begin() + dimensions);
  return at::empty(shape, at::TensorOptions(device).dtype(static_cast<at::ScalarType>(scalar_type)), format());
}

std::string TensorLayout::to_string() const {
  if (!is_tensor()) return "no tensor";
  std::string text = std::string(c10::toString(static_cast<at::ScalarType>(scalar_type))) + " [images";
  for (std::int64_t i = 0; i < dimensions; ++i) text += ", " + std::to_string(sizes[static_cast<std::size_t>(i)]);
  text += "]";
  return format() == at::MemoryFormat::Contiguous ? text : text + " channels last";
}

TensorLayout layout_of(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "a tensor that is not dense cannot cross the stages of a pipeline");
  TORCH_CHECK_VALUE(tensor.dim() >= 1, "a scalar where the first dimension should count images");
  TORCH_CHECK_VALUE(tensor.dim() <= TensorLayout::kMaxDimensions + 1, "a tensor of ", tensor.dim(), " dimensions; at most ",
                    TensorLayout::kMaxDimensions + 1, " are supported");
  TensorLayout layout;
  layout.scalar_type = static_cast<std::int64_t>(tensor.scalar_type());
  layout.memory_format = static_cast<std::int64_t>(tensor.suggest_memory_format());
  layout.dimensions = tensor.dim() - 1;
  std::copy(tensor.sizes().begin() + 1, tensor.sizes().end(), layout.sizes.begin());
  return layout;
}

}  // namespace shoal::parallel
