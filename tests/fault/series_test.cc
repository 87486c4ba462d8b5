// Ranks that are killed or stopped at random moments, many times: every survivor ends with the right error in time, nothing is
// left, and no result is wrong.
//
// SHOAL_TEST_SEED=n runs one case; SHOAL_TEST_SEEDS=n, or first:n, others than the usual ones. A case prints its seed when it
// fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/cli/diagnosis.h"
#include "src/cli/job_view.h"
#include "tests/fault/victims.h"
#include "tests/multiprocess/call_model.h"
#include "tests/seeds.h"

namespace shoal {
namespace {

using testing::Board;
using testing::ModelBuffers;
using testing::ModelCall;
using testing::Victims;
using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kSlack = 5;
constexpr std::uint64_t kKills = 12;
constexpr std::uint64_t kStops = 4;
#else
constexpr double kSlack = 1;
constexpr std::uint64_t kKills = 100;
constexpr std::uint64_t kStops = 100;
#endif
constexpr double kInNodeSeconds = 1;
constexpr double kBetweenHostsSeconds = 2;
constexpr std::size_t kStopsAtOnce = 20;  // a job with a stopped rank sleeps

const char* wire_of(std::uint64_t seed, bool mixes) {
  constexpr std::array<const char*, 3> kWires{"shm", "tcp", "mixed"};
  return kWires[seed % (mixes ? 3 : 2)];
}

/// Calls of all kinds, the same on every rank, some in flight together, until one fails. Checks every result.
Status call_until_it_fails(Communicator& c, Board& board, std::uint64_t seed) {
  struct InFlight {
    std::unique_ptr<ModelCall> call;
    std::unique_ptr<ModelBuffers> buffers;
    Work work;
  };
  std::deque<InFlight> flying;
  std::mt19937_64 random(seed);
  Status status;
  const auto end_oldest = [&] {
    status = flying.front().work.wait();
    const std::string wrong = status.ok() ? flying.front().buffers->check() : std::string();
    if (!wrong.empty()) status = Status(StatusCode::internal, "WRONG RESULT of " + flying.front().call->text() + ": " + wrong);
    flying.pop_front();
  };
  for (std::uint64_t k = 0; status.ok(); ++k) {
    InFlight next;
    next.call = std::make_unique<ModelCall>(testing::random_call(random, c.size(), k % 5 == 0 ? 60'000 : 500));
    next.buffers = std::make_unique<ModelBuffers>(*next.call, c.rank());
    auto work = testing::make_call(c, *next.call, *next.buffers);
    if (!work.ok()) {
      status = work.status();
      break;
    }
    next.work = std::move(work).value();
    flying.push_back(std::move(next));
    if (flying.size() > k % 4) end_oldest();
    if (c.rank() == 0) board.calls.store(k + 1);
  }
  for (InFlight& left : flying) static_cast<void>(left.work.wait());  // the buffers are theirs until then
  return status;
}

std::string list_of(const std::string& folder) {
  std::string names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.find("shoal") != std::string::npos) names += name + " ";
  }
  return names;
}

/// One kill. `slowest` becomes the longest time until a survivor knew.
void kill_one(std::uint64_t seed, bool mixes, double* slowest) {
  std::mt19937_64 random(seed * 7919 + 1);
  const int ranks = 2 + static_cast<int>(random() % 5);
  const int victim = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
  const std::string wire = wire_of(seed, mixes);
  const auto moment = std::chrono::microseconds(random() % 30'000);
  SCOPED_TRACE(fmt::format("seed {}: {} ranks over {}, rank {} killed after {} us", seed, ranks, wire, victim, moment.count()));

  Victims job(ranks, wire, std::chrono::seconds(60),
              [seed](Communicator& c, Board& board) { return call_until_it_fails(c, board, seed); });
  ASSERT_TRUE(job.all_joined()) << job.board().ranks[0].text.data();
  std::this_thread::sleep_for(moment);
  const auto killed_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  ::kill(job.pid(victim), SIGKILL);
  EXPECT_EQ(job.wait(20 * kSlack, {victim}), "");
  const double limit = (wire == "shm" ? kInNodeSeconds : kBetweenHostsSeconds) * kSlack;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == victim) continue;
    const Board::Rank& one = job.board().ranks[static_cast<std::size_t>(rank)];
    const double seconds = 1e-9 * static_cast<double>(one.at_ns - killed_ns);
    EXPECT_EQ(to_string(one.code), "peer_failed") << "rank " << rank << ": " << one.text.data();
    EXPECT_THAT(one.text.data(), ::testing::HasSubstr(fmt::format("rank {}", victim))) << "rank " << rank;
    EXPECT_LT(seconds, limit) << "rank " << rank << ": " << one.text.data();
    *slowest = std::max(*slowest, seconds);
  }
  EXPECT_TRUE(job.nothing_runs());
  std::vector<std::string> complaints;
  const auto jobs = read_jobs(job.ledgers(), complaints);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_THAT(diagnose(jobs.front(), 1).sentence,
              ::testing::StartsWith(fmt::format("rank {} (process {}", victim, job.pid(victim))));
}

TEST(Series, WhoeverIsKilledWheneverIsNamedInTimeAndNothingIsLeft) {
  const auto [first, count] = testing::wanted_seeds({0, kKills});
  const bool mixes = testing::may_rename_host();
  if (!mixes) std::cout << "only shm and tcp: this process may not make UTS namespaces\n";
  const std::string names_before = list_of("/dev/shm");
  const auto start = Clock::now();
  double slowest = 0;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) kill_one(seed, mixes, &slowest);
  EXPECT_EQ(list_of("/dev/shm"), names_before);
  std::cout << fmt::format("{} kills, seeds from {}; the slowest survivor knew after {:.3f} s; {:.1f} s in all\n", count, first,
                           slowest, std::chrono::duration<double>(Clock::now() - start).count());
}

