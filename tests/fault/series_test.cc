// Kills and stops ranks at random moments, many times: every survivor reports the right error in time, no process or file is
// left, and no result is wrong.
//
// SHOAL_TEST_SEED=n runs one case, SHOAL_TEST_SEEDS=n or first:n other cases than the default. A case prints its seed when it
// fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/cli/diagnosis.h"
#include "src/cli/job_view.h"
#include "src/join/socket.h"
#include "tests/eventually.h"
#include "tests/fault/clauses.h"
#include "tests/fault/victims.h"
#include "tests/mentions.h"
#include "tests/multiprocess/call_model.h"
#include "tests/seeds.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using testing::Board;
using testing::ModelBuffers;
using testing::ModelCall;
using testing::Sandbox;
using testing::Victims;
using Clock = std::chrono::steady_clock;

#ifdef SHOAL_SANITIZED
constexpr std::uint64_t kKills = 12;
constexpr std::uint64_t kStops = 4;
constexpr std::uint64_t kKillsAtMoments = 8;
#else
constexpr std::uint64_t kKills = 50;
constexpr std::uint64_t kStops = 100;
constexpr std::uint64_t kKillsAtMoments = 40;
#endif
constexpr double kInNodeSeconds = 1;
constexpr double kBetweenHostsSeconds = 2;
constexpr std::size_t kStopsAtOnce = 20;  // a job with a stopped rank needs no processor time
constexpr std::size_t kStartsAtOnce = 10;

const char* wire_of(std::uint64_t seed, bool mixes) {
  constexpr std::array<const char*, 3> kWires{"shm", "tcp", "mixed"};
  return kWires[seed % (mixes ? 3 : 2)];
}

/// Makes calls of all kinds, the same on every rank, some in flight together, until one fails. Checks every result.
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
  for (InFlight& left : flying) static_cast<void>(left.work.wait());  // until then the calls may use the buffers
  return status;
}

/// Files in the job's folder that should not be there, and flight records of the ranks `failed` that are missing. Expected are
/// the keys of the store, a temporary key that `victim` was writing, and the ranks' standard error.
std::string unexpected_files(const Victims& job, const std::vector<int>& failed, int victim) {
  std::set<std::string> flight_records;
  for (const int rank : failed) flight_records.insert(fmt::format("rank.{}", rank));
  std::string unexpected;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(job.folder(), error)) {
    const std::string name = entry.path().filename();
    const std::string parent = entry.path().parent_path();
    const bool at_top = parent == job.folder();
    const bool of_store = at_top && (name.starts_with("key-") || name.starts_with("left-") ||
                                     name.starts_with(fmt::format("tmp-{}-", job.pid(victim))));
    const bool is_stderr = at_top && name.starts_with("stderr.");
    // flight_records/<job>/rank.N
    const bool is_folder = entry.path() == job.flight_records() || (parent == job.flight_records() && !failed.empty());
    const bool is_flight_record = !at_top && parent != job.flight_records() && flight_records.erase(name) == 1;
    if (!of_store && !is_stderr && !is_folder && !is_flight_record) unexpected += entry.path().string() + "\n";
  }
  for (const std::string& missing : flight_records) unexpected += missing + " is missing\n";
  return unexpected;
}

/// Null where this process may not make a sandbox: then the test checks processes and files only. Prints that once.
const Sandbox* sandbox_or_null(const Sandbox& sandbox) {
  if (sandbox.unavailable().empty()) return &sandbox;
  std::cout << "checks processes and files only, not sockets and segments: " << sandbox.unavailable() << "\n";
  return nullptr;
}

/// Checks that a job whose processes have ended left nothing behind.
void expect_nothing_left(const Victims& job, const Sandbox* sandbox) {
  EXPECT_TRUE(job.nothing_runs());
  if (sandbox != nullptr) {
    EXPECT_EQ(sandbox->contents(), "");
  }
}

