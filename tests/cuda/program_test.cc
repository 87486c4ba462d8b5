// The fused kernels compared with the Programs that they implement: for the same ranks and data both give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/host_run.h"
#include "src/algorithms/algorithm.h"
#include "src/device/device.h"
#include "src/schedule/layout.h"

namespace shoal {
namespace {

using Bytes = std::vector<std::byte>;

/// Runs the Programs of all ranks in one thread, step by step in turn.
class Interpreter {
 public:
  Interpreter(const Schedule& schedule, const std::vector<Bytes>& inputs) : schedule_(schedule) {
    const Collective& what = schedule.collective;
    const int count = static_cast<int>(schedule.programs.size());
    for (int rank = 0; rank < count; ++rank) {
      const Program& program = schedule.programs[static_cast<std::size_t>(rank)];
      layouts_.emplace_back(what, count, rank, program.message_chunks);
      Bytes scratch(program.scratch_chunks * layouts_.back().scratch_chunk_bytes());
      ranks_.push_back({inputs[static_cast<std::size_t>(rank)], Bytes(what.input_bytes()), scratch, 0});
    }
  }

  /// The outputs; empty after a deadlock.
  std::vector<Bytes> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < size(); ++rank) {
        while (advance(rank)) moved = true;
      }
    }
    std::vector<Bytes> outputs;
    for (int rank = 0; rank < size(); ++rank) {
      if (at(rank).next != program(rank).steps.size()) return {};
      outputs.push_back(at(rank).output);
    }
    return outputs;
  }

 private:
  struct Rank {
    Bytes input;
    Bytes output;
    Bytes scratch;
    std::size_t next;
  };

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Program& program(int rank) const { return schedule_.programs[static_cast<std::size_t>(rank)]; }
  std::byte* bytes_of(int rank, const Slice& slice) {
    Rank& state = at(rank);
    Bytes& buffer = slice.buffer == Buffer::input ? state.input : slice.buffer == Buffer::output ? state.output : state.scratch;
    return buffer.data() + layouts_[static_cast<std::size_t>(rank)].bytes(slice).offset_bytes;
  }
  std::size_t size_of_slice(int rank, const Slice& slice) {
    return layouts_[static_cast<std::size_t>(rank)].bytes(slice).size_bytes;
  }

  bool advance(int rank) {
    const std::vector<Step>& steps = program(rank).steps;
    std::size_t& next = at(rank).next;
    if (next == steps.size()) return false;
    const Step& step = steps[next];
    const std::size_t source_bytes = size_of_slice(rank, step.source);
    switch (step.op) {
      case StepOp::send: {
        const std::byte* from = bytes_of(rank, step.source);
        wires_[{rank, step.peer}].emplace_back(from, from + source_bytes);
        ++next;
        return true;
      }
      case StepOp::recv: {
        std::deque<Bytes>& wire = wires_[{step.peer, rank}];
        if (wire.empty()) return false;
        std::copy(wire.front().begin(), wire.front().end(), bytes_of(rank, step.target));
        wire.pop_front();
        ++next;
        return true;
      }
      case StepOp::copy:
        std::memmove(bytes_of(rank, step.target), bytes_of(rank, step.source), source_bytes);
        ++next;
        return true;
      case StepOp::recv_reduce:
        return fold_run(rank);
      case StepOp::reduce:
        break;
    }
    ADD_FAILURE() << "neither one_shot nor direct has this step";
    return false;
  }

  /// Consecutive recv_reduce steps onto one target are one fold in rank order, as the contract of Program says.
  bool fold_run(int rank) {
    const std::vector<Step>& steps = program(rank).steps;
    std::size_t& next = at(rank).next;
    std::size_t end = next;
    while (end < steps.size() && steps[end].op == StepOp::recv_reduce && steps[end].target == steps[next].target &&
           steps[end].lane == steps[next].lane) {
      if (wires_[{steps[end].peer, rank}].empty()) return false;
      ++end;
    }
    std::map<int, Bytes> operands;
    const std::size_t bytes = size_of_slice(rank, steps[next].target);
    const std::byte* own = bytes_of(rank, steps[next].source);
    operands[rank] = Bytes(own, own + bytes);
    for (std::size_t i = next; i < end; ++i) {
      std::deque<Bytes>& wire = wires_[{steps[i].peer, rank}];
      operands[steps[i].peer] = wire.front();
      wire.pop_front();
    }
    std::vector<const std::byte*> pointers;
    for (const auto& [peer, data] : operands) pointers.push_back(data.data());
    const Collective& what = schedule_.collective;
    const std::size_t count = bytes / size_of(what.type);
    if (what.op == ReduceOp::avg && steps[end - 1].completes) {
      host_device().reduce_average(bytes_of(rank, steps[next].target), pointers, count, what.type, size());
    } else {
      host_device().reduce(bytes_of(rank, steps[next].target), pointers, count, what.type, what.op);
    }
    next = end;
    return true;
  }

  const Schedule& schedule_;
  std::vector<ChunkLayout> layouts_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<Bytes>> wires_;
};

