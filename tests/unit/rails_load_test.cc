// What is on its way by a rail, as it is counted.
#include <gtest/gtest.h>

#include "transports/rails/rail_load.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;

constexpr RailLoad::Clock::time_point kStart{milliseconds(1000)};

TEST(RailLoad, ArrivalsAreSubtractedInPostingOrder) {
  RailLoad load;
  load.reserve(3);
  load.post(100, kStart);
  load.post(20, kStart);
  load.post(3, kStart);
  EXPECT_EQ(load.bytes(), 123U);
  EXPECT_TRUE(load.on_report(1, 0, kStart));
  EXPECT_EQ(load.bytes(), 23U);
  load.post(4000, kStart);
  EXPECT_TRUE(load.on_report(3, 0, kStart));
  EXPECT_EQ(load.bytes(), 4000U);
  EXPECT_TRUE(load.on_report(4, 0, kStart));
  EXPECT_EQ(load.bytes(), 0U);
}

TEST(RailLoad, StaleOrImpossibleReportsChangeNothing) {
  RailLoad load;
  load.reserve(4);
  for (int i = 0; i < 4; ++i) load.post(10, kStart);
  EXPECT_TRUE(load.on_report(2, 0, kStart));
  EXPECT_FALSE(load.on_report(2, 0, kStart));
  EXPECT_FALSE(load.on_report(1, 0, kStart)) << "overtaken by another packet";
  EXPECT_FALSE(load.on_report(5, 0, kStart)) << "more than was sent";
  EXPECT_EQ(load.bytes(), 20U);
  load.drop();
  EXPECT_EQ(load.bytes(), 0U);
  EXPECT_FALSE(load.on_report(3, 0, kStart));
}

// Its words are late and come together; its clock, which goes round, says when it was.
TEST(RailLoad, SpeedUsesThePeersClockAndExpiresWhenIdle) {
  RailLoad load;
  load.reserve(64);
  std::uint32_t come = 0;
  std::uint32_t their_us = ~std::uint32_t{0} - 20'000;
  EXPECT_EQ(load.bytes_per_us(), 0);
  EXPECT_DOUBLE_EQ(load.arrival_us(500, 50), 10) << "as fast as another until it is measured";
  for (int i = 0; i < 40; ++i) load.post(100'000, kStart);
  auto now = kStart;
  for (int i = 1; i <= 100; ++i) {
    load.post(100'000, kStart);
    ++come;
    their_us += 1000;
    if (i % 10 != 0) continue;
    now += milliseconds(10);
    for (std::uint32_t back = 10; back-- > 0;) load.on_report(come - back, their_us - back * 1000, now);
  }
  EXPECT_NEAR(load.bytes_per_us(), 100, 1);
  EXPECT_NEAR(load.arrival_us(0, 1), 40'000, 500);
  load.on_report(come += 40, their_us, now);
  EXPECT_EQ(load.bytes(), 0U);
  load.forget_rate_of_idle(now + milliseconds(100));
  EXPECT_GT(load.bytes_per_us(), 0);
  load.forget_rate_of_idle(now + milliseconds(300));
  EXPECT_EQ(load.bytes_per_us(), 0);
}

// To take it for as fast as the best would put half of all that is under way behind it.
TEST(RailLoad, SlowRailIsRetriedOnePieceAtATime) {
  RailLoad load;
  load.reserve(64);
  std::uint32_t come = 0;
  for (int i = 0; i < 10; ++i) load.post(100'000, kStart);
  while (load.bytes() != 0) {
    ++come;
    load.on_report(come, come * 20'000, kStart);
  }
  EXPECT_NEAR(load.bytes_per_us(), 5, 0.1);
  auto now = kStart + milliseconds(300);
  load.forget_rate_of_idle(now);
  EXPECT_DOUBLE_EQ(load.arrival_us(100'000, 50), 2000) << "the first";
  load.post(100'000, now);
  EXPECT_NEAR(load.arrival_us(100'000, 50), 40'000, 500) << "the second";
  load.on_report(++come, 0, now += milliseconds(20));
  load.post(100'000, now);
  EXPECT_NEAR(load.arrival_us(100'000, 50), 40'000, 500) << "it is as slow as ever";
  load.on_report(++come, 0, now += milliseconds(4));
  load.post(100'000, now);
  EXPECT_NEAR(load.arrival_us(100'000, 50), 8'000, 100) << "it has become faster";
}

// A rail that gets little looks slow, and would get even less.
TEST(RailLoad, LowLoadDoesNotLowerTheSpeed) {
  RailLoad load;
  load.reserve(64);
  std::uint32_t come = 0;
  std::uint32_t their_us = 0;
  load.post(100'000, kStart);
  const auto bring = [&](std::uint32_t after_us) {
    load.post(100'000, kStart);  // one stays on its way
    load.on_report(++come, their_us += after_us, kStart);
  };
  for (int i = 0; i < 40; ++i) bring(1000);
  EXPECT_NEAR(load.bytes_per_us(), 100, 1);
  for (int i = 0; i < 40; ++i) bring(i % 16 < 8 ? 1000 : 4000);
  EXPECT_GT(load.bytes_per_us(), 80);
  for (int i = 0; i < 40; ++i) bring(4000);
  EXPECT_NEAR(load.bytes_per_us(), 25, 1) << "but where it is always slow, it is";
}

TEST(RailLoad, CountsWrap) {
  RailLoad load;
  load.reserve(2);
  for (std::uint64_t i = 1; i < 100'000; ++i) {
    load.post(static_cast<std::uint32_t>(i), kStart);
    ASSERT_TRUE(load.on_report(static_cast<std::uint32_t>(i), 0, kStart));
    ASSERT_EQ(load.bytes(), 0U);
  }
}

}  // namespace
}  // namespace shoal::rails
