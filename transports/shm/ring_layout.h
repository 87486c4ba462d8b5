// How a ring of tile slots lies in memory.
//
//   Ring  = RingControl, then the slots
//   Slot  = one SlotLine, then room for one payload of tile_bytes, rounded up to whole cache lines
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transports/transport.h"

namespace shoal::shm {

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kInlineBytes = 32;

constexpr std::size_t round_up(std::size_t bytes, std::size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

struct alignas(kLineBytes) SlotLine {
  std::atomic<std::uint64_t> sequence;  ///< word_of(n, ...) once tile n is in the slot; written by the sender, last
  TileHeader header;
  std::byte payload[kInlineBytes];
};
static_assert(sizeof(SlotLine) == kLineBytes);

/// What SlotLine::sequence holds for a tile. Its lowest bit: `payload` holds the offset of the payload in the sender's arena.
constexpr std::uint64_t word_of(std::uint64_t tile, bool by_reference) { return (tile + 1) << 1 | (by_reference ? 1 : 0); }

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "atomics must work between processes");

/// The counters beside the slots. Each has one writer, and each writer has a cache line of its own.
struct RingControl {
  alignas(kLineBytes) std::atomic<std::uint64_t> released;  ///< number of released tiles; written by the receiver
  alignas(kLineBytes)
      std::atomic<std::uint32_t> sender_waits;  ///< 1 while the sender wants a wake-up when a tile is released; written by it
  std::atomic<std::uint32_t> slots;       ///< in use, of those for which there is room; written by the sender before a tile
  std::atomic<std::uint64_t> taken_back;  ///< references of tiles before this one are reclaimed; written by the sender
};
static_assert(sizeof(RingControl) == 2 * kLineBytes);

/// The fewest slots of a ring: with less than two tiles between sender and receiver, Programs could deadlock.
inline constexpr std::size_t kLeastSlots = 2;

/// Sizes of a ring. A value.
struct RingShape {
  std::size_t tile_bytes = 0;
  std::size_t slots = 0;

  [[nodiscard]] constexpr std::size_t slot_bytes() const { return sizeof(SlotLine) + round_up(tile_bytes, kLineBytes); }
  [[nodiscard]] constexpr std::size_t ring_bytes() const { return sizeof(RingControl) + slots * slot_bytes(); }
};

}  // namespace shoal::shm
