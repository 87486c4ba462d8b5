#include "transports/shm/host_memory.h"

#include <utility>

namespace shoal::shm {

HostMemory::HostMemory(const Segment& segment, const PeerWatch& watch, std::size_t own, Bell bell)
    : segment_(segment), watch_(watch), own_(own), bell_(std::move(bell)) {
  sleeper(own_).bell = bell_.name();
  sleeper(own_).ready.store(1, std::memory_order_release);
}

Sleeper& HostMemory::sleeper(std::size_t rank) const noexcept {
  return reinterpret_cast<Sleeper*>(segment_.keepers().data())[rank];
}

std::span<std::byte> HostMemory::memory() const noexcept {
  return segment_.keepers().subspan(round_up(ranks() * sizeof(Sleeper), SegmentLayout::kPageBytes));
}

void HostMemory::announce_sleep() noexcept {
  // seq_cst, as the caller's next look at the memory is: pairs with the load in wake().
  sleeper(own_).sleeping.store(1, std::memory_order_seq_cst);
}

void HostMemory::end_sleep(bool readable) noexcept {
  // A peer that sees this store late rings once more, which ends one later sleep early.
  sleeper(own_).sleeping.store(0, std::memory_order_relaxed);
  if (readable) bell_.drain();
}

void HostMemory::wake(std::size_t rank) noexcept {
  Sleeper& its = sleeper(rank);
  if (its.sleeping.load(std::memory_order_seq_cst) == 0) return;
  // Acquires the name, which is written once, before its rank first sleeps.
  if (its.ready.load(std::memory_order_acquire) == 0) return;
  // Lets only one peer ring. Needs no ordering: nothing else depends on it.
  if (its.sleeping.exchange(0, std::memory_order_relaxed) != 0) bell_.ring(its.bell);
}

}  // namespace shoal::shm
