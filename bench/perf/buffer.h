// Page-aligned memory, from a general allocator as for a program's large array, or from shoal.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <shoal/memory.h>
#include <shoal/status.h>

namespace shoal::perf {

/// Returns a Buffer's memory to its allocator.
struct FreeMemory {
  FreeMemory() = default;
  explicit FreeMemory(bool is_shared) : shared(is_shared) {}
  void operator()(std::byte* memory) const {
    if (shared) {
      static_cast<void>(mem_free(memory));
    } else {
      std::free(memory);
    }
  }
  bool shared = false;
};

class Buffer {
 public:
  Buffer() = default;

  /// Memory that has been written once, so that no timing includes a page fault; from shoal::mem_alloc() if `shared`.
  static Result<Buffer> allocate(std::size_t bytes, bool shared) {
    constexpr std::size_t kPage = 4096;
    const std::size_t rounded = (bytes / kPage + 1) * kPage;
    Buffer buffer;
    if (shared) {
      Result<void*> memory = mem_alloc(rounded);
      if (!memory.ok()) return memory.status();
      buffer.memory_ = {static_cast<std::byte*>(*memory), FreeMemory(true)};
      std::memset(buffer.memory_.get(), 0, rounded);
      return buffer;
    }
    buffer.memory_.reset(static_cast<std::byte*>(rounded > bytes ? std::aligned_alloc(kPage, rounded) : nullptr));
    if (buffer.memory_ == nullptr) {
      return Status(StatusCode::system_error,
                    "no memory for a buffer of " + std::to_string(bytes) + " bytes; use a smaller -e");
    }
    std::memset(buffer.memory_.get(), 0, rounded);
    return buffer;
  }

  [[nodiscard]] std::byte* data() const { return memory_.get(); }

 private:
  std::unique_ptr<std::byte, FreeMemory> memory_;
};

}  // namespace shoal::perf
