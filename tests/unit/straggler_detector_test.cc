// Which ranks are missing, by the reports of waiting ranks; on a clock that the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include <shoal/limits.h>

#include "src/diagnosis/straggler_detector.h"

namespace shoal {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Time = StragglerDetector::Clock::time_point;

constexpr std::uint64_t kCall = 7;
const Time kStart = Time() + 1h;

StragglerDetector::Words report_of(std::uint64_t call, std::initializer_list<int> absent,
                                   std::initializer_list<int> slow = {}) {
  StragglerDetector::Words report{call, 0, {}, {}, {}};
  for (const int rank : absent) report.absent.insert(rank);
  for (const int rank : slow) report.slow.insert(rank);
  return report;
}

// Rank 0 of four in call 7, which started with a deadline of 1.2 s.
StragglerDetector waiting() {
  StragglerDetector call(0, 4);
  EXPECT_FALSE(call.due(kCall, kStart + 1200ms, kStart));
  return call;
}

// The same rank after it has asked `late` at 0.9 s.
StragglerDetector asking(const Late& late) {
  StragglerDetector call = waiting();
  EXPECT_TRUE(call.due(kCall, kStart + 1200ms, kStart + 900ms));
  EXPECT_EQ(call.tell(late, kStart + 900ms).asks, 1U);
  return call;
}

TEST(StragglerDetector, NamesSilentRankBehindWaitingRanks) {
  StragglerDetector call = waiting();
  call.hear(1, report_of(kCall, {}, {3}), kStart + 400ms);
  call.hear(3, report_of(kCall, {2}), kStart + 400ms);
  const auto verdict = call.verdict(kCall, {{}, {1}});
  EXPECT_THAT(verdict.absent, ElementsAre(2));
  EXPECT_THAT(verdict.slow, IsEmpty());
  EXPECT_THAT(verdict.waiting, ElementsAre(1));
}

TEST(StragglerDetector, DistinguishesRanksOfLargeJob) {
  StragglerDetector call(0, kMaxJobRanks);
  EXPECT_FALSE(call.due(kCall, kStart + 1200ms, kStart));
  call.hear(600, report_of(kCall, {}, {2100}), kStart + 400ms);
  call.hear(2100, report_of(kCall, {kMaxJobRanks - 1}), kStart + 400ms);
  const auto verdict = call.verdict(kCall, {{}, {600}});
  EXPECT_THAT(verdict.absent, ElementsAre(kMaxJobRanks - 1));
  EXPECT_THAT(verdict.slow, IsEmpty());
  EXPECT_THAT(verdict.waiting, ElementsAre(600));
}

TEST(StragglerDetector, ReportsTravelUnchanged) {
  for (StragglerDetector::Words report : {report_of(kCall, {}), report_of(kCall, {0, 63, 64, 4095}, {kMaxJobRanks - 1})}) {
    report.asks = 1;
    report.call.count = 12;
    const auto bytes = StragglerDetector::to_bytes(report);
    EXPECT_LT(bytes.size(), 100U);
    const auto read = StragglerDetector::parse(bytes);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->sequence, kCall);
    EXPECT_EQ(read->asks, 1U);
    EXPECT_TRUE(read->call == report.call);
    EXPECT_EQ(read->absent, report.absent);
    EXPECT_EQ(read->slow, report.slow);
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(StragglerDetector::parse(std::span(bytes).first(size))) << size;
  }
}

TEST(StragglerDetector, ReportOfAllRanksIsBounded) {
  StragglerDetector::Words report{kCall, 0, {}, {}, {}};
  for (int rank = 0; rank < kMaxJobRanks; ++rank) report.absent.insert(rank), report.slow.insert(rank);
  const auto bytes = StragglerDetector::to_bytes(report);
  EXPECT_LE(bytes.size(), StragglerDetector::kMostBytes);
  const auto read = StragglerDetector::parse(bytes);
  ASSERT_TRUE(read);
  constexpr int kReported = 64 * StragglerDetector::kMostParts;
  EXPECT_TRUE(read->absent.contains(kReported - 1) && read->slow.contains(0));
  EXPECT_FALSE(read->absent.contains(kReported));
}

