// What a CallMonitor says of its rank's calls and of its peers' calls; with events and times that the test makes up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "src/diagnosis/call_monitor.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::Mentions;
using ::testing::Not;
using Time = CallMonitor::Time;

const Time kBegin = Time() + 1h;
const Time kNever = Time::max();

CallSignature call_of(std::uint64_t count, CollectiveKind kind = CollectiveKind::all_reduce) {
  CallSignature signature;
  signature.kind = kind;
  signature.count = count;
  return signature;
}

/// One rank of a communicator, with all that a CallMonitor knows.
struct MonitoredRank {
  Group group;
  LastWaits last_waits;
  CallMonitor monitor;

  explicit MonitoredRank(int rank, Topology topology = Topology::uniform(1, 4), const CallMonitor::Options& options = {})
      : MonitoredRank(Group::whole(rank, std::move(topology)), options) {}
  MonitoredRank(Group of, const CallMonitor::Options& options) : group(std::move(of)), monitor(group, last_waits, options) {}

  /// Makes its next call; returns the signature that it sends.
  CallSignature enter(const CallSignature& signature) { return monitor.entered(signature, signature.count); }
  Occupation in(std::uint64_t sequence, const CallSignature& signature) const {
    return {describe_call(sequence, signature), std::nullopt};
  }
};

const Occupation kInCall{.what = "call 0 (all_reduce float32 x 8 sum)", .waited = 2500ms};

// Ranks 0 and 1 in different calls.
struct Disagreeing {
  MonitoredRank zero{0};
  MonitoredRank one{1};
  CallSignature ours = zero.enter(call_of(8));
  CallSignature theirs = one.enter(call_of(8, CollectiveKind::broadcast));
};

TEST(CallMonitor, DifferentCallsAreNamedOnBothRanks) {
  Disagreeing ranks;
  const auto both = Mentions("call 0", "rank 0 is in all_reduce", "rank 1 is in broadcast", "different collective");
  // Without a call that waits, nobody can be asked.
  const auto at_zero = ranks.zero.monitor.disagrees({1, 0, ranks.ours, 0, ranks.theirs}, false, kBegin);
  const auto at_one = ranks.one.monitor.disagrees({0, 0, ranks.theirs, 0, ranks.ours}, false, kBegin);
  ASSERT_TRUE(at_zero && at_one);
  EXPECT_EQ(at_zero->code(), StatusCode::mismatch);
  EXPECT_EQ(at_one->code(), StatusCode::mismatch);
  EXPECT_THAT(at_zero->message(), both);
  EXPECT_THAT(at_one->message(), both);
}

TEST(CallMonitor, AsksThePeerForTheFirstCallThatDiffers) {
  Disagreeing ranks;
  const CallSignature ours = ranks.zero.enter(call_of(9));
  const CallSignature theirs = ranks.one.enter(call_of(9));  // the same call, after different ones
  EXPECT_FALSE(ranks.zero.monitor.disagrees({1, 1, ours, 1, theirs}, true, kBegin));
  EXPECT_TRUE(ranks.zero.monitor.asks());
  const auto cause = ranks.one.monitor.peer_disagrees(0, ranks.zero.monitor.history());
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->message(), Mentions("call 0 of", "rank 0", "all_reduce", "rank 1", "broadcast"));
  // Without an answer the report is about the call in which the difference was found.
  EXPECT_FALSE(ranks.zero.monitor.unanswered(ranks.zero.monitor.next_check() - 1ms));
  const auto late = ranks.zero.monitor.unanswered(ranks.zero.monitor.next_check());
  ASSERT_TRUE(late);
  EXPECT_THAT(late->message(), Mentions("call 1 of", "earlier calls"));
  EXPECT_LE(ranks.zero.monitor.next_check() - kBegin, 250ms);
}

TEST(CallMonitor, AMismatchIsReportedBeforeTheDeathThatFollowsIt) {
  Disagreeing ranks;
  EXPECT_FALSE(ranks.zero.monitor.disagrees({1, 0, ranks.ours, 0, ranks.theirs}, true, kBegin));
  const auto cause = ranks.zero.monitor.peer_died(1, {StatusCode::peer_failed, "it exited"}, kInCall, kBegin);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->code(), StatusCode::mismatch);
}

