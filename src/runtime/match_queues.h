// MatchQueues: entries that wait for a counterpart of the same rank and tag, found by hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/flat_map.h"
#include "src/base/ring_queue.h"

namespace shoal {

/// A queue for each rank and tag, oldest first, and one order over all entries. Queues that become empty are reused. Thread
/// rule: none of its own; the owner's lock.
template <typename Entry>
class MatchQueues {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  void push(int rank, int tag, Entry entry) {
    const std::uint64_t key = key_of(rank, tag);
    const std::uint32_t* found = at_.find(key);
    const std::uint32_t index = found != nullptr ? *found : take_queue();
    if (found == nullptr) at_.put(key, index);
    queues_[index].push({next_order_++, std::move(entry)});
    ++size_;
  }
  /// When the oldest of `rank` and `tag` was pushed, relative to all others; nothing where there is none.
  [[nodiscard]] std::optional<std::uint64_t> oldest(int rank, int tag) noexcept {
    const std::uint32_t* found = at_.find(key_of(rank, tag));
    return found == nullptr ? std::nullopt : std::optional(queues_[*found].front().order);
  }
  /// Takes that one out. Precondition: there is one.
  Entry take(int rank, int tag) {
    const std::uint64_t key = key_of(rank, tag);
    const std::uint32_t index = *at_.find(key);
    Entry entry = std::move(queues_[index].front().entry);
    queues_[index].pop();
    --size_;
    if (queues_[index].empty()) {
      at_.erase(key);
      free_.push_back(index);
    }
    return entry;
  }
  void clear() noexcept {
    at_.clear();
    queues_.clear();
    free_.clear();
    size_ = 0;
  }

 private:
  struct Ordered {
    std::uint64_t order = 0;
    Entry entry{};
  };

  static std::uint64_t key_of(int rank, int tag) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32 | static_cast<std::uint32_t>(tag);
  }
  std::uint32_t take_queue() {
    if (free_.empty()) {
      queues_.emplace_back();
      free_.reserve(queues_.size());  // take() must not allocate
      return static_cast<std::uint32_t>(queues_.size() - 1);
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }

  FlatMap<std::uint32_t> at_;  // index in queues_ of each queue that is not empty
  std::vector<RingQueue<Ordered>> queues_;
  std::vector<std::uint32_t> free_;
  std::uint64_t next_order_ = 0;
  std::size_t size_ = 0;
};

}  // namespace shoal
