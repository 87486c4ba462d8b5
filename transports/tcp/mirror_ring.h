// A byte ring that is mapped twice in a row, so that every run of bytes in it is contiguous in memory.
#pragma once

#include <cstddef>
#include <utility>

#include <shoal/status.h>

namespace shoal::tcp {

/// Memory of size() bytes that continues with itself: byte i and byte i + size() are the same one. Frames that wrap around need
/// no second read, no second span and no copy. Pages are only taken when touched. Thread rule: as for plain memory.
class MirrorRing {
 public:
  /// At least `bytes`, rounded up to whole pages. system_error where the kernel has no memory.
  static Result<MirrorRing> make(std::size_t bytes);

  MirrorRing() noexcept = default;
  MirrorRing(MirrorRing&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MirrorRing& operator=(MirrorRing&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MirrorRing();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  MirrorRing(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace shoal::tcp