TEST(CallMonitor, APeerInALaterOrEarlierCallIsNamedWithIt) {
  MonitoredRank zero(0);
  MonitoredRank one(1);
  const CallSignature first = zero.enter(call_of(8));
  const CallSignature second = zero.enter(call_of(9));
  const CallSignature other = one.enter(call_of(7));
  // An earlier call, in which this rank used another link: both made it, with different signatures.
  const auto earlier = zero.monitor.disagrees({1, 1, second, 0, other}, false, kBegin);
  ASSERT_TRUE(earlier);
  EXPECT_THAT(earlier->message(), Mentions("call 0 of", "x 8", "x 7", "different count"));
  // A later call, which this rank has not made.
  const auto later = zero.monitor.disagrees({1, 0, first, 5, std::nullopt}, false, kBegin);
  ASSERT_TRUE(later);
  EXPECT_THAT(later->message(), Mentions("rank 0 is in call 0", "rank 1 is in call 5"));
}

TEST(CallMonitor, AnUnclaimedSignatureIsComparedWithThePastCall) {
  MonitoredRank zero(0);
  const CallSignature ours = zero.enter(call_of(8));
  EXPECT_FALSE(zero.monitor.stray_call(1, 0, ours));        // the same call
  EXPECT_FALSE(zero.monitor.stray_call(1, 1, call_of(9)));  // one that this rank has not made yet
  const auto stray = zero.monitor.stray_call(1, 0, call_of(9));
  ASSERT_TRUE(stray);
  EXPECT_EQ(stray->sequence, 0U);
  EXPECT_EQ(stray->theirs, call_of(9));
}

TEST(CallMonitor, WaitMessagesOfRanksInDifferentCallsAreCompared) {
  Disagreeing ranks;
  const auto message = [](const CallSignature& call) { return CallMonitor::wait_message(0, call, {{3}, {}}); };
  ranks.zero.monitor.peer_waits(2, message(ranks.ours), kBegin);
  EXPECT_FALSE(ranks.zero.monitor.take_disagreeing_wait());
  ranks.zero.monitor.peer_waits(1, message(ranks.theirs), kBegin);
  const auto found = ranks.zero.monitor.take_disagreeing_wait();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->peer, 1);
  EXPECT_EQ(found->theirs, ranks.theirs);
}

// MonitoredRank 0 waits for rank 1, which waits for rank 2, which makes no call.
TEST(CallMonitor, TheLateRankIsNamedAfterItsTime) {
  MonitoredRank zero(0);
  MonitoredRank one(1);
  const CallSignature ours = zero.enter(call_of(8));
  one.enter(call_of(8));
  const Time deadline = kBegin + 1200ms;
  EXPECT_FALSE(zero.monitor.waits(0, deadline, kBegin));
  EXPECT_FALSE(one.monitor.waits(0, deadline, kBegin));
  ASSERT_TRUE(one.monitor.waits(0, deadline, kBegin + 400ms));
  const auto told = one.monitor.misses(ours, {{2}, {}}, kBegin + 400ms);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0].receivers, ::testing::Contains(0));
  zero.monitor.peer_waits(1, told[0].bytes, kBegin + 401ms);
  EXPECT_LE(zero.monitor.next_check(), kBegin + 900ms);
  EXPECT_EQ(zero.monitor.verdict_at(deadline), deadline);
  const std::string why = zero.monitor.why_late(0, {{}, {1}}, deadline);
  EXPECT_THAT(why, Mentions("not in the call: rank 2", "waiting in turn: rank 1"));
  const Status cause = zero.monitor.reports().timed_out(kInCall, why);
  EXPECT_EQ(cause.code(), StatusCode::timeout);
  EXPECT_THAT(cause.message(), Mentions("call 0 (all_reduce", "timed out on rank 0 after 2.5 s", "rank 2"));
}

TEST(CallMonitor, ARankWithoutAFlightRecordIsFoundByItsLastWait) {
  MonitoredRank zero(0);
  zero.last_waits.note(2, {0x3f, 7, call_of(4, CollectiveKind::barrier), kBegin});
  zero.enter(call_of(8));
  EXPECT_THAT(zero.monitor.why_late(0, {{2}, {}}, kBegin + 400ms),
              Mentions("rank 2: reported 0.4 s ago", "call 7 (barrier) of communicator 3f"));
}

TEST(CallMonitor, NothingIsToldWherePeersCannotBeReached) {
  MonitoredRank zero(0, Topology::uniform(1, 4), {.flight_record = nullptr, .reaches_peers = false});
  const CallSignature ours = zero.enter(call_of(8));
  EXPECT_FALSE(zero.monitor.waits(0, kNever, kBegin));
  for (const auto after : {400ms, 900ms}) {  // the flight record only
    if (zero.monitor.waits(0, kNever, kBegin + after)) {
      EXPECT_TRUE(zero.monitor.misses(ours, {{1}, {}}, kBegin + after).empty());
    }
  }
  EXPECT_TRUE(zero.monitor.disagrees({1, 0, ours, 0, call_of(9)}, true, kBegin));
}