std::vector<int> all_of(const Victims& job) {
  std::vector<int> ranks(static_cast<std::size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

double bound_of(const std::string& wire) { return (wire == "mixed" ? kBetweenHostsSeconds : kInNodeSeconds) * kSlack; }

/// Kills one rank. `slowest` becomes the longest time until a survivor reported it, in seconds.
void kill_one(std::uint64_t seed, bool mixes, const Sandbox* sandbox, double* slowest) {
  std::mt19937_64 random(seed * 7919 + 1);
  const int ranks = 2 + static_cast<int>(random() % 5);
  const int victim = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
  const std::string wire = wire_of(seed, mixes);
  const auto moment = std::chrono::microseconds(random() % 30'000);
  SCOPED_TRACE(fmt::format("seed {}: {} ranks over {}, rank {} killed after {} us", seed, ranks, wire, victim, moment.count()));

  Victims job(ranks, wire, std::chrono::seconds(60),
              [seed](Communicator& c, Board& board) { return call_until_it_fails(c, board, seed); }, {.sandbox = sandbox});
  ASSERT_TRUE(job.all_joined()) << job.board().ranks[0].text.data();
  std::this_thread::sleep_for(moment);
  const auto killed_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  ::kill(job.pid(victim), SIGKILL);
  EXPECT_EQ(job.wait(20 * kSlack, {victim}), "");
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == victim) continue;
    const Board::Rank& one = job.board().ranks[static_cast<std::size_t>(rank)];
    const double seconds = 1e-9 * static_cast<double>(one.at_ns - killed_ns);
    EXPECT_EQ(to_string(one.code), "peer_failed") << "rank " << rank << ": " << one.text.data();
    EXPECT_THAT(one.text.data(), ::testing::HasSubstr(fmt::format("rank {}", victim))) << "rank " << rank;
    EXPECT_LT(seconds, bound_of(wire) + job.allowance_s()) << "rank " << rank << ": " << one.text.data();
    *slowest = std::max(*slowest, seconds);
  }
  expect_nothing_left(job, sandbox);
  EXPECT_EQ(unexpected_files(job, all_of(job), victim), "");
  std::vector<std::string> complaints;
  const auto jobs = read_jobs(job.flight_records(), complaints);
  ASSERT_EQ(jobs.size(), 1U);
  const std::string diagnosis = diagnose(jobs.front(), 1).sentence;
  EXPECT_EQ(testing::first_rank_named_in(diagnosis), victim) << diagnosis;
  EXPECT_THAT(diagnosis, testing::Mentions(fmt::format("process {}", job.pid(victim))));
}

TEST(Series, SurvivorsNameKilledRankAndNothingIsLeft) {
  const auto [first, count] = testing::wanted_seeds({0, kKills});
  const bool mixes = testing::may_rename_host();
  if (!mixes) std::cout << "only shm and tcp: this process may not make UTS namespaces\n";
  const Sandbox own;
  const Sandbox* sandbox = sandbox_or_null(own);
  const auto start = Clock::now();
  double slowest = 0;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) kill_one(seed, mixes, sandbox, &slowest);
  std::cout << fmt::format("{} kills, seeds from {}; the slowest survivor reported it after {:.3f} s; {:.1f} s in all\n", count,
                           first, slowest, std::chrono::duration<double>(Clock::now() - start).count());
}

