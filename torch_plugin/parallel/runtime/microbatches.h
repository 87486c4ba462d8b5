// Microbatches: how the images of a batch are divided.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::parallel {

/// `batch` images in min(batch, most) microbatches, whose sizes differ by at most one; the larger ones come first.
/// Precondition: both are at least 1.
class Microbatches {
 public:
  Microbatches(std::int64_t batch, int most);

  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] int count() const { return static_cast<int>(sizes_.size()); }
  [[nodiscard]] const std::vector<std::int64_t>& sizes() const { return sizes_; }
  /// Images of microbatch i, and the position of its first image in the batch.
  [[nodiscard]] std::int64_t size(int i) const { return sizes_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::int64_t begin(int i) const { return begins_[static_cast<std::size_t>(i)]; }
  /// b_i / B: the factor of the loss of microbatch i where the loss is a mean.
  [[nodiscard]] double share(int i) const { return static_cast<double>(size(i)) / static_cast<double>(batch_); }

 private:
  std::int64_t batch_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> begins_;
};

}  // namespace shoal::parallel