/// The outputs of the kernel's code: one thread for each rank, since they wait for each other.
std::vector<Bytes> run_kernel(const Collective& what, std::vector<Bytes> inputs, bool two_shot, bool in_place,
                              std::uint32_t epoch) {
  const int ranks = static_cast<int>(inputs.size());
  const std::size_t bytes = what.input_bytes();
  const std::size_t room = (bytes + 64) / 64 * 64;
  std::vector<Bytes> staging(inputs.size(), Bytes(room));
  std::vector<Bytes> results(inputs.size(), Bytes(room));
  std::vector<Bytes> outputs(inputs.size(), Bytes(bytes));
  std::vector<std::vector<std::uint32_t>> flags(
      inputs.size(), std::vector<std::uint32_t>(kernels::kMaxPeers * kernels::kMaxFusedBlocks, epoch));
  std::uint32_t cancelled = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    kernels::FusedParameters p;
    const auto own = static_cast<std::size_t>(rank);
    p.input = inputs[own].data();
    p.output = in_place ? inputs[own].data() : outputs[own].data();
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      p.staging[r] = staging[r].data();
      p.results[r] = results[r].data();
      p.flags[r] = flags[r].data();
    }
    p.rank = rank;
    p.ranks = ranks;
    p.count = what.count;
    p.type = what.type;
    p.op = what.op;
    p.divisor = kernels::divisor_of(what.op, ranks);
    p.two_shot = two_shot;
    p.blocks = 3;
    p.epoch = epoch;
    p.cancelled = &cancelled;
    threads.emplace_back([p] { EXPECT_TRUE(kernels::run_on_host(p, 11)); });
  }
  for (std::thread& thread : threads) thread.join();
  return in_place ? inputs : outputs;
}

TEST(FusedKernels, MatchTheirPrograms) {
  std::mt19937_64 random(11);
  int epoch = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    Topology topology;
    topology.node_of_rank.assign(static_cast<std::size_t>(ranks), 0);
    for (const char* name : {"one_shot", "two_shot"}) {
      for (const DataType type :
           {DataType::float32, DataType::bfloat16, DataType::float8_e4m3fn, DataType::int8, DataType::uint64}) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max}) {
          for (const std::size_t count : {1U, 3U, 16U, 33U, 130U, 1031U}) {
            const Collective what{CollectiveKind::all_reduce, count, type, op};
            std::vector<Bytes> inputs(static_cast<std::size_t>(ranks), Bytes(what.input_bytes()));
            for (Bytes& input : inputs) {
              for (std::byte& each : input) each = static_cast<std::byte>(random() % 0x3C);  // no NaN in any type
            }
            const auto algorithm = find_algorithm(name);
            ASSERT_TRUE(algorithm.ok());
            const auto schedule = build_schedule(**algorithm, topology, what);
            ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
            const std::vector<Bytes> wanted = Interpreter(*schedule, inputs).run();
            ASSERT_EQ(wanted.size(), inputs.size()) << name << ": the ranks wait for each other";
            ++epoch;
            const auto start = static_cast<std::uint32_t>(epoch * 2 - 6);  // also wraps beyond 32 bits
            EXPECT_EQ(run_kernel(what, inputs, std::string(name) == "two_shot", epoch % 2 == 0, start), wanted)
                << name << " of " << to_string(what) << " on " << ranks << " ranks";
          }
        }
      }
    }
  }
}

/// A kernel that waits for an absent rank stops when it is cancelled.
TEST(FusedKernels, StopWhenCancelled) {
  std::vector<std::uint32_t> own_flags(kernels::kMaxPeers * kernels::kMaxFusedBlocks);
  std::vector<std::uint32_t> other_flags(own_flags.size());
  Bytes memory(1024);
  Bytes other(1024);
  std::uint32_t cancelled = 0;
  kernels::FusedParameters p;
  p.input = memory.data();
  p.output = memory.data();
  p.staging[0] = memory.data() + 512;
  p.staging[1] = other.data();
  p.flags[0] = own_flags.data();
  p.flags[1] = other_flags.data();
  p.ranks = 2;
  p.count = 16;
  p.cancelled = &cancelled;
  bool finished = true;
  std::thread kernel([&] { finished = kernels::run_on_host(p, 4); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::atomic_ref(cancelled).store(1);
  kernel.join();
  EXPECT_FALSE(finished);
}

}  // namespace
}  // namespace shoal