// Proves that the sandbox sees what a running job holds and what a rank leaves behind on purpose. Otherwise an empty sandbox
// after a kill would prove nothing.
TEST(Series, SandboxListsWhatAJobHoldsAndLeaves) {
  const Sandbox sandbox;
  if (!sandbox.unavailable().empty()) GTEST_SKIP() << sandbox.unavailable();
  EXPECT_EQ(sandbox.contents(), "");
  Victims job(2, "tcp", std::chrono::seconds(60),
              [](Communicator& c, Board& board) -> Status {
                if (c.rank() == 0) {
                  std::ofstream("/tmp/a-file") << "here";
                  std::ofstream("/dev/shm/a-segment") << "here";
                  if (::shmget(0x5304, 4096, IPC_CREAT | 0600) < 0) return {StatusCode::internal, "no System V segment"};
                  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
                  sockaddr_un address{};
                  address.sun_family = AF_UNIX;
                  constexpr std::string_view kName = "a-name";
                  kName.copy(address.sun_path + 1, kName.size());
                  const socklen_t size = offsetof(sockaddr_un, sun_path) + 1 + kName.size();
                  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0)
                    return {StatusCode::internal, "no name"};
                  if (::fork() == 0) {  // a process outside of the job's process group, with a socket
                    ::setsid();
                    board.mark_ns.store(::getpid());
                    for (;;) ::pause();
                  }
                }
                while (!board.enough.load()) ::usleep(1000);
                return {};
              },
              {.sandbox = &sandbox});
  ASSERT_TRUE(job.all_joined());
  ASSERT_TRUE(testing::eventually([&] { return job.board().mark_ns.load() != 0; }));
  const auto child = static_cast<pid_t>(job.board().mark_ns.load());
  EXPECT_THAT(sandbox.contents(), ::testing::AllOf(::testing::HasSubstr(fmt::format("process {}\n", job.pid(0))),
                                                   ::testing::HasSubstr(fmt::format("process {}\n", job.pid(1))),
                                                   ::testing::ContainsRegex("/proc/net/tcp 0100007F:[0-9A-F]+ listens"),
                                                   ::testing::ContainsRegex("/proc/net/tcp 0100007F:[0-9A-F]+ is open")));
  job.board().enough.store(true);
  EXPECT_EQ(job.wait(20 * kSlack), "");
  EXPECT_TRUE(job.nothing_runs()) << "by the process group";
  EXPECT_EQ(unexpected_files(job, {}, 0), "") << "ranks that end in order remove their flight records";
  EXPECT_THAT(sandbox.contents(),
              ::testing::AllOf(::testing::HasSubstr(fmt::format("process {}\n", child)), ::testing::HasSubstr("@a-name"),
                               ::testing::HasSubstr("file /tmp/a-file"), ::testing::HasSubstr("file /dev/shm/a-segment"),
                               ::testing::HasSubstr("/proc/sysvipc/shm")));
  ASSERT_GT(child, 0);
  ::kill(child, SIGKILL);
}

/// A job of a random size and wire, one rank of which dies at a random moment of start-up.
struct StartWithDeath {
  std::uint64_t seed = 0;
  int victim = 0;
  std::string wire;
  std::string story;
  std::unique_ptr<Victims> job;
};

/// Statistics of the survivors.
struct Survivors {
  double slowest = 0;
  std::string slowest_story;
  int count = 0;
  int named = 0;  ///< of them, those that named the victim

  void add(double seconds, bool names, const std::string& story) {
    ++count;
    named += names ? 1 : 0;
    if (seconds > slowest) slowest = seconds, slowest_story = story;
  }
};

/// Whether the report of a rank names `victim`: "rank 3", or "ranks 1, 3".
bool names_victim(const Board::Rank& one, int victim) {
  return std::regex_search(one.text.data(), std::regex(fmt::format("ranks? ([0-9]+, )*{}([^0-9]|$)", victim)));
}

/// A free port; in a sandbox a port that none of the jobs' connections takes.
int store_port(std::uint64_t seed, const Sandbox* sandbox) {
  return sandbox != nullptr ? 20'000 + static_cast<int>(seed % 10'000) : free_port("127.0.0.1").value();
}

constexpr std::chrono::milliseconds kStartTimeout{static_cast<int>(3000 * kSlack)};

StartWithDeath start_with_death(std::uint64_t seed, bool mixes, const Sandbox* sandbox) {
  std::mt19937_64 random(seed * 4363 + 5);
  StartWithDeath start;
  start.seed = seed;
  start.wire = wire_of(seed, mixes);
  const int ranks = 2 + static_cast<int>(random() % 5);
  start.victim = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
  const bool probes = random() % 2 == 0;
  const bool served = random() % 2 == 0;  // rank 0 serves the store
  const bool keepers = served && seed / 2 % 2 == 0;
  // Start-up takes a few milliseconds, and longer when it measures the links.
  const auto moment = std::chrono::microseconds(random() % (random() % 2 == 0 ? 8'000 : 80'000));
  start.story =
      fmt::format("seed {}: {} ranks over {}, a store {}{}, rank {} killed {} us after its fork", seed, ranks, start.wire,
                  keepers  ? "that rank 0 serves, with keepers"
                  : served ? "that rank 0 serves"
                           : "in a folder",
                  probes ? ", links are measured" : "", start.victim, moment.count());
  start.job = std::make_unique<Victims>(
      ranks, start.wire, kStartTimeout, [seed](Communicator& c, Board& board) { return call_until_it_fails(c, board, seed); },
      testing::Surroundings{.environment = {{"SHOAL_PROBE", probes ? "1" : "0"}},
                            .sandbox = sandbox,
                            .store_port = served ? store_port(seed, sandbox) : 0,
                            .keepers = keepers,
                            .dies = start.victim,
                            .dies_after = moment});
  return start;
}

