// The limit of this process's open files.
#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <string_view>

#include <shoal/status.h>

namespace shoal {

/// Raises this process's soft limit of open files to its hard limit, the first time that it is called. A rank has a few
/// descriptors for each peer, and many systems start processes with a soft limit of 1,024. Thread rule: any thread.
inline void raise_descriptor_limit() {
  static std::once_flag once;
  std::call_once(once, [] {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);  // if this is refused, calls that need more descriptors report it
  });
}

/// Whether `error` means that descriptors, or memory for them, have run out; this may be temporary.
inline bool is_short_of_descriptors(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/// As system_error(); if descriptors have run out, the message names the limit, `needs`, and what to do. `needs`: empty, or
/// text such as ", and needs 12 more for connections with 3 ranks".
inline Status descriptor_error(std::string_view what, int error, const std::string& needs = {}) {
  Status status = system_error(what, error);
  if (error != EMFILE && error != ENFILE) return status;
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  return {status.code(), status.message() + "; this process may have " + std::to_string(limit.rlim_cur) + " open files" +
                             needs + "; raise the limit (ulimit -n)"};
}

}  // namespace shoal
