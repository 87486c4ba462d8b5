// One rank of three makes another call than its peers: every kind of call, every difference, every transport. All ranks get an
// error soon that names both calls.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <shoal/memory.h>

#include "src/algorithms/algorithm.h"
#include "src/communicator/communicator_impl.h"
#include "src/diagnosis/signature.h"
#include "tests/facts.h"
#include "tests/fault/victims.h"
#include "tests/multiprocess/ranks.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;
using testing::Board;
using testing::Victims;

constexpr int kRanks = 3;
constexpr std::size_t kJobs = 6;
constexpr std::size_t kFew = 10;  // in one packet
constexpr std::size_t kMany = 30'000;

struct Kind {
  CollectiveKind kind;
  bool has_counts;  ///< a call whose name ends in _v

  bool operator==(const Kind&) const = default;
};
constexpr Kind kKinds[] = {
    {CollectiveKind::all_reduce, false},     {CollectiveKind::broadcast, false},     {CollectiveKind::all_gather, false},
    {CollectiveKind::reduce_scatter, false}, {CollectiveKind::reduce, false},        {CollectiveKind::gather, false},
    {CollectiveKind::scatter, false},        {CollectiveKind::all_to_all, false},    {CollectiveKind::barrier, false},
    {CollectiveKind::all_gather, true},      {CollectiveKind::reduce_scatter, true}, {CollectiveKind::gather, true},
    {CollectiveKind::scatter, true},         {CollectiveKind::all_to_all, true}};

using Counts = std::array<std::size_t, kRanks>;

struct Call {
  Kind kind{CollectiveKind::all_reduce, false};
  std::size_t count = 0;
  Counts counts{};    ///< if has_counts; for all_to_all the send counts
  Counts receives{};  ///< receive counts of all_to_all
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::string algorithm;

  [[nodiscard]] std::string words() const {
    const std::size_t all = kind.has_counts ? std::accumulate(counts.begin(), counts.end(), std::size_t{0}) : count;
    return to_string(CallSignature{kind.kind, type, op, static_cast<std::uint8_t>(kind.has_counts ? 1 : 0), root, all, 0});
  }
};

/// One of two buffers that hold all shares of the largest call: the same one each time.
double* memory_for(int buffer, bool allocated) {
  constexpr std::size_t kElements = (kMany + 2) * kRanks + 1;
  static std::array<std::vector<double>, 2> private_memory{std::vector<double>(kElements), std::vector<double>(kElements)};
  if (!allocated) return private_memory[static_cast<std::size_t>(buffer)].data();
  static const std::array<double*, 2> shared = [] {
    std::array<double*, 2> both{};
    for (double*& one : both) {
      const auto made = mem_alloc(kElements * sizeof(double));
      if (!made.ok()) std::abort();
      one = static_cast<double*>(*made);
    }
    return both;
  }();
  return shared[static_cast<std::size_t>(buffer)];
}

Status make_v(Communicator& c, const Call& call, const double* in, double* out, const CallOptions& options) {
  switch (call.kind.kind) {
    case CollectiveKind::all_gather:
      return c.all_gather_v(in, out, call.counts, call.type, options);
    case CollectiveKind::reduce_scatter:
      return c.reduce_scatter_v(in, out, call.counts, call.type, call.op, options);
    case CollectiveKind::gather:
      return c.gather_v(in, out, call.counts, call.type, call.root, options);
    case CollectiveKind::scatter:
      return c.scatter_v(in, out, call.counts, call.type, call.root, options);
    default:
      return c.all_to_all_v(in, call.counts, out, call.receives, call.type, options);
  }
}

Status make(Communicator& c, const Call& call, bool allocated = false) {
  const double* in = memory_for(0, allocated);
  double* out = memory_for(1, allocated);
  CallOptions options;
  if (!call.algorithm.empty()) options.algorithm = call.algorithm.c_str();
  if (call.kind.has_counts) return make_v(c, call, in, out, options);
  switch (call.kind.kind) {
    case CollectiveKind::all_reduce:
      return c.all_reduce(in, out, call.count, call.type, call.op, options);
    case CollectiveKind::broadcast:
      return c.broadcast(out, call.count, call.type, call.root, options);
    case CollectiveKind::all_gather:
      return c.all_gather(in, out, call.count, call.type, options);
    case CollectiveKind::reduce_scatter:
      return c.reduce_scatter(in, out, call.count, call.type, call.op, options);
    case CollectiveKind::reduce:
      return c.reduce(in, out, call.count, call.type, call.op, call.root, options);
    case CollectiveKind::gather:
      return c.gather(in, out, call.count, call.type, call.root, options);
    case CollectiveKind::scatter:
      return c.scatter(in, out, call.count, call.type, call.root, options);
    case CollectiveKind::all_to_all:
      return c.all_to_all(in, out, call.count, call.type, options);
    default:
      return c.barrier(options);
  }
}

