// Every collective on real processes: values, in place and out of place, sizes, many in flight.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "tests/facts.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using testing::expect_ranks;

// Small integers: every sum of them over a few ranks is exact in float32.
float value_of(int rank, std::size_t i) { return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101); }

float expected_sum(int ranks, std::size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value_of(r, i);
  return sum;
}

std::string check_all_reduce(Communicator& c, std::size_t count, bool in_place, const CallOptions& options = {}) {
  std::vector<float> input(count);
  for (std::size_t i = 0; i < count; ++i) input[i] = value_of(c.rank(), i);
  std::vector<float> output = in_place ? input : std::vector<float>(count, -1.0F);
  const std::vector<float> before = input;
  const Status status =
      c.all_reduce(in_place ? output.data() : input.data(), output.data(), count, DataType::float32, ReduceOp::sum, options);
  if (!status.ok()) return status.to_string();
  if (input != before) return "the input was changed";
  for (std::size_t i = 0; i < count; ++i) {
    if (output[i] != expected_sum(c.size(), i)) {
      return fmt::format("count {} {}: element {} is {}, not {}", count, in_place ? "in place" : "out of place", i, output[i],
                         expected_sum(c.size(), i));
    }
  }
  return {};
}

struct Case {
  int ranks;
  const char* transports;
  const char* algorithm;
};

class AllReduce : public ::testing::TestWithParam<Case> {};

TEST_P(AllReduce, SumIsRightAtEverySize) {
  const auto [ranks, transports, algorithm] = GetParam();
  CommunicatorOptions options;
  options.transports = transports;
  options.algorithm = algorithm;
  options.timeout = std::chrono::seconds(50);
  expect_ranks(ranks, options, [](Communicator& c) -> std::string {
    for (const std::size_t count : {0, 1, 2, 3, 7, 8, 9, 64, 1000, 4096, 16383, 16384, 16385, 100003, 1 << 20}) {
      for (const bool in_place : {false, true}) {
        for (int again = 0; again < 2; ++again) {
          if (std::string error = check_all_reduce(c, count, in_place); !error.empty()) return error;
        }
      }
    }
    return {};
  });
}

INSTANTIATE_TEST_SUITE_P(, AllReduce,
                         ::testing::Values(Case{1, "", ""}, Case{2, "", ""}, Case{3, "", ""}, Case{4, "", ""},
                                           Case{2, "tcp", ""}, Case{3, "tcp", ""}, Case{2, "shm", "direct"},
                                           Case{3, "shm", "ring"}, Case{4, "shm", "recursive_doubling"},
                                           Case{3, "shm", "one_shot"}, Case{4, "shm", "hierarchical"}, Case{3, "tcp", "ring"},
                                           Case{4, "tcp", "recursive_doubling"}, Case{5, "tcp", "one_shot"},
                                           Case{5, "tcp", "direct"}),
                         [](const auto& info) {
                           std::string name =
                               fmt::format("{}_{}_{}", info.param.ranks, info.param.transports, info.param.algorithm);
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

std::string check_collectives(Communicator& c) {
  const auto size = static_cast<std::size_t>(c.size());
  for (const std::size_t count : {1, 1000, 100003}) {
    for (const bool in_place : {false, true}) {
      if (std::string error = check_all_reduce(c, count, in_place); !error.empty()) return error;
    }
    std::vector<float> own(count);
    for (std::size_t i = 0; i < count; ++i) own[i] = value_of(c.rank(), i);
    std::vector<float> all(size * count);
    Status status = c.all_gather(own.data(), all.data(), count, DataType::float32);
    if (!status.ok()) return "all_gather: " + status.to_string();
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k] != value_of(static_cast<int>(k / count), k % count)) return fmt::format("all_gather: element {}", k);
    }
    for (std::size_t k = 0; k < all.size(); ++k) all[k] = value_of(c.rank(), k);
    std::vector<float> share(count);
    status = c.reduce_scatter(all.data(), share.data(), count, DataType::float32, ReduceOp::sum);
    if (!status.ok()) return "reduce_scatter: " + status.to_string();
    for (std::size_t i = 0; i < count; ++i) {
      if (share[i] != expected_sum(c.size(), static_cast<std::size_t>(c.rank()) * count + i))
        return fmt::format("reduce_scatter: element {}", i);
    }
    std::vector<float> exchanged(size * count);
    status = c.all_to_all(all.data(), exchanged.data(), count, DataType::float32);
    if (!status.ok()) return "all_to_all: " + status.to_string();
    for (std::size_t k = 0; k < exchanged.size(); ++k) {
      const std::size_t theirs = static_cast<std::size_t>(c.rank()) * count + k % count;
      if (exchanged[k] != value_of(static_cast<int>(k / count), theirs)) return fmt::format("all_to_all: element {}", k);
    }
    const int root = c.size() - 1;
    status = c.broadcast(own.data(), count, DataType::float32, root);
    if (!status.ok()) return "broadcast: " + status.to_string();
    for (std::size_t i = 0; i < count; ++i) {
      if (own[i] != value_of(root, i)) return fmt::format("broadcast: element {}", i);
    }
    if (status = c.barrier(); !status.ok()) return "barrier: " + status.to_string();
  }
  return {};
}

