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

ArenaView empty_arena;

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

TEST(ShmCopyChoice, FollowsTheDistanceWhenItChanges) {
  CopyChoice choice;
  EXPECT_EQ(choice.chosen(), CopyWay::cached);
  const auto rounds = [&](double fetch_ns) {
    for (int i = 0; i < 2 * CopyChoice::kSamples; ++i) choice.record(fetch_ns);
    return choice.chosen();
  };
  EXPECT_EQ(rounds(45), CopyWay::cached);
  EXPECT_EQ(rounds(150), CopyWay::streaming);
  EXPECT_EQ(rounds(45), CopyWay::cached);
}

TEST(ShmCopyChoice, IgnoresFewOutliers) {
  CopyChoice near;
  CopyChoice far;
  for (int i = 0; i < 1000; ++i) {
    const bool odd = i % CopyChoice::kSamples < CopyChoice::kSamples / 2;
    near.record(odd ? 5000 : 45);  // interrupted
    far.record(odd ? 0 : 150);     // prefetched
    if (i < CopyChoice::kSamples) continue;
    ASSERT_EQ(near.chosen(), CopyWay::cached);
    ASSERT_EQ(far.chosen(), CopyWay::streaming);
  }
}

TEST(ShmCopyChoice, RingCarriesBytesOfAnySize) {
  const RingShape shape{8192, 2};
  const auto lines = std::make_unique<Line[]>(shape.ring_bytes() / sizeof(Line));
  RingSender sender(lines[0].bytes, shape);
  RingReceiver receiver(lines[0].bytes, shape, empty_arena);
  std::vector<std::byte> data(8192);
  for (std::size_t n = 0; n < 300; ++n) {  // several rounds, so that both ways are chosen
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
