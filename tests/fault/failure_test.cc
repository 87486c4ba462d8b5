// Faults on purpose: ranks that disagree, die, are late or never call. No call may hang; every message names the culprit.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "src/diagnosis/signature.h"
#include "tests/fault/clauses.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"
#include "tests/multiprocess/shared_buffer.h"
#include "tests/multiprocess/shared_count.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::late_ranks_in;
using ::testing::Matches;
using testing::Mentions;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::Truly;
using testing::whereabouts_in;
using Clock = std::chrono::steady_clock;

// The Status with which a rank ends, and the seconds that it took.
struct Report {
  std::string code;
  double seconds = 0;    // by the clock
  double allowance = 0;  // CoreDelay's
  std::string message;
  [[nodiscard]] double fair_seconds() const { return seconds - allowance; }
};

// Runs `body` on each rank. `without`: a rank that reports nothing.
std::vector<Report> reports(int size, const CommunicatorOptions& options,
                            const std::function<Status(Communicator&, Clock::time_point* start)>& body, int without = -1) {
  const auto outcomes = testing::run_ranks(size, [&](int rank, int ranks, const std::string& directory) -> std::string {
    auto communicator = testing::join(directory, rank, ranks, options);
    auto start = Clock::now();
    const CoreDelay delay;
    const Status status = communicator.ok() ? body(**communicator, &start) : communicator.status();
    return fmt::format("{}|{}|{}|{}", to_string(status.code()), seconds_since(start), delay.allowance_s(), status.message());
  });
  std::vector<Report> result;
  for (int rank = 0; rank < size; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    const std::string& text = outcome.output;
    const std::size_t one = text.find('|');
    const std::size_t two = text.find('|', one + 1);
    const std::size_t three = text.find('|', two + 1);
    if (one == std::string::npos || two == std::string::npos || three == std::string::npos) {
      if (rank != without) ADD_FAILURE() << "rank " << rank << ": " << text << (outcome.killed ? " (killed)" : "");
      result.emplace_back();
    } else {
      EXPECT_EQ(testing::bad_end(outcome), "") << "rank " << rank;
      result.push_back(
          {text.substr(0, one), std::stod(text.substr(one + 1)), std::stod(text.substr(two + 1)), text.substr(three + 1)});
    }
  }
  return result;
}

// Set by over(): buffers come from mem_alloc.
bool shared_buffers = false;

