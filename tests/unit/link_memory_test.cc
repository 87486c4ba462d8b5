// How much memory links take: slots of rings, sizes of tiles, and rings of fewer slots than they have room for.
#include "transports/shm/link_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include <shoal/limits.h>

#include "src/communicator/link_room.h"
#include "transports/shm/ring.h"

namespace shoal::shm {
namespace {

constexpr RingShape kShape{64 << 10, 16};
constexpr RingShape kLeast{kShape.tile_bytes, kLeastSlots};

std::vector<std::size_t> slots_of(LinkMemory& memory, int rings) {
  std::vector<std::size_t> slots;
  for (int ring = 0; ring < rings; ++ring) slots.push_back(memory.start_ring());
  return slots;
}

TEST(LinkMemory, GivesAllSlotsWithinTheLimit) {
  LinkMemory memory(3 * kShape.ring_bytes(), 3, kShape);
  EXPECT_EQ(memory.most_bytes(), 3 * kShape.ring_bytes());
  EXPECT_EQ(memory.used_bytes(), 0U);
  EXPECT_EQ(slots_of(memory, 3), std::vector<std::size_t>(3, 16));
  EXPECT_EQ(memory.used_bytes(), 3 * kShape.ring_bytes());
}

TEST(LinkMemory, KeepsTwoSlotsForEachOtherRing) {
  constexpr std::size_t kLimit = 2 * kShape.ring_bytes() + 3 * kLeast.ring_bytes();
  LinkMemory memory(kLimit, 5, kShape);
  EXPECT_EQ(slots_of(memory, 5), (std::vector<std::size_t>{16, 16, 2, 2, 2}));
  EXPECT_EQ(memory.used_bytes(), kLimit);
  EXPECT_EQ(memory.most_bytes(), kLimit);
}

TEST(LinkMemory, GivesTwoSlotsBeyondTheLimit) {
  LinkMemory memory(1, 4, kShape);
  EXPECT_EQ(memory.most_bytes(), 4 * kLeast.ring_bytes());
  EXPECT_EQ(slots_of(memory, 4), std::vector<std::size_t>(4, 2));
  EXPECT_EQ(memory.used_bytes(), memory.most_bytes());
}

TEST(LinkMemory, NoNumberOfRingsExceedsTheLimit) {
  constexpr std::size_t kLimit = std::size_t{256} << 20;
  for (const int ranks : {2, 17, 64, 65, 256, 1024, 1025, 2048, kMaxHostRanks}) {
    const auto peers = static_cast<std::size_t>(ranks - 1);
    const std::size_t tile = tile_that_fits(64 << 10, static_cast<std::size_t>(ranks), kLimit);
    EXPECT_EQ(tile, ranks <= 2048 ? 64U << 10 : 32U << 10) << ranks;
    LinkMemory memory(kLimit, peers, {tile, static_cast<std::size_t>(ring_slots(peers))});
    const auto slots = slots_of(memory, ranks - 1);
    EXPECT_LE(memory.used_bytes(), memory.most_bytes());
    // Beside the payloads, a ring has a line for each slot, and two for itself.
    EXPECT_LE(memory.used_bytes(), kLimit + peers * 4 * kLineBytes);
    EXPECT_EQ(slots.front(), ranks <= 1025 ? static_cast<std::size_t>(ring_slots(peers)) : 2) << ranks;
  }
}

TEST(LinkMemory, TilesShrinkToPagesAtMost) {
  EXPECT_EQ(tile_that_fits(64 << 10, 1, 1), 64U << 10) << "no peers";
  EXPECT_EQ(tile_that_fits(64 << 10, 2, kLeastLinkMemory), 64U << 10);
  EXPECT_EQ(tile_that_fits(64 << 10, 9, kLeastLinkMemory), 64U << 10);
  EXPECT_EQ(tile_that_fits(64 << 10, 10, kLeastLinkMemory), 32U << 10);
  EXPECT_EQ(tile_that_fits(12 << 10, 100, kLeastLinkMemory), 4U << 10) << "whole pages";
  EXPECT_EQ(tile_that_fits(64 << 10, kMaxHostRanks, kLeastLinkMemory), kLeastTileBytes);
}

TEST(LinkMemory, LargestHostCounts) {
  EXPECT_EQ(most_ranks_of_a_node(Topology::uniform(3, 4)), 4U);
  EXPECT_EQ(most_ranks_of_a_node(Topology::ragged({1, 7, 2})), 7U);
}

/// Memory of a ring of small tiles.
struct RingMemory {
  struct alignas(kLineBytes) Line {
    std::byte bytes[kLineBytes];
  };
  RingShape shape{128, 5};
  std::unique_ptr<Line[]> lines = std::make_unique<Line[]>(shape.ring_bytes() / kLineBytes);
  [[nodiscard]] std::byte* data() const { return lines[0].bytes; }
};

TEST(LinkMemory, RingUsesTheSlotsThatItsSenderSays) {
  const RingMemory memory;
  LinkMemory limit(1, 1, memory.shape);
  ArenaView no_arena;
  RingSender sender(memory.data(), memory.shape, &limit);
  RingReceiver receiver(memory.data(), memory.shape, no_arena);
  std::array<std::byte, 128> data{};
  const auto send = [&](std::byte value) {
    data.fill(value);
    return sender.try_send({0, 0, 0, 128, 0}, data);
  };
  int number = 0;
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(send(static_cast<std::byte>(number)));
    ASSERT_TRUE(send(static_cast<std::byte>(number + 1)));
    EXPECT_FALSE(send(std::byte{255})) << "two slots";
    EXPECT_EQ(receiver.take_arrivals(), true);
    for (int tile = 0; tile < 2; ++tile, ++number) {
      const Arrival* arrival = receiver.peek();
      ASSERT_NE(arrival, nullptr);
      EXPECT_EQ(arrival->data[127], static_cast<std::byte>(number));
      receiver.release();
    }
    EXPECT_EQ(receiver.peek(), nullptr);
  }
  for (std::size_t line = (sizeof(RingControl) + 2 * memory.shape.slot_bytes()) / kLineBytes;
       line < memory.shape.ring_bytes() / kLineBytes; ++line) {
    for (const std::byte byte : memory.lines[line].bytes) ASSERT_EQ(byte, std::byte{0}) << "memory beyond the two slots";
  }
}

TEST(LinkMemory, WrongNumberOfSlotsBreaksTheRing) {
  for (const std::uint32_t slots : {0U, 1U, 6U, ~0U}) {
    const RingMemory memory;
    ArenaView no_arena;
    RingSender sender(memory.data(), memory.shape);
    RingReceiver receiver(memory.data(), memory.shape, no_arena);
    ASSERT_TRUE(sender.try_send({}, {}));
    RingView(memory.data(), memory.shape, 5).control().slots.store(slots);
    EXPECT_TRUE(receiver.take_arrivals());
    EXPECT_EQ(receiver.peek(), nullptr);
    EXPECT_TRUE(receiver.broken()) << slots;
    EXPECT_FALSE(receiver.take_arrivals());
  }
}

}  // namespace
}  // namespace shoal::shm