/// Whether the report of `rank` names another rank. A rank may wait for one that itself waits for the dead rank: then it can
/// name the former only.
bool names_another(const Board::Rank& one, int rank, int ranks) {
  bool names = false;
  for (int other = 0; other < ranks; ++other) names |= other != rank && names_victim(one, other);
  return names;
}

void expect_end_of_start(const StartWithDeath& start, Survivors* survivors) {
  SCOPED_TRACE(start.story);
  Victims& job = *start.job;
  EXPECT_EQ(job.wait(20 * kSlack, {start.victim}), "");
  const double limit = std::chrono::duration<double>(kStartTimeout).count() + kInNodeSeconds * kSlack + job.allowance_s();
  const bool entered = job.board().ranks[static_cast<std::size_t>(start.victim)].entered.load();
  bool any_names = false;
  for (int rank = 0; rank < job.size(); ++rank) {
    if (rank == start.victim) continue;
    const Board::Rank& one = job.board().ranks[static_cast<std::size_t>(rank)];
    const double seconds = 1e-9 * static_cast<double>(one.at_ns - job.board().mark_ns.load());
    const std::string words = one.text.data();
    survivors->add(seconds, names_victim(one, start.victim), start.story);
    EXPECT_LT(1e-9 * static_cast<double>(one.at_ns - one.began_ns), limit) << "rank " << rank << ": " << words;
    EXPECT_TRUE(one.code == StatusCode::timeout || one.code == StatusCode::peer_failed) << to_string(one.code) << ": " << words;
    const bool names = names_victim(one, start.victim);
    any_names |= names;
    if (!names) std::cout << start.story << ": rank " << rank << " says " << words << "\n";
    EXPECT_TRUE(names || names_another(one, rank, job.size())) << "rank " << rank << ": " << words;
    // Ranks that entered the store detect the death of another such rank at once. A rank that joined fails in its first call.
    if ((entered && one.entered.load()) || std::regex_search(words, std::regex("call [0-9]"))) {
      EXPECT_TRUE(names_victim(one, start.victim)) << "rank " << rank << ": " << words;
      EXPECT_LT(seconds, bound_of(start.wire) + job.allowance_s()) << "rank " << rank << ": " << words;
    }
  }
  EXPECT_TRUE(any_names) << "no rank named the missing rank";
}

TEST(Series, RankKilledAtStartUpDoesNotHangOthers) {
  const auto [first, count] = testing::wanted_seeds({0, kKillsAtMoments});
  const bool mixes = testing::may_rename_host();
  const Sandbox own;
  const Sandbox* sandbox = sandbox_or_null(own);
  const auto start = Clock::now();
  Survivors survivors;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure();) {
    std::vector<StartWithDeath> batch;  // many at once, because some ranks wait for the dead one until the deadline
    for (; seed < first + count && batch.size() < kStartsAtOnce; ++seed)
      batch.push_back(start_with_death(seed, mixes, sandbox));
    for (const StartWithDeath& each : batch) expect_end_of_start(each, &survivors);
    for (const StartWithDeath& each : batch) expect_nothing_left(*each.job, sandbox);
  }
  std::cout << fmt::format(
      "{} kills, seeds from {}; {} of {} survivors named the dead rank; the slowest ended after {:.3f} s ({}); {:.1f} s in "
      "all\n",
      count, first, survivors.named, survivors.count, survivors.slowest, survivors.slowest_story,
      std::chrono::duration<double>(Clock::now() - start).count());
}