class OverALibrary : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(OverALibrary, CollectivesReturnRightValues) {
  const auto& [transport, ranks] = GetParam();
  if (const std::string complaint = testing::library_complaint(transport); !complaint.empty()) GTEST_SKIP() << complaint;
  // Only the loopback device.
  ::setenv("SHOAL_HOST_ADDRESS", "127.0.0.1", 1);
  ::setenv("UCX_NET_DEVICES", "lo", 1);
  CommunicatorOptions options;
  options.transports = transport;
  options.timeout = std::chrono::seconds(50);
  expect_ranks(ranks, options, check_collectives);
  ::unsetenv("SHOAL_HOST_ADDRESS");
  ::unsetenv("UCX_NET_DEVICES");
}

INSTANTIATE_TEST_SUITE_P(, OverALibrary, ::testing::Combine(::testing::Values("ofi", "ucx"), ::testing::Values(2, 3)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

TEST(Communicator, ManyCallsInFlightReturnRightValues) {
  for (const char* transports : {"shm", "tcp"}) {
    CommunicatorOptions options;
    options.transports = transports;
    expect_ranks(3, options, [](Communicator& c) -> std::string {
      constexpr std::size_t kCalls = 200;
      std::vector<std::vector<float>> buffers;
      std::vector<Work> works;
      for (std::size_t k = 0; k < kCalls; ++k) {
        const std::size_t count = k * k * 3 % 20011 + 1;
        buffers.emplace_back(count);
        for (std::size_t i = 0; i < count; ++i) buffers.back()[i] = value_of(c.rank(), i + k);
        auto work = c.all_reduce_async(buffers.back().data(), buffers.back().data(), count, DataType::float32, ReduceOp::sum);
        if (!work.ok()) return work.status().to_string();
        works.push_back(*work);
      }
      for (std::size_t k = 0; k < kCalls; ++k) {
        if (const Status status = works[k].wait(); !status.ok()) return status.to_string();
        if (works[k].sequence() != k) return fmt::format("call {} has sequence {}", k, works[k].sequence());
        for (std::size_t i = 0; i < buffers[k].size(); ++i) {
          if (buffers[k][i] != expected_sum(c.size(), i + k)) return fmt::format("call {} element {}", k, i);
        }
      }
      return {};
    });
  }
}

TEST(Communicator, CallbackRunsOnceWithOutcome) {
  expect_ranks(2, {}, [](Communicator& c) -> std::string {
    for (int k = 0; k < 100; ++k) {
      float value = 1;
      auto work = c.all_reduce_async(&value, &value, 1, DataType::float32, ReduceOp::sum);
      if (!work.ok()) return work.status().to_string();
      std::atomic<int> calls{0};
      const Status set = work->on_completion([&](const Status& status) { calls += status.ok() ? 1 : 100; });
      if (!set.ok()) return set.to_string();
      if (const Status status = work->wait(); !status.ok()) return status.to_string();
      while (calls.load() == 0) std::this_thread::yield();  // the callback may still be on its way when wait returns
      if (calls != 1 || value != 2) return fmt::format("{} callbacks, value {}", calls.load(), value);
    }
    return {};
  });
}

// The thread of a callback drives all calls, so a callback that waits would deadlock.
TEST(Communicator, CallbackMayStartCallsButNotWait) {
  for (const char* transports : {"shm", "tcp"}) {
    CommunicatorOptions options;
    options.transports = transports;
    expect_ranks(2, options, [](Communicator& c) -> std::string {
      std::int32_t value = 1;
      std::int32_t inner = 1;
      Work inner_work;
      std::string wrong;
      std::atomic<bool> called{c.rank() == 1};
      if (c.rank() == 1) {  // waits until the callback of rank 0 is set
        if (const Status status = c.recv(&inner, 1, DataType::int32, 0); !status.ok()) return status.to_string();
      }
      auto work = c.all_reduce_async(&value, &value, 1, DataType::int32, ReduceOp::sum);
      if (!work.ok()) return work.status().to_string();
      const auto refused = [&](const char* what, const Status& status) {
        if (status.code() == StatusCode::invalid_argument && testing::mentions(status.message(), what, "on_completion")) return;
        wrong += fmt::format("{}: {}; ", what, status.to_string());
      };
      const auto callback = [&](const Status& status) {
        if (!status.ok()) wrong = status.to_string();
        std::int32_t other = 1;
        refused("all_reduce", c.all_reduce(&other, &other, 1, DataType::int32, ReduceOp::sum));
        refused("barrier", c.barrier());
        refused("send", c.send(&other, 1, DataType::int32, 1));
        refused("recv", c.recv(&other, 1, DataType::int32, 1));
        auto started = c.all_reduce_async(&inner, &inner, 1, DataType::int32, ReduceOp::sum);
        if (started.ok()) {
          inner_work = *started;
          refused("Work::wait", inner_work.wait());
          refused("Work::wait_for", inner_work.wait_for(std::chrono::seconds(1)));
          if (inner_work.is_completed()) wrong += "a call that the peer has not made has ended";
        } else {
          wrong += started.status().to_string();
        }
        called = true;
      };
      if (c.rank() == 0) {
        if (const Status set = work->on_completion(callback); !set.ok()) return set.to_string();
        if (const Status status = c.send(&inner, 1, DataType::int32, 1); !status.ok()) return status.to_string();
      }
      if (const Status status = work->wait(); !status.ok()) return status.to_string();
      while (!called) std::this_thread::yield();
      if (c.rank() == 1) {
        auto started = c.all_reduce_async(&inner, &inner, 1, DataType::int32, ReduceOp::sum);
        if (!started.ok()) return started.status().to_string();
        inner_work = *started;
      }
      if (const Status status = inner_work.wait(); !status.ok()) return status.to_string();
      if (value != 2 || inner != 2) wrong += fmt::format("sums {} and {}", value, inner);
      return wrong;
    });
  }
}

TEST(Communicator, BroadcastAllGatherBarrierReturnRightValues) {
  for (const char* transports : {"shm", "tcp"}) {
    CommunicatorOptions options;
    options.transports = transports;
    expect_ranks(4, options, [](Communicator& c) -> std::string {
      for (const std::size_t count : {0, 1, 5, 1000, 70001}) {
        for (int root = 0; root < c.size(); ++root) {
          std::vector<std::int32_t> data(count);
          for (std::size_t i = 0; i < count; ++i) data[i] = c.rank() == root ? static_cast<std::int32_t>(i) + root : -1;
          if (const Status status = c.broadcast(data.data(), count, DataType::int32, root); !status.ok())
            return status.to_string();
          for (std::size_t i = 0; i < count; ++i) {
            if (data[i] != static_cast<std::int32_t>(i) + root)
              return fmt::format("broadcast from {}: element {} is {}", root, i, data[i]);
          }
        }
        const std::size_t mine = count * static_cast<std::size_t>(c.rank());
        for (const bool in_place : {false, true}) {
          std::vector<std::int32_t> all(count * static_cast<std::size_t>(c.size()), -1);
          std::vector<std::int32_t> input(count);
          for (std::size_t i = 0; i < count; ++i) input[i] = static_cast<std::int32_t>(i) * 10 + c.rank();
          if (in_place) std::copy(input.begin(), input.end(), all.begin() + static_cast<std::ptrdiff_t>(mine));
          const Status status = c.all_gather(in_place ? all.data() + mine : input.data(), all.data(), count, DataType::int32);
          if (!status.ok()) return status.to_string();
          for (std::size_t i = 0; i < all.size(); ++i) {
            const auto expected = static_cast<std::int32_t>((i % count) * 10 + i / count);
            if (all[i] != expected)
              return fmt::format("all_gather of {}: element {} is {}, not {}", count, i, all[i], expected);
          }
        }
        if (const Status status = c.barrier(); !status.ok()) return status.to_string();
      }
      return {};
    });
  }
}

TEST(Communicator, OperationsReturnRightValues) {
  for (const char* algorithm : {"one_shot", "direct", "ring", "recursive_doubling", "hierarchical"}) {
    CommunicatorOptions options;
    options.algorithm = algorithm;
    expect_ranks(3, options, [](Communicator& c) -> std::string {
      const std::size_t count = 5000;
      const auto reduce = [&](ReduceOp op, auto make, auto expected) -> std::string {
        std::vector<std::int64_t> data(count);
        for (std::size_t i = 0; i < count; ++i) data[i] = make(c.rank(), i);
        if (const Status status = c.all_reduce(data.data(), data.data(), count, DataType::int64, op); !status.ok())
          return status.to_string();
        for (std::size_t i = 0; i < count; ++i) {
          if (data[i] != expected(i))
            return fmt::format("{}: element {} is {}, not {}", to_string(op), i, data[i], expected(i));
        }
        return {};
      };
      const auto value = [](int rank, std::size_t i) { return static_cast<std::int64_t>(i % 17) + rank * 5 + 1; };
      std::string error =
          reduce(ReduceOp::avg, value, [&](std::size_t i) { return (value(0, i) + value(1, i) + value(2, i)) / 3; });
      if (error.empty())
        error = reduce(ReduceOp::prod, value, [&](std::size_t i) { return value(0, i) * value(1, i) * value(2, i); });
      if (error.empty()) error = reduce(ReduceOp::min, value, [&](std::size_t i) { return value(0, i); });
      if (error.empty()) error = reduce(ReduceOp::max, value, [&](std::size_t i) { return value(2, i); });
      if (error.empty())
        error = reduce(ReduceOp::bxor, value, [&](std::size_t i) { return value(0, i) ^ value(1, i) ^ value(2, i); });
      return error;
    });
  }
}

// The sum of an average may overflow the type. The result must be the average of the exact sum, rounded toward zero.
template <typename T>
std::string check_integer_averages(Communicator& c, DataType type) {
  using Limits = std::numeric_limits<T>;
  const std::size_t ranks = static_cast<std::size_t>(c.size());
  const auto value = [](std::size_t rank, std::size_t i) -> T {
    switch (i % 5) {
      case 0:
        return Limits::max();
      case 1:
        return Limits::min();
      case 2:
        return static_cast<T>(Limits::max() - static_cast<T>(rank));
      case 3:
        return static_cast<T>(Limits::min() + static_cast<T>(rank));
      default:
        return rank == 0 ? T{7} : static_cast<T>(Limits::is_signed ? -static_cast<int>(rank + i) : static_cast<int>(rank + i));
    }
  };
  const auto average = [&](std::size_t i) -> T {  // by quotients and remainders, which cannot overflow
    const auto n = static_cast<T>(ranks);
    T whole = 0;
    std::int64_t rest = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      whole = static_cast<T>(whole + value(r, i) / n);
      rest += static_cast<std::int64_t>(value(r, i) % n);
    }
    const auto size = static_cast<std::int64_t>(ranks);
    whole = static_cast<T>(whole + static_cast<T>(rest / size));
    rest %= size;
    if (whole > 0 && rest < 0) --whole;
    if (Limits::is_signed && whole < 0 && rest > 0) ++whole;
    return whole;
  };
  const std::size_t share = 67;
  const std::size_t count = share * ranks;
  const auto own = static_cast<std::size_t>(c.rank());
  std::vector<T> input(count);
  for (std::size_t i = 0; i < count; ++i) input[i] = value(own, i);
  const auto check = [&](const char* call, const Status& status, const T* output, std::size_t first,
                         std::size_t length) -> std::string {
    if (!status.ok()) return fmt::format("{} of {}: {}", call, to_string(type), status.to_string());
    for (std::size_t i = 0; i < length; ++i) {
      if (output[i] != average(first + i))
        return fmt::format("{} of {}: element {} is {}, not {}", call, to_string(type), i, output[i], average(first + i));
    }
    return {};
  };
  std::vector<T> output(count);
  Status status = c.all_reduce(input.data(), output.data(), count, type, ReduceOp::avg);
  if (auto error = check("all_reduce", status, output.data(), 0, count); !error.empty()) return error;
  for (const char* algorithm : {"ring", "direct"}) {
    std::vector<T> in_place = input;
    CallOptions options;
    options.algorithm = algorithm;
    auto work = c.all_reduce_async(in_place.data(), in_place.data(), count, type, ReduceOp::avg, options);
    status = work.ok() ? work->wait() : work.status();
    if (auto error = check(algorithm, status, in_place.data(), 0, count); !error.empty()) return error;
  }
  const int root = c.size() - 1;
  status = c.reduce(input.data(), output.data(), count, type, ReduceOp::avg, root);
  if (auto error = check("reduce", status, output.data(), 0, c.rank() == root ? count : 0); !error.empty()) return error;
  status = c.reduce_scatter(input.data(), output.data(), share, type, ReduceOp::avg);
  if (auto error = check("reduce_scatter", status, output.data(), own * share, share); !error.empty()) return error;
  std::vector<std::size_t> counts(ranks, share - 1);
  counts[0] += ranks;
  const std::size_t first = own == 0 ? 0 : own * (share - 1) + ranks;
  Communicator::group_begin();
  status = c.reduce_scatter_v(input.data(), output.data(), counts, type, ReduceOp::avg);
  if (const Status grouped = Communicator::group_end(); status.ok()) status = grouped;
  if (auto error = check("reduce_scatter_v", status, output.data(), first, counts[own]); !error.empty()) return error;
  std::vector<T> before(count);
  for (std::size_t i = 0; i < count; ++i) before[i] = value(own, i);
  return input == before ? "" : "an input was changed";
}

TEST(Communicator, IntegerAverageUsesExactSum) {
  for (const int ranks : {2, 5}) {
    expect_ranks(ranks, {}, [](Communicator& c) -> std::string {
      std::string error = check_integer_averages<std::int8_t>(c, DataType::int8);
      if (error.empty()) error = check_integer_averages<std::int16_t>(c, DataType::int16);
      if (error.empty()) error = check_integer_averages<std::int32_t>(c, DataType::int32);
      if (error.empty()) error = check_integer_averages<std::int64_t>(c, DataType::int64);
      if (error.empty()) error = check_integer_averages<std::uint8_t>(c, DataType::uint8);
      if (error.empty()) error = check_integer_averages<std::uint16_t>(c, DataType::uint16);
      if (error.empty()) error = check_integer_averages<std::uint32_t>(c, DataType::uint32);
      if (error.empty()) error = check_integer_averages<std::uint64_t>(c, DataType::uint64);
      return error;
    });
  }
}

// Both send the same bytes, but they are different calls.
TEST(Communicator, IntegerAveragesOfTwoTypesAreMismatch) {
  expect_ranks(2, {}, [](Communicator& c) -> std::string {
    std::vector<std::int32_t> data(10, 1);
    const DataType type = c.rank() == 0 ? DataType::int8 : DataType::int32;
    const Status status = c.all_reduce(data.data(), data.data(), data.size(), type, ReduceOp::avg);
    return status.code() == StatusCode::mismatch ? "" : status.to_string();
  });
}

TEST(Communicator, TwoCommunicatorsCanBeDestroyedInAnyOrder) {
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    auto first = testing::join(directory + "/a", rank, size, {});
    auto second = testing::join(directory + "/b", rank, size, {});
    if (!first.ok() || !second.ok()) return first.status().to_string() + second.status().to_string();
    std::vector<float> a(100000, 1);
    std::vector<float> b(100000, 2);
    for (int k = 0; k < 20; ++k) {
      auto one = (*first)->all_reduce_async(a.data(), a.data(), a.size(), DataType::float32, ReduceOp::max);
      auto two = (*second)->all_reduce_async(b.data(), b.data(), b.size(), DataType::float32, ReduceOp::max);
      if (!one.ok() || !two.ok()) return "post failed";
      if (const Status status = two->wait(); !status.ok()) return status.to_string();
      if (const Status status = one->wait(); !status.ok()) return status.to_string();
    }
    if (rank == 0) first->reset();
    second->reset();
    return a[99999] == 1 && b[0] == 2 ? "" : "wrong";
  });
  testing::expect_all_well(outcomes);
}

}  // namespace
}  // namespace shoal