/// The first two algorithms that support `call` among these ranks; fewer if there are no two.
std::vector<std::string> two_algorithms(const Topology& topology, const Call& call) {
  std::vector<std::string> found;
  for (const Algorithm& algorithm : algorithms()) {
    const Collective what{call.kind.kind, call.count, call.type, call.op, call.root};
    if (found.size() < 2 && build_program(algorithm, topology, what, 0).ok()) found.emplace_back(algorithm.name);
  }
  return found;
}

struct Pair {
  Call usual;
  Call odd;
  int odd_rank = 0;
};

/// A call of that kind that is the same on all ranks.
Call usual_call(Kind kind, std::size_t count) {
  Call call;
  call.kind = kind;
  call.count = count;
  if (!kind.has_counts) return call;
  call.counts = call.receives = {count, count, count};
  if (kind.kind != CollectiveKind::all_to_all) call.counts[1] = count - 1, call.counts[2] = count + 1;
  return call;
}

/// The same list on every rank. The odd rank changes from pair to pair, beginning with `first_odd`.
std::vector<Pair> all_pairs(const Topology& topology, int first_odd) {
  std::vector<Pair> pairs;
  for (const std::size_t count : {kFew, kMany}) {
    for (const Kind kind : kKinds) {
      const Call usual = usual_call(kind, count);
      const auto differ = [&](auto change) {
        pairs.push_back({usual, usual, static_cast<int>((pairs.size() + static_cast<std::size_t>(first_odd)) % kRanks)});
        change(pairs.back());
      };
      for (const Kind other : kKinds) {
        if (!(other == kind)) differ([&](Pair& pair) { pair.odd = usual_call(other, count); });
      }
      if (kind.kind == CollectiveKind::barrier) continue;
      if (!kind.has_counts) {
        differ([](Pair& pair) { ++pair.odd.count; });
      } else if (kind.kind == CollectiveKind::all_to_all) {  // sends more to the next rank than that one expects
        differ([](Pair& pair) { ++pair.odd.counts[static_cast<std::size_t>((pair.odd_rank + 1) % kRanks)]; });
      } else {
        differ([](Pair& pair) { ++pair.odd.counts[1]; });                        // another total
        differ([](Pair& pair) { ++pair.odd.counts[1], --pair.odd.counts[2]; });  // the same total
      }
      differ([](Pair& pair) { pair.odd.type = DataType::int32; });
      if (reduces(kind.kind)) differ([](Pair& pair) { pair.odd.op = ReduceOp::max; });
      // Two ranks are root, each in its own view. pairs_without_root() has the case that no rank is.
      for (int odd = 1; has_root(kind.kind) && odd < kRanks; ++odd)
        differ([odd](Pair& pair) { pair.odd.root = 1, pair.odd_rank = odd; });
      if (kind.has_counts) continue;
      const auto names = two_algorithms(topology, usual);
      if (names.size() < 2) continue;
      differ([&](Pair& pair) { pair.usual.algorithm = names[0], pair.odd.algorithm = names[1]; });
    }
  }
  return pairs;
}

/// Rank 0, the root of its peers, names rank 1 as root: no rank is root in its own view. Where all ranks only send, no rank
/// waits.
std::vector<Pair> pairs_without_root(int times) {
  std::vector<Pair> pairs;
  for (int i = 0; i < 2 * times; ++i) {
    const std::size_t count = i % 2 == 0 ? kFew : kMany;
    for (const Kind kind : kKinds) {
      if (!has_root(kind.kind)) continue;
      pairs.push_back({usual_call(kind, count), usual_call(kind, count), 0});
      pairs.back().odd.root = 1;
    }
  }
  return pairs;
}

