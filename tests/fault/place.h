// A place of its own for jobs, where whatever they leave can be seen: nobody else uses it.
#pragma once

#include <sys/types.h>

#include <string>

namespace shoal::testing {

/// Network, System V and POSIX objects, /tmp, /var/tmp and /dev/shm of its own, held by a process that does nothing else. The
/// loopback device is up; it is the only one.
class OwnPlace {
 public:
  OwnPlace();
  ~OwnPlace();
  OwnPlace(const OwnPlace&) = delete;
  OwnPlace& operator=(const OwnPlace&) = delete;

  /// Why there is none here; empty where there is.
  [[nodiscard]] const std::string& complaint() const { return complaint_; }
  /// For a process with one thread: it goes there, and so do its children. False where it may not.
  [[nodiscard]] bool enter() const;
  /// Where that process finds a folder of the usual /tmp.
  [[nodiscard]] static std::string from_inside(const std::string& folder);
  /// All that is there, one thing a line: processes, sockets and their names, files, segments. Empty where nothing is. What the
  /// kernel alone still keeps, as the memory of a closed connection, does not count.
  [[nodiscard]] std::string contents() const;

 private:
  pid_t keeper_ = -1;
  bool own_users_ = false;  ///< it took a user namespace, too
  std::string complaint_;
};

}  // namespace shoal::testing
