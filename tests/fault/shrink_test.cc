// shrink(): the surviving ranks of a failure continue in a new communicator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/eventually.h"
#include "tests/facts.h"
#include "tests/fault/clauses.h"
#include "tests/fault/victims.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using testing::Board;
using testing::Victims;

Status wrong(const std::string& what) { return {StatusCode::internal, "WRONG: " + what}; }

/// Makes `calls` sums, of several sizes, of numbers that identify the members by their ranks in the job. Checks the results.
Status sum_world_ranks(Communicator& c, int world_rank, const std::vector<int>& members, int calls) {
  for (int k = 0; k < calls; ++k) {
    std::vector<std::int64_t> data(k % 3 == 0 ? 3 : k % 3 == 1 ? 1000 : 200'000);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = (1LL << (4 * world_rank)) + static_cast<std::int64_t>(i);
    if (Status status = c.all_reduce(data.data(), data.data(), data.size(), DataType::int64, ReduceOp::sum); !status.ok())
      return status;
    std::int64_t right = 0;
    for (const int member : members) right += 1LL << (4 * member);
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (data[i] != right + static_cast<std::int64_t>(members.size() * i)) return wrong(fmt::format("sum of call {}", k));
    }
  }
  return {};
}

Status sum_until_failure(Communicator& c, int world_rank, const std::vector<int>& members) {
  for (;;) {
    if (Status status = sum_world_ranks(c, world_rank, members, 3); !status.ok())
      return status.code() == StatusCode::internal ? status : Status();
  }
}

std::vector<int> all_but(int ranks, std::initializer_list<int> removed) {
  std::vector<int> left;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::ranges::find(removed, rank) == removed.end()) left.push_back(rank);
  }
  return left;
}

class Shrink : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Shrink, ::testing::Values("shm", "tcp", "mixed"),
                         [](const auto& info) { return std::string(info.param); });

#define NEEDS_HOST_NAMES()                                               \
  if (GetParam() == std::string("mixed") && !testing::may_rename_host()) \
  GTEST_SKIP() << "this process may not make UTS namespaces"

void expect_ok(const Victims& job, std::initializer_list<int> but = {}) {
  for (int rank = 0; rank < job.size(); ++rank) {
    if (std::ranges::find(but, rank) != but.end()) continue;
    const Board::Rank& one = job.board().ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(to_string(one.code), "ok") << "rank " << rank << ": " << one.text.data();
  }
}

// Two ranks die, one after the other; the second shrink() is a call of the communicator that the first one made.
TEST_P(Shrink, SurvivorsContinueAfterEachDeath) {
  NEEDS_HOST_NAMES();
  Victims job(5, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int world_rank = c.rank();
    if (Status status = sum_until_failure(c, world_rank, all_but(5, {})); !status.ok()) return status;
    auto first = c.shrink();
    if (!first.ok()) return first.status();
    if ((*first)->size() != 4 || (*first)->rank() != (world_rank > 1 ? world_rank - 1 : world_rank))
      return wrong("ranks after one death");
    if (Status status = sum_world_ranks(**first, world_rank, all_but(5, {1}), 9); !status.ok()) return status;
    board.calls.fetch_add(1);
    if (Status status = sum_until_failure(**first, world_rank, all_but(5, {1})); !status.ok()) return status;
    auto second = (*first)->shrink();
    if (!second.ok()) return second.status();
    first->reset();
    return sum_world_ranks(**second, world_rank, all_but(5, {1, 4}), 9);
  });
  ASSERT_TRUE(job.all_joined());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ::kill(job.pid(1), SIGKILL);
  ASSERT_TRUE(testing::eventually([&] { return job.board().calls.load() >= 4; }));
  ::kill(job.pid(4), SIGKILL);
  EXPECT_EQ(job.wait(40 * kSlack, {1, 4}), "");
  expect_ok(job, {1, 4});
}

// A rank detects a peer's death while it sends the peer its leave message. Its next call must fail, although no other event
// reports the death again.
TEST_P(Shrink, DeathDuringLeaveIsReported) {
  NEEDS_HOST_NAMES();
  Victims job(3, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int world_rank = c.rank();
    std::vector<std::unique_ptr<Communicator>> pairs;
    while (world_rank != 1 && pairs.size() < 4) {
      auto pair = c.group(std::array<int, 2>{0, 2});
      if (!pair.ok()) return pair.status();
      if (Status status = (*pair)->barrier(); !status.ok()) return status;
      pairs.push_back(std::move(pair).value());
    }
    board.calls.fetch_add(1);
    while (!board.enough.load() && (world_rank != 0 || board.mark_ns.load() == 0)) ::usleep(1000);
    if (world_rank != 0) return {};
    for (; !pairs.empty(); pairs.pop_back()) ::usleep(5000);  // so that the kernel's refusal arrives
    const FairClock clock;
    const Status status = c.barrier();
    if (status.code() != StatusCode::peer_failed || status.message().find("rank 2") == std::string::npos)
      return wrong("a barrier with a dead rank: " + status.to_string());
    if (clock.seconds() > 1 * kSlack) return wrong("the error came late");
    return {};
  });
  ASSERT_TRUE(job.all_joined());
  ASSERT_TRUE(testing::eventually([&] { return job.board().calls.load() >= 3; }));
  ::kill(job.pid(2), SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  job.board().mark_ns = 1;
  EXPECT_TRUE(testing::eventually([&] { return job.board().ranks[0].ended.load(); }));
  job.board().enough = true;
  EXPECT_EQ(job.wait(40 * kSlack, {2}), "");
  expect_ok(job, {2});
}

