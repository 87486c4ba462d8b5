// RailSelector and RailLiveness: which rail is used, and when a silent one is closed, by a clock that the test moves.
#include <gtest/gtest.h>

#include "transports/rails/rail_liveness.h"
#include "transports/rails/rail_selector.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;

class RailsLiveness : public ::testing::Test {
 protected:
  RailsLiveness() { rails_.prepare(3, 8); }
  void post(std::size_t rail) {
    liveness_.on_posted(rail, rails_.load(rail).bytes() == 0, now_);
    rails_.load(rail).post(1000, now_);
  }
  RailLiveness::Verdict check_after(milliseconds passed) { return liveness_.check(now_ += passed, rails_); }

  RailSelector rails_;
  RailLiveness liveness_;
  RailLiveness::Clock::time_point now_{std::chrono::hours(1)};
};

TEST_F(RailsLiveness, PiecesGoToTheRailWithTheLeastLoad) {
  EXPECT_EQ(rails_.choose(1000, 0), 0);
  post(0);
  EXPECT_EQ(rails_.choose(1000, 0), 1);
  EXPECT_EQ(rails_.choose(1000, mask_of(1)), 2);
  EXPECT_EQ(rails_.choose(1000, mask_of(1) | mask_of(2)), 0);
  EXPECT_EQ(rails_.choose(1000, 7), -1);
  EXPECT_EQ(rails_.soonest(0, 7), 1U);
  EXPECT_EQ(rails_.soonest(0, mask_of(0)), 0U);
}

TEST_F(RailsLiveness, LostRailsAreNotUsed) {
  post(1);
  rails_.lose(1);
  EXPECT_EQ(rails_.load(1).bytes(), 0U);
  EXPECT_EQ(rails_.usable(), 5U);
  EXPECT_EQ(rails_.count_usable(), 2U);
  EXPECT_EQ(rails_.choose(1000, mask_of(0)), 2);
  EXPECT_EQ(rails_.next_usable(1, 0), 2);
  EXPECT_EQ(rails_.next_usable(1, mask_of(2)), 0);
  EXPECT_EQ(rails_.next_usable(1, mask_of(2) | mask_of(0)), -1);
  EXPECT_FALSE(rails_.slots_are_safe());
  rails_.on_lost_by_peer(1);
  EXPECT_TRUE(rails_.slots_are_safe());
}

TEST_F(RailsLiveness, IdleRailsAreNotWatched) {
  EXPECT_FALSE(check_after(milliseconds(5000)).waits);
  post(0);
  EXPECT_TRUE(check_after(milliseconds(400)).waits);
  liveness_.on_completed(0, now_);
  EXPECT_TRUE(check_after(milliseconds(400)).waits) << "a completion does not prove an arrival";
  EXPECT_TRUE(rails_.load(0).on_report(1, 0, now_));
  EXPECT_FALSE(check_after(milliseconds(400)).waits);
}

TEST_F(RailsLiveness, SilentRailIsProbedThenClosedIfThePeerAnswers) {
  post(1);
  EXPECT_FALSE(check_after(milliseconds(499)).overdue);
  const RailLiveness::Verdict verdict = check_after(milliseconds(1));
  EXPECT_TRUE(verdict.overdue);
  EXPECT_EQ(verdict.probe, mask_of(0) | mask_of(2));
  EXPECT_FALSE(check_after(milliseconds(5000)).silent) << "the peer does not answer on any rail";
  liveness_.on_received(2, now_);
  const RailLiveness::Verdict closed = check_after(milliseconds(0));
  ASSERT_TRUE(closed.silent);
  EXPECT_EQ(*closed.silent, 1U);
  EXPECT_EQ(closed.silence, milliseconds(5500));
}

TEST_F(RailsLiveness, RailIsKeptUntilLostAfterHasPassed) {
  post(1);
  now_ += milliseconds(501);
  liveness_.on_received(0, now_);
  EXPECT_FALSE(check_after(milliseconds(998)).silent);
  EXPECT_TRUE(check_after(milliseconds(1)).silent);
}

TEST_F(RailsLiveness, AnswersOnTheSameRailOrBeforeTheProbeDoNotCloseIt) {
  post(1);
  now_ += milliseconds(400);
  liveness_.on_received(0, now_);
  liveness_.on_received(1, now_ + milliseconds(200));
  EXPECT_FALSE(check_after(milliseconds(2000)).silent);
}

TEST_F(RailsLiveness, ArrivalsStartTheWaitAnew) {
  post(1);
  post(1);
  now_ += milliseconds(400);
  EXPECT_TRUE(rails_.load(1).on_report(1, 0, now_));
  liveness_.on_arrivals(1, now_);
  EXPECT_FALSE(check_after(milliseconds(499)).overdue);
  EXPECT_TRUE(check_after(milliseconds(1)).overdue);
}

TEST_F(RailsLiveness, ControlRecordsAreWatchedToo) {
  liveness_.on_control_posted(2, now_);
  EXPECT_TRUE(check_after(milliseconds(500)).overdue);
  liveness_.on_control_ended(2);
  EXPECT_FALSE(check_after(milliseconds(0)).waits);
}

TEST_F(RailsLiveness, RecentRailsAreThoseOfTheLast50Milliseconds) {
  liveness_.on_received(0, now_);
  liveness_.on_received(1, now_ + milliseconds(1));
  EXPECT_EQ(liveness_.recent() & 7, mask_of(0) | mask_of(1));
  liveness_.on_received(2, now_ + milliseconds(51));
  EXPECT_EQ(liveness_.latest(), 2U);
  EXPECT_EQ(liveness_.recent() & 7, mask_of(1) | mask_of(2));
}

}  // namespace
}  // namespace shoal::rails
