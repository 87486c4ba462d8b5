// RingQueue: a FIFO that allocates only when it outgrows its largest size so far.
#pragma once

#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

namespace shoal {

/// Thread rule: none of its own; the owner's lock.
template <typename T>
class RingQueue {
 public:
  [[nodiscard]] bool empty() const noexcept { return head_ == tail_; }
  [[nodiscard]] std::size_t size() const noexcept { return tail_ - head_; }
  [[nodiscard]] T& front() noexcept { return assert(!empty()), slots_[head_ & (slots_.size() - 1)]; }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return slots_[(head_ + i) & (slots_.size() - 1)]; }

  /// Makes room for `count` entries. Precondition: empty.
  void reserve(std::size_t count) {
    assert(empty());
    while (slots_.size() < count) grow();
  }
  void push(T value) {
    if (size() == slots_.size()) grow();
    slots_[tail_++ & (slots_.size() - 1)] = std::move(value);
  }
  void pop() noexcept { assert(!empty()), ++head_; }
  void clear() noexcept { head_ = tail_; }

 private:
  void grow() {
    std::vector<T> larger(slots_.empty() ? 8 : slots_.size() * 2);
    const std::size_t count = size();
    for (std::size_t i = 0; i < count; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    head_ = 0;
    tail_ = count;
  }

  std::vector<T> slots_;  // a power of two, or empty
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

}  // namespace shoal
