// ControlQueue: the order of control records, and what happens to one that has not left. LinkState: the end of a link.
#include <gtest/gtest.h>

#include <vector>

#include "transports/rails/control_queue.h"
#include "transports/rails/link_shape.h"
#include "transports/rails/link_state.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;

class RailsControlQueue : public ::testing::Test {
 protected:
  RailsControlQueue() { queue_.prepare(memory_.data(), 2, nullptr); }
  ControlQueue::Next post(std::size_t rail) {
    const ControlQueue::Next next = queue_.next();
    queue_.posted(rail, next);
    return next;
  }
  std::vector<std::byte> memory_ = std::vector<std::byte>(2 * round_up(kPacketBytes));
  ControlQueue queue_;
};

TEST_F(RailsControlQueue, RecordsLeaveInTheOrderOfTheirUrgency) {
  queue_.send_close_notice();
  queue_.probe(mask_of(0) | mask_of(1));
  queue_.request_tile(5);
  queue_.report_lost(1);
  queue_.request();
  std::vector<PacketKind> kinds;
  while (queue_.due()) kinds.push_back(post(0).kind);
  EXPECT_EQ(kinds, (std::vector{PacketKind::rail_lost, PacketKind::retransmit, PacketKind::probe, PacketKind::probe,
                                PacketKind::close_notice}));
  EXPECT_TRUE(queue_.close_notice_sent());
  EXPECT_EQ(queue_.next().kind, PacketKind::note);
}

TEST_F(RailsControlQueue, ProbesAndAnswersNameTheirRail) {
  queue_.answer_on(1);
  EXPECT_EQ(post(1).rail, 1U);
  EXPECT_EQ(queue_.next().rail, std::nullopt) << "answered";
  queue_.answer_on(1);
  queue_.probe(mask_of(0));
  EXPECT_EQ(queue_.next().rail, 0U);
}

TEST_F(RailsControlQueue, ContentsOfARecordThatDidNotLeaveAreSentAgain) {
  queue_.report_lost(1);
  post(0);
  queue_.request_tile(63);
  post(1);
  EXPECT_EQ(queue_.busy(), 3U);
  EXPECT_TRUE(queue_.in_flight());
  EXPECT_FALSE(queue_.due());
  queue_.take_back(queue_.record(1));
  EXPECT_TRUE(queue_.due());
  EXPECT_EQ(queue_.busy(), 1U);
  EXPECT_EQ(queue_.next().kind, PacketKind::retransmit);
  EXPECT_EQ(queue_.next().number, 63U);
  queue_.take_back(queue_.record(0));
  EXPECT_EQ(queue_.next().kind, PacketKind::rail_lost);
  EXPECT_EQ(queue_.next().number, 1U);
}

TEST_F(RailsControlQueue, ProbesInFlightAreNotWaitedFor) {
  queue_.probe(mask_of(1));
  post(1);
  EXPECT_FALSE(queue_.in_flight());
  EXPECT_EQ(queue_.busy(), mask_of(1));
}

TEST(RailsLinkState, LinkEndsOnceAndThenFails) {
  LinkState state;
  const LinkState::Clock::time_point now{std::chrono::hours(1)};
  EXPECT_TRUE(state.is_open() && state.takes_tiles());
  EXPECT_TRUE(state.begin_end("rank 1 closed the connection", now));
  EXPECT_FALSE(state.begin_end("another reason", now));
  EXPECT_TRUE(state.is_ending() && !state.has_failed() && !state.takes_tiles());
  EXPECT_FALSE(state.is_overdue(now + milliseconds(299), false));
  state.extend(now + milliseconds(299));
  EXPECT_FALSE(state.is_overdue(now + milliseconds(300), false));
  EXPECT_TRUE(state.is_overdue(now + milliseconds(599), false));
  EXPECT_FALSE(state.is_overdue(now + milliseconds(599), true)) << "tiles may be retransmitted";
  EXPECT_TRUE(state.fail(state.end_status()));
  EXPECT_FALSE(state.fail({StatusCode::aborted, "too late"}));
  EXPECT_EQ(state.status().code(), StatusCode::peer_failed);
  EXPECT_EQ(state.status().message(), "rank 1 closed the connection");
}

TEST(RailsLinkState, PeerThatHasLeftMayRepairUnlessItsProcessEnds) {
  LinkState state;
  EXPECT_FALSE(state.has_all(0)) << "the peer has not left";
  state.on_close_notice(3);
  EXPECT_TRUE(state.peer_is_gone());
  EXPECT_FALSE(state.has_all(2));
  EXPECT_TRUE(state.has_all(3));
  EXPECT_TRUE(state.may_repair(2));
  EXPECT_FALSE(state.may_repair(3));
  state.on_process_ended();
  EXPECT_FALSE(state.may_repair(2));
}

TEST(RailsLinkState, OnlyPacketsAfterLeavingAnswerIt) {
  LinkState state;
  state.on_packet();
  EXPECT_TRUE(state.leave());
  EXPECT_FALSE(state.leave());
  EXPECT_FALSE(state.peer_answered());
  EXPECT_TRUE(state.is_open() && !state.takes_tiles());
  state.on_packet();
  EXPECT_TRUE(state.peer_answered());
}

}  // namespace
}  // namespace shoal::rails