TEST(StragglerDetector, MalformedReportsAreRefused) {
  const auto good = StragglerDetector::to_bytes(report_of(kCall, {1, 100}));
  const auto with = [&](std::size_t number, std::uint16_t part) {
    auto bytes = good;
    std::memcpy(bytes.data() + 40 + 2 * number, &part, sizeof part);
    return StragglerDetector::parse(bytes);
  };
  ASSERT_TRUE(with(1, 1));
  EXPECT_FALSE(with(1, 0)) << "not in ascending order";
  EXPECT_FALSE(with(1, kMaxJobRanks / 64)) << "ranks that no job has";
  auto empty = good;
  std::fill(empty.end() - 8, empty.end(), std::byte{0});
  EXPECT_FALSE(StragglerDetector::parse(empty)) << "an empty part";
}

TEST(StragglerDetector, SilentRankInTheCallIsSlowNotAbsent) {
  StragglerDetector call = waiting();
  call.hear(1, report_of(kCall, {}, {2}), kStart + 400ms);
  const auto verdict = call.verdict(kCall, {{1, 3}, {}});
  EXPECT_THAT(verdict.absent, ElementsAre(3));
  EXPECT_THAT(verdict.slow, ElementsAre(2));
  EXPECT_THAT(verdict.waiting, ElementsAre(1));
}

TEST(StragglerDetector, NamesNeighboursWithoutReports) {
  const auto verdict = waiting().verdict(kCall, {{1}, {2}});
  EXPECT_THAT(verdict.absent, ElementsAre(1));
  EXPECT_THAT(verdict.slow, ElementsAre(2));
  EXPECT_THAT(verdict.waiting, IsEmpty());
}

TEST(StragglerDetector, NamesNeighboursOfMutualWaits) {
  StragglerDetector call = waiting();
  call.hear(1, report_of(kCall, {}, {2}), kStart);
  call.hear(2, report_of(kCall, {}, {1, 0}), kStart);
  const auto verdict = call.verdict(kCall, {{}, {1}});
  EXPECT_THAT(verdict.absent, IsEmpty());
  EXPECT_THAT(verdict.slow, ElementsAre(1));
}

TEST(StragglerDetector, IgnoresReportsOfOtherCalls) {
  StragglerDetector call = waiting();
  call.hear(1, report_of(kCall - 1, {2}), kStart);
  EXPECT_THAT(call.verdict(kCall, {{1}, {}}).absent, ElementsAre(1));
}

// The report of rank 1 at 0.4 s was true then. It does not answer the question of 0.9 s, so it causes the wait.
TEST(StragglerDetector, NamesRankThatDoesNotAnswer) {
  StragglerDetector call = waiting();
  call.hear(1, report_of(kCall, {2}), kStart + 400ms);
  EXPECT_TRUE(call.due(kCall, kStart + 1200ms, kStart + 900ms));
  static_cast<void>(call.tell({{}, {1}}, kStart + 900ms));
  const auto verdict = call.verdict(kCall, {{}, {1}});
  EXPECT_THAT(verdict.slow, ElementsAre(1));
  EXPECT_THAT(verdict.waiting, IsEmpty());
}

TEST(StragglerDetector, FollowsAnswerFromEarlierCall) {
  StragglerDetector call = asking({{1}, {}});
  call.hear(1, report_of(kCall - 2, {3}), kStart + 905ms);
  const auto verdict = call.verdict(kCall, {{1}, {}});
  EXPECT_THAT(verdict.absent, ElementsAre(3));
  EXPECT_THAT(verdict.waiting, ElementsAre(1));
}

TEST(StragglerDetector, AnswersQuestionAtOnceAndOnce) {
  StragglerDetector call = waiting();
  StragglerDetector::Words question = report_of(kCall, {0});
  question.asks = 1;
  EXPECT_FALSE(call.due(kCall, kStart + 1200ms, kStart + 100ms));
  call.hear(2, question, kStart + 101ms);
  EXPECT_TRUE(call.due(kCall, kStart + 1200ms, kStart + 101ms));
  EXPECT_EQ(call.tell({{1}, {}}, kStart + 101ms).asks, 0U);
  EXPECT_FALSE(call.due(kCall, kStart + 1200ms, kStart + 101ms));
  // Ranks that ask a few ms later have received the same answer.
  call.hear(3, question, kStart + 105ms);
  EXPECT_FALSE(call.due(kCall, kStart + 1200ms, kStart + 105ms));
  call.hear(3, question, kStart + 150ms);
  EXPECT_TRUE(call.due(kCall, kStart + 1200ms, kStart + 150ms));
}

TEST(StragglerDetector, AnswersEarlierQuestionInTheCall) {
  StragglerDetector call(0, 4);
  StragglerDetector::Words question = report_of(0, {0});
  question.asks = 1;
  call.hear(2, question, kStart);
  EXPECT_TRUE(call.due(0, kStart + 10s, kStart + 1ms));
}

