// Survivors of a failure go on in a communicator of those who are left.
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

#include "tests/facts.h"
#include "tests/fault/clauses.h"
#include "tests/fault/victims.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using testing::Board;
using testing::Victims;

Status wrong(const std::string& what) { return {StatusCode::internal, "WRONG: " + what}; }

/// Sums of the places that the members had in the job, so that the result says who they are; `calls` of them, of several sizes.
Status sum_places(Communicator& c, int place, const std::vector<int>& members, int calls) {
  for (int k = 0; k < calls; ++k) {
    std::vector<std::int64_t> data(k % 3 == 0 ? 3 : k % 3 == 1 ? 1000 : 200'000);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = (1LL << (4 * place)) + static_cast<std::int64_t>(i);
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

Status sum_until_failure(Communicator& c, int place, const std::vector<int>& members) {
  for (;;) {
    if (Status status = sum_places(c, place, members, 3); !status.ok())
      return status.code() == StatusCode::internal ? status : Status();
  }
}

std::vector<int> all_but(int ranks, std::initializer_list<int> gone) {
  std::vector<int> left;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::ranges::find(gone, rank) == gone.end()) left.push_back(rank);
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

// Two ranks die, one after the other; the last shrinking starts from a communicator that has been shrunk itself.
TEST_P(Shrink, SurvivorsGoOnAfterEachDeath) {
  NEEDS_HOST_NAMES();
  Victims job(5, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int place = c.rank();
    if (Status status = sum_until_failure(c, place, all_but(5, {})); !status.ok()) return status;
    auto first = c.shrink();
    if (!first.ok()) return first.status();
    if ((*first)->size() != 4 || (*first)->rank() != (place > 1 ? place - 1 : place)) return wrong("places after one death");
    if (Status status = sum_places(**first, place, all_but(5, {1}), 9); !status.ok()) return status;
    board.calls.fetch_add(1);
    if (Status status = sum_until_failure(**first, place, all_but(5, {1})); !status.ok()) return status;
    auto second = (*first)->shrink();
    if (!second.ok()) return second.status();
    first->reset();
    return sum_places(**second, place, all_but(5, {1, 4}), 9);
  });
  ASSERT_TRUE(job.all_joined());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ::kill(job.pid(1), SIGKILL);
  for (int k = 0; k < 3000 && job.board().calls.load() < 4; ++k) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(job.pid(4), SIGKILL);
  EXPECT_EQ(job.wait(40 * kSlack, {1, 4}), "");
  expect_ok(job, {1, 4});
}

// A rank that finds a peer dead while it says something to it hears of that in its next call: nobody wakes it for it again.
TEST_P(Shrink, ADeathDuringAFarewellIsHeardOf) {
  NEEDS_HOST_NAMES();
  Victims job(3, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int place = c.rank();
    std::vector<std::unique_ptr<Communicator>> pairs;
    while (place != 1 && pairs.size() < 4) {
      auto pair = c.group(std::array<int, 2>{0, 2});
      if (!pair.ok()) return pair.status();
      if (Status status = (*pair)->barrier(); !status.ok()) return status;
      pairs.push_back(std::move(pair).value());
    }
    board.calls.fetch_add(1);
    while (!board.enough.load() && (place != 0 || board.mark_ns.load() == 0)) ::usleep(1000);
    if (place != 0) return {};
    for (; !pairs.empty(); pairs.pop_back()) ::usleep(5000);  // an answer of the system that nobody listens there may come
    const auto begin = std::chrono::steady_clock::now();
    const Status status = c.barrier();
    if (status.code() != StatusCode::peer_failed || status.message().find("rank 2") == std::string::npos)
      return wrong("a barrier with a dead rank: " + status.to_string());
    if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(kSlack)) return wrong("heard of late");
    return {};
  });
  ASSERT_TRUE(job.all_joined());
  for (int k = 0; k < 3000 && job.board().calls.load() < 3; ++k) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(job.pid(2), SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  job.board().mark_ns = 1;
  for (int k = 0; k < 600 && !job.board().ranks[0].ended.load(); ++k)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  job.board().enough = true;
  EXPECT_EQ(job.wait(40 * kSlack, {2}), "");
  expect_ok(job, {2});
}

// Both at once, and rank 0 among them: what each survivor knows when it begins to shrink differs.
TEST_P(Shrink, SurvivorsFindEachOtherWhenSeveralDieAtOnce) {
  NEEDS_HOST_NAMES();
  std::mt19937_64 random(7);
  for (int round = 0; round < 4; ++round) {
    const std::array<int, 2> dead{0, 1 + static_cast<int>(random() % 4)};
    const auto apart = std::chrono::microseconds(random() % 2'000);
    SCOPED_TRACE(fmt::format("ranks 0 and {} die, {} us apart", dead[1], apart.count()));
    Victims job(5, GetParam(), std::chrono::seconds(30), [&](Communicator& c, Board&) -> Status {
      const int place = c.rank();
      if (Status status = sum_until_failure(c, place, all_but(5, {})); !status.ok()) return status;
      auto left = c.shrink();
      // The second death may come when the first one's survivors have met already.
      if (left.ok() && (*left)->size() == 4) {
        for (int k = 0; k < 10'000 && (*left)->status().ok(); ++k) static_cast<void>((*left)->barrier());
        left = (*left)->shrink();
      }
      if (!left.ok()) return left.status();
      return sum_places(**left, place, all_but(5, {dead[0], dead[1]}), 3);
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

// Nobody has died: all go on together, as often as they like.
TEST_P(Shrink, AfterAnAbortEverybodyIsLeft) {
  NEEDS_HOST_NAMES();
  Victims job(4, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int place = c.rank();
    std::unique_ptr<Communicator> left;
    Communicator* now = &c;
    for (int round = 0; round < 3; ++round) {
      // An abort may overtake results on their way to others, which here are to be right.
      while (place == round && board.calls.load() < 4 * static_cast<std::uint64_t>(round))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (place == round) now->abort("once more");
      if (Status status = sum_until_failure(*now, place, all_but(4, {})); !status.ok()) return status;
      auto made = now->shrink();
      if (!made.ok()) return made.status();
      left = std::move(made).value();
      now = left.get();
      if (Status status = sum_places(*now, place, all_but(4, {}), 6); !status.ok()) return status;
      board.calls.fetch_add(1);
    }
    return {};
  });
  EXPECT_EQ(job.wait(40 * kSlack), "");
  expect_ok(job);
}

// A rank that does not come is named at the deadline, and can be left out.
TEST_P(Shrink, ALateRankIsNamedAndCanBeLeftOut) {
  NEEDS_HOST_NAMES();
  Victims job(4, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int place = c.rank();
    if (place == 2) {
      while (!board.enough.load()) ::usleep(1000);
      return {};
    }
    if (place == 0) c.abort("rank 2 is late");
    if (Status status = sum_until_failure(c, place, all_but(4, {})); !status.ok()) return status;
    const auto with_it = c.shrink({}, std::chrono::milliseconds(700));
    if (with_it.ok()) return wrong("the late rank is in");
    if (with_it.status().message().find("rank 2") == std::string::npos) return with_it.status();
    const std::array<int, 1> late{2};
    auto left = c.shrink(late);
    if (!left.ok()) return left.status();
    Status status = sum_places(**left, place, all_but(4, {2}), 6);
    board.enough.store(true);
    return status;
  });
  EXPECT_EQ(job.wait(40 * kSlack), "");
  expect_ok(job);
}

// Who has begun to meet hears of it though it needs nothing of that rank itself, and finds those who came later.
TEST_P(Shrink, ARankThatLeavesTheJobInsteadIsLeftOut) {
  NEEDS_HOST_NAMES();
  for (const int early : {0, 1, 2, 4}) {
    SCOPED_TRACE(fmt::format("rank {} is the first to shrink", early));
    Victims job(5, GetParam(), std::chrono::seconds(30), [early](Communicator& c, Board& board) -> Status {
      const int place = c.rank();
      if (place == early) c.abort("somebody wants it so");
      if (Status status = sum_until_failure(c, place, all_but(5, {})); !status.ok()) return status;
      if (place == early) board.calls.store(1);
      if (place == 3) {
        while (board.calls.load() == 0) ::usleep(1000);
        ::usleep(50'000);
        return {};
      }
      while (place != early && !board.ranks[3].ended.load()) ::usleep(1000);
      if (place != early) ::usleep(300'000);  // so that they know of its farewell
      const auto begin = std::chrono::steady_clock::now();
      auto left = c.shrink();
      if (!left.ok()) return left.status();
      if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(5 * kSlack)) return wrong("heard of late");
      return sum_places(**left, place, all_but(5, {3}), 6);
    });
    EXPECT_EQ(job.wait(40 * kSlack), "");
    expect_ok(job);
  }
}

/// The ranks that a report says are to blame, since they are not in the call.
std::set<int> accused(const std::string& report) {
  return testing::mentions(report, "missing") ? std::set<int>{} : testing::late_ranks_in(report);
}

// Over nodes only one rank sees that rank 2 is missing; all others wait for ranks that wait in turn. They come one after the
// other, and the deadline of one of them ends the meeting for all.
TEST_P(Shrink, OnlyTheMissingRankIsAccusedWhoeverGivesUpFirst) {
  NEEDS_HOST_NAMES();
  for (const int hasty : {0, 1, 3}) {
    SCOPED_TRACE(fmt::format("rank {} gives up first", hasty));
    Victims job(4, GetParam(), std::chrono::seconds(30), [hasty](Communicator& c, Board& board) -> Status {
      const int place = c.rank();
      if (place == 2) {
        while (!board.enough.load()) ::usleep(1000);
        return {};
      }
      ::usleep(static_cast<useconds_t>(100'000 * (3 - place)));
      const auto begin = std::chrono::steady_clock::now();
      const auto met = c.shrink({}, std::chrono::milliseconds(place == hasty ? 1'500 : 60'000));
      if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(10 * kSlack)) return wrong("heard of late");
      if (met.status().code() != StatusCode::timeout || accused(met.status().message()) != std::set{2})
        return wrong(met.status().to_string());
      const std::array<int, 1> late{2};
      auto left = c.shrink(late);
      if (!left.ok()) return left.status();
      Status status = sum_places(**left, place, all_but(4, {2}), 6);
      board.enough.store(true);
      return status;
    });
    EXPECT_EQ(job.wait(40 * kSlack), "");
    expect_ok(job);
  }
}

// It does not wait alone for those who have given up, but hears why, and finds them where they have gone.
TEST_P(Shrink, WhoComesAfterTheDeadlineHearsOfIt) {
  NEEDS_HOST_NAMES();
  Victims job(4, GetParam(), std::chrono::seconds(30), [](Communicator& c, Board& board) -> Status {
    const int place = c.rank();
    if (place == 2) {
      while (!board.enough.load()) ::usleep(1000);
      return {};
    }
    while (place == 3 && board.calls.load() < 2) ::usleep(1000);
    const auto begin = std::chrono::steady_clock::now();
    const auto met = c.shrink({}, std::chrono::milliseconds(place == 3 ? 60'000 : 1'000));
    board.calls.fetch_add(1);
    if (met.status().code() != StatusCode::timeout || accused(met.status().message()) != std::set{2, 3})
      return wrong(met.status().to_string());
    if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(5 * kSlack)) return wrong("heard of late");
    const std::array<int, 1> late{2};
    auto left = c.shrink(late);
    if (!left.ok()) return left.status();
    Status status = sum_places(**left, place, all_but(4, {2}), 6);
    board.enough.store(true);
    return status;
  });
  EXPECT_EQ(job.wait(40 * kSlack), "");
  expect_ok(job);
}

TEST(ShrinkArguments, RanksThatMakeNoSenseAreRefused) {
  Victims job(2, "shm", std::chrono::seconds(30), [](Communicator& c, Board&) -> Status {
    const std::array<int, 1> self{c.rank()};
    const std::array<int, 1> nobody{7};
    if (c.shrink(self).status().code() != StatusCode::invalid_argument) return wrong("itself");
    if (c.shrink(nobody).status().code() != StatusCode::invalid_argument) return wrong("rank 7");
    if (c.shrink({}, std::chrono::milliseconds(-1)).status().code() != StatusCode::invalid_argument) return wrong("timeout");
    auto all = c.shrink();  // of an open communicator, too
    return all.ok() ? sum_places(**all, c.rank(), {0, 1}, 3) : all.status();
  });
  EXPECT_EQ(job.wait(30 * kSlack), "");
  expect_ok(job);
}

}  // namespace
}  // namespace shoal
