#include "transports/shm/process_memory.h"

#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace shoal::shm {
namespace {

/// process_vm_readv or process_vm_writev, which have the same arguments.
using Copier = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

int copy(Copier copier, pid_t pid, std::uint64_t address, std::byte* own, std::size_t bytes) noexcept {
  while (bytes > 0) {
    const iovec here{own, bytes};
    const iovec there{reinterpret_cast<void*>(address), bytes};
    const ssize_t copied = copier(pid, &here, 1, &there, 1, 0);
    if (copied < 0) return errno;
    if (copied == 0) return EFAULT;
    // A short copy ends at the end of the peer's memory, or at a limit of the kernel: the next attempt shows which.
    own += copied;
    address += static_cast<std::uint64_t>(copied);
    bytes -= static_cast<std::size_t>(copied);
  }
  return 0;
}

}  // namespace

ProcessMark own_mark() noexcept {
  static std::uint64_t word = [] {  // not const: peers write to it, always the value that it holds
    std::uint64_t drawn = 0;
    return ::getrandom(&drawn, sizeof drawn, 0) == static_cast<ssize_t>(sizeof drawn) ? drawn : 0;
  }();
  if (word == 0) return {};
  return {::getpid(), 0, reinterpret_cast<std::uint64_t>(&word), word};
}

bool reaches(const ProcessMark& mark) noexcept {
  if (mark.pid <= 0) return false;
  std::uint64_t seen = 0;
  if (read_process(mark.pid, mark.address, reinterpret_cast<std::byte*>(&seen), sizeof seen) != 0 || seen != mark.value)
    return false;
  // Writing may be forbidden where reading is not. The value stays the same, so the write has no effect.
  return write_process(mark.pid, mark.address, reinterpret_cast<const std::byte*>(&seen), sizeof seen) == 0;
}

int read_process(pid_t pid, std::uint64_t address, std::byte* target, std::size_t bytes) noexcept {
  return copy(::process_vm_readv, pid, address, target, bytes);
}

int write_process(pid_t pid, std::uint64_t address, const std::byte* source, std::size_t bytes) noexcept {
  return copy(::process_vm_writev, pid, address, const_cast<std::byte*>(source), bytes);
}

}  // namespace shoal::shm