/// `transports`: "shared" means shm with buffers in shared memory.
CommunicatorOptions over(const char* transports, int timeout_ms = 20000) {
  CommunicatorOptions options;
  shared_buffers = std::string_view(transports) == "shared";
  options.transports = shared_buffers ? "shm" : transports;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

class Fault : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(, Fault, ::testing::Values("shm", "shared", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

Status reduce(Communicator& c, std::size_t count, DataType type = DataType::float32, ReduceOp op = ReduceOp::sum,
              const CallOptions& options = {}) {
  testing::TestBuffer<double> data(count + 1, shared_buffers);
  std::fill_n(data.data(), count, 1.0);
  return c.all_reduce(data.data(), data.data(), count, type, op, options);
}

/// `attempt` returns how long its slowest rank took to fail. Other programs may delay a rank, but hardly in three attempts.
void expect_within(double seconds, const std::function<double()>& attempt) {
  double took = attempt();
  for (int again = 0; again < 2 && took >= seconds; ++again) took = attempt();
  EXPECT_LT(took, seconds);
}

double slowest(const std::vector<Report>& reports) {
  return std::ranges::max(reports, {}, &Report::fair_seconds).fair_seconds();
}

// Rank 1 of three makes another call; all ranks must get an error soon that names both calls.
void expect_mismatch(const char* transports, const std::function<Status(Communicator&)>& usual,
                     const std::function<Status(Communicator&)>& odd, const ::testing::Matcher<const std::string&>& facts) {
  expect_within(1.0 * kSlack, [&] {  // the deadline is 20 s
    const auto all = reports(3, over(transports), [&](Communicator& c, Clock::time_point* start) {
      Status status = reduce(c, 10);
      if (!status.ok()) return status;
      *start = Clock::now();
      status = c.rank() == 1 ? odd(c) : usual(c);
      // A rank whose call needs no data of the other ranks gets the error in its next call.
      return status.ok() ? c.barrier() : status;
    });
    for (const Report& report : all) {
      EXPECT_EQ(report.code, "mismatch") << report.message;
      EXPECT_THAT(report.message, AllOf(Mentions("rank 1"), facts, ContainsRegex("call [0-9]")));
    }
    return slowest(all);
  });
}

TEST_P(Fault, DifferentCountIsMismatch) {
  for (const std::size_t count : {0UL, 1UL, 5000UL, 1000000UL}) {
    expect_mismatch(
        GetParam(), [=](Communicator& c) { return reduce(c, count); }, [=](Communicator& c) { return reduce(c, count + 1); },
        Mentions(fmt::format("float32 x {} sum", count), fmt::format("float32 x {} sum", count + 1)));
  }
  expect_mismatch(
      GetParam(), [](Communicator& c) { return reduce(c, 10); }, [](Communicator& c) { return reduce(c, 1000000); },
      Mentions("x 10 sum", "x 1000000 sum"));
}

TEST_P(Fault, DifferentTypeIsMismatch) {
  expect_mismatch(
      GetParam(), [](Communicator& c) { return reduce(c, 100); },
      [](Communicator& c) { return reduce(c, 100, DataType::int32); }, Mentions("float32 x 100", "int32 x 100"));
}

TEST_P(Fault, DifferentOperationIsMismatch) {
  expect_mismatch(
      GetParam(), [](Communicator& c) { return reduce(c, 100000); },
      [](Communicator& c) { return reduce(c, 100000, DataType::float32, ReduceOp::max); },
      Mentions("100000 sum", "100000 max"));
}

TEST_P(Fault, DifferentCollectiveIsMismatch) {
  expect_mismatch(
      GetParam(), [](Communicator& c) { return reduce(c, 1000); },
      [](Communicator& c) {
        std::vector<float> data(1000);
        return c.broadcast(data.data(), data.size(), DataType::float32, 0);
      },
      Mentions("all_reduce", "broadcast"));
}

TEST_P(Fault, DifferentRootIsMismatch) {
  const auto broadcast = [](int root) {
    return [root](Communicator& c) {
      std::vector<float> data(1000);
      return c.broadcast(data.data(), data.size(), DataType::float32, root);
    };
  };
  // In another tree a rank may finish its call and get the error in its next one; rank 1's call is always named.
  const CallSignature odd{CollectiveKind::broadcast, DataType::float32, ReduceOp::sum, 0, 2, 1000, 0};
  expect_mismatch(GetParam(), broadcast(0), broadcast(2), Mentions("call 1", to_string(odd)));
}

TEST_P(Fault, DifferentVectorCountsAreMismatch) {
  // What rank 1 sends to and receives from rank 2 in its own view; all other counts are 4.
  const auto all_to_all_v = [](std::size_t one_sends, std::size_t one_receives) {
    return [=](Communicator& c) {
      std::vector<std::size_t> sends(3, 4);
      std::vector<std::size_t> receives(3, 4);
      if (c.rank() == 1) {
        sends[2] = one_sends;
        receives[2] = one_receives;
      }
      const std::vector<float> input(12 + one_sends);
      std::vector<float> output(12 + one_receives);
      return c.all_to_all_v(input.data(), sends, output.data(), receives, DataType::float32);
    };
  };
  struct Case {
    std::size_t sends, receives;
    // as the ranks must report it
    int sender;
    std::size_t sent;
    std::size_t expected;
  };
  for (const Case& odd : {Case{6, 4, 1, 6, 4}, Case{4, 3, 2, 4, 3}, Case{0, 4, 1, 0, 4}, Case{0, 0, 2, 4, 0},
                          Case{1'000'000, 4, 1, 1'000'000, 4}}) {
    const auto call = all_to_all_v(odd.sends, odd.receives);
    expect_mismatch(GetParam(), call, call,
                    AllOf(Mentions("all_to_all_v float32"),
                          ContainsRegex(fmt::format("rank {} [^0-9;]*{} [^0-9;]*rank {}[^0-9;]* {}([^0-9]|$)", odd.sender,
                                                    odd.sent, 3 - odd.sender, odd.expected))));
  }
  const auto all_gather_v = [](std::size_t of_the_last) {
    return [=](Communicator& c) {
      const std::vector<std::size_t> counts{5, 5, of_the_last};
      const std::vector<float> input(8);
      std::vector<float> output(18);
      return c.all_gather_v(input.data(), output.data(), counts, DataType::float32);
    };
  };
  expect_mismatch(GetParam(), all_gather_v(5), all_gather_v(8),
                  Mentions("all_gather_v float32 x 15", "all_gather_v float32 x 18"));
}

TEST_P(Fault, DifferentOrderIsMismatch) {
  const auto two_calls = [](bool small_first) {
    return [small_first](Communicator& c) {
      const Status first = reduce(c, small_first ? 8 : 200000);
      return first.ok() ? reduce(c, small_first ? 200000 : 8) : first;
    };
  };
  expect_mismatch(GetParam(), two_calls(true), two_calls(false), Mentions("x 8 sum", "x 200000 sum"));
}

TEST_P(Fault, KilledRankIsNamedWithinASecond) {
  for (const std::size_t count : {4UL, 1000000UL}) {
    expect_within(1.0 * kSlack, [&] {
      const auto all = reports(
          4, over(GetParam()),
          [&](Communicator& c, Clock::time_point* start) {
            Status status;
            for (int k = 0; status.ok(); ++k) {
              if (k == 20) *start = Clock::now();
              if (k == 20 && c.rank() == 2) ::kill(::getpid(), SIGKILL);
              status = reduce(c, count);
            }
            return status;
          },
          2);
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (rank == 2) continue;
        EXPECT_EQ(all[rank].code, "peer_failed") << all[rank].message;
        EXPECT_EQ(testing::first_rank_named_in(all[rank].message), 2) << all[rank].message;
        EXPECT_THAT(all[rank].message, AllOf(Mentions(fmt::format("all_reduce float32 x {} sum", count), "communicator 0"),
                                             ContainsRegex("rank [013][^0-9].*call [0-9]")));
      }
      return slowest(all);
    });
  }
}

// A thread that never sleeps still looks for failed peers and for its deadline.
TEST_P(Fault, WaitPoliciesDetectKilledAndLateRanks) {
  for (const char* policy : {"spin", "yield", "block"}) {
    ::setenv("SHOAL_WAIT", policy, 1);
    for (const bool killed : {true, false}) {
      testing::SharedCount ended;
      const auto all = reports(
          3, over(GetParam()),
          [&](Communicator& c, Clock::time_point*) {
            Status status = reduce(c, 4);
            if (c.rank() == 2 && killed) ::kill(::getpid(), SIGKILL);
            if (c.rank() == 2 && !ended.reaches(2)) return Status(StatusCode::internal, "the others wait on");
            CallOptions options;
            if (!killed) options.timeout = std::chrono::milliseconds(500);
            if (status.ok()) status = reduce(c, 4, DataType::float32, ReduceOp::sum, options);
            ended.add();
            return status;
          },
          killed ? 2 : -1);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(all[rank].code, killed ? "peer_failed" : "timeout") << policy << ": " << all[rank].message;
        EXPECT_THAT(all[rank].message, Mentions("rank 2")) << policy;
      }
    }
  }
  ::unsetenv("SHOAL_WAIT");
}

TEST_P(Fault, RankThatNeverCallsIsNamedAtDeadline) {
  testing::SharedCount ended;
  const auto all = reports(3, over(GetParam()), [&](Communicator& c, Clock::time_point* start) -> Status {
    if (c.rank() == 1) {
      // Makes no call until the other ranks timed out; then it gets that error in its next call.
      if (!ended.reaches(2)) return {StatusCode::internal, "the others wait on"};
      *start = Clock::now();
      return c.barrier();
    }
    std::vector<float> data(100000);
    CallOptions options;
    options.timeout = std::chrono::milliseconds(static_cast<int>(1000 * kSlack));  // ranks 0 and 2 enter within it
    Status status = c.all_reduce(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum, options);
    ended.add();
    return status;
  });
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(all[rank].code, "timeout") << all[rank].message;
    EXPECT_THAT(all[rank].message, AllOf(Mentions("call 0", "all_reduce float32 x 100000 sum", "communicator 0", "3 ranks"),
                                         ContainsRegex("rank [02] [^;]*[0-9.]+ s;")));
    EXPECT_EQ(late_ranks_in(all[rank].message), std::set{1}) << all[rank].message;
    EXPECT_THAT(whereabouts_in(all[rank].message, 1), ::testing::MatchesRegex("[^0-9]+")) << "it has made no call";
    EXPECT_LT(all[rank].fair_seconds(), 3.0 * kSlack);
  }
  EXPECT_GT(std::ranges::max(all, {}, &Report::seconds).seconds,
            0.9);  // the rank that began first reports to the others at its deadline
  EXPECT_EQ(all[1].code, "timeout") << all[1].message;
  EXPECT_LT(all[1].fair_seconds(), 1.0 * kSlack);
}

