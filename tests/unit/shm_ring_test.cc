// The ring between two threads that share one mapping, so that ThreadSanitizer sees both ends.
#include "transports/shm/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

namespace shoal::shm {
namespace {

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

TEST(ShmRing, SmallPayloadSharesTheLineOfItsHeaderAndLargeOnesAreAligned) {
  const RingShape shape{4096, 2};
  EXPECT_EQ(shape.slot_bytes(), 64U + 4096U);
  Memory memory(shape);
  RingSender sender(memory.data(), shape);
  RingReceiver receiver(memory.data(), shape);
  const std::byte data[33] = {};
  ASSERT_TRUE(sender.try_send({0, 0, 0, 32, 0}, std::span(data).first(32)));
  ASSERT_TRUE(sender.try_send({0, 0, 0, 33, 0}, data));
  const auto* small = receiver.peek();
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(small->data.data() - memory.data(), 128 + 32);  // behind the two lines of control words, in the slot's first line
  receiver.release();
  const auto* large = receiver.peek();
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large->data.data()) % kLineBytes, 0U);
}

TEST(ShmRing, FullUntilReleasedAndOnlyAWaitingSenderIsToBeWoken) {
  const RingShape shape{64, 3};
  Memory memory(shape);
  RingSender sender(memory.data(), shape);
  RingReceiver receiver(memory.data(), shape);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(sender.try_send({}, {}));
  ASSERT_NE(receiver.peek(), nullptr);
  EXPECT_FALSE(receiver.release()) << "nobody waits";
  ASSERT_TRUE(sender.try_send({}, {}));
  EXPECT_FALSE(sender.try_send({}, {}));
  EXPECT_FALSE(sender.take_room());
  EXPECT_FALSE(sender.room_before_sleep());
  ASSERT_NE(receiver.peek(), nullptr);
  EXPECT_TRUE(receiver.release()) << "the sender waits";
  EXPECT_TRUE(sender.room_before_sleep());
  EXPECT_TRUE(sender.take_room());
  EXPECT_FALSE(sender.take_room()) << "told once";
  EXPECT_TRUE(sender.try_send({}, {}));
  EXPECT_EQ(sender.sent(), 5U);
}

TEST(ShmRing, NewsIsToldOnceEvenWhereTheTileIsLeftLying) {
  const RingShape shape{64, 4};
  Memory memory(shape);
  RingSender sender(memory.data(), shape);
  RingReceiver receiver(memory.data(), shape);
  EXPECT_FALSE(receiver.news_before_sleep());
  ASSERT_TRUE(sender.try_send({}, {}));
  EXPECT_TRUE(receiver.news_before_sleep());
  EXPECT_TRUE(receiver.take_arrivals());
  EXPECT_FALSE(receiver.take_arrivals());
  EXPECT_TRUE(receiver.news_before_sleep()) << "not shown yet";
  ASSERT_NE(receiver.peek(), nullptr);
  EXPECT_FALSE(receiver.news_before_sleep()) << "shown, so the caller knows";
  ASSERT_TRUE(sender.try_send({}, {}));
  EXPECT_TRUE(receiver.news_before_sleep()) << "another one";
  receiver.release();
  EXPECT_TRUE(receiver.take_arrivals());
  EXPECT_TRUE(receiver.news_before_sleep());
}

TEST(ShmRing, ASizeBeyondTheSlotIsNeverShown) {
  const RingShape shape{64, 2};
  Memory memory(shape);
  RingReceiver receiver(memory.data(), shape);
  SlotLine& slot = RingView(memory.data(), shape).slot(0);
  slot.header.size_bytes = 65;
  slot.sequence.store(1);
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
  RingReceiver receiver(memory.data(), shape);
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
