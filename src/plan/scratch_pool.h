// ScratchPool: memory that calls in flight borrow for the scratch buffers of their Programs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace shoal::internal {

/// Memory with undefined contents.
struct Scratch {
  std::unique_ptr<std::byte[]> memory;
  std::size_t size_bytes = 0;
};

/// One per process: calls borrow for as long as they are in flight, so the memory kept depends on the number of concurrent
/// calls and not on the number of Plans. A call that repeats finds the memory that it gave back: a limited amount is kept for
/// that, the rest is freed. Thread rule: any thread.
class ScratchPool {
 public:
  static ScratchPool& instance() {
    static auto& pool = *new ScratchPool;  // never destroyed: handles may outlive main()
    return pool;
  }

  /// At least `size_bytes`: the smallest piece kept that fits, or new memory; nothing where there is none.
  Scratch take(std::size_t size_bytes) {
    {
      const std::scoped_lock lock(mutex_);
      const auto found = std::ranges::lower_bound(free_, size_bytes, {}, &Scratch::size_bytes);
      if (found != free_.end()) {
        Scratch scratch = std::move(*found);
        free_.erase(found);
        free_bytes_ -= scratch.size_bytes;
        return scratch;
      }
    }
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[size_bytes]);  // not cleared: Programs write first
    const bool there = memory != nullptr;
    return {std::move(memory), there ? size_bytes : 0};
  }

  void give(Scratch scratch) {
    const std::scoped_lock lock(mutex_);
    if (free_.size() == kMaxKept || free_bytes_ + scratch.size_bytes > kMaxKeptBytes) return;
    free_bytes_ += scratch.size_bytes;
    free_.insert(std::ranges::lower_bound(free_, scratch.size_bytes, {}, &Scratch::size_bytes), std::move(scratch));
  }

 private:
  static constexpr std::size_t kMaxKept = 64;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{64} << 20;

  ScratchPool() { free_.reserve(kMaxKept); }

  std::mutex mutex_;           // taken only by calls whose Programs use scratch
  std::vector<Scratch> free_;  // by size
  std::size_t free_bytes_ = 0;
};

}  // namespace shoal::internal
