// A buffer for tests in memory that the ranks of a host share, or not.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include <shoal/memory.h>

namespace shoal::testing {

/// `count` zero elements, from mem_alloc() if `shared`, starting `offset` elements into the allocation.
template <typename T>
class TestBuffer {
 public:
  TestBuffer(std::size_t count, bool shared, std::size_t offset = 0) : shared_(shared), count_(count) {
    const std::size_t bytes = (count + offset + 1) * sizeof(T);
    memory_ = static_cast<T*>(shared ? mem_alloc(bytes).value() : std::calloc(1, bytes));
    if (memory_ == nullptr) throw std::bad_alloc();
    begin_ = memory_ + offset;
  }
  TestBuffer(TestBuffer&& other) noexcept
      : shared_(other.shared_), count_(other.count_), memory_(other.memory_), begin_(other.begin_) {
    other.memory_ = nullptr;
  }
  TestBuffer& operator=(TestBuffer&&) = delete;
  ~TestBuffer() {
    if (shared_) {
      static_cast<void>(mem_free(memory_));
    } else {
      std::free(memory_);
    }
  }

  [[nodiscard]] T* data() const { return begin_; }
  [[nodiscard]] std::size_t size() const { return count_; }
  T& operator[](std::size_t i) const { return begin_[i]; }

 private:
  bool shared_;
  std::size_t count_;
  T* memory_ = nullptr;
  T* begin_ = nullptr;
};

}  // namespace shoal::testing
