// Memory of one process that the other ranks of its host read in place.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <sys/types.h>

#include <shoal/status.h>

#include "src/base/descriptor.h"

namespace shoal::shm {

/// Where the peers of a process find the file of its arena: among its open files in /proc. The numbers of the file show that it
/// is no other one, also where the process has ended and its identifier is used again.
struct ArenaFile {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;  ///< 0: the process has no arena
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
};

/// Hands out pieces of one unnamed, sparse file that this process and its peers have mapped: payloads in it are sent by
/// reference. Pages exist from the first write on and go back to the system when their piece is freed.
/// Thread rule: any thread.
class Arena {
 public:
  /// The arena of this process, created in the first call and never destroyed. A process made by fork gets its own one. Null
  /// where the system grants no such memory.
  static Arena* instance();

  /// At least `bytes` bytes, zero, page-aligned. Errors: invalid_argument for 0; system_error where the arena is full.
  Result<void*> allocate(std::size_t bytes);
  /// Gives a piece back. Errors: invalid_argument where `memory` is not what allocate() returned, or was freed before.
  Status free(void* memory);

  /// Offset of [data, data + bytes) in the file; nullopt where not all of it lies there. Cheap.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* data, std::size_t bytes) const noexcept {
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - base_);  // wraps where data < base_
    if (offset >= size_bytes_ || bytes > size_bytes_ - offset) return std::nullopt;
    return offset;
  }
  /// How often pieces have been freed: a piece has other pages when it is used again.
  [[nodiscard]] std::uint64_t frees() const noexcept { return frees_.load(std::memory_order_acquire); }
  /// Where peers find its file.
  [[nodiscard]] ArenaFile file() const noexcept;
  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }

 private:
  Arena() = default;
  static Arena* make();

  Descriptor file_;
  std::byte* base_ = nullptr;
  std::size_t size_bytes_ = 0;
  pid_t owner_ = 0;
  std::atomic<std::uint64_t> frees_ = 0;
  std::mutex mutex_;                           // guards the maps; never taken while a call runs
  std::map<std::size_t, std::size_t> free_;    // offset -> bytes; no two are adjacent
  std::map<std::size_t, std::size_t> in_use_;  // offset -> bytes
};

}  // namespace shoal::shm