// Rank 0 and another rank die together: each survivor may know of other deaths when it calls shrink().
TEST_P(Shrink, SurvivorsAgreeAfterSimultaneousDeaths) {
  NEEDS_HOST_NAMES();
  std::mt19937_64 random(7);
  for (int round = 0; round < 4; ++round) {
    const std::array<int, 2> dead{0, 1 + static_cast<int>(random() % 4)};
    const auto apart = std::chrono::microseconds(random() % 2'000);
    SCOPED_TRACE(fmt::format("ranks 0 and {} die, {} us apart", dead[1], apart.count()));
    Victims job(5, GetParam(), std::chrono::seconds(30), [&](Communicator& c, Board&) -> Status {
      const int world_rank = c.rank();
      if (Status status = sum_until_failure(c, world_rank, all_but(5, {})); !status.ok()) return status;
      auto left = c.shrink();
      // The second death may come after the first shrink().
      if (left.ok() && (*left)->size() == 4) {
        for (int k = 0; k < 10'000 && (*left)->status().ok(); ++k) static_cast<void>((*left)->barrier());
        left = (*left)->shrink();
      }
      if (!left.ok()) return left.status();
      return sum_world_ranks(**left, world_rank, all_but(5, {dead[0], dead[1]}), 3);
    });
    ASSERT_TRUE(job.all_joined());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(job.pid(dead[0]), SIGKILL);
    std::this_thread::sleep_for(apart);
    ::kill(job.pid(dead[1]), SIGKILL);
    EXPECT_EQ(job.wait(40 * kSlack, {dead[0], dead[1]}), "");
    expect_ok(job, {dead[0], dead[1]});
  }
}

// No rank has died: all ranks continue, several times.
TEST_P(Shrink, AllRanksRemainAfterAbort) {
  NEEDS_HOST_NAMES();
  Victims job(4, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int world_rank = c.rank();
    std::unique_ptr<Communicator> left;
    Communicator* now = &c;
    for (int round = 0; round < 3; ++round) {
      // An abort may overtake results in flight. This test checks results, so it waits until all ranks have them.
      while (world_rank == round && board.calls.load() < 4 * static_cast<std::uint64_t>(round))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (world_rank == round) now->abort("by the test");
      if (Status status = sum_until_failure(*now, world_rank, all_but(4, {})); !status.ok()) return status;
      auto made = now->shrink();
      if (!made.ok()) return made.status();
      left = std::move(made).value();
      now = left.get();
      if (Status status = sum_world_ranks(*now, world_rank, all_but(4, {}), 6); !status.ok()) return status;
      board.calls.fetch_add(1);
    }
    return {};
  });
  EXPECT_EQ(job.wait(40 * kSlack), "");
  expect_ok(job);
}

// The deadline's error names the missing rank, which a second shrink() can exclude.
TEST_P(Shrink, LateRankIsNamedAndCanBeExcluded) {
  NEEDS_HOST_NAMES();
  Victims job(4, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int world_rank = c.rank();
    if (world_rank == 2) {
      while (!board.enough.load()) ::usleep(1000);
      return {};
    }
    if (world_rank == 0) c.abort("rank 2 is late");
    if (Status status = sum_until_failure(c, world_rank, all_but(4, {})); !status.ok()) return status;
    const auto with_it = c.shrink({}, std::chrono::milliseconds(700));
    if (with_it.ok()) return wrong("shrink() did not wait for the late rank");
    if (with_it.status().message().find("rank 2") == std::string::npos) return with_it.status();
    const std::array<int, 1> late{2};
    auto left = c.shrink(late);
    if (!left.ok()) return left.status();
    Status status = sum_world_ranks(**left, world_rank, all_but(4, {2}), 6);
    board.enough.store(true);
    return status;
  });
  EXPECT_EQ(job.wait(40 * kSlack), "");
  expect_ok(job);
}

