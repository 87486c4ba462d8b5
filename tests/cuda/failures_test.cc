// Failures on streams: dead, late and mismatched ranks, and failing CUDA calls. Nothing hangs, streams continue, and the error
// names the rank that caused it.
#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/cuda/stream_ranks.h"
#include "tests/facts.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using testing::expect_stream_ranks;
using testing::RankOutcome;
using testing::StreamCase;
using testing::StreamRank;
using Clock = std::chrono::steady_clock;

/// Makes calls of all kinds in turn, of about `count` int32 each, until one fails; returns its status. The memory is not freed,
/// since the stream may still use it.
Status until_failure(StreamRank& rank, std::size_t count, int most) {
  const auto ranks = static_cast<std::size_t>(rank.size());
  const std::size_t share = count / ranks;
  void* in = *rank.cuda.allocate(count * 4);
  void* out = *rank.cuda.allocate(count * 4);
  const std::vector<std::size_t> shares(ranks, share);
  const int next = (rank.rank() + 1) % rank.size();
  const int before = (rank.rank() + rank.size() - 1) % rank.size();
  const std::vector<StreamMessage> ring{StreamMessage::send(in, count, DataType::int32, next),
                                        StreamMessage::recv(out, count, DataType::int32, before)};
  const auto make = [&](int call) -> Result<StreamWork> {
    constexpr DataType kInt = DataType::int32;
    auto& group = rank.group;
    switch (call % 10) {
      case 1:
        return group.reduce(in, out, count, kInt, ReduceOp::sum, 1, rank.stream);
      case 2:
        return group.all_to_all(in, out, share, kInt, rank.stream);
      case 3:
        return group.exchange(ring, rank.stream);
      case 4:
        return group.reduce_scatter(in, out, share, kInt, ReduceOp::sum, rank.stream);
      case 5:
        return group.all_to_all_v(in, shares, out, shares, kInt, rank.stream);
      case 6:
        return group.all_gather(in, out, share, kInt, rank.stream);
      case 7:
        return group.barrier(rank.stream);
      case 8:
        return group.broadcast(in, count, kInt, 0, rank.stream);
      default:
        return group.all_reduce(in, in, count, kInt, ReduceOp::sum, rank.stream);
    }
  };
  for (int call = 0; call < most; ++call) {
    auto work = make(call);
    if (!work.ok()) return work.status();
    if (Status status = work->wait(); !status.ok()) return status;
  }
  return {};
}

/// The stream must finish its work, and later calls fail at once with the same cause.
std::string check_after_failure(StreamRank& rank, const Status& cause) {
  if (Status status = rank.cuda.synchronize(rank.stream); !status.ok()) return status.to_string();
  void* data = *rank.cuda.allocate(400);
  const auto start = Clock::now();
  auto later = rank.group.all_reduce(data, data, 100, DataType::int32, ReduceOp::sum, rank.stream);
  if (later.ok()) return "a call after the failure was accepted";
  if (later.status().code() != cause.code() && cause.code() != StatusCode::aborted)
    return "later: " + later.status().to_string() + " after " + cause.to_string();
  if (seconds_since(start) > 0.5) return "a call after the failure took long";
  return rank.group.status().ok() ? "the group is not closed" : "";
}

/// A rank dies between two calls, or in the middle of one, on every route.
TEST(StreamFailures, DeadRankIsNamedAndStreamsContinue) {
  for (const int route : {0, 1, 2, 3}) {
    for (const std::size_t count : {std::size_t{100}, std::size_t{100000}}) {
      SCOPED_TRACE(fmt::format("route {}, {} elements", route, count));
      StreamCase c;
      c.ranks = 4;
      c.cuda.longest_delay_us = 500;
      c.cuda.own_device = route == 1;
      c.cuda.reads_peers = route != 2;
      c.nodes = route == 3 ? 2 : 1;
      c.route = route == 0 ? "peer" : route == 1 ? "peer+fused" : route == 2 ? "host" : "peer+host";
      std::vector<RankOutcome> outcomes;
      expect_stream_ranks(
          c,
          [count](StreamRank& rank) -> std::string {
            if (rank.rank() == 2) {
              // Dies while its stream is in a call.
              std::thread([] {
                std::this_thread::sleep_for(std::chrono::milliseconds(60));
                ::kill(::getpid(), SIGKILL);
              }).detach();
            }
            const auto start = Clock::now();
            const Status status = until_failure(rank, count, 100000);
            if (status.ok()) return "no call has failed";
            if (seconds_since(start) > 10) return fmt::format("it took {} s", seconds_since(start));
            const bool names_cause =
                status.message().find("rank 2") != std::string::npos || status.code() == StatusCode::aborted;
            if (!names_cause) return "the error does not name rank 2: " + status.to_string();
            const Status closed = rank.group.status();
            for (int i = 0; i < 300 && rank.group.status().ok(); ++i)
              std::this_thread::sleep_for(std::chrono::milliseconds(10));
            if (rank.group.status().message().find("rank 2") == std::string::npos)
              return "the cause does not name rank 2: " + rank.group.status().to_string();
            return check_after_failure(rank, status);
          },
          &outcomes);
      testing::expect_all_well(outcomes, {}, {2});
    }
  }
}

