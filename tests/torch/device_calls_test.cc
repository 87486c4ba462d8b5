// On streams, the collectives with a root, with uneven shares, and all_to_all give the same bits as through host memory.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/facts.h"
#include "tests/torch/stream_ranks.h"

namespace shoal::torch {
namespace {

using namespace std::chrono_literals;

class DeviceCalls : public StreamRanks {};

enum class Layout {
  chunks,  ///< the tensors of a list are parts of one tensor
  apart,   ///< each tensor has its own memory
  holes,   ///< each has its own memory, with gaps between the rows that no call may write
};

/// Makes the tensors of one call, and keeps those that the test compares afterwards.
struct Arguments {
  const Rank& self;
  at::ScalarType type = at::kFloat;
  Layout layout = Layout::chunks;
  std::int64_t unit = 25;  ///< rows of the smallest share that is not empty
  int root = 0;
  Tensors seen = {};  ///< the memory of outputs, with the gaps

  [[nodiscard]] bool is_root() const { return self.rank == root; }
  /// Rows that rank `from` sends to rank `to`; 0 for some pairs.
  [[nodiscard]] std::int64_t rows(int from, int to) const { return (3 * from + 2 * to + 1) % 4 * unit; }

  Tensors inputs(int number, const std::vector<std::int64_t>& rows) const { return tensors(number, rows, nullptr); }
  Tensor input(int number, std::int64_t rows) const { return inputs(number, {rows})[0]; }
  /// Outputs, filled with values that no call returns.
  Tensors outputs(const std::vector<std::int64_t>& rows) { return tensors(-1, rows, &seen); }
  Tensor output(std::int64_t rows) { return outputs({rows})[0]; }
  /// A tensor that is input and output.
  Tensor in_place(int number, std::int64_t rows) { return tensors(number, {rows}, &seen)[0]; }

 private:
  [[nodiscard]] Tensor memory(int number, std::int64_t elements) const {
    return number < 0 ? self.output({elements}, type) : self.mine(number, elements, type);
  }
  Tensors tensors(int number, const std::vector<std::int64_t>& rows, Tensors* seen) const {
    constexpr std::int64_t kRow = 3;
    const auto keep = [&](const Tensor& memory) {
      if (seen != nullptr) seen->push_back(memory);
      return memory;
    };
    std::int64_t all = 0;
    for (const std::int64_t count : rows) all += count;
    Tensors list;
    if (layout == Layout::chunks) {
      const Tensor whole = keep(memory(number, kRow * all)).view({all, kRow});
      std::int64_t at = 0;
      for (const std::int64_t count : rows) {
        list.push_back(whole.narrow(0, at, count));
        at += count;
      }
      return list;
    }
    const std::int64_t step = layout == Layout::holes ? 2 : 1;
    for (const std::int64_t count : rows) {
      const Tensor one = keep(memory(number < 0 ? -1 : number++, step * kRow * count));
      list.push_back(one.view({count, step * kRow}).slice(1, 0, step * kRow, step));
    }
    return list;
  }
};

struct Kind {
  const char* name;
  std::function<Work(ProcessGroupShoal& group, Arguments& with)> call;
};

std::vector<std::int64_t> all_rows(const Arguments& with, const std::function<std::int64_t(int)>& rows_of) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < with.self.size; ++rank) rows.push_back(rows_of(rank));
  return rows;
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"reduce",
       [](ProcessGroupShoal& group, Arguments& with) {
         Tensors tensors{with.in_place(1, 4 * with.unit)};
         c10d::ReduceOptions options;
         options.rootRank = with.root;
         return group.reduce(tensors, options);
       }},
      {"gather",
       [](ProcessGroupShoal& group, Arguments& with) {
         Tensors input{with.input(2, with.unit)};
         Lists outputs;
         if (with.is_root()) outputs.push_back(with.outputs(all_rows(with, [&](int) { return with.unit; })));
         c10d::GatherOptions options;
         options.rootRank = with.root;
         return group.gather(outputs, input, options);
       }},
      {"scatter",
       [](ProcessGroupShoal& group, Arguments& with) {
         Tensors output{with.output(with.unit)};
         Lists inputs;
         if (with.is_root()) inputs.push_back(with.inputs(3, all_rows(with, [&](int) { return with.unit; })));
         c10d::ScatterOptions options;
         options.rootRank = with.root;
         return group.scatter(output, inputs, options);
       }},
      {"all_to_all_single",
       [](ProcessGroupShoal& group, Arguments& with) {
         Tensor input = with.input(4, with.unit * with.self.size), output = with.output(with.unit * with.self.size);
         std::vector<std::int64_t> even;
         return group.alltoall_base(output, input, even, even);
       }},
      {"all_to_all_single",
       [](ProcessGroupShoal& group, Arguments& with) {
         auto given = all_rows(with, [&](int other) { return with.rows(with.self.rank, other); });
         auto taken = all_rows(with, [&](int other) { return with.rows(other, with.self.rank); });
         std::int64_t in = 0, out = 0;
         for (const std::int64_t rows : given) in += rows;
         for (const std::int64_t rows : taken) out += rows;
         Tensor input = with.input(5, in), output = with.output(out);
         return group.alltoall_base(output, input, taken, given);
       }},
      {"all_to_all",
       [](ProcessGroupShoal& group, Arguments& with) {
         Tensors inputs = with.inputs(6, all_rows(with, [&](int other) { return with.rows(with.self.rank, other); }));
         Tensors outputs = with.outputs(all_rows(with, [&](int other) { return with.rows(other, with.self.rank); }));
         return group.alltoall(outputs, inputs);
       }},
      {"reduce_scatter",
       [](ProcessGroupShoal& group, Arguments& with) {
         Lists inputs{with.inputs(7, all_rows(with, [&](int other) { return with.rows(0, other); }))};
         Tensors output{with.output(with.rows(0, with.self.rank))};
         return group.reduce_scatter(output, inputs);
       }},
  };
  return all;
}

