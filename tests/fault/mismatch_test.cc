// Every kind of call, different on one rank of three in every way in which it can differ: an error on all ranks, soon, that
// names both sides.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/algorithms/algorithm.h"
#include "src/communicator/communicator_impl.h"
#include "src/engine/signature.h"
#include "tests/fault/victims.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;
using testing::Board;
using testing::Victims;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kSlack = 5;
#else
constexpr double kSlack = 1;
#endif
constexpr int kRanks = 3;
constexpr int kOdd = 1;
constexpr std::size_t kJobs = 6;

constexpr CollectiveKind kKinds[] = {CollectiveKind::all_reduce,     CollectiveKind::broadcast,  CollectiveKind::all_gather,
                                     CollectiveKind::reduce_scatter, CollectiveKind::reduce,     CollectiveKind::gather,
                                     CollectiveKind::scatter,        CollectiveKind::all_to_all, CollectiveKind::barrier};

struct Call {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t count = 0;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::string algorithm;

  [[nodiscard]] std::string words() const { return to_string(CallSignature{kind, type, op, 0, root, count, 0}); }
};

Status make(Communicator& c, const Call& call) {
  std::vector<double> in(call.count * kRanks + 1);
  std::vector<double> out(call.count * kRanks + 1);
  CallOptions options;
  if (!call.algorithm.empty()) options.algorithm = call.algorithm.c_str();
  switch (call.kind) {
    case CollectiveKind::all_reduce:
      return c.all_reduce(in.data(), out.data(), call.count, call.type, call.op, options);
    case CollectiveKind::broadcast:
      return c.broadcast(out.data(), call.count, call.type, call.root, options);
    case CollectiveKind::all_gather:
      return c.all_gather(in.data(), out.data(), call.count, call.type, options);
    case CollectiveKind::reduce_scatter:
      return c.reduce_scatter(in.data(), out.data(), call.count, call.type, call.op, options);
    case CollectiveKind::reduce:
      return c.reduce(in.data(), out.data(), call.count, call.type, call.op, call.root, options);
    case CollectiveKind::gather:
      return c.gather(in.data(), out.data(), call.count, call.type, call.root, options);
    case CollectiveKind::scatter:
      return c.scatter(in.data(), out.data(), call.count, call.type, call.root, options);
    case CollectiveKind::all_to_all:
      return c.all_to_all(in.data(), out.data(), call.count, call.type, options);
    default:
      return c.barrier(options);
  }
}

/// Two algorithms that can do `call` among these ranks; fewer where there are no two.
std::vector<std::string> two_algorithms(const Topology& topology, const Call& call) {
  std::vector<std::string> found;
  for (const Algorithm& algorithm : algorithms()) {
    const Collective what{call.kind, call.count, call.type, call.op, call.root};
    if (found.size() < 2 && build_program(algorithm, topology, what, 0).ok()) found.emplace_back(algorithm.name);
  }
  return found;
}

struct Pair {
  Call usual;
  Call odd;
};