TEST_P(Fault, CallWaitsForLateRank) {
  const auto all = reports(3, over(GetParam()), [](Communicator& c, Clock::time_point*) -> Status {
    if (c.rank() == 1) ::sleep(1);
    return reduce(c, 100000);
  });
  for (const Report& report : all) EXPECT_EQ(report.code, "ok") << report.message;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_P(Fault, LongWaitWarnsBeforeDeadline) {
  ::setenv("SHOAL_WARN_AFTER", "0.2", 1);
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto communicator = testing::join(directory, rank, size, over(GetParam()));
    if (!communicator.ok()) return communicator.status().to_string();
    // From here on only: start-up on a busy machine may take longer than 0.2 s and warn.
    const std::string path = directory + "/stderr." + std::to_string(rank);
    if (std::freopen(path.c_str(), "w", stderr) == nullptr) return "no file for stderr";
    if (const Status status = reduce(**communicator, 1000); !status.ok()) return status.to_string();
    if (rank == 1) ::sleep(3);
    const auto start = Clock::now();
    if (const Status status = reduce(**communicator, 5000); !status.ok()) return status.to_string();
    const std::string_view wait = seconds_since(start) < 0.2 ? "short" : "long";
    std::fflush(stderr);
    std::ifstream file(path);
    return fmt::format("{} wait, stderr: ", wait) +
           std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  });
  ::unsetenv("SHOAL_WARN_AFTER");
  for (const int rank : {0, 2}) {
    const auto warns = [rank](const std::string& line) {
      return testing::mentions(line, fmt::format("shoal: rank {}", rank), "call 1", "all_reduce float32 x 5000 sum",
                               "communicator 0", "3 ranks") &&
             Matches(ContainsRegex("[0-9.]+ s "))(line) && late_ranks_in(line) == std::set{1} &&
             testing::mentions(whereabouts_in(line, 1), "call 0", "all_reduce float32 x 1000 sum");
    };
    EXPECT_THAT(lines_of(outcomes[static_cast<std::size_t>(rank)].output), Contains(Truly(warns)))
        << outcomes[static_cast<std::size_t>(rank)].output;
  }
  // On a busy machine the late rank may wait as well, but for no late rank.
  EXPECT_FALSE(testing::mentions(outcomes[1].output, "short wait", "call 1")) << outcomes[1].output;
  for (const std::string& line : lines_of(outcomes[1].output)) EXPECT_EQ(late_ranks_in(line), std::set<int>()) << line;
}

