// Copying straight between the memories of two processes, where the system permits it: one copy instead of two, by the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace shoal::shm {

/// By what others make sure that it is this process whose memory they reach: a process identifier may mean another process in
/// another container, or be given again.
struct ProcessMark {
  std::int32_t pid = 0;        ///< as the process itself sees it; 0: its memory is not to be reached
  std::uint32_t reserved = 0;  ///< travels as it lies in memory
  std::uint64_t address = 0;   ///< where `value` lies there
  std::uint64_t value = 0;     ///< drawn at random
};

/// That of this process, for which it keeps a word for ever. Where the system has no random bytes, it says that the memory is
/// not to be reached. Thread rule: any thread.
ProcessMark own_mark() noexcept;

/// Whether this process may read and write the memory of the one that gave `mark`, tried on its marked word. False also where
/// its identifier means somebody else here.
bool reaches(const ProcessMark& mark) noexcept;

/// Copies `bytes` bytes at `address` of process `pid` to `target`, and the other way. 0, or what errno says; EFAULT where not
/// all of it is memory.
int read_process(pid_t pid, std::uint64_t address, std::byte* target, std::size_t bytes) noexcept;
int write_process(pid_t pid, std::uint64_t address, const std::byte* source, std::size_t bytes) noexcept;

}  // namespace shoal::shm
