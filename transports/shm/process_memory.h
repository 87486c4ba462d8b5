// Copying straight between the memories of two processes, where the system permits it: one copy instead of two, by the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace shoal::shm {

/// Lets peers verify that they reach this process's memory: a process identifier may mean another process in another
/// container, or may have been reused.
struct ProcessMark {
  std::int32_t pid = 0;        ///< as the process itself sees it; 0: its memory is not to be reached
  std::uint32_t reserved = 0;  ///< fills a gap: the struct is sent as it lies in memory
  std::uint64_t address = 0;   ///< address of `value` in that process
  std::uint64_t value = 0;     ///< drawn at random
};

/// The mark of this process, whose value stays in memory as long as the process lives. Where the system has no random bytes,
/// its pid is 0: the memory is not to be reached. Thread rule: any thread.
ProcessMark own_mark() noexcept;

/// Whether this process may read and write the memory of the process that made `mark`, tried on the marked value. False also
/// where that identifier means another process here.
bool reaches(const ProcessMark& mark) noexcept;

/// Copies `bytes` bytes at `address` of process `pid` to `target`, and the reverse. Returns 0 or an errno value; EFAULT where
/// not all of it is mapped memory.
int read_process(pid_t pid, std::uint64_t address, std::byte* target, std::size_t bytes) noexcept;
int write_process(pid_t pid, std::uint64_t address, const std::byte* source, std::size_t bytes) noexcept;

}  // namespace shoal::shm
