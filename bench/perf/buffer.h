// Page-aligned memory, as a program's own allocator would hand out for a large array.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <shoal/status.h>

namespace shoal::perf {

class Buffer {
 public:
  Buffer() = default;

  /// Memory that has been written once, so that no timing meets a page fault.
  static Result<Buffer> allocate(std::size_t bytes) {
    constexpr std::size_t kPage = 4096;
    const std::size_t rounded = (bytes / kPage + 1) * kPage;
    Buffer buffer;
    buffer.memory_.reset(static_cast<std::byte*>(rounded > bytes ? std::aligned_alloc(kPage, rounded) : nullptr));
    if (buffer.memory_ == nullptr) {
      return Status(StatusCode::system_error,
                    "no memory for a buffer of " + std::to_string(bytes) + " bytes: give a smaller -e");
    }
    std::memset(buffer.memory_.get(), 0, rounded);
    return buffer;
  }

  [[nodiscard]] std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace shoal::perf