/// What is wrong with this rank's error for `pair`; empty: nothing.
std::string check_pair(Communicator& world, const Pair& pair, bool allocated) {
  auto group = world.split(0, 0);  // a new group, because the mismatch closes it
  if (!group.ok()) return group.status().to_string();
  if (const Status status = world.barrier(); !status.ok()) return status.to_string();
  const FairClock clock;
  Status status = make(**group, world.rank() == pair.odd_rank ? pair.odd : pair.usual, allocated);
  const CallReport ran = (*group)->last_call();
  // A rank whose call needs no data of the odd rank gets the error in a later call.
  while (status.ok() && clock.seconds() < 1 * kSlack) status = (*group)->barrier();
  const auto names = [&](const auto&... facts) { return testing::mentions(status.message(), facts...); };
  if (status.code() != StatusCode::mismatch) {
    return fmt::format("no mismatch, after {} over {}: {}", ran.algorithm, ran.transport, status.to_string());
  }
  const bool names_usual = names(fmt::format("rank {}", (pair.odd_rank + 1) % kRanks)) ||
                           names(fmt::format("rank {}", (pair.odd_rank + 2) % kRanks));
  if (!names(fmt::format("rank {}", pair.odd_rank)) || !names_usual) return "not both ranks: " + status.to_string();
  // Also if a rank was already done with the call, and the mismatch was found in the barrier after it.
  if (!names(pair.usual.words()) || !names(pair.odd.words())) return "not both calls: " + status.to_string();
  const bool same_words = pair.usual.words() == pair.odd.words();
  const bool same_kind = pair.usual.kind == pair.odd.kind;
  if (same_words && same_kind && !pair.usual.kind.has_counts && !names("algorithm"))
    return "not what differs: " + status.to_string();
  // For all_to_all_v: what the odd rank sends to the next rank, and what that one expects.
  const auto next = static_cast<std::size_t>((pair.odd_rank + 1) % kRanks);
  const bool names_numbers = pair.usual.kind.kind == CollectiveKind::all_to_all &&
                             names(std::to_string(pair.odd.counts[next]), std::to_string(pair.usual.receives[next]));
  if (same_words && same_kind && pair.usual.kind.has_counts && !names("counts") && !names_numbers)
    return "not what differs: " + status.to_string();
  return clock.seconds() < 1 * kSlack ? "" : fmt::format("after {:.2f} s: {}", clock.real_seconds(), status.to_string());
}

struct Setting {
  const char* wire;
  bool flight_records = true;
  bool allocated = false;  ///< buffers from mem_alloc()
  int first_odd = 0;       ///< differs between wires, so that each pair is tested with every odd rank
  std::size_t step = 1;    ///< tests every step-th pair

  [[nodiscard]] bool is_library() const { return wire == std::string("ofi") || wire == std::string("ucx"); }
  /// Why this cannot be tested here; empty if it can.
  [[nodiscard]] std::string unavailable() const {
    if (is_library()) return testing::library_complaint(wire);
    const bool may = wire != std::string("mixed") || testing::may_rename_host();
    return may ? "" : "this process may not make UTS namespaces";
  }
};

std::string name_of(const Setting& setting) {
  return std::string(setting.wire) + (setting.flight_records ? "" : "_without_flight_records") +
         (setting.allocated ? "_in_shared_memory" : "");
}

/// Checks the pairs that `list` makes for the job's Topology. Returns the number of pairs.
template <typename List>
std::uint64_t check_pairs(const Setting& setting, const List& list) {
  testing::Surroundings around{.flight_records = setting.flight_records};
  if (setting.is_library()) {  // on the loopback device
    around.environment = {{"SHOAL_HOST_ADDRESS", "127.0.0.1"},
                          {"SHOAL_OFI_PROVIDER", "tcp;ofi_rxm"},
                          {"UCX_NET_DEVICES", "lo"},
                          {"UCX_TLS", "tcp"}};
  }
  const auto start = Clock::now();
  // Some pairs take 0.4 s, until waiting ranks exchange their calls. So several jobs divide the pairs.
  std::vector<std::unique_ptr<Victims>> jobs;
  for (std::size_t job = 0; job < kJobs; ++job) {
    jobs.push_back(std::make_unique<Victims>(
        kRanks, setting.wire, std::chrono::seconds(20),
        [&, job](Communicator& c, Board& board) {
          const std::vector<Pair> pairs = list(internal::CommunicatorImpl::of(c).executor().topology());
          std::string all_wrong;
          for (std::size_t i = job * setting.step; i < pairs.size(); i += kJobs * setting.step) {
            const Pair& pair = pairs[i];
            if (const std::string wrong = check_pair(c, pair, setting.allocated); !wrong.empty()) {
              all_wrong += fmt::format("{} {}, rank {} {} {}: {}\n", pair.usual.words(), pair.usual.algorithm, pair.odd_rank,
                                       pair.odd.words(), pair.odd.algorithm, wrong);
            }
            if (c.rank() == 0) board.calls.fetch_add(1);
          }
          return all_wrong.empty() ? Status() : Status(StatusCode::internal, all_wrong);
        },
        around));
  }
  std::uint64_t done = 0;
  for (const auto& job : jobs) {
    EXPECT_EQ(job->wait(60 * kSlack), "");
    for (int rank = 0; rank < kRanks; ++rank) {
      const Board::Rank& one = job->board().ranks[static_cast<std::size_t>(rank)];
      EXPECT_EQ(to_string(one.code), "ok") << "rank " << rank << ": " << one.text.data();
    }
    done += job->board().calls.load();
  }
  std::cout << fmt::format("{} pairs of calls in {:.1f} s\n", done,
                           std::chrono::duration<double>(Clock::now() - start).count());
  return done;
}

