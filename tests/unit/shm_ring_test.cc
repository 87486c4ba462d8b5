// The ring between two threads that share one mapping, so that ThreadSanitizer checks both ends.
#include "transports/shm/ring.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <memory>
#include <thread>

namespace shoal::shm {
namespace {

ArenaView no_arena;

class Memory {
 public:
  explicit Memory(RingShape shape) : lines_(std::make_unique<Line[]>(shape.ring_bytes() / kLineBytes)) {}
  std::byte* data() { return lines_[0].bytes; }

 private:
  struct alignas(kLineBytes) Line {
    std::byte bytes[kLineBytes];
  };
  std::unique_ptr<Line[]> lines_;
};

TEST(ShmRing, InlinesSmallPayloadsAndAlignsLargeOnes) {
  const RingShape shape{4096, 2};
  EXPECT_EQ(shape.slot_bytes(), 64U + 4096U);
  Memory memory(shape);
  RingSender sender(memory.data(), shape);
  RingReceiver receiver(memory.data(), shape, no_arena);
  const std::byte data[33] = {};
  ASSERT_TRUE(sender.try_send({0, 0, 0, 32, 0}, std::span(data).first(32)));
  ASSERT_TRUE(sender.try_send({0, 0, 0, 33, 0}, data));
  const auto* small = receiver.peek();
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(small->data.data() - memory.data(), 128 + 32);  // after the two control lines, in the first line of the slot
  receiver.release();
  const auto* large = receiver.peek();
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large->data.data()) % kLineBytes, 0U);
}

TEST(ShmRing, ReleaseWakesWaitingSenderOnly) {
  const RingShape shape{64, 3};
  Memory memory(shape);
  RingSender sender(memory.data(), shape);
  RingReceiver receiver(memory.data(), shape, no_arena);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(sender.try_send({}, {}));
  ASSERT_NE(receiver.peek(), nullptr);
  EXPECT_FALSE(receiver.release()) << "no sender waits";
  ASSERT_TRUE(sender.try_send({}, {}));
  EXPECT_FALSE(sender.try_send({}, {}));
  EXPECT_FALSE(sender.take_releases());
  EXPECT_FALSE(sender.releases_before_sleep());
  ASSERT_NE(receiver.peek(), nullptr);
  EXPECT_TRUE(receiver.release()) << "the sender waits";
  EXPECT_TRUE(sender.releases_before_sleep());
  EXPECT_TRUE(sender.take_releases());
  EXPECT_FALSE(sender.take_releases()) << "reported once";
  EXPECT_TRUE(sender.try_send({}, {}));
  EXPECT_EQ(sender.sent(), 5U);
}

TEST(ShmRing, TilesByReferenceNeedTheirMemoryUntilReleased) {
  Arena* arena = Arena::instance();
  ASSERT_NE(arena, nullptr);
  const Result<void*> piece = arena->allocate(8192);
  ASSERT_TRUE(piece.ok());
  const std::span data(static_cast<std::byte*>(*piece), 8192);
  data[4096] = std::byte{7};
  Descriptor reserve;
  ArenaView view(arena->file(), reserve);
  const RingShape shape{4096, 4};
  Memory memory(shape);
  RingSender sender(memory.data(), shape);
  RingReceiver receiver(memory.data(), shape, view);
  ASSERT_TRUE(sender.try_send({0, 0, 0, 4, 0}, data.first(4)));  // copied: its memory is free at once
  ASSERT_TRUE(sender.try_send({0, 0, 1, 4096, 0}, data.subspan(4096), arena->offset_of(data.data() + 4096, 4096)));
  ASSERT_TRUE(sender.try_send({0, 0, 2, 4, 0}, data.first(4)));
  EXPECT_EQ(sender.sent(), 1U);
  EXPECT_FALSE(sender.take_releases());
  ASSERT_NE(receiver.peek(), nullptr);
  EXPECT_TRUE(receiver.release()) << "the sender waits for the reference";
  static_cast<void>(sender.take_releases());
  EXPECT_EQ(sender.sent(), 1U) << "the reference is still in use";
  const Arrival* referred = receiver.peek();
  ASSERT_NE(referred, nullptr);
  EXPECT_EQ(referred->data[0], std::byte{7});
  data[4096] = std::byte{8};
  EXPECT_EQ(referred->data[0], std::byte{8}) << "not a copy";
  EXPECT_TRUE(receiver.release());
  EXPECT_TRUE(sender.releases_before_sleep());
  EXPECT_TRUE(sender.take_releases());
  EXPECT_EQ(sender.sent(), 3U) << "the copied tile behind the reference is counted too";
  ASSERT_NE(receiver.peek(), nullptr);
  EXPECT_FALSE(receiver.release()) << "the sender no longer waits";
  EXPECT_TRUE(arena->free(*piece).ok());
}