/// The Status of `body`, then what the rank writes to standard error meanwhile.
std::string status_and_stderr(const std::string& directory, int rank, const std::function<Status()>& body) {
  const std::string path = fmt::format("{}/stderr.{}", directory, rank);
  if (std::freopen(path.c_str(), "w", stderr) == nullptr) return "no file for stderr";
  const Status status = body();
  std::fflush(stderr);
  std::ifstream file(path);
  return status.to_string() + "\n" + std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The deadline is shorter than SHOAL_WARN_AFTER (20 s). Calls and messages.
TEST_P(Fault, ShortDeadlineWarnsAtHalf) {
  for (const bool message : {false, true}) {
    testing::SharedCount ended;
    const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      auto made = testing::join(directory, rank, size, over(GetParam()));
      if (!made.ok()) return made.status().to_string();
      Communicator& c = **made;
      if (const Status status = reduce(c, 1000); !status.ok()) return status.to_string();
      if (rank == 1 && !ended.reaches(1)) return "rank 0 waits on";
      std::vector<float> data(5000);
      CallOptions options;
      options.timeout = std::chrono::milliseconds(1200);
      return status_and_stderr(directory, rank, [&] {
        if (rank == 1) return c.barrier();  // returns the error
        Status status = message
                            ? c.recv(data.data(), 5000, DataType::float32, 1, 7, options)
                            : c.all_reduce(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum, options);
        ended.add();
        return status;
      });
    });
    const auto call = message ? Mentions("recv", "float32 x 5000", "rank 1", "tag 7", "communicator 0", "2 ranks")
                              : Mentions("call 1", "all_reduce float32 x 5000 sum", "communicator 0", "2 ranks");
    const auto names_wait = [&](const std::string& line) {
      return Matches(AllOf(call, Mentions("rank 0"), ContainsRegex("[0-9.]+ s")))(line) &&
             (message || late_ranks_in(line) == std::set{1}) &&
             testing::mentions(whereabouts_in(line, 1), "call 0", "all_reduce float32 x 1000 sum");
    };
    const auto lines = lines_of(outcomes[0].output);
    EXPECT_THAT(lines, Contains(AllOf(StartsWith("timeout: "), Truly(names_wait))));
    EXPECT_THAT(lines, Contains(AllOf(StartsWith("shoal: rank 0"), Truly(names_wait)))) << "before the deadline";
    // Rank 1 gets the error in its next call, or a mismatch because that is another call.
    EXPECT_THAT(outcomes[1].output, message ? call : Mentions("all_reduce float32 x 5000 sum"));
  }
}

