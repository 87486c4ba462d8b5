// Collectives on streams over the fake CUDA, with real processes: results, stream order, every route, registered buffers.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/cuda/collective_checks.h"

namespace shoal {
namespace {

using testing::Bytes;
using testing::check;
using testing::check_all_kinds;
using testing::DeviceBuffer;
using testing::expect_stream_ranks;
using testing::input_of;
using testing::rank_data;
using testing::start;
using testing::StreamCase;
using testing::StreamRank;
using testing::TestCall;
using testing::wanted_of;
StreamCase delayed(int ranks, std::uint64_t seed, const char* route) {
  StreamCase c;
  c.ranks = ranks;
  c.cuda.seed = seed;
  c.cuda.longest_delay_us = 300;
  c.route = route;
  return c;
}

TEST(Streams, CollectivesRunThroughPeerMemory) {
#ifdef SHOAL_SANITIZED
  const std::vector<int> sizes{1, 3, 4};
#else
  const std::vector<int> sizes{1, 2, 3, 4, 8};
#endif
  for (const int ranks : sizes) {
    SCOPED_TRACE(ranks);
    expect_stream_ranks(delayed(ranks, 1, "peer"), [](StreamRank& rank) { return check_all_kinds(rank, false); });
  }
}

TEST(Streams, FusedKernelsRunOnSeparateDevices) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    StreamCase c = delayed(ranks, 2, "peer+fused");
    c.cuda.own_device = true;
    expect_stream_ranks(c, [](StreamRank& rank) { return check_all_kinds(rank, false); });
    c.cuda.own_device = false;
    c.streams.kernels_run_together = true;
    expect_stream_ranks(c, [](StreamRank& rank) { return check_all_kinds(rank, false); });
  }
}

/// The host route folds in any order, so the numbers are exact.
TEST(Streams, HostRouteRunsWithoutSharedMemory) {
  StreamCase c = delayed(3, 3, "host");
  c.cuda.reads_peers = false;
  expect_stream_ranks(c, [](StreamRank& rank) { return check_all_kinds(rank, true); });
  c.cuda.reads_peers = true;
  c.cuda.exports_memory = false;
  expect_stream_ranks(c, [](StreamRank& rank) {
    const Status refused = rank.group.register_buffer(rank.stream);
    if (refused.code() != StatusCode::unsupported) return "registered: " + refused.to_string();
    return check(rank, {CollectiveKind::all_reduce, 5000, DataType::float32}, 0, true);
  });
}

/// Between nodes the numbers are exact for the same reason.
TEST(Streams, NodesCommunicateThroughTheHost) {
  StreamCase c = delayed(4, 4, "peer+host");
  c.nodes = 2;
  c.streams.staging_bytes = std::size_t{96} << 10;
  expect_stream_ranks(c, [](StreamRank& rank) { return check_all_kinds(rank, true); });
}

TEST(Streams, NodesMayDifferInSize) {
  StreamCase c = delayed(3, 5, "host");
  c.nodes = 2;
  expect_stream_ranks(c, [](StreamRank& rank) { return check_all_kinds(rank, true); });
}

TEST(Streams, RegisteredBuffersAreReadInPlace) {
  for (const int ranks : {2, 4})
    expect_stream_ranks(delayed(ranks, 6, "peer"), [](StreamRank& rank) -> std::string {
      DeviceBuffer input(rank, 400000);
      DeviceBuffer output(rank, 400000 * static_cast<std::size_t>(rank.size()));
      if (Status status = rank.group.register_buffer(input.get() + 100); !status.ok()) return status.to_string();
      if (Status status = rank.group.register_buffer(input.get()); !status.ok()) return "again: " + status.to_string();
      for (int call = 0; call < 6; ++call) {
        const Bytes mine = rank_data(rank.rank(), call, 90000, DataType::float32, false);
        auto* from = input.get() + 16 * static_cast<std::size_t>(call);
        std::memcpy(rank.cuda.host_address(from), mine.data(), mine.size());
        const int before = rank.cuda.kernels_run();
        const bool gathers = call % 2 == 1;
        auto work = gathers ? rank.group.all_gather(from, output.get(), 90000, DataType::float32, rank.stream)
                            : rank.group.all_reduce(from, output.get(), 90000, DataType::float32, ReduceOp::sum, rank.stream);
        if (!work.ok()) return work.status().to_string();
        // The caller owns the buffer again once the stream has passed the call: it is overwritten right after it.
        static_cast<void>(rank.cuda.call_host(
            rank.stream, [](void* at) { std::memset(at, 0xEE, 360000); }, rank.cuda.host_address(from)));
        if (Status status = work->wait(); !status.ok()) return status.to_string();
        static_cast<void>(rank.cuda.synchronize(rank.stream));
        const TestCall test{gathers ? CollectiveKind::all_gather : CollectiveKind::all_reduce, 90000, DataType::float32};
        const Bytes wanted = wanted_of(test, rank.rank(), rank.size(), call, false);
        if (output.read(wanted.size()) != wanted) return fmt::format("call {} is wrong", call);
        // A copy to staging memory would need one more kernel for each piece of 16 KiB.
        const int pieces = (360000 + 16383) / 16384;
        if (const int ran = rank.cuda.kernels_run() - before; ran != pieces * (gathers ? 1 : 2))
          return fmt::format("{} kernels for {} pieces", ran, pieces);
      }
      return "";
    });
}