/// Sums, of several sizes, of numbers that identify the members by their ranks in the job. Makes `calls` sums, or fewer if one
/// fails.
Status sum_many(Communicator& c, int world_rank, const std::vector<int>& members, int calls) {
  for (int k = 0; k < calls; ++k) {
    std::vector<std::int64_t> data(k % 3 == 2 ? 40'000 : k % 3 == 1 ? 1'000 : 3, std::int64_t{1} << (4 * world_rank));
    if (Status status = c.all_reduce(data.data(), data.data(), data.size(), DataType::int64, ReduceOp::sum); !status.ok())
      return status;
    std::int64_t right = 0;
    for (const int member : members) right += std::int64_t{1} << (4 * member);
    for (const std::int64_t each : data) {
      if (each != right) return {StatusCode::internal, fmt::format("WRONG RESULT {:x} in call {}, not {:x}", each, k, right)};
    }
  }
  return {};
}

constexpr int kManyCalls = 1'000'000'000;

bool names_dead(const Status& status, int victim) {
  return status.code() == StatusCode::peer_failed && testing::first_rank_named_in(status.message()) == victim;
}

/// Makes groups by split() and group(), makes calls in them, and destroys them in any order, until a call fails. `victim` dies
/// meanwhile: the first error must name it.
Status make_groups_until_one_fails(Communicator& c, int victim, std::uint64_t seed) {
  std::mt19937_64 random(seed);  // the same on every rank
  const int ranks = c.size();
  std::vector<std::pair<std::unique_ptr<Communicator>, std::vector<int>>> groups;
  for (;;) {
    // By split(): two colors at random. By group(): a random stretch of ranks.
    const std::uint64_t bits = random();
    const bool by_split = random() % 2 == 0;
    std::vector<int> members;
    const auto color = [&](int rank) { return static_cast<int>(bits >> rank & 1); };
    const int from = static_cast<int>(bits % static_cast<std::uint64_t>(ranks));
    const int to = from + 1 + static_cast<int>((bits >> 8) % static_cast<std::uint64_t>(ranks - from));
    for (int rank = 0; rank < ranks; ++rank) {
      if (by_split ? color(rank) == color(c.rank()) : rank >= from && rank < to) members.push_back(rank);
    }
    const bool is_member = std::ranges::find(members, c.rank()) != members.end();
    if (!is_member) {
      groups.emplace_back();  // so that all ranks destroy the same groups
    } else {
      auto made = by_split ? c.split(color(c.rank()), 0) : c.group(members);
      if (!made.ok()) return made.status();
      groups.emplace_back(std::move(made).value(), members);
    }
    const std::uint64_t drops = random();
    for (auto& [group, its] : groups) {
      const Status status = group == nullptr ? Status() : sum_many(*group, c.rank(), its, 3);
      if (status.ok()) continue;
      if (std::ranges::find(its, victim) != its.end()) return status;
      // A group without the victim fails only because a member learned of the death in another group and closed this one.
      if (status.code() != StatusCode::peer_failed || names_dead(status, victim) || testing::mentions(status.message(), "died"))
        return {StatusCode::internal, "WRONG: a group without the victim failed: " + status.to_string()};
      return c.barrier();
    }
    while (groups.size() > 2)
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(drops % static_cast<std::uint64_t>(groups.size())));
  }
}

enum class Moment { groups, shrink, destruction };