// The older call has a long deadline, the younger one a short one.
TEST_P(Fault, YoungerCallWithEarlierDeadlineWarns) {
  testing::SharedCount ended;
  const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
    auto made = testing::join(directory, rank, size, over(GetParam()));
    if (!made.ok()) return made.status().to_string();
    Communicator& c = **made;
    if (const Status status = reduce(c, 1000); !status.ok()) return status.to_string();
    if (rank == 1 && !ended.reaches(1)) return "rank 0 waits on";
    std::vector<float> data(300'000);
    return status_and_stderr(directory, rank, [&]() -> Status {
      if (rank == 1) return c.barrier();  // returns the error
      CallOptions late;
      late.timeout = std::chrono::seconds(100);
      CallOptions soon;
      soon.timeout = std::chrono::milliseconds(1200);
      auto first = c.all_reduce_async(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum, late);
      Status status = first.ok() ? c.barrier(soon) : first.status();
      ended.add();
      return status;
    });
  });
  const auto lines = lines_of(outcomes[0].output);
  EXPECT_THAT(lines,
              Contains(AllOf(StartsWith("timeout: "), Mentions("call 2", "barrier", "communicator 0", "2 ranks", "rank 0"),
                             ContainsRegex("[0-9.]+ s"), ::testing::ResultOf(late_ranks_in, std::set{1}))));
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("shoal: rank 0"), Mentions("call 2", "barrier"), ContainsRegex("[0-9.]+ s"))));
}

