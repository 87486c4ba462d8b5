// Collectives on streams over the fake CUDA, with real processes: results, the order of streams, every route, registered
// buffers.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/device/device.h"
#include "tests/cuda/stream_ranks.h"

namespace shoal {
namespace {

using testing::expect_stream_ranks;
using testing::StreamCase;
using testing::StreamRank;
using Bytes = std::vector<std::byte>;

/// What rank `rank` gives in call number `call`: every rank can work it out. Small numbers, whose sums are exact in every type
/// but round in no other order than that of the ranks where `exact` is not asked for.
Bytes given(int rank, int call, std::size_t count, DataType type, bool exact) {
  std::mt19937 random(static_cast<unsigned>(rank * 1009 + call));
  Bytes data(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t value = random() % 5;
    std::byte* at = data.data() + i * size_of(type);
    if (type == DataType::float32) {
      const float f = exact ? static_cast<float>(value) : static_cast<float>(random()) * 0x1p-20F;
      std::memcpy(at, &f, sizeof f);
    } else if (type == DataType::bfloat16) {
      const float f = exact ? static_cast<float>(value) : static_cast<float>(random()) * 0x1p-28F;
      std::memcpy(at, reinterpret_cast<const std::byte*>(&f) + 2, 2);
    } else {
      std::memcpy(at, &value, size_of(type));
    }
  }
  return data;
}

/// A buffer in fake device memory.
class DeviceBuffer {
 public:
  DeviceBuffer(StreamRank& rank, std::size_t bytes, std::size_t offset = 0) : rank_(rank), offset_(offset) {
    base_ = *rank.cuda.allocate(bytes + offset + 1);
  }
  ~DeviceBuffer() { static_cast<void>(rank_.cuda.release(base_)); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* get() { return static_cast<std::byte*>(base_) + offset_; }
  std::byte* touch() { return rank_.cuda.touch(get()); }
  void set(const Bytes& data) {
    if (!data.empty()) std::memcpy(touch(), data.data(), data.size());
  }
  Bytes read(std::size_t bytes) { return Bytes(touch(), touch() + bytes); }

 private:
  StreamRank& rank_;
  std::size_t offset_;
  void* base_ = nullptr;
};

struct Ask {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t count = 0;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool in_place = false;
  std::size_t misalignment = 0;
};

Bytes fold(const std::vector<Bytes>& all, DataType type, ReduceOp op) {
  std::vector<const std::byte*> operands;
  for (const Bytes& each : all) operands.push_back(each.data());
  Bytes result(all[0].size());
  const std::size_t count = result.size() / size_of(type);
  if (op == ReduceOp::avg) {
    host_device().reduce_average(result.data(), operands, count, type, static_cast<int>(all.size()));
  } else {
    host_device().reduce(result.data(), operands, count, type, op);
  }
  return result;
}

/// What the call must leave in the output of rank `rank`, and what it takes.
Bytes wanted_of(const Ask& ask, int rank, int ranks, int call, bool exact) {
  std::vector<Bytes> all;
  const bool deals = ask.kind == CollectiveKind::reduce_scatter;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(given(r, call, ask.count * (deals ? static_cast<std::size_t>(ranks) : 1), ask.type, exact));
  }
  const auto bytes = static_cast<std::ptrdiff_t>(ask.count * size_of(ask.type));
  switch (ask.kind) {
    case CollectiveKind::broadcast:
      return all[static_cast<std::size_t>(ask.root)];
    case CollectiveKind::all_gather: {
      Bytes joined;
      for (const Bytes& each : all) joined.insert(joined.end(), each.begin(), each.end());
      return joined;
    }
    case CollectiveKind::reduce_scatter: {
      const Bytes folded = fold(all, ask.type, ask.op);
      return Bytes(folded.begin() + rank * bytes, folded.begin() + (rank + 1) * bytes);
    }
    default:
      return fold(all, ask.type, ask.op);
  }
}

/// Makes call number `call` and checks it; empty where all is well.
std::string check(StreamRank& rank, const Ask& ask, int call, bool exact = false, bool registers = false) {
  const auto ranks = static_cast<std::size_t>(rank.size());
  const bool deals_in = ask.kind == CollectiveKind::reduce_scatter;
  const bool deals_out = ask.kind == CollectiveKind::all_gather;
  const std::size_t bytes = ask.count * size_of(ask.type);
  const std::size_t own = static_cast<std::size_t>(rank.rank()) * bytes;
  DeviceBuffer input(rank, bytes * ranks, ask.misalignment);
  DeviceBuffer output(rank, bytes * ranks, ask.misalignment);
  if (registers) {
    if (Status status = rank.group.register_buffer(input.get()); !status.ok()) return status.to_string();
  }
  const Bytes mine = given(rank.rank(), call, ask.count * (deals_in ? ranks : 1), ask.type, exact);
  std::byte* from = static_cast<std::byte*>(input.get());
  std::byte* to = static_cast<std::byte*>(output.get());
  if (ask.in_place || ask.kind == CollectiveKind::broadcast) {
    from = deals_out ? from + own : from;
    to = deals_in ? from + own : deals_out ? from - own : from;
  }
  if (ask.kind != CollectiveKind::broadcast || ask.root == rank.rank())
    std::memcpy(rank.cuda.touch(from), mine.data(), mine.size());
  const auto start = [&]() -> Result<StreamWork> {
    switch (ask.kind) {
      case CollectiveKind::broadcast:
        return rank.group.broadcast(to, ask.count, ask.type, ask.root, rank.stream);
      case CollectiveKind::all_gather:
        return rank.group.all_gather(from, to, ask.count, ask.type, rank.stream);
      case CollectiveKind::reduce_scatter:
        return rank.group.reduce_scatter(from, to, ask.count, ask.type, ask.op, rank.stream);
      default:
        return rank.group.all_reduce(from, to, ask.count, ask.type, ask.op, rank.stream);
    }
  };
  Result<StreamWork> work = start();
  const std::string what = fmt::format("{} of {} {} {}{} (call {})", to_string(ask.kind), ask.count, to_string(ask.type),
                                       to_string(ask.op), ask.in_place ? " in place" : "", call);
  if (!work.ok()) return what + ": " + work.status().to_string();
  if (Status status = work->wait(); !status.ok()) return what + ": " + status.to_string();
  if (!work->is_completed()) return what + ": waited for and not completed";
  const Bytes wanted = wanted_of(ask, rank.rank(), rank.size(), call, exact);
  const Bytes got(rank.cuda.touch(to), rank.cuda.touch(to) + wanted.size());
  if (got != wanted) {
    const auto at = std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin();
    return fmt::format("{}: byte {} of {} is wrong", what, at, wanted.size());
  }
  if (deals_in && !ask.in_place && Bytes(rank.cuda.touch(from), rank.cuda.touch(from) + mine.size()) != mine)
    return what + ": the input has changed";
  return "";
}

/// Calls of all kinds and sizes: less than a vector, odd ones, beyond one shot, several pieces.
std::string all_kinds(StreamRank& rank, bool exact, bool registers = false) {
  int call = 0;
  const CollectiveKind kinds[] = {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather,
                                  CollectiveKind::broadcast};
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{40001}}) {
    for (const CollectiveKind kind : kinds) {
      for (const bool in_place : {false, true}) {
        Ask ask{kind,     count,          DataType::float32, ReduceOp::sum, static_cast<int>(count) % rank.size(),
                in_place, (count % 4) * 4};
        if (std::string error = check(rank, ask, call++, exact, registers); !error.empty()) return error;
      }
    }
  }
  const std::pair<DataType, ReduceOp> others[] = {{DataType::bfloat16, ReduceOp::avg},
                                                  {DataType::int8, ReduceOp::avg},
                                                  {DataType::int64, ReduceOp::bxor},
                                                  {DataType::uint16, ReduceOp::max},
                                                  {DataType::float32, ReduceOp::min}};
  for (const auto& [type, op] : others) {
    for (const std::size_t count : {std::size_t{333}, std::size_t{70003}}) {
      const Ask ask{CollectiveKind::all_reduce, count, type, op};
      if (exact && type == DataType::bfloat16) continue;  // an average that must round
      if (std::string error = check(rank, ask, call++, exact, false); !error.empty()) return error;
    }
  }
  return "";
}