TEST(CallMonitor, ALongWaitDeservesAWarning) {
  MonitoredRank zero(0, Topology::uniform(1, 4), {.flight_record = nullptr, .warn_after = 2s});
  Watch watch;
  const auto look = [&](Time now) {
    zero.monitor.watchdog().begin();
    return zero.monitor.watchdog().look(watch, kNever, now);
  };
  EXPECT_FALSE(look(kBegin));
  EXPECT_FALSE(look(kBegin + 1900ms));
  const auto waited = look(kBegin + 2500ms);
  ASSERT_TRUE(waited);
  EXPECT_EQ(zero.monitor.reports().warning({"call 3 (barrier)", *waited}, "; not in the call: rank 2"),
            "shoal: rank 0 has waited 2.5 s in call 3 (barrier) of communicator 0 (4 ranks); not in the call: rank 2\n");
  EXPECT_FALSE(look(kBegin + 4900ms));
  EXPECT_TRUE(look(kBegin + 5s));
}

TEST(CallMonitor, APeerThatLeftIsWaitedForBriefly) {
  MonitoredRank zero(0);
  zero.enter(call_of(8));
  Absence absence;
  zero.monitor.peer_left(1, {});
  EXPECT_TRUE(zero.monitor.has_left(1));
  EXPECT_FALSE(zero.monitor.absent(1, absence, Status(), kInCall, kBegin));
  EXPECT_EQ(zero.monitor.absence_ends(1, absence, Status()), kBegin + 250ms);
  EXPECT_FALSE(zero.monitor.absent(1, absence, Status(), kInCall, kBegin + 249ms));
  const auto cause = zero.monitor.absent(1, absence, Status(), kInCall, kBegin + 250ms);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->code(), StatusCode::peer_failed);
  EXPECT_THAT(cause->message(), Mentions("rank 1 has destroyed its communicator", "rank 0 still needs it in call 0"));
  // Its death afterwards is none that this communicator has to report.
  EXPECT_FALSE(zero.monitor.peer_died(1, {StatusCode::peer_failed, "it exited"}, kInCall, kBegin));
}

TEST(CallMonitor, DataOfAPeerOnAnotherHostMayBeLater) {
  MonitoredRank zero(0, Topology::uniform(4, 1));
  zero.enter(call_of(8));
  Absence absence;
  zero.monitor.peer_left(1, {});
  EXPECT_FALSE(zero.monitor.absent(1, absence, Status(), kInCall, kBegin));
  EXPECT_EQ(zero.monitor.absence_ends(1, absence, Status()), kBegin + 2s);
  // With a broken link none will arrive.
  EXPECT_EQ(zero.monitor.absence_ends(1, absence, {StatusCode::peer_failed, "reset"}), kBegin + 250ms);
}

TEST(CallMonitor, APeerThatLeftAfterAnotherCallIsAMismatch) {
  Disagreeing ranks;
  Absence absence;
  ranks.zero.monitor.peer_left(1, ranks.one.monitor.history(4));
  EXPECT_FALSE(ranks.zero.monitor.absent(1, absence, Status(), kInCall, kBegin));
  const auto cause = ranks.zero.monitor.absent(1, absence, Status(), kInCall, kBegin + 250ms);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->code(), StatusCode::mismatch);
  EXPECT_THAT(cause->message(), Mentions("rank 0 is in all_reduce", "rank 1 is in broadcast"));
}

TEST(CallMonitor, ABrokenLinkIsADeathUnlessAReportArrives) {
  MonitoredRank zero(0);
  zero.enter(call_of(8));
  Absence absence;
  const Status broken{StatusCode::peer_failed, "connection reset"};
  EXPECT_FALSE(zero.monitor.absent(3, absence, broken, kInCall, kBegin));
  const auto cause = zero.monitor.absent(3, absence, broken, kInCall, kBegin + 250ms);
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->message(), Mentions("rank 3 died", "connection reset", "rank 0 was in call 0", "for 2.5 s"));
}

TEST(CallMonitor, ADeathBetweenCallsNamesTheLastOne) {
  MonitoredRank zero(0);
  const Status how{StatusCode::peer_failed, "it exited"};
  EXPECT_THAT(zero.monitor.peer_died(1, how, std::nullopt, kBegin)->message(),
              AllOf(Mentions("rank 0 was in no call of"), Not(Mentions("after"))));
  zero.enter(call_of(4, CollectiveKind::barrier));
  EXPECT_THAT(zero.monitor.peer_died(1, how, std::nullopt, kBegin)->message(), Mentions("no call after call 0 (barrier)"));
}

