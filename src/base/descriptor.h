// A file descriptor that closes itself.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
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

/// Whether this process has no descriptor left. A call may also have failed by a shortage of descriptors that has passed.
/// `open`: any descriptor of this process.
inline bool has_no_descriptors_left(int open) noexcept {
  const Descriptor another(::fcntl(open, F_DUPFD_CLOEXEC, 0));
  return !another.valid() && errno == EMFILE;
}

}  // namespace shoal