StreamCase delayed(int ranks, std::uint64_t seed, const char* route) {
  StreamCase c;
  c.ranks = ranks;
  c.cuda.seed = seed;
  c.cuda.longest_delay_us = 300;
  c.route = route;
  return c;
}

TEST(Streams, EveryCollectiveThroughMemoryOfPeers) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(ranks);
    expect_stream_ranks(delayed(ranks, 1, "peer"), [](StreamRank& rank) { return all_kinds(rank, false); });
  }
}

TEST(Streams, FusedKernelsWhereEveryRankHasADevice) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    StreamCase c = delayed(ranks, 2, "peer+fused");
    c.cuda.own_device = true;
    expect_stream_ranks(c, [](StreamRank& rank) { return all_kinds(rank, false); });
    c.cuda.own_device = false;
    c.streams.kernels_run_together = true;
    expect_stream_ranks(c, [](StreamRank& rank) { return all_kinds(rank, false); });
  }
}

/// The host's engine folds in whatever order serves it, so the numbers are such that the order does not show.
TEST(Streams, ThroughTheHostWhereMemoryCannotBeShared) {
  StreamCase c = delayed(3, 3, "host");
  c.cuda.reads_peers = false;
  expect_stream_ranks(c, [](StreamRank& rank) { return all_kinds(rank, true); });
  c.cuda.reads_peers = true;
  c.cuda.exports_memory = false;
  expect_stream_ranks(c, [](StreamRank& rank) {
    const Status refused = rank.group.register_buffer(rank.stream);
    if (refused.code() != StatusCode::unsupported) return "registered: " + refused.to_string();
    return check(rank, {CollectiveKind::all_reduce, 5000, DataType::float32}, 0, true);
  });
}