class Mismatch : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(, Mismatch,
                         ::testing::Values(Setting{"shm", true, false, 0}, Setting{"tcp", true, false, 1},
                                           Setting{"mixed", true, false, 2}, Setting{"shm", false, false, 1},
                                           Setting{"tcp", false, false, 2}, Setting{"mixed", false, false, 0},
                                           Setting{"shm", true, true, 2}, Setting{"ofi", true, false, 0, 8},
                                           Setting{"ucx", true, false, 1, 8}),
                         [](const auto& info) { return name_of(info.param); });

#define NEEDS_WIRE() \
  if (const std::string why = GetParam().unavailable(); !why.empty()) GTEST_SKIP() << why

TEST_P(Mismatch, EveryDifferenceNamesBothRanksOnAllRanks) {
  NEEDS_WIRE();
  const Setting& setting = GetParam();
  const std::uint64_t done =
      check_pairs(setting, [&](const Topology& topology) { return all_pairs(topology, setting.first_odd); });
  // 14 kinds against the 13 others; another count or type of those without counts, counts or type of those with them;
  // operations, roots, algorithms. In two sizes.
  EXPECT_GE(done, 2U * (14 * 13 + 8 * 2 + 4 * 3 + 2 + 3 + 6 * 2 + 4) / setting.step);
}

class MismatchOfRoots : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(, MismatchOfRoots,
                         ::testing::Values(Setting{"shm"}, Setting{"tcp"}, Setting{"mixed"}, Setting{"shm", false},
                                           Setting{"shm", true, true}, Setting{"ofi"}, Setting{"ucx"}),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(MismatchOfRoots, CallWithoutRootFails) {
  NEEDS_WIRE();
  // In shared memory a rank that only sends is done at once, and timing decides whether it sees the mismatch.
  const int times = GetParam().wire == std::string("shm") ? 5 : 1;
  const std::uint64_t done = check_pairs(GetParam(), [times](const Topology&) { return pairs_without_root(times); });
  EXPECT_EQ(done, 2U * 6 * static_cast<unsigned>(times));
}

// Rank 1 makes another call 0 than rank 0, and only sends in it and in call 1. Then it makes no call. As on another host, it
// reads no control messages and has no flight record. The error of rank 0 names the call in which the two ranks differ.
TEST(MismatchWithoutFlightRecords, ErrorNamesDifferingCallWhilePeerComputes) {
  Victims job(
      kRanks, "tcp", std::chrono::seconds(20),
      [](Communicator& c, Board&) {
        const FairClock clock;
        Status status;
        if (c.rank() != 0)
          status = make(c, {{CollectiveKind::reduce, false}, 10, {}, {}, DataType::float32, ReduceOp::sum, 2, "tree"});
        if (c.rank() != 2 && status.ok())
          status = make(c, {{CollectiveKind::broadcast, false}, 10, {}, {}, DataType::float32, ReduceOp::sum, 1, "tree"});
        if (c.rank() == 1) {
          if (!status.ok()) return status;
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          status = c.barrier();
        } else if (clock.seconds() > 1 * kSlack) {
          return Status(StatusCode::internal, "late: " + status.to_string());
        }
        // Rank 1 handles the request of rank 0 in its next call.
        const bool names =
            c.rank() == 1
                ? testing::mentions(status.message(), "rank 1", "reduce float32 x 10 sum", "rank 2", "rank 0", "broadcast")
                : testing::mentions(status.message(), "rank 0", "call 0", "broadcast float32 x 10", "rank 1");
        const bool has_error = status.code() == StatusCode::mismatch && names;
        return has_error ? Status() : Status(StatusCode::internal, status.to_string());
      },
      {.flight_records = false});
  EXPECT_EQ(job.wait(20 * kSlack), "");
  for (const Board::Rank& one : std::span(job.board().ranks).first(kRanks))
    EXPECT_EQ(to_string(one.code), "ok") << one.text.data();
}

}  // namespace
}  // namespace shoal
