// Whom a rank wakes after it has written to shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transports/shm/bell.h"
#include "transports/shm/segment.h"

namespace shoal::shm {

/// Orders all earlier writes of this thread before its later reads. ThreadSanitizer does not support fences, so there it is
/// an atomic operation of the same ordering.
inline void full_fence() noexcept {
#ifdef SHOAL_TSAN
  static std::atomic<int> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Wakes the rank of `block` if it blocks or is about to. `own`: the bell of this rank.
inline void wake_if_sleeping(RankBlock& block, const Bell& own) noexcept {
  // Pairs with the store in ShmTransport::prepare_wait(): the caller has published something seq_cst before. So either this
  // load sees that the rank sleeps, or that rank's last check sees what was published.
  if (block.sleeping.load(std::memory_order_seq_cst) == 0) return;
  // The exchange lets only one peer ring. It needs no ordering: nothing else depends on it.
  if (block.sleeping.exchange(0, std::memory_order_relaxed) == 0) return;
  own.ring(block.card.bell);
}

/// RankBlock::awaits: the rank at `position` alone, any, none.
constexpr std::uint32_t writer_at(std::size_t position) noexcept { return static_cast<std::uint32_t>(position) + 2; }
inline constexpr std::uint32_t kAwaitsAny = 0;
inline constexpr std::uint32_t kAwaitsNone = 1;

/// The same, if that rank awaits the one at `writer`, which has written to shared memory and executed a full fence since.
///
/// Where the word read here is that of a later sleep, the fence in that sleep's prepare_wait() has come first: the caller has
/// checked what it waits for after it, and has seen this rank's write or not needed it.
inline void wake_if_awaiting(RankBlock& block, std::size_t writer, const Bell& own) noexcept {
  if (block.sleeping.load(std::memory_order_seq_cst) == 0) return;
  // The load above acquires what the rank has written there before.
  const std::uint32_t awaits = block.awaits.load(std::memory_order_relaxed);
  if (awaits == kAwaitsAny || awaits == writer_at(writer)) wake_if_sleeping(block, own);
}

}  // namespace shoal::shm