void expect_same(const Arguments& found, const Arguments& wanted, const std::string& what) {
  ASSERT_EQ(found.seen.size(), wanted.seen.size());
  for (std::size_t i = 0; i < found.seen.size(); ++i) {
    expect_equal(found.seen[i], wanted.seen[i].cpu(), what + ", tensor " + std::to_string(i));
  }
}

std::string describe(const Kind& kind, const Arguments& with) {
  return std::string(kind.name) + " of " + c10::toString(with.type) + ", layout " +
         std::to_string(static_cast<int>(with.layout)) + ", root " + std::to_string(with.root) + ", unit " +
         std::to_string(with.unit) + ", rank " + std::to_string(with.self.rank);
}

/// Makes one call through host memory and one on streams, and compares. Inputs on streams are freed at once, and the fake
/// device overwrites freed memory.
void expect_same_both_ways(const Kind& kind, const Group& host, const Arguments& with) {
  Arguments by_host = with, there = with;
  const Work through_host = kind.call(*host, by_host);
  EXPECT_FALSE(is_on_streams(through_host)) << kind.name;
  through_host->wait();
  const Work on_streams = kind.call(*with.self.group, there);
  EXPECT_TRUE(is_on_streams(on_streams)) << kind.name;
  on_streams->wait();
  expect_same(there, by_host, describe(kind, with));
}

TEST_F(DeviceCalls, ResultsMatchPathThroughHostMemory) {
  const at::ScalarType types[] = {at::kFloat, at::kDouble,       at::kHalf, at::kBFloat16, at::kLong,
                                  at::kByte,  at::kComplexFloat, at::kBool, at::kFloat};
  for (const int size : {2, 3, 4}) {
    fake::cuda_behaviour().exports_memory = size != 3;  // false: calls use tiles in host memory
    on_ranks(size, [&](const Rank& self) {
      const Group host = group_beside(self, Path::host_memory);
      int number = self.size;
      for (const at::ScalarType type : types) {
        for (const Kind& kind : kinds()) {
          expect_same_both_ways(kind, host,
                                {.self = self, .type = type, .layout = Layout(number % 3), .root = number / 3 % self.size});
        }
        ++number;
      }
      host->shutdown();
    });
  }
}