TEST(StragglerDetector, ReportsEverLessOftenAndAsksBeforeDeadline) {
  StragglerDetector call(0, 4);
  std::vector<int> reported_at;
  std::vector<int> asked_at;
  const Time deadline = kStart + 10s;
  for (int ms = 0; ms < 10'000; ++ms) {
    const Time now = kStart + std::chrono::milliseconds(ms);
    if (!call.due(kCall, deadline, now)) continue;
    EXPECT_LE(call.next(), now) << "the driver would not have called due() in time";
    (call.tell({{1}, {}}, now).asks == 1 ? asked_at : reported_at).push_back(ms);
  }
  EXPECT_THAT(reported_at, ElementsAre(400, 800, 1600, 3200, 6400));
  EXPECT_THAT(asked_at, ElementsAre(9600));
}

// A process without a core asks late, and the peers need time to answer.
TEST(StragglerDetector, VerdictWaitsForLateAnswers) {
  StragglerDetector call = waiting();
  EXPECT_EQ(call.verdict_at(kStart + 1200ms), kStart + 1200ms);
  EXPECT_TRUE(call.due(kCall, kStart + 1200ms, kStart + 2s));
  EXPECT_EQ(call.tell({{1}, {}}, kStart + 2s).asks, 1U);
  EXPECT_EQ(call.verdict_at(kStart + 1200ms), kStart + 2100ms);
  EXPECT_EQ(asking({{1}, {}}).verdict_at(kStart + 1200ms), kStart + 1200ms);
}

// A process that was stopped from before its first due() until after its deadline names no straggler: not in that call, which
// may succeed now, and not in the next.
TEST(StragglerDetector, StoppedProcessAsksBeforeVerdict) {
  StragglerDetector call(0, 4);
  EXPECT_TRUE(call.due(kCall, kStart, kStart + 5s));
  EXPECT_EQ(call.tell({{1}, {}}, kStart + 5s).asks, 1U);
  EXPECT_EQ(call.verdict_at(kStart), kStart + 5100ms);
  EXPECT_TRUE(call.due(kCall + 1, kStart + 5001ms, kStart + 5000ms));
  EXPECT_EQ(call.tell({{1}, {}}, kStart + 5s).asks, 1U);
  EXPECT_EQ(call.verdict_at(kStart + 5001ms), kStart + 5100ms);
  EXPECT_EQ(call.verdict_at(kStart + 6s), kStart + 6s);
}

// The grace period is never longer than the timeout.
TEST(StragglerDetector, ShortDeadlineStaysShort) {
  StragglerDetector call(0, 4);
  EXPECT_TRUE(call.due(kCall, kStart + 2ms, kStart));
  EXPECT_EQ(call.tell({{1}, {}}, kStart).asks, 1U);
  EXPECT_EQ(call.verdict_at(kStart + 2ms), kStart + 2ms);
}

constexpr int kLate = 37;

// In recursive doubling a rank waits for a partner that waits for another one; log2 P ranks wait for the late rank itself.
Late late_in_doubling(int rank, int /*ranks*/) {
  const int partner = rank ^ static_cast<int>(std::bit_floor(static_cast<unsigned>(rank ^ kLate)));
  return partner == kLate ? Late{{partner}, {}} : Late{{}, {partner}};
}
// In a ring a rank waits for the one before it.
Late late_in_ring(int rank, int ranks) {
  const int before = (rank + ranks - 1) % ranks;
  return before == kLate ? Late{{before}, {}} : Late{{}, {before}};
}

/// Ranks that all wait from kStart on because kLate is late. Messages take a millisecond.
class ManyRanks {
 public:
  ManyRanks(int ranks, Late (*late)(int rank, int ranks), Time deadline) : late_(late), deadline_(deadline) {
    for (int rank = 0; rank < ranks; ++rank) ranks_.emplace_back(rank, ranks);
  }