/// The part of rank c.rank() in a job that tests `moment`, during which `victim` dies. The reason for a shrink() is the death
/// of `first_victim`; an abort if that is -1.
Status run_until_death(Moment moment, Communicator& c, Board& board, int victim, int first_victim, std::uint64_t seed) {
  std::mt19937_64 random(seed * 31 + 7);  // the same on every rank
  const int world_rank = c.rank();
  std::vector<int> all_ranks(static_cast<std::size_t>(c.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  // Deaths before all ranks joined are not tested here. The reason for a shrink() may come while ranks are in this barrier.
  if (Status status = c.barrier(); !status.ok() && moment != Moment::shrink) return status;
  if (moment == Moment::groups) {
    if (world_rank == victim) testing::die_after(std::chrono::microseconds(random() % 20'000), board);
    return make_groups_until_one_fails(c, victim, seed);
  }
  if (moment == Moment::destruction) {
    auto group = c.split(0, -world_rank);
    if (!group.ok()) return group.status();
    if (Status status = sum_many(**group, world_rank, all_ranks, 3); !status.ok()) return status;
    if (Status status = c.barrier(); !status.ok()) return status;
    if (world_rank == victim) testing::die_after(std::chrono::microseconds(random() % 1'500), board);
    // Half of the ranks destroy the group with a call in flight.
    Work left;
    std::int32_t value = 0;
    if (random() % 2 == 0) {
      auto work = (*group)->all_reduce_async(&value, &value, 1, DataType::int32, ReduceOp::sum);
      if (work.ok()) left = std::move(work).value();
    }
    group = Status(StatusCode::internal, "destroyed");
    const Status ended = left.wait();  // until then the call may use the buffer
    if (!ended.ok() && ended.code() != StatusCode::aborted && !names_dead(ended, victim)) return ended;
    return sum_many(c, world_rank, all_ranks, 2);
  }
  const auto delay = std::chrono::microseconds(random() % 4'000);
  const auto cause = std::chrono::microseconds(random() % 4'000);
  std::thread aborter;
  if (world_rank == first_victim) testing::die_after(cause, board);
  if (first_victim < 0 && world_rank == (victim + 1) % c.size()) {
    aborter = std::thread([&] {
      std::this_thread::sleep_for(cause);
      c.abort("reason for shrink");
    });
  }
  Status status = sum_many(c, world_rank, all_ranks, kManyCalls);
  if (aborter.joinable()) aborter.join();
  if (status.code() == StatusCode::internal) return status;
  if (world_rank == victim) testing::die_after(delay, board);
  std::vector<int> survivors = all_ranks;
  std::erase_if(survivors, [&](int rank) { return rank == victim || rank == first_victim; });
  std::vector<std::unique_ptr<Communicator>> made;
  for (Communicator* now = &c;;) {
    auto left = now->shrink();
    if (!left.ok()) return left.status();
    made.push_back(std::move(left).value());
    now = made.back().get();
    if (now->size() == static_cast<int>(survivors.size())) return sum_many(*now, world_rank, survivors, 6);
    // It still has the victim, which dies later or whose death was not known yet.
    std::vector<int> members = all_ranks;
    if (now->size() == c.size() - 1 && first_victim >= 0) std::erase(members, first_victim);
    status = sum_many(*now, world_rank, members, kManyCalls);
    if (status.code() != StatusCode::peer_failed) return {StatusCode::internal, "WRONG after a shrink: " + status.to_string()};
  }
}

void kill_at_moment(std::uint64_t seed, bool mixes, const Sandbox* sandbox, Survivors* survivors) {
  std::mt19937_64 random(seed * 9421 + 11);
  constexpr std::array<const char*, 3> kNames{"groups are made", "the communicator shrinks", "the communicator is destroyed"};
  const auto moment = static_cast<Moment>(seed / 3 % 3);  // each with each wire
  const std::string wire = wire_of(seed, mixes);
  const int ranks = 3 + static_cast<int>(random() % 4);
  const int victim = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
  const bool two_die = moment == Moment::shrink && random() % 2 == 0;
  const int first_victim =
      two_die ? (victim + 1 + static_cast<int>(random() % static_cast<std::uint64_t>(ranks - 1))) % ranks : -1;
  const std::string story = fmt::format("seed {}: {} ranks over {}, rank {} dies while {}{}", seed, ranks, wire, victim,
                                        kNames[static_cast<std::size_t>(moment)],
                                        two_die ? fmt::format(" after the death of rank {}", first_victim) : std::string());
  SCOPED_TRACE(story);
  Victims job(ranks, wire, std::chrono::seconds(15),
              [=](Communicator& c, Board& board) { return run_until_death(moment, c, board, victim, first_victim, seed); },
              {.sandbox = sandbox});
  ASSERT_TRUE(job.all_joined()) << job.board().ranks[0].text.data();
  EXPECT_EQ(two_die ? job.wait(30 * kSlack, {victim, first_victim}) : job.wait(30 * kSlack, {victim}), "");
  const auto ended_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  std::vector<int> failed;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == victim || rank == first_victim) continue;
    const Board::Rank& one = job.board().ranks[static_cast<std::size_t>(rank)];
    const double seconds = 1e-9 * static_cast<double>(one.at_ns - job.board().mark_ns.load());
    const Status status(one.code, one.text.data());
    survivors->add(seconds, names_dead(status, victim), story);
    EXPECT_LT(seconds, bound_of(wire) + job.allowance_s()) << "rank " << rank << ": " << status.to_string();
    // Survivors continue after a shrink, and calls that ended before the death succeeded.
    const bool may_succeed = moment != Moment::groups;
    const bool may_fail = moment != Moment::shrink;
    EXPECT_TRUE((status.ok() && may_succeed) || (names_dead(status, victim) && may_fail))
        << "rank " << rank << ": " << status.to_string();
  }
  // Destruction waits for no rank, dead or alive.
  EXPECT_LT(1e-9 * static_cast<double>(ended_ns - job.board().mark_ns.load()),
            bound_of(wire) + kInNodeSeconds * kSlack + job.allowance_s());
  expect_nothing_left(job, sandbox);
}

TEST(Series, RankKilledDuringGroupChangeIsNamedOrExcluded) {
  const auto [first, count] = testing::wanted_seeds({0, kKillsAtMoments});
  const bool mixes = testing::may_rename_host();
  const Sandbox own;
  const Sandbox* sandbox = sandbox_or_null(own);
  const auto start = Clock::now();
  Survivors survivors;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed)
    kill_at_moment(seed, mixes, sandbox, &survivors);
  std::cout << fmt::format(
      "{} kills, seeds from {}; the slowest of {} survivors had ended after {:.3f} s ({}); {:.1f} s in all\n", count, first,
      survivors.count, survivors.slowest, survivors.slowest_story, std::chrono::duration<double>(Clock::now() - start).count());
}

/// Makes sums until the watcher sets `enough`, which rank 0 passes on in a sum. Checks every result.
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
  bool wakes = true;  ///< the watcher continues the rank before the deadline
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
                                          stopped.wakes ? std::chrono::milliseconds(600'000) : std::chrono::milliseconds(2'000),
                                          sum_until_enough);
  if (!stopped.job->all_joined()) return {};
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
  ::kill(stopped.job->pid(stopped.victim), SIGSTOP);
  return stopped;
}

/// Whether a rank has warned on standard error that the victim is late.
bool is_reported(const StoppedJob& stopped) {
  for (int rank = 0; rank < stopped.job->size(); ++rank) {
    std::istringstream lines(stopped.job->stderr_of(rank));
    for (std::string line; std::getline(lines, line);) {
      const bool of_a_wait =
          std::regex_search(line, std::regex("[0-9] s ")) && std::regex_search(line, std::regex("call [0-9]"));
      if (of_a_wait && testing::mentions(line, fmt::format("shoal: rank {}", rank), fmt::format("rank {}", stopped.victim)))
        return true;
    }
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
  EXPECT_TRUE(is_reported(stopped)) << "no warning named the late rank";
  std::vector<std::string> complaints;
  const auto jobs = read_jobs(stopped.job->flight_records(), complaints);
  if (stopped.wakes) {
    const Diagnosis found = jobs.empty() ? Diagnosis{"no flight record", {}} : diagnose(jobs.front(), 0.01);
    const pid_t its_pid = stopped.job->pid(stopped.victim);
    EXPECT_THAT(found.sentence, testing::Mentions(fmt::format("rank {}", stopped.victim), fmt::format("process {}", its_pid)));
    EXPECT_THAT(found.suggestion, testing::Mentions(fmt::format("kill -CONT {}", its_pid)));
  }
  // If the other ranks timed out, the stopped rank gets that error in its next call.
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

TEST(Series, StoppedRankIsReportedAndAwaitedUntilDeadline) {
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
