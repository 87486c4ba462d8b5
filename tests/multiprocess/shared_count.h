// A number by which processes of a test wait for each other, where no communicator can: it has failed, or must stay idle.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <new>

#include "tests/eventually.h"

namespace shoal::testing {

/// Shared by the process that made it and by those that it forks afterwards; 0 at first. A rank that is to be late waits for
/// what the others do, not for a time: on a busy machine they may need longer.
class SharedCount {
 public:
  SharedCount()
      : memory_(::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    count_ = new (memory_) std::atomic<int>(0);
  }
  ~SharedCount() { ::munmap(memory_, sizeof(std::atomic<int>)); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;

  void add() { count_->fetch_add(1); }
  /// Waits until the count is `value` or more; false if it is not after a minute.
  [[nodiscard]] bool reaches(int value) const {
    return eventually([&] { return count_->load() >= value; });
  }

 private:
  void* memory_;
  std::atomic<int>* count_ = nullptr;
};

}  // namespace shoal::testing
