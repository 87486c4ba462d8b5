// Sandbox: namespaces in which only the processes of a test run, so that everything that they leave is visible.
#pragma once

#include <sys/types.h>

#include <string>

namespace shoal::testing {

/// Namespaces with their own network, System V and POSIX objects, /tmp, /var/tmp and /dev/shm. A keeper process holds them. The
/// loopback device is up and is the only network device.
class Sandbox {
 public:
  Sandbox();
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  /// Why this process may not make a sandbox; empty if it could.
  [[nodiscard]] const std::string& unavailable() const { return unavailable_; }
  /// Moves the calling process, which must have one thread, and its later children into the sandbox. False on failure.
  [[nodiscard]] bool enter() const;
  /// The path inside of the sandbox of a folder in the host's /tmp, /var/tmp or /dev/shm.
  [[nodiscard]] static std::string from_inside(const std::string& folder);
  /// Everything in the sandbox, one item a line: processes, sockets with their names, files, segments. What only the kernel
  /// still keeps, such as a closed connection, is left out.
  [[nodiscard]] std::string contents() const;

 private:
  pid_t keeper_ = -1;
  bool own_users_ = false;  ///< with a user namespace
  std::string unavailable_;
};

}  // namespace shoal::testing
