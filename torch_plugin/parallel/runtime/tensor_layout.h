// TensorLayout: type, shape and memory format of the tensors that cross a cut, in a form that is sent as it is.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <torch/torch.h>

namespace shoal::parallel {

/// Describes a tensor whose first dimension counts images, without that number. Trivially copyable.
struct TensorLayout {
  static constexpr int kMaxDimensions = 12;

  std::int64_t scalar_type = -1;  ///< at::ScalarType; -1 = no tensor
  std::int64_t memory_format = 0;
  std::int64_t dimensions = 0;  ///< of one image
  std::array<std::int64_t, kMaxDimensions> sizes{};

  bool operator==(const TensorLayout&) const = default;

  [[nodiscard]] bool is_tensor() const { return scalar_type >= 0; }
  [[nodiscard]] at::MemoryFormat format() const { return static_cast<at::MemoryFormat>(memory_format); }
  /// Uninitialized memory for `images` images.
  [[nodiscard]] at::Tensor allocate(std::int64_t images, at::Device device = at::kCPU) const;
  /// "float32 [images, 3, 32, 32]", for messages.
  [[nodiscard]] std::string to_string() const;
};

/// Throws c10::ValueError for a tensor without a first dimension or with more dimensions than a layout holds.
TensorLayout layout_of(const at::Tensor& tensor);

}  // namespace shoal::parallel
