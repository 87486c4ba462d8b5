// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace shoal {

/// Owns a file descriptor. A value that moves; one thread at a time.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Descriptor closing(std::exchange(fd_, other.release()));
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept { Descriptor closing(std::exchange(fd_, -1)); }

 private:
  int fd_ = -1;
};

}  // namespace shoal