  void run(Time from, Time until) {
    for (Time now = from; now < until; now += 1ms) {
      std::vector<Message> sent;
      for (int rank = 0; rank < size(); ++rank) {
        if (rank != kLate && ranks_[at(rank)].due(kCall, deadline_, now)) say(rank, now, sent);
      }
      for (const Message& each : sent) {
        if (each.to != kLate) ranks_[at(each.to)].hear(each.from, each.words, now);
      }
      messages_ += static_cast<int>(sent.size());
    }
  }
  [[nodiscard]] int messages() const { return messages_; }
  void expect_late_rank_to_be_named() const {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == kLate) continue;
      EXPECT_THAT(ranks_[at(rank)].verdict(kCall, late_(rank, size())).absent, ElementsAre(kLate)) << rank;
    }
  }

 private:
  struct Message {
    int from, to;
    StragglerDetector::Words words;
  };
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }

  void say(int rank, Time now, std::vector<Message>& sent) {
    const Late late = late_(rank, size());
    StragglerDetector::Words words = ranks_[at(rank)].tell(late, now);
    const auto to = ranks_[at(rank)].receivers(words, late);
    EXPECT_FALSE(to.all);
    words.asks = 0;
    for (const int receiver : to.told) sent.push_back({rank, receiver, words});
    words.asks = 1;
    for (const int receiver : to.asked) sent.push_back({rank, receiver, words});
  }

  Late (*const late_)(int rank, int ranks);
  const Time deadline_;
  std::vector<StragglerDetector> ranks_;
  int messages_ = 0;
};

// All name the late rank, and few messages are needed: 65,024 if each told all others.
TEST(StragglerDetector, LateRankOfManyCausesFewMessages) {
  ManyRanks doubling(128, late_in_doubling, kStart + 1h);
  doubling.run(kStart, kStart + 4s);
  EXPECT_LE(doubling.messages(), 1000);
  doubling.expect_late_rank_to_be_named();
  ManyRanks ring(128, late_in_ring, kStart + 1h);
  ring.run(kStart, kStart + 4s);
  EXPECT_LE(ring.messages(), 128 * 14);
  ring.expect_late_rank_to_be_named();
}

// Nor does the question before the deadline go to all ranks, where they are very many.
TEST(StragglerDetector, DeadlineOfVeryManyCausesFewMessages) {
  constexpr int kRanks = 1100;
  for (const auto late : {late_in_doubling, late_in_ring}) {
    ManyRanks ranks(kRanks, late, kStart + 1200ms);
    ranks.run(kStart, kStart + 1200ms);
    EXPECT_LE(ranks.messages(), kRanks * 60);
    ranks.expect_late_rank_to_be_named();
  }
}

// The late rank answers when it waits itself.
TEST(StragglerDetector, AnswersAskersOfLargeJobOnce) {
  StragglerDetector call(0, 128);
  StragglerDetector::Words question = report_of(kCall, {0});
  question.asks = 1;
  call.hear(5, question, kStart);
  call.hear(9, question, kStart);
  EXPECT_TRUE(call.due(kCall, kStart + 10s, kStart + 1ms));
  const auto words = call.tell({{3}, {}}, kStart + 1ms);
  const auto to = call.receivers(words, {{3}, {}});
  EXPECT_THAT(to.told, ElementsAre(5, 9));
  EXPECT_THAT(to.asked, IsEmpty()) << "it has not waited for long itself";
  EXPECT_FALSE(call.due(kCall, kStart + 10s, kStart + 2ms));
  // Later it waits for another rank.
  EXPECT_TRUE(call.due(kCall, kStart + 10s, kStart + 500ms));
  const auto later = call.receivers(call.tell({{4}, {}}, kStart + 500ms), {{4}, {}});
  EXPECT_THAT(later.told, ElementsAre(5, 9));
  EXPECT_THAT(later.asked, ElementsAre(4));
}

TEST(StragglerDetector, AsksAllOfLargeJobBeforeDeadline) {
  StragglerDetector call(0, 128);
  EXPECT_FALSE(call.due(kCall, kStart + 1200ms, kStart));
  EXPECT_TRUE(call.due(kCall, kStart + 1200ms, kStart + 900ms));
  const auto words = call.tell({{3}, {}}, kStart + 900ms);
  EXPECT_EQ(words.asks, 1U);
  EXPECT_TRUE(call.receivers(words, {{3}, {}}).all);
}

TEST(StragglerDetector, NextCallAsksAgain) {
  StragglerDetector call = asking({{1}, {}});
  call.hear(1, report_of(kCall, {2}), kStart + 905ms);
  EXPECT_FALSE(call.due(kCall + 1, kStart + 5s, kStart + 1s));
  EXPECT_EQ(call.verdict_at(kStart + 5s), kStart + 5s);
  EXPECT_THAT(call.verdict(kCall + 1, {{1}, {}}).absent, ElementsAre(1));
  EXPECT_TRUE(call.due(kCall + 1, kStart + 5s, kStart + 4600ms));
  EXPECT_EQ(call.tell({{1}, {}}, kStart + 4600ms).asks, 1U);
}

}  // namespace
}  // namespace shoal