// Each rank receives from the next one; the last is somewhere else. Each also has an older receive in flight, for which no
// thread waits.
TEST_P(Fault, MessageWaitNamesEndOfChain) {
  for (const int ranks : {4, 7}) {
    const auto outcomes = testing::run_ranks(ranks, [&](int rank, int size, const std::string& directory) -> std::string {
      ::setenv("SHOAL_FLIGHT_RECORD", "", 1);
      auto made = testing::join(directory, rank, size, over(GetParam()));
      if (!made.ok()) return made.status().to_string();
      CallOptions options;
      options.timeout = std::chrono::milliseconds(rank == 0 ? 1500 : 15000);
      if (rank == size - 1) return (*made)->barrier(options).to_string();
      int number = 0;
      int later = 0;
      auto ahead = (*made)->recv_async(&later, 1, DataType::int32, size - 1, 9, options);
      const Status status = (*made)->recv(&number, 1, DataType::int32, rank + 1, 0, options);
      if (ahead.ok()) static_cast<void>(ahead->wait());  // until then the call may use the buffer
      return status.to_string();
    });
    EXPECT_THAT(outcomes[0].output, StartsWith("timeout: ")) << ranks;
    EXPECT_THAT(whereabouts_in(outcomes[0].output, 1), Mentions("recv", "rank 2")) << outcomes[0].output;
    EXPECT_THAT(whereabouts_in(outcomes[0].output, ranks - 1), Mentions("call 0", "barrier")) << outcomes[0].output;
    if (ranks == 7) {
      EXPECT_THAT(outcomes[0].output, Mentions("4 ranks wait in turn"));
    }
  }
}

// Two ranks make blocking calls in two groups, in opposite order. Without flight records, as between hosts, a rank knows the
// peer's group only from what the peer sends while it waits.
TEST_P(Fault, CrossedGroupCallsNameBothGroups) {
  for (const char* flight_records : {"", "off"}) {
    const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      ::setenv("SHOAL_FLIGHT_RECORD", flight_records, 1);
      auto made = testing::join(directory, rank, size, over(GetParam()));
      if (!made.ok()) return made.status().to_string();
      auto first = (*made)->split(0, 0);
      auto second = (*made)->split(0, 0);
      if (!first.ok() || !second.ok()) return first.status().to_string() + second.status().to_string();
      std::vector<float> data(100000);
      CallOptions options;
      options.timeout = std::chrono::milliseconds(rank == 0 ? 1500 : 15000);
      const auto call = [&](bool in_first) {
        return in_first ? (*first)->all_reduce(data.data(), data.data(), 100000, DataType::float32, ReduceOp::sum, options)
                        : (*second)->all_reduce(data.data(), data.data(), 99999, DataType::float32, ReduceOp::max, options);
      };
      const FairClock clock;
      const std::string output = status_and_stderr(directory, rank, [&]() -> Status {
        const Status status = call(rank == 0);
        return status.ok() ? call(rank == 1) : status;
      });
      return clock.seconds() < 5 * kSlack ? output : "late\n" + output;
    });
    const auto lines = lines_of(outcomes[0].output);
    const auto names_both = [](const std::string& line) {
      return testing::mentions(line, "call 0", "all_reduce float32 x 100000 sum", "2 ranks", "0, 1") &&
             testing::mentions(whereabouts_in(line, 1), "call 0", "all_reduce float32 x 99999 max") &&
             Matches(ContainsRegex("communicator [0-9a-f]+"))(whereabouts_in(line, 1));
    };
    EXPECT_THAT(lines,
                Contains(AllOf(StartsWith("timeout: "), Truly(names_both), ::testing::ResultOf(late_ranks_in, std::set{1}))))
        << flight_records;
    EXPECT_THAT(lines, Contains(AllOf(StartsWith("shoal: rank 0"), Truly(names_both))))
        << "before the deadline: " << flight_records;
    // Its own deadline is later: it gets the error that the peer closed the group.
    EXPECT_THAT(outcomes[1].output, Mentions("peer_failed", "rank 0", "all_reduce float32 x 99999 max")) << flight_records;
    for (const testing::RankOutcome& outcome : outcomes) EXPECT_THAT(lines_of(outcome.output), Not(Contains("late")));
  }
}