/// The same list on every rank.
std::vector<Pair> all_pairs(const Topology& topology) {
  std::vector<Pair> pairs;
  for (const std::size_t count : {std::size_t{10}, std::size_t{30'000}}) {  // in one packet, and in many
    for (const CollectiveKind kind : kKinds) {
      Call usual;
      usual.kind = kind;
      usual.count = count;
      const auto differ = [&](auto change) {
        pairs.push_back({usual, usual});
        change(pairs.back());
      };
      for (const CollectiveKind other : kKinds) {
        if (other != kind) differ([&](Pair& pair) { pair.odd.kind = other; });
      }
      if (kind == CollectiveKind::barrier) continue;
      differ([](Pair& pair) { ++pair.odd.count; });
      differ([](Pair& pair) { pair.odd.type = DataType::int32; });
      if (reduces(kind)) differ([](Pair& pair) { pair.odd.op = ReduceOp::max; });
      if (has_root(kind)) differ([](Pair& pair) { pair.odd.root = kOdd; });
      const auto names = two_algorithms(topology, usual);
      if (names.size() < 2) continue;
      differ([&](Pair& pair) { pair.usual.algorithm = names[0], pair.odd.algorithm = names[1]; });
    }
  }
  return pairs;
}

/// What is wrong with what this rank is told of `pair`; empty: nothing.
std::string check_pair(Communicator& world, const Pair& pair) {
  auto group = world.split(0, 0);  // of its own: it does not outlive the mismatch
  if (!group.ok()) return group.status().to_string();
  if (const Status status = world.barrier(); !status.ok()) return status.to_string();
  const auto start = Clock::now();
  Status status = make(**group, world.rank() == kOdd ? pair.odd : pair.usual);
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  // A rank whose own call needed nothing of the odd one hears of it in a later one.
  while (status.ok() && seconds() < 1 * kSlack) status = (*group)->barrier();
  const auto names = [&](const std::string& words) { return status.message().find(words) != std::string::npos; };
  if (status.code() != StatusCode::mismatch) return "no mismatch: " + status.to_string();
  if (!names(fmt::format("rank {}", kOdd)) || (!names("rank 0") && !names("rank 2")))
    return "not both ranks: " + status.to_string();
  // Though whoever is done with the call already is met in a barrier after it.
  if (!names(pair.usual.words()) || !names(pair.odd.words())) return "not both calls: " + status.to_string();
  const bool same_words = pair.usual.words() == pair.odd.words();
  if (same_words && !names("different algorithm")) return "not what differs: " + status.to_string();
  return seconds() < 1 * kSlack ? "" : fmt::format("after {:.2f} s: {}", seconds(), status.to_string());
}

struct Setting {
  const char* wire;
  bool ledgers;
};

class Mismatch : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(, Mismatch,
                         ::testing::Values(Setting{"shm", true}, Setting{"tcp", true}, Setting{"mixed", true},
                                           Setting{"shm", false}, Setting{"tcp", false}, Setting{"mixed", false}),
                         [](const auto& info) {
                           return std::string(info.param.wire) + (info.param.ledgers ? "" : "_without_ledgers");
                         });

TEST_P(Mismatch, OfEveryKindIsAnErrorOnEveryRankThatNamesBothSides) {
  const auto [wire, ledgers] = GetParam();
  if (wire == std::string("mixed") && !testing::may_rename_host()) GTEST_SKIP() << "this process may not make UTS namespaces";
  const auto start = Clock::now();
  // Some pairs wait for what ranks tell each other after 0.4 s: jobs side by side take turns at the pairs.
  std::vector<std::unique_ptr<Victims>> jobs;
  for (std::size_t job = 0; job < kJobs; ++job) {
    jobs.push_back(std::make_unique<Victims>(
        kRanks, wire, std::chrono::seconds(20),
        [job](Communicator& c, Board& board) {
          const auto pairs = all_pairs(internal::CommunicatorImpl::of(c).executor().topology());
          for (std::size_t i = job; i < pairs.size(); i += kJobs) {
            const Pair& pair = pairs[i];
            if (const std::string wrong = check_pair(c, pair); !wrong.empty())
              return Status(StatusCode::internal,
                            fmt::format("{} {}, rank {} {} {}: {}", pair.usual.words(), pair.usual.algorithm, kOdd,
                                        pair.odd.words(), pair.odd.algorithm, wrong));
            if (c.rank() == 0) board.calls.fetch_add(1);
          }
          return Status();
        },
        ledgers));
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
  // 9 kinds against the 8 others, and what else they have, in two sizes.
  EXPECT_GE(done, 2U * (9 * 8 + 8 * 2 + 3 + 4));
  std::cout << fmt::format("{} pairs of calls in {:.1f} s\n", done,
                           std::chrono::duration<double>(Clock::now() - start).count());
}

// Rank 1 only sends in call 0, which is another one than rank 0's, and in call 1, and computes then: as on another host, it
// neither hears a question nor has a ledger. Who waits is told what is known.
TEST(MismatchWithoutLedgers, OfARankThatComputesIsToldSoonByTheCallInWhichItWasMet) {
  Victims job(
      kRanks, "tcp", std::chrono::seconds(20),
      [](Communicator& c, Board&) {
        const auto start = Clock::now();
        Status status;
        if (c.rank() != 0) status = make(c, {CollectiveKind::reduce, 10, DataType::float32, ReduceOp::sum, 2, "tree"});
        if (c.rank() != 2 && status.ok())
          status = make(c, {CollectiveKind::broadcast, 10, DataType::float32, ReduceOp::sum, 1, "tree"});
        if (c.rank() == 1) {
          if (!status.ok()) return status;
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          status = c.barrier();
        } else if (std::chrono::duration<double>(Clock::now() - start).count() > 1 * kSlack) {
          return Status(StatusCode::internal, "late: " + status.to_string());
        }
        // Rank 1 hears the question when it comes.
        const auto* words = c.rank() == 1 ? "rank 1 is in reduce float32 x 10 sum to rank 2, rank 0 is in broadcast"
                                          : "rank 0 is in call 0 (broadcast float32 x 10 from rank 1)";
        const bool told = status.code() == StatusCode::mismatch && status.message().find(words) != std::string::npos;
        return told ? Status() : Status(StatusCode::internal, status.to_string());
      },
      false);
  EXPECT_EQ(job.wait(20 * kSlack), "");
  for (const Board::Rank& one : std::span(job.board().ranks).first(kRanks))
    EXPECT_EQ(to_string(one.code), "ok") << one.text.data();
}

}  // namespace
}  // namespace shoal
