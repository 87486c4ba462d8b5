// The two ways of copying into a ring and the choice between them.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "transports/shm/copy_choice.h"
#include "transports/shm/ring.h"
#include "transports/shm/streaming_copy.h"

namespace shoal::shm {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

TEST(ShmCopy, StreamingCopiesEverySizeAndNothingBeyond) {
  constexpr std::size_t kMost = 3000;
  std::vector<std::byte> source(kMost + 1);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  const auto lines = std::make_unique<Line[]>(kMost / sizeof(Line) + 2);
  std::byte* target = lines[0].bytes;
  for (std::size_t size = 0; size <= kMost; size = size < 600 ? size + 1 : size + 97) {
    std::memset(target, 0, kMost + 64);
    streaming_copy(target, source.data() + 1, size);  // sources need no alignment
    ASSERT_EQ(std::memcmp(target, source.data() + 1, size), 0) << size;
    ASSERT_EQ(target[size], std::byte{0}) << size;
  }
}

/// Runs whole rounds with the given costs; how many tiles went each way outside of the timed ones.
struct Counts {
  int cached = 0;
  int streaming = 0;
  int timed = 0;
};
Counts drive(CopyChoice& choice, int tiles, double cached_cost, double streaming_cost) {
  Counts counts;
  for (int i = 0; i < tiles; ++i) {
    const CopyChoice::Order order = choice.next();
    if (order.timed) {
      ++counts.timed;
      choice.record(order.way == CopyWay::cached ? cached_cost : streaming_cost);
    } else {
      ++(order.way == CopyWay::cached ? counts.cached : counts.streaming);
    }
  }
  return counts;
}

TEST(ShmCopyChoice, WarmUpIsNeitherTimedNorStreamed) {
  CopyChoice choice(16);
  const Counts counts = drive(choice, 16, 5, 1);
  EXPECT_EQ(counts.cached, 16);
  EXPECT_TRUE(choice.next().timed);
}

TEST(ShmCopyChoice, FollowsTheCheaperWayWhenItChanges) {
  CopyChoice choice;
  drive(choice, 100, 1, 1.5);
  EXPECT_EQ(choice.chosen(), CopyWay::cached);
  drive(choice, 600, 3, 1.5);
  EXPECT_EQ(choice.chosen(), CopyWay::streaming);
  drive(choice, 600, 1, 1.5);
  EXPECT_EQ(choice.chosen(), CopyWay::cached);
}

TEST(ShmCopyChoice, NearEqualCostsStayCached) {
  CopyChoice choice;
  drive(choice, 2000, 1.03, 1);
  EXPECT_EQ(choice.chosen(), CopyWay::cached);
}

TEST(ShmCopyChoice, OneInterruptedCopyChangesNothing) {
  CopyChoice choice;
  for (int i = 0, timed = 0; i < 3000; ++i) {
    const CopyChoice::Order order = choice.next();
    if (!order.timed) continue;
    const double usual = order.way == CopyWay::cached ? 1 : 2;
    choice.record(timed++ % 3 == 0 ? 1000 : usual);
    ASSERT_EQ(choice.chosen(), CopyWay::cached);
  }
}

TEST(ShmCopyChoice, TimingBecomesRareWhileTheChoiceHolds) {
  CopyChoice choice;
  drive(choice, 2000, 1, 2);
  EXPECT_LT(drive(choice, 2640, 1, 2).timed, 2640 / 20);
}

TEST(ShmCopyChoice, RingCarriesTheSameBytesWhateverTheWay) {
  const RingShape shape{8192, 2};
  const auto lines = std::make_unique<Line[]>(shape.ring_bytes() / sizeof(Line));
  RingSender sender(lines[0].bytes, shape);
  RingReceiver receiver(lines[0].bytes, shape);
  std::vector<std::byte> data(8192);
  for (std::size_t n = 0; n < 300; ++n) {  // several rounds: both ways are taken
    const std::size_t size = n % 2 == 0 ? data.size() : kStreamFromBytes + n;
    for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 13 + n);
    ASSERT_TRUE(sender.try_send({0, 0, 0, static_cast<std::uint32_t>(size), 0}, std::span(data).first(size)));
    const Arrival* arrival = receiver.peek();
    ASSERT_NE(arrival, nullptr);
    ASSERT_EQ(arrival->data.size(), size);
    ASSERT_EQ(std::memcmp(arrival->data.data(), data.data(), size), 0) << n;
    receiver.release();
  }
}

}  // namespace
}  // namespace shoal::shm
