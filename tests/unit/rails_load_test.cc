// What is on its way by a rail, as it is counted.
#include <gtest/gtest.h>

#include "transports/rails/rail_load.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;

constexpr RailLoad::Clock::time_point kStart{milliseconds(1000)};

TEST(RailLoad, WhatHasComeIsSubtractedInTheOrderOfPosting) {
  RailLoad load;
  load.make_room(3);
  load.post(100, kStart);
  load.post(20, kStart);
  load.post(3, kStart);
  EXPECT_EQ(load.bytes(), 123U);
  EXPECT_TRUE(load.come(1, kStart));
  EXPECT_EQ(load.bytes(), 23U);
  load.post(4000, kStart);
  EXPECT_TRUE(load.come(3, kStart));
  EXPECT_EQ(load.bytes(), 4000U);
  EXPECT_TRUE(load.come(4, kStart));
  EXPECT_EQ(load.bytes(), 0U);
}

TEST(RailLoad, WhatWasSaidEarlierOrCannotBeChangesNothing) {
  RailLoad load;
  load.make_room(4);
  for (int i = 0; i < 4; ++i) load.post(10, kStart);
  EXPECT_TRUE(load.come(2, kStart));
  EXPECT_FALSE(load.come(2, kStart));
  EXPECT_FALSE(load.come(1, kStart)) << "overtaken by another packet";
  EXPECT_FALSE(load.come(5, kStart)) << "more than was sent";
  EXPECT_EQ(load.bytes(), 20U);
  load.drop();
  EXPECT_EQ(load.bytes(), 0U);
  EXPECT_FALSE(load.come(3, kStart));
}

TEST(RailLoad, TheSpeedIsThatOfTimesWithALoadAndIsForgottenAfterOnesWithout) {
  RailLoad load;
  load.make_room(16);
  auto now = kStart;
  std::uint32_t come = 0;
  EXPECT_EQ(load.bytes_per_us(), 0);
  EXPECT_DOUBLE_EQ(load.arrival_us(500, 50), 10) << "as fast as another until it is measured";
  for (int i = 0; i < 8; ++i) load.post(100'000, now);
  for (int i = 0; i < 100; ++i) {
    load.post(100'000, now);
    load.come(++come, now += milliseconds(1));
  }
  EXPECT_NEAR(load.bytes_per_us(), 100, 1);
  EXPECT_NEAR(load.arrival_us(0, 1), 8000, 100);
  load.come(come += 8, now);
  EXPECT_EQ(load.bytes(), 0U);
  load.forget_speed_of_idle(now + milliseconds(100));
  EXPECT_GT(load.bytes_per_us(), 0);
  load.forget_speed_of_idle(now + milliseconds(300));
  EXPECT_EQ(load.bytes_per_us(), 0);
}

TEST(RailLoad, CountsGoRound) {
  RailLoad load;
  load.make_room(2);
  for (std::uint64_t i = 1; i < 100'000; ++i) {
    load.post(static_cast<std::uint32_t>(i), kStart);
    ASSERT_TRUE(load.come(static_cast<std::uint32_t>(i), kStart));
    ASSERT_EQ(load.bytes(), 0U);
  }
}

}  // namespace
}  // namespace shoal::rails
