// HostMemory: memory and wake-ups for a thread of each rank of a host that does not drive the transport.
#pragma once

#include <cstddef>
#include <span>

#include "src/base/descriptor.h"
#include "transports/shm/bell.h"
#include "transports/shm/peer_watch.h"
#include "transports/shm/segment.h"

namespace shoal::shm {

/// One rank's view. Ranks are positions in the sorted list of those that share the segment.
///
/// A thread that is about to block calls announce_sleep(), looks at the memory once more, and then waits for wait_fd(). A rank
/// that has written to the memory (seq_cst) calls wake(). So either the thread sees what was written, or it is woken.
/// Thread rule: one thread at a time.
class HostMemory {
 public:
  /// `segment` and `watch` outlive it.
  HostMemory(const Segment& segment, const PeerWatch& watch, std::size_t own, Bell bell);

  /// Zero at the start, page-aligned, the same for all ranks.
  [[nodiscard]] std::span<std::byte> memory() const noexcept;
  [[nodiscard]] std::size_t ranks() const noexcept { return segment_.layout().ranks; }
  [[nodiscard]] std::size_t own() const noexcept { return own_; }

  [[nodiscard]] int wait_fd() const noexcept { return bell_.descriptor(); }
  void announce_sleep() noexcept;
  /// `readable`: wait_fd() was.
  void end_sleep(bool readable) noexcept;
  /// Nothing happens where that rank's thread does not sleep, or has not started.
  void wake(std::size_t rank) noexcept;

  /// Opens a descriptor that becomes readable when the process of `rank` ends. Returns 0; ESRCH where it has ended; else an
  /// errno value: not known.
  int open_process(std::size_t rank, Descriptor& process) const noexcept { return watch_.open(rank, process); }

 private:
  [[nodiscard]] Sleeper& sleeper(std::size_t rank) const noexcept;

  const Segment& segment_;
  const PeerWatch& watch_;
  const std::size_t own_;
  const Bell bell_;
};

}  // namespace shoal::shm