/// The host never waits: a call returns while its stream is blocked, and so does wait_on() for another stream.
TEST(Streams, CallsReturnAtOnceAndStreamsKeepTheirOrder) {
  expect_stream_ranks(delayed(2, 7, "peer"), [](StreamRank& rank) -> std::string {
    DeviceBuffer data(rank, 4000);
    DeviceBuffer copy(rank, 4000);
    const auto other = rank.cuda.create_stream(true);
    std::atomic<bool> open{false};
    static_cast<void>(rank.cuda.call_host(
        rank.stream,
        [](void* gate) {
          while (!static_cast<std::atomic<bool>*>(gate)->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        &open));
    const Bytes mine = rank_data(rank.rank(), 0, 1000, DataType::float32, false);
    // The stream writes the input after the gate and before the call.
    static_cast<void>(rank.cuda.copy(data.get(), mine.data(), mine.size(), rank.stream));
    auto work = rank.group.all_reduce(data.get(), data.get(), 1000, DataType::float32, ReduceOp::sum, rank.stream);
    if (!work.ok()) return work.status().to_string();
    if (work->is_completed()) return "completed while its stream was blocked";
    if (Status status = work->wait_on(*other); !status.ok()) return status.to_string();
    static_cast<void>(rank.cuda.copy(copy.get(), data.get(), 4000, *other));
    // A second call, on the other stream, must run after the first on this one.
    auto second = rank.group.all_reduce(data.get(), data.get(), 1000, DataType::float32, ReduceOp::max, *other);
    if (!second.ok()) return second.status().to_string();
    if (!work->status().ok() || work->is_completed() || second->sequence() != 1) return "the calls did not wait";
    open = true;
    if (Status status = second->wait(); !status.ok()) return status.to_string();
    const Bytes wanted = wanted_of({CollectiveKind::all_reduce, 1000, DataType::float32}, rank.rank(), 2, 0, false);
    if (copy.read(4000) != wanted) return "the other stream did not wait";
    return data.read(4000) == wanted ? "" : "the second call ran before the first";
  });
}

/// Many calls in flight with sizes that fill the slots unevenly: nothing is overwritten while a rank reads it.
TEST(Streams, ManyCallsInFlightWithDelays) {
  for (const std::uint64_t seed : {11, 12, 13, 14}) {
    SCOPED_TRACE(seed);
    StreamCase c = delayed(seed % 2 == 0 ? 4 : 3, seed, "");
    c.nodes = seed == 14 ? 2 : 1;
    c.cuda.own_device = seed == 13;  // alternates fused and other kernels
    c.cuda.longest_delay_us = 1000;
    expect_stream_ranks(c, [seed](StreamRank& rank) -> std::string {
      constexpr int kCalls = 40;
      std::mt19937 random(static_cast<unsigned>(seed));
      std::vector<TestCall> tests;
      std::vector<std::unique_ptr<DeviceBuffer>> inputs;
      std::vector<std::unique_ptr<DeviceBuffer>> outputs;
      std::vector<StreamWork> works;
      for (int call = 0; call < kCalls; ++call) {
        const CollectiveKind kinds[] = {CollectiveKind::all_reduce, CollectiveKind::all_reduce, CollectiveKind::reduce_scatter,
                                        CollectiveKind::all_gather, CollectiveKind::reduce,     CollectiveKind::gather,
                                        CollectiveKind::scatter,    CollectiveKind::all_to_all, CollectiveKind::barrier};
        TestCall test{kinds[random() % 9], random() % 3 == 0 ? random() % 30000 : random() % 300, DataType::int32};
        test.uneven = random() % 3 == 0 && deals_in_shares(test.kind);
        test.root = static_cast<int>(random() % 3);
        if (test.kind == CollectiveKind::barrier) test.count = 0;
        tests.push_back(test);
        const std::size_t most = (test.count + 1) * 4 * static_cast<std::size_t>(rank.size());
        inputs.push_back(std::make_unique<DeviceBuffer>(rank, most));
        outputs.push_back(std::make_unique<DeviceBuffer>(rank, most));
        inputs.back()->set(input_of(test, rank.rank(), rank.size(), call, true));
        auto work = start(rank, test, inputs.back()->get(), outputs.back()->get());
        if (!work.ok()) return work.status().to_string();
        works.push_back(*work);
      }
      for (int call = 0; call < kCalls; ++call) {
        const auto i = static_cast<std::size_t>(call);
        if (Status status = works[i].wait(); !status.ok()) return status.to_string();
        const Bytes wanted = wanted_of(tests[i], rank.rank(), rank.size(), call, true);
        if (outputs[i]->read(wanted.size()) != wanted) return fmt::format("call {}, {}, is wrong", call, to_string(tests[i]));
      }
      return "";
    });
  }
}

}  // namespace
}  // namespace shoal
