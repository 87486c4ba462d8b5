// Ranks that leave while tiles are in flight over rails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <vector>

#include "tests/mentions.h"
#include "tests/unit/rails_support.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::completes_within;
using testing::Faults;
using testing::MemoryRailOptions;
using testing::Pair;

/// Rank 0 of two sends tiles over two rails and leaves at once.
class Leaving {
 public:
  explicit Leaving(bool written, const Faults& faults = {}) : pair_(rails(written), faults) {
    pair_.open_and_connect();
    const std::vector<std::byte> data(kBytes, std::byte{9});
    while (pair_.links[0]->try_send({0, sent_, 0, kBytes, 0}, data)) ++sent_;
    EXPECT_GE(sent_, 4U);
  }
  /// Returns how long that takes. `receives`: rank 1 makes progress meanwhile.
  milliseconds leave(bool receives = true) {
    const auto start = std::chrono::steady_clock::now();
    const auto left = std::async(std::launch::async, [&] {
      pair_.links[0].reset();
      pair_.ends[0].reset();
      return std::chrono::steady_clock::now();
    });
    while (left.wait_for(milliseconds(0)) != std::future_status::ready) {
      if (receives) receive();
    }
    const auto end = std::chrono::steady_clock::now();
    while (pair_.links[1]->status().ok() && std::chrono::steady_clock::now() - end < seconds(10)) receive();
    return std::chrono::duration_cast<milliseconds>(end - start);
  }
  [[nodiscard]] Link& other() { return *pair_.links[1]; }
  [[nodiscard]] std::uint32_t sent() const { return sent_; }
  [[nodiscard]] std::uint32_t received() const { return received_; }
  void receive() {
    pair_.ends[1]->progress();
    while (const Arrival* arrival = pair_.links[1]->peek()) {
      EXPECT_EQ(arrival->header.sequence, received_);
      EXPECT_EQ(std::ranges::count(arrival->data, std::byte{9}), kBytes);
      pair_.links[1]->release();
      ++received_;
    }
  }

  static MemoryRailOptions rails(bool written) {
    MemoryRailOptions rails;
    rails.rails = 2;
    rails.writes = written;
    return rails;
  }

 private:
  static constexpr std::uint32_t kBytes = 4000;
  Pair pair_;
  std::uint32_t sent_ = 0;
  std::uint32_t received_ = 0;
};

class RailsLeaving : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, RailsLeaving, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "written" : "sent"); });

// The card reports all operations as completed.
TEST_P(RailsLeaving, TilesThatASilentRailLostAreRetransmitted) {
  Faults faults;
  faults.dying_rail = 1;
  faults.swallows = true;
  EXPECT_TRUE(completes_within(seconds(4), [&] {
    Leaving rank(GetParam(), faults);
    const milliseconds passed = rank.leave();
    EXPECT_EQ(rank.received(), rank.sent());
    EXPECT_THAT(rank.other().status().message(), shoal::testing::Mentions("rank 0", "closed"));
    return passed;
  }));
}

TEST_P(RailsLeaving, EndsAtOnceIfThePeerMakesProgress) {
  EXPECT_TRUE(completes_within(milliseconds(300), [] {
    Leaving rank(GetParam());
    const milliseconds passed = rank.leave();
    EXPECT_EQ(rank.received(), rank.sent());
    return passed;
  }));
}

TEST_P(RailsLeaving, EndsAtOnceIfBothLeave) {
  EXPECT_TRUE(completes_within(milliseconds(300), [] {
    std::optional<Pair> pair(Leaving::rails(GetParam()));
    pair->open_and_connect();
    pair->send(21, 4000);
    const auto start = std::chrono::steady_clock::now();
    pair.reset();
    return std::chrono::steady_clock::now() - start;
  }));
}

TEST_P(RailsLeaving, EndsAtOnceIfThePeerHasLeft) {
  EXPECT_TRUE(completes_within(milliseconds(100), [] {
    Pair pair(Leaving::rails(GetParam()));
    pair.open_and_connect();
    pair.ends[1].reset();
    const std::vector<std::byte> data(4000);
    static_cast<void>(pair.links[0]->try_send({0, 0, 0, 4000, 0}, data));
    EXPECT_TRUE(pair.until([&] { return !pair.links[0]->status().ok(); }));
    const auto start = std::chrono::steady_clock::now();
    pair.ends[0].reset();
    return std::chrono::steady_clock::now() - start;
  }));
}

TEST_P(RailsLeaving, WaitsBrieflyForAPeerThatMakesNoProgress) {
  EXPECT_TRUE(completes_within(milliseconds(1500), [] {
    Leaving rank(GetParam());
    const milliseconds passed = rank.leave(false);
    EXPECT_EQ(rank.received(), rank.sent());
    return passed;
  }));
}

}  // namespace
}  // namespace shoal::rails