// A rank in shrink() learns that rank 3 left, although it needs no data of rank 3, and agrees with the ranks that call later.
TEST_P(Shrink, RankThatLeavesIsExcluded) {
  NEEDS_HOST_NAMES();
  for (const int early : {0, 1, 2, 4}) {
    SCOPED_TRACE(fmt::format("rank {} is the first to shrink", early));
    Victims job(5, GetParam(), std::chrono::seconds(30), [early](Communicator& c, Board& board) -> Status {
      const int world_rank = c.rank();
      if (world_rank == early) c.abort("by the test");
      if (Status status = sum_until_failure(c, world_rank, all_but(5, {})); !status.ok()) return status;
      if (world_rank == early) board.calls.store(1);
      if (world_rank == 3) {
        while (board.calls.load() == 0) ::usleep(1000);
        ::usleep(50'000);
        return {};
      }
      while (world_rank != early && !board.ranks[3].ended.load()) ::usleep(1000);
      if (world_rank != early) ::usleep(300'000);  // so that they have its leave message
      const FairClock clock;
      auto left = c.shrink();
      if (!left.ok()) return left.status();
      if (clock.seconds() > 5 * kSlack) return wrong("the error came late");
      return sum_world_ranks(**left, world_rank, all_but(5, {3}), 6);
    });
    EXPECT_EQ(job.wait(40 * kSlack), "");
    expect_ok(job);
  }
}

/// The ranks that a report blames because they are not in the call.
std::set<int> accused(const std::string& report) {
  return testing::mentions(report, "missing") ? std::set<int>{} : testing::late_ranks_in(report);
}

// Between nodes only one rank sees that rank 2 is missing; the others wait for ranks that wait in turn. They call one after the
// other, and the deadline of one rank ends shrink() on all.
TEST_P(Shrink, ReportNamesOnlyTheMissingRank) {
  NEEDS_HOST_NAMES();
  for (const int hasty : {0, 1, 3}) {
    SCOPED_TRACE(fmt::format("rank {} has the first deadline", hasty));
    Victims job(4, GetParam(), std::chrono::seconds(30), [hasty](Communicator& c, Board& board) -> Status {
      const int world_rank = c.rank();
      if (world_rank == 2) {
        while (!board.enough.load()) ::usleep(1000);
        return {};
      }
      ::usleep(static_cast<useconds_t>(100'000 * (3 - world_rank)));
      const FairClock clock;
      const auto first = c.shrink({}, std::chrono::milliseconds(world_rank == hasty ? 1'500 : 60'000));
      if (clock.seconds() > 10 * kSlack) return wrong("the error came late");
      if (first.status().code() != StatusCode::timeout || accused(first.status().message()) != std::set{2})
        return wrong(first.status().to_string());
      const std::array<int, 1> late{2};
      auto left = c.shrink(late);
      if (!left.ok()) return left.status();
      Status status = sum_world_ranks(**left, world_rank, all_but(4, {2}), 6);
      board.enough.store(true);
      return status;
    });
    EXPECT_EQ(job.wait(40 * kSlack), "");
    expect_ok(job);
  }
}

// Rank 3 calls shrink() after the others timed out: it gets their error instead of a wait, and the next shrink() includes it.
TEST_P(Shrink, RankAfterDeadlineGetsSameReport) {
  NEEDS_HOST_NAMES();
  Victims job(4, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int world_rank = c.rank();
    if (world_rank == 2) {
      while (!board.enough.load()) ::usleep(1000);
      return {};
    }
    while (world_rank == 3 && board.calls.load() < 2) ::usleep(1000);
    const FairClock clock;
    const auto first = c.shrink({}, std::chrono::milliseconds(world_rank == 3 ? 60'000 : 1'000));
    board.calls.fetch_add(1);
    if (first.status().code() != StatusCode::timeout || accused(first.status().message()) != std::set{2, 3})
      return wrong(first.status().to_string());
    if (clock.seconds() > 5 * kSlack) return wrong("the error came late");
    const std::array<int, 1> late{2};
    auto left = c.shrink(late);
    if (!left.ok()) return left.status();
    Status status = sum_world_ranks(**left, world_rank, all_but(4, {2}), 6);
    board.enough.store(true);
    return status;
  });
  EXPECT_EQ(job.wait(40 * kSlack), "");
  expect_ok(job);
}

TEST(ShrinkArguments, InvalidRanksAreRefused) {
  Victims job(2, "shm", std::chrono::seconds(30), [](Communicator& c, Board&) -> Status {
    const std::array<int, 1> self{c.rank()};
    const std::array<int, 1> outside{7};
    if (c.shrink(self).status().code() != StatusCode::invalid_argument) return wrong("itself");
    if (c.shrink(outside).status().code() != StatusCode::invalid_argument) return wrong("rank 7");
    if (c.shrink({}, std::chrono::milliseconds(-1)).status().code() != StatusCode::invalid_argument) return wrong("timeout");
    auto all = c.shrink();  // of an open communicator, too
    return all.ok() ? sum_world_ranks(**all, c.rank(), {0, 1}, 3) : all.status();
  });
  EXPECT_EQ(job.wait(30 * kSlack), "");
  expect_ok(job);
}

}  // namespace
}  // namespace shoal
