#include "transports/shm/process_identity.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <string_view>

namespace shoal::shm {
namespace {

Descriptor open_pidfd(pid_t pid) noexcept { return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

std::uint64_t inode_of(const char* path) noexcept {
  struct stat info {};
  return ::stat(path, &info) == 0 ? info.st_ino : 0;
}

/// Field 22 of /proc/PID/stat. The name of the program in field 2 may have any characters, so fields are counted from its end.
bool parse_start(std::string_view text, std::uint64_t& start) noexcept {
  constexpr int kFieldsAfterName = 20;
  std::size_t at = text.rfind(')');
  for (int field = 0; field < kFieldsAfterName && at != std::string_view::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string_view::npos) return false;
  return std::from_chars(text.data() + at + 1, text.data() + text.size(), start).ec == std::errc();
}

/// Reads when the process `pid` started; 0 or an errno value: ENOENT or ESRCH where there is no such process.
int read_start(pid_t pid, std::uint64_t& start) noexcept {
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", static_cast<int>(pid));
  const Descriptor file(::open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return errno;
  std::array<char, 1024> text;
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size < 0) return errno;
  return parse_start({text.data(), static_cast<std::size_t>(size)}, start) ? 0 : EPROTO;
}

/// Whether /proc shows the processes of this process's own namespace.
bool has_own_proc() noexcept {
  std::array<char, 16> link{};
  std::array<char, 16> own{};
  if (::readlink("/proc/self", link.data(), link.size() - 1) <= 0) return false;
  std::snprintf(own.data(), own.size(), "%d", static_cast<int>(::getpid()));
  return std::string_view(link.data()) == own.data();
}

}  // namespace

ProcessIdentity own_identity() noexcept {
  ProcessIdentity identity;
  identity.pid = ::getpid();
  const std::uint64_t pids = inode_of("/proc/self/ns/pid");
  if (pids == 0 || !has_own_proc() || read_start(identity.pid, identity.start) != 0) return identity;
  // A time namespace shifts the start that its processes read.
  identity.space = pids << 32 ^ inode_of("/proc/self/ns/time");
  return identity;
}

int open_process(const ProcessIdentity& process, Descriptor& pidfd) noexcept {
  Descriptor opened = open_pidfd(process.pid);
  const int error = opened.valid() ? 0 : errno;
  if (error == ESRCH) return ESRCH;
  // EINVAL and ENOENT: the number may be that of a thread now. Which of the two depends on the kernel.
  if (error != 0 && error != EINVAL && error != ENOENT) return error;
  std::uint64_t start = 0;
  const int unread = read_start(process.pid, start);
  if (unread == 0 && start != process.start) return ESRCH;
  if (error != 0) return unread == ENOENT || unread == ESRCH ? ESRCH : error;
  if (has_ended(opened)) return ESRCH;
  // Read after the pidfd was opened: the same start shows that the pidfd is that of this process.
  if (unread != 0) return unread;
  pidfd = std::move(opened);
  return 0;
}

Descriptor open_own_process() noexcept { return open_pidfd(::getpid()); }

bool has_ended(const Descriptor& pidfd) noexcept {
  pollfd life{pidfd.get(), POLLIN, 0};
  return ::poll(&life, 1, 0) != 0;
}

}  // namespace shoal::shm