TEST_P(Fault, AbortReachesAllRanksWithItsReason) {
  const auto all = reports(3, over(GetParam()), [](Communicator& c, Clock::time_point* start) -> Status {
    *start = Clock::now();
    if (c.rank() == 0) {
      ::usleep(200000);
      c.abort("loss is not a number");
      return c.barrier();
    }
    return reduce(c, 100000);
  });
  for (const Report& report : all) {
    EXPECT_EQ(report.code, "aborted") << report.message;
    EXPECT_THAT(report.message, AllOf(HasSubstr("rank 0"), HasSubstr("loss is not a number")));
    EXPECT_LT(report.fair_seconds(), 2.0 * kSlack);
  }
}

TEST_P(Fault, CallNamesRankThatDestroyedCommunicator) {
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto communicator = testing::join(directory, rank, size, over(GetParam()));
    if (!communicator.ok()) return communicator.status().to_string();
    if (const Status status = reduce(**communicator, 1000); !status.ok()) return status.to_string();
    if (rank == 2) {
      communicator->reset();
      ::sleep(2);  // the process stays alive
      return {};
    }
    const FairClock clock;
    const Status status = reduce(**communicator, 1000);
    if (status.ok() || clock.seconds() > 5 * kSlack) return "no error, or late: " + status.to_string();
    return status.message().find("rank 2") != std::string::npos ? "" : status.to_string();
  });
  testing::expect_all_well(outcomes);
}

TEST_P(Fault, DestructorFailsCallsOfPeers) {
  const auto all = reports(2, over(GetParam()), [](Communicator& c, Clock::time_point* start) -> Status {
    std::vector<float> data(1 << 20);
    *start = Clock::now();
    if (c.rank() == 1) return c.all_reduce(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum);
    // Rank 0 never makes the call; it destroys the communicator.
    return Status(StatusCode::aborted, "left");
  });
  EXPECT_NE(all[1].code, "ok");
  EXPECT_THAT(all[1].message, HasSubstr("rank 0"));
  EXPECT_LT(all[1].fair_seconds(), 5.0 * kSlack);
}

TEST(Start, MissingRankIsNamed) {
  const auto start = Clock::now();
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    if (rank == 1) return "absent";
    const auto communicator = testing::join(directory, rank, size, over("", 1500));
    return communicator.status().to_string();
  });
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(outcomes[rank].output, AllOf(HasSubstr("timeout"), HasSubstr("rank 1")));
  }
  EXPECT_LT(seconds_since(start), 10.0 * kSlack);
}

TEST(Start, UnknownAlgorithmOrTransportFailsOnAllRanks) {
  for (const bool algorithm : {true, false}) {
    const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      CommunicatorOptions options;
      (algorithm ? options.algorithm : options.transports) = "carrier_pigeon";
      return testing::join(directory, rank, size, options).status().to_string();
    });
    for (const auto& outcome : outcomes)
      EXPECT_THAT(outcome.output, Mentions("carrier_pigeon", algorithm ? "recursive_doubling" : "ucx"))
          << "the message lists the known names";
  }
}