TEST(StreamFailures, DeadlineNamesLateRank) {
  for (const bool fused : {false, true}) {
    StreamCase c;
    c.ranks = 3;
    c.cuda.own_device = fused;
    c.timeout = std::chrono::milliseconds(20000);
    expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
      void* data = *rank.cuda.allocate(40000);
      auto good = rank.group.all_reduce(data, data, 10000, DataType::int32, ReduceOp::sum, rank.stream);
      if (!good.ok() || !good->wait().ok()) return "the first call: " + good.status().to_string();
      if (rank.rank() == 1) {
        // Nothing is in flight on this rank, so its next call reports the failure.
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        auto late = rank.group.all_reduce(data, data, 10000, DataType::int32, ReduceOp::sum, rank.stream);
        if (late.ok()) return "the call of the late rank succeeded";
        return testing::mentions(late.status().message(), "rank 1", "call 0") ? "" : late.status().to_string();
      }
      const auto start = Clock::now();
      auto work =
          rank.group.all_reduce(data, data, 10000, DataType::int32, ReduceOp::sum, rank.stream, std::chrono::milliseconds(400));
      if (!work.ok()) return work.status().to_string();
      const Status status = work->wait();
      if (status.ok()) return "a call without rank 1 succeeded";
      if (seconds_since(start) > 5) return fmt::format("it took {} s", seconds_since(start));
      for (int i = 0; i < 300 && rank.group.status().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (!testing::mentions(rank.group.status().message(), "rank 1", "call 0"))
        return "the error does not name the late rank: " + rank.group.status().to_string();
      return check_after_failure(rank, status);
    });
  }
}

TEST(StreamFailures, DifferentCallsAreAMismatch) {
  StreamCase c;
  c.ranks = 2;
  expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
    void* data = *rank.cuda.allocate(4000);
    const std::size_t count = rank.rank() == 0 ? 1000 : 999;
    const auto start = Clock::now();
    auto work = rank.group.all_reduce(data, data, count, DataType::int32, ReduceOp::sum, rank.stream);
    const Status status = work.ok() ? work->wait() : work.status();
    if (seconds_since(start) > 10) return "it took long";
    for (int i = 0; i < 300 && rank.group.status().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::string text = rank.group.status().message();
    if (rank.group.status().code() != StatusCode::mismatch || text.find("1000") == std::string::npos ||
        text.find("999") == std::string::npos)
      return "the cause: " + rank.group.status().to_string();
    return status.ok() ? "two different calls succeeded" : check_after_failure(rank, rank.group.status());
  });
}

TEST(StreamFailures, AbortEndsCallsInFlightEverywhere) {
  StreamCase c;
  c.ranks = 3;
  expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
    void* data = *rank.cuda.allocate(4000);
    if (rank.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      rank.group.abort("enough");
    } else {
      auto work = rank.group.all_reduce(data, data, 1000, DataType::int32, ReduceOp::sum, rank.stream);
      const Status status = work.ok() ? work->wait() : work.status();
      if (status.ok()) return "a call without rank 0 succeeded";
    }
    for (int i = 0; i < 300 && rank.group.status().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const Status cause = rank.group.status();
    if (cause.message().find("enough") == std::string::npos) return "the reason is lost: " + cause.to_string();
    return check_after_failure(rank, cause);
  });
}