/// Computes the expected rows without Arguments, which both paths of the other tests share.
TEST_F(DeviceCalls, UnevenSharesReachTheirRanks) {
  on_ranks(4, [](const Rank& self) {
    Arguments with{.self = self, .unit = 2};
    const auto rows_of = [&](int rank) { return all_rows(with, [&](int to) { return with.rows(rank, to); }); };
    std::vector<std::int64_t> given = rows_of(self.rank), taken;
    std::int64_t in = 0, out = 0;
    Tensors wanted;
    for (int from = 0; from < self.size; ++from) {
      std::int64_t all = 0, before = 0;
      for (int to = 0; to < self.size; ++to) {
        if (to == self.rank) before = all;
        all += rows_of(from)[static_cast<std::size_t>(to)];
      }
      taken.push_back(with.rows(from, self.rank));
      out += taken.back();
      if (from == self.rank) in = all;
      wanted.push_back(Rank::of(from, 5, all).narrow(0, before, taken.back()));
    }
    Tensor input = self.mine(5, in), output = self.output({out});
    self.group->alltoall_base(output, input, taken, given)->wait();
    expect_equal(output, at::cat(wanted), "all_to_all_single");

    // The shares of reduce_scatter are the rows of rank 0.
    Tensors share{self.output({with.rows(0, self.rank)})};
    Lists inputs(1);
    for (int to = 0; to < self.size; ++to) inputs[0].push_back(self.mine(to, with.rows(0, to)));
    self.group->reduce_scatter(share, inputs)->wait();
    expect_equal(share[0], self.total(self.rank, with.rows(0, self.rank)), "reduce_scatter");
  });
}

/// The tensors of other ranks are sent as copies.
TEST_F(DeviceCalls, ReduceChangesTensorOfRootOnly) {
  on_ranks(3, [](const Rank& self) {
    for (const std::int64_t step : {1, 2}) {
      const Tensor memory = self.mine(0, step * kCount);
      Tensors tensors{memory.slice(0, 0, step * kCount, step)};
      c10d::ReduceOptions options;
      options.rootRank = 1;
      options.reduceOp = c10d::makeNCCLPreMulSum(0.5);
      self.group->reduce(tensors, options)->wait();
      Tensor wanted = Rank::of(self.rank, 0, step * kCount);
      if (self.rank == 1) {
        wanted.slice(0, 0, step * kCount, step).copy_(0.5 * self.total(0, step * kCount).slice(0, 0, step * kCount, step));
      }
      expect_equal(memory, wanted, "reduce with a factor");
    }
  });
}

TEST_F(DeviceCalls, LargeAndEmptyTensorsWork) {
  for (const int size : {1, 3}) {
    fake::set_seed(300U * static_cast<std::uint32_t>(size));
    on_ranks(size, [](const Rank& self) {
      const Group host = group_beside(self, Path::host_memory);
      for (const std::int64_t unit : {std::int64_t{0}, kLarge / 3}) {
        for (const Layout layout : {Layout::chunks, Layout::apart}) {
          for (const Kind& kind : kinds()) {
            expect_same_both_ways(kind, host, {.self = self, .layout = layout, .unit = unit, .root = self.size - 1});
          }
        }
      }
      host->shutdown();
    });
  }
}

TEST_F(DeviceCalls, CallsReturnBeforePeersCall) {
  std::atomic<bool> called{false};
  on_ranks(2, [&](const Rank& self) {
    self.group->eagerConnectSingleDevice(fake::device(self.rank));
    if (self.rank == 1) {
      while (!called) std::this_thread::sleep_for(1ms);
    }
    std::vector<Work> works;
    for (const Kind& kind : kinds()) {
      Arguments with{.self = self, .root = std::string(kind.name) == "scatter" ? 1 : 0};
      works.push_back(kind.call(*self.group, with));
      works.back()->wait();
    }
    if (self.rank == 0) {
      for (const Work& work : works) EXPECT_FALSE(work->isCompleted());
      EXPECT_FALSE(device_guard().queryStream(current_stream(0))) << "wait() does not make the stream wait";
      called = true;
    }
    for (const Work& work : works) EXPECT_TRUE(work->wait(20s) && work->isSuccess());
  });
}

/// Many calls in flight, in two groups of one device and in blocks; memory is freed meanwhile.
TEST_F(DeviceCalls, CallsOverlapInGroupsAndBlocks) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    fake::set_seed(500 * seed);
    on_ranks(3, [seed](const Rank& self) {
      const Group host = group_beside(self, Path::host_memory);
      const Group other = group_beside(self, Path::streams);
      std::vector<Arguments> wanted, found;
      std::vector<std::string> names;
      std::vector<Work> works;
      for (const Kind& kind : kinds()) {
        wanted.push_back({.self = self, .layout = Layout(seed % 3), .root = 2});
        kind.call(*host, wanted.back())->wait();
      }
      const auto run = [&](const Group& group) {
        for (const Kind& kind : kinds()) {
          found.push_back({.self = self, .layout = Layout(seed % 3), .root = 2});
          names.push_back(describe(kind, found.back()));
          works.push_back(kind.call(*group, found.back()));
        }
      };
      run(self.group);
      run(other);
      other->startCoalescing();
      Tensors on_cpu{Rank::of(self.rank)};
      other->allreduce(on_cpu);
      run(other);
      works.push_back(other->endCoalescing());
      run(self.group);
      for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->wait();
      for (std::size_t i = 0; i < found.size(); ++i) expect_same(found[i], wanted[i % wanted.size()], names[i]);
      EXPECT_TRUE(at::equal(on_cpu[0], self.total()));
      other->shutdown();
      host->shutdown();
    });
  }
}

