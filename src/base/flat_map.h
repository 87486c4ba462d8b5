// FlatMap: a hash table that allocates only when it outgrows its largest size so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shoal {

/// Open addressing with linear probing; an erased entry leaves no mark, since the entries behind it move up.
/// Thread rule: none of its own; the owner's lock.
template <typename Value>
class FlatMap {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  /// Null where there is none. Valid until the next put() or erase().
  [[nodiscard]] Value* find(std::uint64_t key) noexcept {
    if (size_ == 0) return nullptr;
    Slot& slot = slots_[place_of(key)];
    return slot.used ? &slot.value : nullptr;
  }
  void put(std::uint64_t key, Value value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place_of(key)];
    size_ += slot.used ? 0 : 1;
    slot = {key, std::move(value), true};
  }
  void erase(std::uint64_t key) noexcept {
    if (size_ == 0) return;
    std::size_t hole = place_of(key);
    if (!slots_[hole].used) return;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = (hole + 1) & mask; slots_[at].used; at = (at + 1) & mask) {
      // The entry may move up unless its own place lies after the hole.
      if (((at - start_of(slots_[at].key)) & mask) < ((at - hole) & mask)) continue;
      slots_[hole] = std::move(slots_[at]);
      hole = at;
    }
    slots_[hole] = {};
    --size_;
  }
  void clear() noexcept {
    for (Slot& slot : slots_) slot = {};
    size_ = 0;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Value value{};
    bool used = false;
  };

  // Fibonacci hashing: neighbours spread over the table.
  [[nodiscard]] std::size_t start_of(std::uint64_t key) const noexcept {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15U) >> 20) & (slots_.size() - 1);
  }
  /// The slot that holds `key`, or else the free slot for it.
  [[nodiscard]] std::size_t place_of(std::uint64_t key) const noexcept {
    std::size_t at = start_of(key);
    while (slots_[at].used && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<Slot> before(slots_.empty() ? 16 : 2 * slots_.size());
    before.swap(slots_);
    size_ = 0;
    for (Slot& slot : before) {
      if (slot.used) put(slot.key, std::move(slot.value));
    }
  }

  std::vector<Slot> slots_;  // a power of two, or empty; at most half of them in use
  std::size_t size_ = 0;
};

}  // namespace shoal