/// Sums until rank 0 has been told that it is enough, and says so in a sum. Checks every result.
Status sum_until_enough(Communicator& c, Board& board) {
  std::vector<std::int32_t> data(3000);
  for (std::uint64_t k = 0;; ++k) {
    for (std::size_t i = 1; i < data.size(); ++i) data[i] = c.rank() + static_cast<std::int32_t>(i + k);
    data[0] = c.rank() == 0 && board.enough.load() ? 1 : 0;
    const Status status = c.all_reduce(data.data(), data.data(), data.size(), DataType::int32, ReduceOp::sum);
    if (!status.ok()) return status;
    const int ranks = c.size();
    for (std::size_t i = 1; i < data.size(); ++i) {
      if (data[i] != ranks * static_cast<std::int32_t>(i + k) + ranks * (ranks - 1) / 2)
        return {StatusCode::internal, fmt::format("WRONG RESULT in call {}", k)};
    }
    if (c.rank() == 0) board.calls.store(k + 1);
    if (data[0] != 0) return {};
  }
}

struct StoppedJob {
  std::uint64_t seed = 0;
  int victim = 0;
  bool wakes = true;  ///< before the deadline
  std::unique_ptr<Victims> job;
};

StoppedJob stop_one(std::uint64_t seed, bool mixes) {
  std::mt19937_64 random(seed * 6007 + 3);
  StoppedJob stopped;
  stopped.seed = seed;
  const int ranks = 2 + static_cast<int>(random() % 3);
  stopped.victim = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
  stopped.wakes = random() % 4 != 0;
  stopped.job = std::make_unique<Victims>(ranks, wire_of(seed, mixes),
                                          stopped.wakes ? std::chrono::milliseconds(60'000) : std::chrono::milliseconds(2'000),
                                          sum_until_enough);
  if (!stopped.job->all_joined()) return {};
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
  ::kill(stopped.job->pid(stopped.victim), SIGSTOP);
  return stopped;
}

/// Somebody has warned on standard error that the victim is late.
bool is_reported(const StoppedJob& stopped) {
  for (int rank = 0; rank < stopped.job->size(); ++rank) {
    const std::string words = stopped.job->heard(rank);
    const std::size_t at = words.find("has waited");
    if (at != std::string::npos && words.find(fmt::format("rank {}", stopped.victim), at) != std::string::npos) return true;
  }
  return false;
}

bool others_have_ended(const StoppedJob& stopped) {
  for (int rank = 0; rank < stopped.job->size(); ++rank) {
    if (rank != stopped.victim && !stopped.job->board().ranks[static_cast<std::size_t>(rank)].ended.load()) return false;
  }
  return true;
}

void expect_waited_for(StoppedJob& stopped) {
  SCOPED_TRACE(fmt::format("seed {}: {} ranks, rank {} stopped", stopped.seed, stopped.job->size(), stopped.victim));
  const auto until = Clock::now() + std::chrono::duration<double>(20 * kSlack);
  while (Clock::now() < until && !(stopped.wakes ? is_reported(stopped) : others_have_ended(stopped)))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(is_reported(stopped)) << "nobody was told who is late";
  std::vector<std::string> complaints;
  const auto jobs = read_jobs(stopped.job->ledgers(), complaints);
  if (stopped.wakes) {
    EXPECT_THAT(jobs.empty() ? "no ledger" : diagnose(jobs.front(), 0.01).sentence,
                ::testing::AllOf(::testing::HasSubstr(fmt::format("rank {} (process", stopped.victim)),
                                 ::testing::HasSubstr("is stopped")));
  }
  // Where the others have given up, the one that wakes must be told in its next call.
  if (stopped.wakes) stopped.job->board().enough.store(true);
  ::kill(stopped.job->pid(stopped.victim), SIGCONT);
  EXPECT_EQ(stopped.job->wait(20 * kSlack), "");
  for (int rank = 0; rank < stopped.job->size(); ++rank) {
    const Board::Rank& one = stopped.job->board().ranks[static_cast<std::size_t>(rank)];
    if (stopped.wakes) {
      EXPECT_EQ(to_string(one.code), "ok") << "rank " << rank << ": " << one.text.data();
    } else {
      EXPECT_EQ(to_string(one.code), "timeout") << "rank " << rank << ": " << one.text.data();
      EXPECT_THAT(one.text.data(), ::testing::HasSubstr(fmt::format("rank {}", stopped.victim)));
    }
  }
  EXPECT_TRUE(stopped.job->nothing_runs());
}

TEST(Series, WhoeverIsStoppedIsReportedLateAndWaitedForUntilTheDeadline) {
  const auto [first, count] = testing::wanted_seeds({0, kStops});
  const bool mixes = testing::may_rename_host();
  if (!mixes) std::cout << "only shm and tcp: this process may not make UTS namespaces\n";
  ::setenv("SHOAL_WARN_AFTER", "0.2", 1);
  const auto start = Clock::now();
  for (std::uint64_t seed = first; seed < first + count && !HasFailure();) {
    std::vector<StoppedJob> batch;
    for (; seed < first + count && batch.size() < kStopsAtOnce; ++seed) {
      batch.push_back(stop_one(seed, mixes));
      ASSERT_NE(batch.back().job, nullptr) << "seed " << seed << ": the job did not start";
    }
    for (StoppedJob& stopped : batch) expect_waited_for(stopped);
  }
  ::unsetenv("SHOAL_WARN_AFTER");
  std::cout << fmt::format("{} stops, seeds from {}; {:.1f} s in all\n", count, first,
                           std::chrono::duration<double>(Clock::now() - start).count());
}

}  // namespace
}  // namespace shoal
