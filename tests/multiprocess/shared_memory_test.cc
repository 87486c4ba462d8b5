// Calls on buffers from mem_alloc give the same bits as with private buffers, for any mixture of both.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/multiprocess/ranks.h"
#include "tests/multiprocess/shared_buffer.h"

namespace shoal {
namespace {

using testing::expect_ranks;
using testing::TestBuffer;

CommunicatorOptions over_shm(const char* algorithm = "") {
  CommunicatorOptions options;
  options.transports = "shm";
  options.algorithm = algorithm;
  options.timeout = std::chrono::seconds(50);
  return options;
}

// Fills the buffer with random numbers that depend on `call` and `rank` only.
void fill(TestBuffer<float>& buffer, std::uint64_t call, int rank) {
  std::mt19937_64 random(call * 1000 + static_cast<std::uint64_t>(rank));
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<float>(static_cast<double>(random()) / 1e19 - 0.9);
}

// Makes every call twice, with a mixture of buffers and with private buffers: the results must have the same bits.
std::string compare(Communicator& c, int calls) {
  std::mt19937_64 plan(7);  // all ranks draw the same
  const std::size_t counts[] = {1, 3, 1000, 4097, 30'000, 100'003, 1 << 18, (1 << 20) + 5};
  const ReduceOp ops[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max};
  for (int call = 0; call < calls; ++call) {
    const std::size_t count = counts[plan() % std::size(counts)];
    const ReduceOp op = ops[plan() % std::size(ops)];
    const bool in_place = plan() % 2 == 0;
    const std::uint64_t mixture = plan() % 4;  // 0: one rank has private buffers; 1: one output is private; 2, 3: all shared
    const bool odd = static_cast<int>(plan() % static_cast<std::uint64_t>(c.size())) == c.rank();
    const std::size_t offset = plan() % 17;
    TestBuffer<float> private_input(count, false);
    TestBuffer<float> private_output(count, false);
    fill(private_input, static_cast<std::uint64_t>(call), c.rank());
    TestBuffer<float> input(count, !(odd && mixture == 0), offset);
    TestBuffer<float> output(count, !(odd && mixture <= 1), offset);
    TestBuffer<float>& source = in_place ? output : input;
    std::memcpy(source.data(), private_input.data(), count * sizeof(float));
    Status status = c.all_reduce(source.data(), output.data(), count, DataType::float32, op);
    if (!status.ok()) return status.to_string();
    status = c.all_reduce(private_input.data(), private_output.data(), count, DataType::float32, op);
    if (!status.ok()) return status.to_string();
    if (std::memcmp(output.data(), private_output.data(), count * sizeof(float)) != 0)
      return fmt::format("call {}: {} elements, {}, {}, mixture {}: differs", call, count, to_string(op),
                         in_place ? "in place" : "out of place", mixture);
    if (!in_place && std::memcmp(input.data(), private_input.data(), count * sizeof(float)) != 0)
      return fmt::format("call {}: the input was changed", call);
  }
  return {};
}

class SharedMemory : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, SharedMemory, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

TEST_P(SharedMemory, BitsMatchThoseOfPrivateBuffers) {
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) { return compare(c, 60); });
  expect_ranks(GetParam(), over_shm("direct"), [](Communicator& c) { return compare(c, 30); });
}

// With these algorithms tiles travel by reference.
TEST_P(SharedMemory, OtherAlgorithmsMatchPrivateBuffers) {
  for (const char* algorithm : {"ring", "recursive_doubling", "hierarchical"}) {
    expect_ranks(GetParam(), over_shm(algorithm), [](Communicator& c) { return compare(c, 15); });
  }
}

TEST_P(SharedMemory, ManyCallsInFlightReturnRightValues) {
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) -> std::string {
    constexpr std::size_t kCalls = 150;
    std::mt19937_64 plan(3);
    std::vector<TestBuffer<float>> buffers;
    std::vector<Work> works;
    for (std::size_t k = 0; k < kCalls; ++k) {
      const std::size_t count = plan() % 3 == 0 ? plan() % 100 + 1 : plan() % 90'000 + 1;
      const bool shared = plan() % 3 != 0 || static_cast<int>(plan() % 5) != c.rank();
      buffers.emplace_back(count, shared);
      for (std::size_t i = 0; i < count; ++i) buffers.back()[i] = static_cast<float>((i + k) % 100 + 1);
      auto work = c.all_reduce_async(buffers.back().data(), buffers.back().data(), count, DataType::float32, ReduceOp::sum);
      if (!work.ok()) return work.status().to_string();
      works.push_back(*work);
    }
    for (std::size_t k = 0; k < kCalls; ++k) {
      if (const Status status = works[k].wait(); !status.ok()) return status.to_string();
      for (std::size_t i = 0; i < buffers[k].size(); ++i) {
        if (buffers[k][i] != static_cast<float>(((i + k) % 100 + 1) * static_cast<std::size_t>(c.size())))
          return fmt::format("call {} element {} is {}", k, i, buffers[k][i]);
      }
    }
    return {};
  });
}

TEST_P(SharedMemory, BroadcastAndAllGatherReturnRightValues) {
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) -> std::string {
    for (const std::size_t count : {std::size_t{10}, std::size_t{50'000}, std::size_t{1} << 20}) {
      TestBuffer<std::int32_t> data(count, c.rank() != 1);
      const int root = c.size() - 1;
      for (std::size_t i = 0; i < count; ++i) data[i] = c.rank() == root ? static_cast<std::int32_t>(i) : -1;
      if (Status status = c.broadcast(data.data(), count, DataType::int32, root); !status.ok()) return status.to_string();
      for (std::size_t i = 0; i < count; ++i) {
        if (data[i] != static_cast<std::int32_t>(i)) return fmt::format("broadcast: element {} is {}", i, data[i]);
      }
      const auto ranks = static_cast<std::size_t>(c.size());
      TestBuffer<std::int32_t> mine(count, true);
      TestBuffer<std::int32_t> all(count * ranks, c.rank() != 0);
      for (std::size_t i = 0; i < count; ++i) mine[i] = static_cast<std::int32_t>(i) + c.rank();
      if (Status status = c.all_gather(mine.data(), all.data(), count, DataType::int32); !status.ok())
        return status.to_string();
      for (std::size_t r = 0; r < ranks; ++r) {
        for (std::size_t i = 0; i < count; ++i) {
          if (all[r * count + i] != static_cast<std::int32_t>(i + r))
            return fmt::format("all_gather: rank {} element {}", r, i);
        }
      }
    }
    return {};
  });
}

}  // namespace
}  // namespace shoal
