// Which process a rank is, so that its peers can watch it although identifiers of processes are reused.
#pragma once

#include <cstdint>

#include "src/base/descriptor.h"

namespace shoal::shm {

/// Identifies a process on this host for the life of the host: a later process with the same identifier has another start.
struct ProcessIdentity {
  std::int32_t pid = 0;
  std::uint32_t reserved = 0;  ///< fills a gap: the struct is sent as it lies in memory
  std::uint64_t start = 0;     ///< when the process started, in ticks of the kernel
  std::uint64_t space = 0;  ///< the namespaces in which `pid` and `start` are valid; 0: unknown, no other process can use them

  /// Whether a process with the identity `own` can use this one.
  [[nodiscard]] bool is_valid_for(const ProcessIdentity& own) const noexcept { return space != 0 && space == own.space; }
};

/// Of this process. Without /proc, or with that of other namespaces, `space` is 0. Thread rule: any thread.
ProcessIdentity own_identity() noexcept;

/// Opens a pidfd of this very process. Returns 0; ESRCH where the process has ended; else an errno value: not known, for
/// example for lack of descriptors. Precondition: it is valid for this process.
int open_process(const ProcessIdentity& process, Descriptor& pidfd) noexcept;

/// A pidfd of this process; not valid where the kernel has none (before Linux 5.3) or a filter forbids it.
Descriptor open_own_process() noexcept;

/// Whether the process of a pidfd has ended. An error counts as ended.
bool has_ended(const Descriptor& pidfd) noexcept;

}  // namespace shoal::shm