TEST(ShmRing, ReferenceOutsideArenaBreaksRing) {
  const RingShape shape{4096, 4};
  Memory memory(shape);
  RingSender sender(memory.data(), shape);
  RingReceiver receiver(memory.data(), shape, no_arena);
  const std::byte data[64] = {};
  ASSERT_TRUE(sender.try_send({0, 0, 0, 64, 0}, data, 4096));
  EXPECT_EQ(receiver.peek(), nullptr);
  EXPECT_TRUE(receiver.broken());
}

TEST(ShmRing, ReportsEachArrivalOnce) {
  const RingShape shape{64, 4};
  Memory memory(shape);
  RingSender sender(memory.data(), shape);
  RingReceiver receiver(memory.data(), shape, no_arena);
  EXPECT_FALSE(receiver.news_before_sleep());
  ASSERT_TRUE(sender.try_send({}, {}));
  EXPECT_TRUE(receiver.news_before_sleep());
  EXPECT_TRUE(receiver.take_arrivals());
  EXPECT_FALSE(receiver.take_arrivals());
  EXPECT_TRUE(receiver.news_before_sleep()) << "not returned by peek() yet";
  ASSERT_NE(receiver.peek(), nullptr);
  EXPECT_FALSE(receiver.news_before_sleep()) << "already returned by peek()";
  ASSERT_TRUE(sender.try_send({}, {}));
  EXPECT_TRUE(receiver.news_before_sleep()) << "a second tile";
  receiver.release();
  EXPECT_TRUE(receiver.take_arrivals());
  EXPECT_TRUE(receiver.news_before_sleep());
}

TEST(ShmRing, OversizedTileIsNeverReturned) {
  const RingShape shape{64, 2};
  Memory memory(shape);
  RingReceiver receiver(memory.data(), shape, no_arena);
  SlotLine& slot = RingView(memory.data(), shape, 2).slot(0);
  slot.header.size_bytes = 65;
  slot.sequence.store(word_of(0, false));
  EXPECT_EQ(receiver.peek(), nullptr);
  EXPECT_TRUE(receiver.broken());
}

TEST(ShmRing, TwoThreadsPassManyTiles) {
  const RingShape shape{200, 3};
  Memory memory(shape);
  constexpr std::uint32_t kTiles = 50'000;
  std::thread other([&] {
    RingSender sender(memory.data(), shape);
    std::byte data[200];
    for (std::uint32_t i = 0; i < kTiles; ++i) {
      const std::uint32_t size = i * 7 % 201;
      std::memset(data, static_cast<int>(i % 251), size);
      while (!sender.try_send({0, i, 0, size, 0}, std::span(data).first(size))) std::this_thread::yield();
    }
  });
  RingReceiver receiver(memory.data(), shape, no_arena);
  std::uint32_t wrong = 0;
  for (std::uint32_t i = 0; i < kTiles; ++i) {
    const Arrival* arrival;
    while ((arrival = receiver.peek()) == nullptr) std::this_thread::yield();
    if (arrival->header.sequence != i || arrival->data.size() != i * 7 % 201) ++wrong;
    for (const std::byte byte : arrival->data) wrong += byte != static_cast<std::byte>(i % 251);
    receiver.release();
  }
  other.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(receiver.peek(), nullptr);
}

}  // namespace
}  // namespace shoal::shm
