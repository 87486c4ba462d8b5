// A byte ring that is mapped twice in a row, so that every run of bytes in it is contiguous in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include <shoal/status.h>

#include "transports/tcp/ring_memory.h"

namespace shoal::tcp {

/// Memory of size() bytes that continues with itself: byte i and byte i + size() are the same one. Frames that wrap around need
/// no second read, no second span and no copy. Pages are only taken when touched. A position is an offset that counts up; its
/// place in the ring is the position modulo size().
///
/// A ring with LinkRings consists of up to kParts parts of whole pages, all of the same size except for the last one. It counts
/// those that have been touched, and can give them back to the system. Thread rule: as for plain memory.
class MirrorRing {
 public:
  static constexpr std::size_t kParts = 64;

  /// At least `bytes`, rounded up to whole pages. `rings`: where its memory is counted; null, or without a limit: nowhere.
  /// system_error where the kernel has no memory.
  static Result<MirrorRing> make(std::size_t bytes, LinkRings* rings = nullptr);

  MirrorRing() noexcept = default;
  MirrorRing(MirrorRing&& other) noexcept { swap(other); }
  MirrorRing& operator=(MirrorRing&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MirrorRing();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// 0 where nothing is counted.
  [[nodiscard]] std::size_t resident_bytes() const noexcept { return bytes_of(resident_); }

  /// These bytes have been written, or are about to be; at most size(). Every tile passes here twice, so this is inlined; see
  /// tests/cost.
  void touch(std::uint64_t position, std::size_t bytes) noexcept {
    if (has_uncounted_ && (position < counted_from_ || position + bytes > counted_to_)) count(position, bytes);
  }
  /// [from, to), at most size() bytes, holds no data: returns the parts that lie in it to the system. They read as zeros until
  /// they are written again.
  void give_back(std::uint64_t from, std::uint64_t to) noexcept;

 private:
  using Parts = std::uint64_t;  // bit i: part i
  static_assert(kParts == std::numeric_limits<Parts>::digits);

  void swap(MirrorRing& other) noexcept;
  void count(std::uint64_t position, std::size_t bytes) noexcept;
  [[nodiscard]] Parts parts_of(std::uint64_t position, std::size_t bytes) const noexcept;
  [[nodiscard]] std::size_t bytes_of(Parts parts) const noexcept;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool has_uncounted_ = false;  // some part may have to be counted; false in a ring that counts nothing
  // The parts at these positions, from counted_from_ to counted_to_, are counted: touching the same part again is cheap.
  std::uint64_t counted_from_ = 0;
  std::uint64_t counted_to_ = 0;
  LinkRings* rings_ = nullptr;
  std::size_t part_bytes_ = 0;
  Parts resident_ = 0;
};

}  // namespace shoal::tcp