/// The same holds between nodes.
TEST(Streams, NodesMeetThroughTheHost) {
  StreamCase c = delayed(4, 4, "peer+host");
  c.nodes = 2;
  c.streams.staging_bytes = std::size_t{96} << 10;
  expect_stream_ranks(c, [](StreamRank& rank) { return all_kinds(rank, true); });
}

TEST(Streams, NodesOfDifferentSizes) {
  StreamCase c = delayed(3, 5, "host");
  c.nodes = 2;
  expect_stream_ranks(c, [](StreamRank& rank) { return all_kinds(rank, true); });
}

TEST(Streams, RegisteredBuffersAreReadWhereTheyLie) {
  for (const int ranks : {2, 4})
    expect_stream_ranks(delayed(ranks, 6, "peer"), [](StreamRank& rank) -> std::string {
      DeviceBuffer input(rank, 400000);
      DeviceBuffer output(rank, 400000 * static_cast<std::size_t>(rank.size()));
      if (Status status = rank.group.register_buffer(static_cast<std::byte*>(input.get()) + 100); !status.ok())
        return status.to_string();
      if (Status status = rank.group.register_buffer(input.get()); !status.ok()) return "again: " + status.to_string();
      for (int call = 0; call < 6; ++call) {
        const Bytes mine = given(rank.rank(), call, 90000, DataType::float32, false);
        auto* from = static_cast<std::byte*>(input.get()) + 16 * static_cast<std::size_t>(call);
        std::memcpy(rank.cuda.touch(from), mine.data(), mine.size());
        const int before = rank.cuda.kernels_run();
        const bool gathers = call % 2 == 1;
        auto work = gathers ? rank.group.all_gather(from, output.get(), 90000, DataType::float32, rank.stream)
                            : rank.group.all_reduce(from, output.get(), 90000, DataType::float32, ReduceOp::sum, rank.stream);
        if (!work.ok()) return work.status().to_string();
        // The buffer is the caller's again when the stream has come past the call: overwritten at once, behind it.
        static_cast<void>(rank.cuda.call_host(
            rank.stream, [](void* at) { std::memset(at, 0xEE, 360000); }, rank.cuda.touch(from)));
        if (Status status = work->wait(); !status.ok()) return status.to_string();
        static_cast<void>(rank.cuda.synchronize(rank.stream));
        const Ask ask{gathers ? CollectiveKind::all_gather : CollectiveKind::all_reduce, 90000, DataType::float32};
        const Bytes wanted = wanted_of(ask, rank.rank(), rank.size(), call, false);
        if (output.read(wanted.size()) != wanted) return fmt::format("call {} is wrong", call);
        // 22 or 11 pieces of 16 KiB; with a copy to staging memory it would be one kernel more for each.
        const int pieces = (360000 + 16383) / 16384;
        if (const int ran = rank.cuda.kernels_run() - before; ran != pieces * (gathers ? 1 : 2))
          return fmt::format("{} kernels for {} pieces", ran, pieces);
      }
      return "";
    });
}