TEST(CallMonitor, AMemberThatNeverJoinsAGroupOfShrinkIsMissing) {
  Group group = Group::whole(0, Topology::uniform(1, 3));
  group.is_meeting = true;
  MonitoredRank zero(group, {});
  EXPECT_FALSE(zero.monitor.missing_member(kBegin));
  zero.monitor.peer_gone(2, kBegin);
  EXPECT_FALSE(zero.monitor.missing_member(kBegin + 249ms));
  EXPECT_EQ(zero.monitor.missing_member(kBegin + 250ms), 2);
  MonitoredRank ordinary(0);
  ordinary.monitor.peer_gone(2, kBegin);
  EXPECT_FALSE(ordinary.monitor.missing_member(kBegin + 1s));
}

/// A folder for flight records, while it lives.
class FlightRecords {
 public:
  FlightRecords() {
    char pattern[] = "/tmp/shoal-monitor-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    ::setenv("SHOAL_FLIGHT_RECORD", folder_.c_str(), 1);
  }
  ~FlightRecords() {
    ::unsetenv("SHOAL_FLIGHT_RECORD");
    std::filesystem::remove_all(folder_);
  }
  FlightRecords(const FlightRecords&) = delete;
  FlightRecords& operator=(const FlightRecords&) = delete;

  [[nodiscard]] CallMonitor::Options of(int rank) const {
    static constexpr int kNodes[] = {0, 0};
    return {.flight_record = FlightRecord::create({42, "job", rank, kNodes}, false).value()};
  }

 private:
  std::string folder_;
};

TEST(CallMonitor, ARankWhoseCallsEndOutOfOrderIsInTheOldest) {
  const FlightRecords records;
  const Topology two = Topology::uniform(1, 2);
  MonitoredRank zero(0, two, records.of(0));
  MonitoredRank one(1, two, records.of(1));
  for (std::uint64_t call = 0; call < 3; ++call) one.enter(call_of(10 + call));
  const auto rank_one_is = [&] { return zero.monitor.why_late(0, {{1}, {}}, kBegin); };
  EXPECT_THAT(rank_one_is(), Mentions("rank 1: in call 0 "));
  one.monitor.ended(0);  // call 1, before call 0
  EXPECT_THAT(rank_one_is(), Mentions("rank 1: in call 0 ", "x 10"));
  one.monitor.ended(0);  // call 2
  EXPECT_THAT(rank_one_is(), Mentions("rank 1: in call 0 ", "x 10"));
  one.monitor.ended(one.monitor.next_call());
  EXPECT_THAT(rank_one_is(), Mentions("rank 1: between its calls, after call 2", "x 12"));
}

TEST(CallMonitor, TheFirstCallThatDiffersIsReadFromTheFlightRecord) {
  const FlightRecords records;
  const Topology two = Topology::uniform(1, 2);
  MonitoredRank zero(0, two, records.of(0));
  MonitoredRank one(1, two, records.of(1));
  zero.enter(call_of(1));
  one.enter(call_of(2));
  const CallSignature ours = zero.enter(call_of(9));
  const CallSignature theirs = one.enter(call_of(9));
  const auto cause = zero.monitor.disagrees({1, 1, ours, 1, theirs}, true, kBegin);
  ASSERT_TRUE(cause);  // nobody is asked
  EXPECT_THAT(cause->message(), Mentions("call 0 of", "x 1 ", "x 2 "));
}

TEST(CallMonitor, AMessageThatWaitsIsRecorded) {
  const FlightRecords records;
  const Topology two = Topology::uniform(1, 2);
  MonitoredRank zero(0, two, records.of(0));
  MonitoredRank one(1, two, records.of(1));
  one.monitor.message_entered();
  EXPECT_FALSE(one.monitor.message_waits(0, kBegin));
  ASSERT_TRUE(one.monitor.message_waits(0, kBegin + 300ms));
  one.monitor.record_message(0, "recv of int32 x 10 from rank 0 (tag 2)");
  EXPECT_THAT(zero.monitor.reports().message_late(true, 1, kBegin), Mentions("rank 1: in recv of int32 x 10"));
  one.monitor.message_ended();
  EXPECT_THAT(zero.monitor.reports().message_late(true, 1, kBegin), Mentions("rank 1: in no call yet"));
}

}  // namespace
}  // namespace shoal