TEST(Start, TwoJobsOnOnePortRefuseEachOther) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  std::unique_ptr<Store> first;
  int port = 0;
  for (port = 23456; port < 23556 && first == nullptr; ++port) {
    auto made = make_tcp_store("127.0.0.1", port, true, "job-a", deadline);
    if (made.ok()) first = std::move(made).value();
  }
  --port;
  ASSERT_NE(first, nullptr);
  const auto client_of_other_job = make_tcp_store("127.0.0.1", port, false, "job-b", deadline);
  EXPECT_THAT(client_of_other_job.status().to_string(), Mentions("job-a", "job-b", std::to_string(port)));
  const auto second_server = make_tcp_store("127.0.0.1", port, true, "job-b", deadline);
  EXPECT_THAT(second_server.status().to_string(), Mentions(std::to_string(port), "Address already in use"));
  // The first job is not affected.
  EXPECT_TRUE(first->set("key", "value").ok());
  EXPECT_EQ(*first->get("key", deadline), "value");
}

TEST(Call, BadArgumentsLeaveCommunicatorUsable) {
  auto made = Communicator::create(CommunicatorOptions{});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  Communicator& c = **made;
  std::vector<float> data(64, 1);
  const auto refused = [&](const Status& status, const auto&... facts) {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << status.to_string();
    EXPECT_THAT(status.message(), Mentions(facts...));
  };
  refused(c.all_reduce(nullptr, data.data(), 8, DataType::float32, ReduceOp::sum), "null");
  refused(c.all_reduce(data.data(), data.data(), static_cast<std::size_t>(-5), DataType::float32, ReduceOp::sum), "count",
          "18446744073709551611");
  refused(c.all_reduce(data.data(), data.data(), 8, static_cast<DataType>(77), ReduceOp::sum), "77");
  refused(c.all_reduce(data.data(), data.data(), 8, DataType::float32, static_cast<ReduceOp>(99)), "99");
  refused(c.all_reduce(data.data(), data.data(), 8, DataType::float32, ReduceOp::bxor), "bxor", "float32");
  refused(c.all_reduce(data.data(), data.data() + 4, 8, DataType::float32, ReduceOp::sum), "overlap");
  refused(c.broadcast(data.data(), 8, DataType::float32, 1), "root 1");
  refused(c.broadcast(data.data(), 8, DataType::float32, -1), "root -1");
  const std::vector<std::size_t> one{2};
  const std::vector<std::size_t> other{3};
  const std::vector<std::size_t> two{2, 2};
  const std::vector<std::size_t> minus{static_cast<std::size_t>(-2)};
  float* far = data.data() + 32;
  refused(c.all_gather_v(data.data(), far, two, DataType::float32), "all_gather_v", "counts", "2", "1");
  refused(c.all_gather_v(data.data(), far, minus, DataType::float32), "counts[0]", "18446744073709551614");
  refused(c.all_to_all_v(data.data(), two, far, one, DataType::float32), "all_to_all_v", "send_counts", "2", "1");
  refused(c.all_to_all_v(data.data(), one, far, two, DataType::float32), "all_to_all_v", "receive_counts", "2", "1");
  refused(c.all_to_all_v(data.data(), one, far, minus, DataType::float32), "receive_counts[0]", "18446744073709551614");
  refused(c.all_to_all_v(data.data(), one, far, other, DataType::float32), "send_counts[0]", "2", "receive_counts[0]", "3");
  CallOptions negative;
  negative.timeout = std::chrono::milliseconds(-1);
  refused(c.barrier(negative), "timeout", "-1 ms");
  CallOptions unknown;
  unknown.algorithm = "carrier_pigeon";
  EXPECT_THAT(c.all_reduce(data.data(), data.data(), 8, DataType::float32, ReduceOp::sum, unknown).to_string(),
              HasSubstr("carrier_pigeon"));
  EXPECT_TRUE(c.all_reduce(data.data(), data.data(), 64, DataType::float32, ReduceOp::sum).ok());
  EXPECT_EQ(data[63], 1.0F);
}

}  // namespace
}  // namespace shoal