/// Nothing waits in the host: a call returns while the stream is held up, and so does waiting on another stream.
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
    const Bytes mine = given(rank.rank(), 0, 1000, DataType::float32, false);
    // What the stream does before the call comes before it: the input is written behind the gate.
    static_cast<void>(rank.cuda.copy(data.get(), mine.data(), mine.size(), rank.stream));
    auto work = rank.group.all_reduce(data.get(), data.get(), 1000, DataType::float32, ReduceOp::sum, rank.stream);
    if (!work.ok()) return work.status().to_string();
    if (work->is_completed()) return "completed while its stream is held up";
    if (Status status = work->wait_on(*other); !status.ok()) return status.to_string();
    static_cast<void>(rank.cuda.copy(copy.get(), data.get(), 4000, *other));
    // A second call, on the other stream, must come after the first on this one.
    auto second = rank.group.all_reduce(data.get(), data.get(), 1000, DataType::float32, ReduceOp::max, *other);
    if (!second.ok()) return second.status().to_string();
    if (!work->status().ok() || work->is_completed() || second->sequence() != 1) return "the calls have not waited";
    open = true;
    if (Status status = second->wait(); !status.ok()) return status.to_string();
    const Bytes wanted = wanted_of({CollectiveKind::all_reduce, 1000, DataType::float32}, rank.rank(), 2, 0, false);
    if (copy.read(4000) != wanted) return "the other stream has not waited";
    return data.read(4000) == wanted ? "" : "the second call has come before the first";
  });
}

/// Many calls in flight, none waited for, sizes that use the slots unevenly: nothing is overwritten while somebody reads it.
TEST(Streams, ManyCallsInFlightWithDelays) {
  for (const std::uint64_t seed : {11, 12, 13, 14}) {
    SCOPED_TRACE(seed);
    StreamCase c = delayed(seed % 2 == 0 ? 4 : 3, seed, "");
    c.nodes = seed == 14 ? 2 : 1;
    c.cuda.own_device = seed == 13;  // fused kernels and others in turns
    c.cuda.longest_delay_us = 1000;
    expect_stream_ranks(c, [seed](StreamRank& rank) -> std::string {
      constexpr int kCalls = 40;
      std::mt19937 random(static_cast<unsigned>(seed));
      std::vector<Ask> asks;
      std::vector<std::unique_ptr<DeviceBuffer>> inputs;
      std::vector<std::unique_ptr<DeviceBuffer>> outputs;
      std::vector<StreamWork> works;
      for (int call = 0; call < kCalls; ++call) {
        const CollectiveKind kinds[] = {CollectiveKind::all_reduce, CollectiveKind::all_reduce, CollectiveKind::reduce_scatter,
                                        CollectiveKind::all_gather};
        const Ask ask{kinds[random() % 4], random() % 3 == 0 ? random() % 30000 : random() % 300, DataType::int32,
                      ReduceOp::sum};
        asks.push_back(ask);
        const std::size_t most = (ask.count + 1) * 4 * static_cast<std::size_t>(rank.size());
        inputs.push_back(std::make_unique<DeviceBuffer>(rank, most));
        outputs.push_back(std::make_unique<DeviceBuffer>(rank, most));
        const bool deals = ask.kind == CollectiveKind::reduce_scatter;
        inputs.back()->set(
            given(rank.rank(), call, ask.count * (deals ? static_cast<std::size_t>(rank.size()) : 1), ask.type, true));
        void* in = inputs.back()->get();
        void* out = outputs.back()->get();
        auto work = ask.kind == CollectiveKind::all_gather ? rank.group.all_gather(in, out, ask.count, ask.type, rank.stream)
                    : deals ? rank.group.reduce_scatter(in, out, ask.count, ask.type, ask.op, rank.stream)
                            : rank.group.all_reduce(in, out, ask.count, ask.type, ask.op, rank.stream);
        if (!work.ok()) return work.status().to_string();
        works.push_back(*work);
      }
      for (int call = 0; call < kCalls; ++call) {
        const auto i = static_cast<std::size_t>(call);
        if (Status status = works[i].wait(); !status.ok()) return status.to_string();
        const Bytes wanted = wanted_of(asks[i], rank.rank(), rank.size(), call, true);
        if (outputs[i]->read(wanted.size()) != wanted)
          return fmt::format("call {}, {}, is wrong", call, to_string(asks[i].kind));
      }
      return "";
    });
  }
}

}  // namespace
}  // namespace shoal