/// Closing the communicator closes its stream communicators at once, also while ranks wait in streams and make no call.
TEST(StreamFailures, CommunicatorClosesItsStreams) {
  for (const bool through_host : {false, true}) {
    SCOPED_TRACE(through_host ? "through the host" : "by peers");
    StreamCase c;
    c.ranks = 3;
    c.cuda.reads_peers = !through_host;
    c.route = through_host ? "host" : "peer";
    expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
      void* data = *rank.cuda.allocate(4000);
      const auto start = Clock::now();
      if (rank.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        rank.host.abort("enough");
        if (rank.group.status().ok()) return "the rank's own streams are not closed";
      } else {
        auto work = rank.group.all_reduce(data, data, 1000, DataType::int32, ReduceOp::sum, rank.stream);
        const Status status = work.ok() ? work->wait() : work.status();
        if (status.ok()) return "a call without rank 0 succeeded";
        if (status.code() == StatusCode::timeout) return "ended by the deadline only: " + status.to_string();
      }
      if (seconds_since(start) > 10) return fmt::format("it took {} s", seconds_since(start));
      const Status cause = rank.group.status();
      if (!testing::mentions(cause.message(), "rank 0", "enough")) return "the reason is lost: " + cause.to_string();
      return check_after_failure(rank, cause);
    });
  }
}

/// Runs one of two ranks. On rank 1, CUDA calls named `call` fail after `after` successful ones.
std::string run_with_refusals(int rank, const std::string& directory, const char* call, int after, bool through_host) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(20);
  auto host = testing::join(directory, rank, 2, options);
  if (!host.ok()) return host.status().to_string();
  testing::FakeCudaOptions fake;
  fake.reads_peers = !through_host;
  if (rank == 1) {
    fake.refused_call = call;
    fake.refused_after = after;
  }
  testing::FakeCuda cuda(fake);
  auto group = cuda::DeviceGroup::create(cuda, **host, {std::size_t{64} << 10, 4, false});
  if (!group.ok()) return group.status().message().empty() ? "no message" : "";
  auto streams = cuda::DeviceGroup::wrap(std::move(*group));
  const auto stream = cuda.create_stream(false);
  auto memory = cuda.allocate(800000);
  if (!memory.ok()) return "";
  std::byte* in = static_cast<std::byte*>(*memory);
  std::byte* out = in + 400000;
  const std::vector<std::size_t> counts(2, 20000);
  const std::vector<StreamMessage> both{StreamMessage::send(in, 100000, DataType::int32, 1 - rank),
                                        StreamMessage::recv(out, 100000, DataType::int32, 1 - rank)};
  for (int i = 0; i < 4; ++i) {
    auto work = i == 1   ? streams->exchange(both, *stream)
                : i == 2 ? streams->all_to_all_v(in, counts, out, counts, DataType::int32, *stream)
                         : streams->all_reduce(in, in, 100000, DataType::int32, ReduceOp::sum, *stream);
    const Status status = work.ok() ? work->wait() : work.status();
    if (status.code() == StatusCode::timeout) return "ended by the deadline only: " + status.to_string();
    if (!status.ok()) streams->abort("the test has seen the failure");  // for calls that were refused before they began
    if (!status.ok()) break;
  }
  return "";
}

/// Each CUDA call fails once, at set-up or later: an error on every rank, or another route; never a hang. A group waits for
/// seconds at its end if a call may still be in a stream, so four jobs run at once.
TEST(StreamFailures, AnyCudaCallMayFail) {
  for (const char* call :
       {"allocate", "allocate_pinned", "pin", "export_memory", "import_memory", "create_event", "record", "flags", "copy",
        "copy_segments", "fold", "call_host", "is_capturing", "describe_pointer", "synchronize", "load_kernels"}) {
    const auto start = Clock::now();
    const std::vector<RankOutcome> outcomes = testing::run_ranks(
        8,
        [&](int rank, int, const std::string& directory) {
          const int job = rank / 2;
          const std::string own = fmt::format("{}/{}", directory, job);
          std::filesystem::create_directories(own);
          return run_with_refusals(rank % 2, own, call, job % 2 == 0 ? 0 : 2, job >= 2);
        },
        60);
    EXPECT_LT(seconds_since(start), 10) << call << ": ended by a deadline";
    testing::expect_all_well(outcomes, fmt::format("{}, of ranks 0, 1 and 4, 5 after 0 calls, 2 to 3 and 6, 7 after 2", call));
  }
}