TEST_F(DeviceCalls, CallsFailIfPeerAborts) {
  for (const Kind& kind : kinds()) {
    std::atomic<bool> in_flight{false};
    on_ranks(2, [&](const Rank& self) {
      self.group->eagerConnectSingleDevice(fake::device(self.rank));
      Arguments with{.self = self, .root = std::string(kind.name) == "scatter" ? 1 : 0};
      if (self.rank == 1) {
        while (!in_flight) std::this_thread::sleep_for(1ms);
        self.group->abort();
        return;
      }
      const Work work = kind.call(*self.group, with);
      work->wait();
      in_flight = true;
      const std::string message = message_of<c10::DistBackendError>([&] { work->wait(20s); });
      EXPECT_TRUE(testing::mentions(message, "shoal " + std::string(kind.name), "aborted")) << message;
      EXPECT_FALSE(work->isSuccess());
      device_guard().synchronizeStream(current_stream(0));  // must not hang
      const std::string later = message_of<c10::DistBackendError>([&] { kind.call(*self.group, with); });
      EXPECT_TRUE(testing::mentions(later, "aborted")) << later;
    });
  }
}

TEST_F(DeviceCalls, DifferentSplitsAreMismatch) {
  on_ranks(2, [](const Rank& self) {
    // Rank 0 has three rows for rank 1, which expects two.
    std::vector<std::int64_t> given = self.rank == 0 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{1, 2};
    std::vector<std::int64_t> taken = self.rank == 0 ? std::vector<std::int64_t>{1, 1} : std::vector<std::int64_t>{2, 2};
    Tensor input = self.mine(0, given[0] + given[1]), output = self.output({taken[0] + taken[1]});
    const std::string message = message_of<c10::DistBackendError>([&] {
      const Work work = self.group->alltoall_base(output, input, taken, given);
      work->wait(20s);
      // Rank 0 has all its data and may have ended its call before rank 1 found the difference.
      Tensors sum{self.mine()};
      self.group->allreduce(sum)->wait(20s);
    });
    EXPECT_TRUE(testing::mentions(message, "mismatch", "rank 0", "rank 1", "3", "2")) << message;
  });
}

TEST_F(DeviceCalls, BadCallsAreRefusedBeforeConnecting) {
  on_ranks(2, [](const Rank& self) {
    const auto refused = [](const std::function<void()>& call, const std::vector<std::string>& facts) {
      expect_refusal<c10::ValueError>(call, facts);
    };
    Tensor six = self.mine(0, 6);
    std::vector<std::int64_t> even, short_one{1, 2}, negative{7, -1}, three{2, 2, 2};
    refused([&] { self.group->alltoall_base(six, six, even, short_one); }, {"shoal all_to_all_single", "input", "3", "6"});
    refused([&] { self.group->alltoall_base(six, six, negative, even); },
            {"shoal all_to_all_single", "output", "index 1", "-1"});
    refused([&] { self.group->alltoall_base(six, six, three, even); }, {"shoal all_to_all_single", "output", "3", "2"});
    Tensors one{six};
    c10d::ReduceOptions outside;
    outside.rootRank = 2;
    refused([&] { self.group->reduce(one, outside); }, {"shoal reduce", "root", "2"});
    Lists lists{{six, six}};
    if (self.rank == 1) {
      refused([&] { self.group->gather(lists, one); }, {"shoal gather", "output", "non-root"});
      refused([&] { self.group->scatter(one, lists); }, {"shoal scatter", "input", "non-root"});
    }
    Tensors tensors{self.mine()};
    self.group->allreduce(tensors)->wait();
    expect_equal(tensors[0], self.total(), "after bad calls");
  });
}

}  // namespace
}  // namespace shoal::torch
