// What SHOAL_EXPLAIN=1 counts and prints.
#include "src/communicator/call_statistics.h"
#include "tests/mentions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace shoal::internal {
namespace {

using std::chrono::nanoseconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CallMeter, FindsTheMedianOfAnySizeWithinItsBins) {
  // Medians from a nanosecond to twenty minutes; the outliers on both sides must not move them.
  for (double ns = 1; ns < 1.2e12; ns *= 2.7) {
    CallMeter meter;
    for (int i = 0; i < 50; ++i) meter.add(nanoseconds(0), 1);
    for (int i = 0; i < 51; ++i) meter.add(nanoseconds(static_cast<std::int64_t>(ns)), 1);
    for (int i = 0; i < 50; ++i) meter.add(nanoseconds(static_cast<std::int64_t>(ns * 100)), 1);
    EXPECT_EQ(meter.calls(), 151U);
    EXPECT_NEAR(meter.median_us() * 1000, ns, 0.035 * ns + 1) << ns;
  }
}

TEST(CallMeter, StartsEmptyAndAcceptsAnyTime) {
  CallMeter meter;
  EXPECT_EQ(meter.calls(), 0U);
  EXPECT_EQ(meter.median_us(), 0);
  EXPECT_EQ(meter.predicted_us(), 0);
  meter.add(nanoseconds(-5), 2);  // the clock went back
  EXPECT_EQ(meter.median_us(), 0);
  meter.add(nanoseconds::max(), 4);
  meter.add(nanoseconds::max(), 6);
  EXPECT_GT(meter.median_us(), 3.6e9);
  EXPECT_EQ(meter.predicted_us(), 4);
}

TEST(CallStatistics, CallsOfOneKindShareAMeter) {
  CallStatistics statistics;
  CallMeter* meter = statistics.meter(CollectiveKind::all_reduce, 1024, "ring", "model");
  EXPECT_EQ(statistics.meter(CollectiveKind::all_reduce, 1024, "ring", "model"), meter);
  EXPECT_EQ(statistics.meter(CollectiveKind::all_reduce, 2047, "ring", "model"), meter);
  EXPECT_NE(statistics.meter(CollectiveKind::all_reduce, 2048, "ring", "model"), meter);
  EXPECT_NE(statistics.meter(CollectiveKind::all_reduce, 1024, "direct", "model"), meter);
  EXPECT_NE(statistics.meter(CollectiveKind::all_reduce, 1024, "ring", "the call"), meter);
  EXPECT_NE(statistics.meter(CollectiveKind::broadcast, 1024, "ring", "model"), meter);
}

TEST(CallStatistics, PrintsRanCallsWithRatioAndReason) {
  CallStatistics statistics;
  EXPECT_THAT(statistics.text("2 ranks on 1x2 over shm"), ::testing::MatchesRegex(".*2 ranks on 1x2 over shm[^\n]*\n"))
      << "and no table";
  CallMeter* exact = statistics.meter(CollectiveKind::all_reduce, 4 << 20, "hierarchical(ring)", "model");
  for (int i = 0; i < 7; ++i) exact->add(std::chrono::microseconds(300), 200);
  CallMeter* range = statistics.meter(CollectiveKind::broadcast, 5, "tree", "SHOAL_ALGORITHM");
  statistics.meter(CollectiveKind::broadcast, 7, "tree", "SHOAL_ALGORITHM");
  range->add(std::chrono::microseconds(1), 0);
  statistics.meter(CollectiveKind::all_gather, 64, "ring", "model");  // a plan that was never run
  const std::string text = statistics.text("2 ranks on 1x2 over shm");
  EXPECT_THAT(text, HasSubstr("2 ranks on 1x2 over shm"));
  EXPECT_THAT(
      text, ::testing::ContainsRegex("all_reduce +4 MiB +hierarchical.ring. +7 +200.00 +(29|30)[0-9.]+ +1.[45][0-9] +model\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("broadcast +5 .. 7 +tree +1 +0.00 +(0.9|1.0)[0-9]+ +- +SHOAL_ALGORITHM\n"));
  EXPECT_THAT(text, Not(HasSubstr("all_gather")));
  EXPECT_LT(text.find("all_reduce"), text.find("broadcast"));
}

TEST(CallStatistics, CountsCallsBeyondItsCapacity) {
  CallStatistics statistics;
  for (std::size_t i = 0; i < CallStatistics::kEntries; ++i) {
    statistics.meter(CollectiveKind::all_reduce, 4, "algorithm " + std::to_string(i), "model")->add(nanoseconds(10), 1);
  }
  CallMeter* one_too_many = statistics.meter(CollectiveKind::all_reduce, 4, "ring", "model");
  EXPECT_EQ(statistics.meter(CollectiveKind::broadcast, 99, "tree", "model"), one_too_many);
  one_too_many->add(nanoseconds(10), 1);
  one_too_many->add(nanoseconds(10), 1);
  EXPECT_THAT(statistics.text("x"), testing::Mentions("2 calls", std::to_string(CallStatistics::kEntries)));
}

}  // namespace
}  // namespace shoal::internal