/// Work that is stuck in a stream for longer than the group waits at its end still finds its memory, and completes.
TEST(StreamFailures, StuckStreamOutlivesItsGroup) {
  const auto outcomes = testing::run_ranks(
      4,
      [](int rank, int ranks, const std::string& directory) -> std::string {
        if (!testing::move_to_node(rank / 2)) return "no UTS namespaces";
        auto host = testing::join(directory, rank, ranks, {});
        if (!host.ok()) return host.status().to_string();
        testing::FakeCuda cuda({});
        auto group = cuda::DeviceGroup::create(cuda, **host, {std::size_t{64} << 10, 4, false});
        if (!group.ok()) return group.status().to_string();
        auto streams = cuda::DeviceGroup::wrap(std::move(*group));
        if (streams->route() != "peer+host") return "the route is " + streams->route();
        const auto stream = cuda.create_stream(false);
        void* data = *cuda.allocate(400000);
        std::atomic<bool> open{false};
        static_cast<void>(cuda.call_host(
            *stream,
            [](void* gate) {
              while (!static_cast<std::atomic<bool>*>(gate)->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            },
            &open));
        auto work = streams->all_reduce(data, data, 100000, DataType::int32, ReduceOp::sum, *stream, std::chrono::seconds(1));
        if (!work.ok()) return work.status().to_string();
        const auto start = Clock::now();
        streams.reset();
        if (work->status().code() != StatusCode::timeout) return "not ended by its deadline: " + work->status().to_string();
        if (seconds_since(start) > 20) return fmt::format("the group waited for {} s", seconds_since(start));
        work = Status(StatusCode::internal, "the handle is gone");
        (*host)->abort("its streams have ended");
        open = true;
        if (Status through = cuda.synchronize(*stream); !through.ok()) return through.to_string();
        return cuda.errors(false);
      },
      60);
  testing::expect_all_well(outcomes);
}

TEST(StreamFailures, RefusedCapturesLeaveNoState) {
  StreamCase c;
  c.ranks = 2;
  expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
    void* data = *rank.cuda.allocate(4000);
    rank.cuda.set_capturing(true);
    auto refused = rank.group.all_reduce(data, data, 10, DataType::int32, ReduceOp::sum, rank.stream);
    if (refused.ok() || refused.status().code() != StatusCode::unsupported) return "captured: " + refused.status().to_string();
    if (refused.status().message().find("graph") == std::string::npos) return "the error gives no reason";
    rank.cuda.set_capturing(false);
    auto work = rank.group.all_reduce(data, data, 10, DataType::int32, ReduceOp::sum, rank.stream);
    return work.ok() ? work->wait().message() : work.status().to_string();
  });
}

TEST(StreamFailures, BadArgumentsStartNothing) {
  StreamCase c;
  c.ranks = 2;
  expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
    void* data = *rank.cuda.allocate(400);
    std::vector<char> host(400);
    const auto is_invalid = [](const Result<StreamWork>& work) {
      return !work.ok() && work.status().code() == StatusCode::invalid_argument && !work.status().message().empty();
    };
    auto& group = rank.group;
    if (!is_invalid(group.all_reduce(host.data(), data, 100, DataType::int32, ReduceOp::sum, rank.stream)))
      return "memory of the host";
    if (!is_invalid(group.all_reduce(data, data, 101, DataType::int32, ReduceOp::sum, rank.stream)))
      return "beyond the allocation";
    if (!is_invalid(group.all_gather(data, data, 100, DataType::int32, rank.stream))) return "output beyond the allocation";
    if (!is_invalid(group.all_reduce(data, data, 100, DataType::float32, ReduceOp::bxor, rank.stream))) return "bits of floats";
    if (!is_invalid(group.all_reduce(nullptr, data, 100, DataType::int32, ReduceOp::sum, rank.stream))) return "null";
    if (!is_invalid(group.broadcast(data, 10, DataType::int32, 2, rank.stream))) return "no such root";
    if (!is_invalid(group.broadcast(data, 10, DataType::int32, -1, rank.stream))) return "a negative root";
    if (!is_invalid(group.all_reduce(data, data, std::size_t{1} << 62, DataType::int32, ReduceOp::sum, rank.stream)))
      return "count";
    const auto average = group.all_reduce(data, data, 100, DataType::int32, ReduceOp::avg, rank.stream);
    if (average.ok() || average.status().code() != StatusCode::unsupported) return "an average of integers";
    auto work = group.all_reduce(data, data, 100, DataType::int32, ReduceOp::sum, rank.stream);
    return work.ok() ? work->wait().message() : work.status().to_string();
  });
}

}  // namespace
}  // namespace shoal
