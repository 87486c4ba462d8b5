#include "tests/fault/simulation_scenario.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

namespace shoal::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kFewRanks = 6;           // up to here every type holds the sums exactly: see call_model.h
constexpr int kManyRanks = 9;          // from here on messages are small
constexpr int kHundredsOfRanks = 100;  // from here on buffers are small

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::uint64_t pick(std::uint64_t low, std::uint64_t high) { return low + random_() % (high - low + 1); }
  bool chance(std::uint64_t one_in) { return pick(1, one_in) == 1; }
  /// Draws small numbers as often as large ones.
  std::uint64_t pick_size(std::uint64_t most_bits) { return pick(0, (std::uint64_t{1} << pick(0, most_bits)) - 1); }
  template <typename List>
  const auto& one_of(const List& list) {
    return list[pick(0, std::size(list) - 1)];
  }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
};

Topology draw_topology(Draw& draw) {
  static const std::vector<std::vector<int>> few{{2}, {3}, {4}, {1, 1}, {2, 2}, {1, 2}, {3, 1, 1}, {5}, {1, 1, 1}, {6}};
  static const std::vector<std::vector<int>> tens{
      {8},    {4, 4},       {3, 5, 1}, {2, 2, 2, 2, 2},          {1, 1, 1, 1, 1, 1, 1, 1, 1},
      {8, 8}, {5, 7, 4, 1}, {16, 16},  {8, 8, 8, 8, 8, 8, 8, 8}, {24, 3, 17}};
  static const std::vector<std::vector<int>> hundreds{{64, 64, 64, 64}, {128, 128}, {100, 57, 43, 60}};
  if (draw.chance(600)) return Topology::ragged(draw.one_of(hundreds));
  if (!draw.chance(16)) return Topology::ragged(draw.one_of(few));
  return Topology::ragged(
      tens[std::min(draw.pick(0, tens.size() - 1), draw.pick(0, tens.size() - 1))]);  // the smaller ones more often
}

/// A random algorithm; null if it does not support the call.
const Algorithm* draw_algorithm(Draw& draw, const Topology& topology, const ModelCall& model) {
  const Algorithm& algorithm = draw.one_of(algorithms());
  std::vector<std::size_t> counts;
  return build_program(algorithm, topology, model.collective(0, counts), 0).ok() ? &algorithm : nullptr;
}

bool is_exact(const ModelCall& model) {
  return model.ranks <= kFewRanks || !reduces(model.kind) || (size_of(model.type) >= 4 && model.op != ReduceOp::prod);
}

SimulatedCall draw_call(Draw& draw, const Topology& topology) {
  const int ranks = topology.ranks();
  const std::size_t most = ranks < kManyRanks ? 60'000 : ranks < kHundredsOfRanks ? 4'000 : 300;
  for (;;) {
    SimulatedCall call{random_call(draw.random(), ranks, draw.chance(3) ? most : most / 16), nullptr};
    // A count for each pair of ranks would make the model too slow.
    if (!call.model.shares.empty() && ranks >= kHundredsOfRanks) continue;
    if (is_exact(call.model)) call.algorithm = draw_algorithm(draw, topology, call.model);
    if (call.algorithm != nullptr) return call;
  }
}

/// Adds an element to one share without moving the other shares. In an all_to_all, where only two ranks see the difference, the
/// share is one that `rank` sends or receives.
void add_element(ModelCall& model, int rank) {
  if (model.shares.empty()) {
    ++model.count;
  } else if (model.kind != CollectiveKind::all_to_all) {
    ++model.shares.back();
  } else {
    const auto last = static_cast<std::size_t>(model.ranks - 1);
    const std::size_t from = rank == model.ranks - 1 ? 0 : static_cast<std::size_t>(rank);
    ++model.shares[from * static_cast<std::size_t>(model.ranks) + last];
  }
}

/// A call of `rank` that differs from `call` in one property or in all.
SimulatedCall draw_other_call(Draw& draw, const Topology& topology, const SimulatedCall& call, int rank) {
  for (;;) {
    SimulatedCall other = call;
    ModelCall& model = other.model;
    switch (draw.pick(0, 5)) {
      case 0:
        add_element(model, rank);
        break;
      case 1:
        model.type = static_cast<DataType>(draw.pick(0, kDataTypeCount - 1));
        if (!supports(model.type, model.op) || model.type == call.model.type) continue;
        break;
      case 2:
        model.op = static_cast<ReduceOp>(draw.pick(0, kReduceOpCount - 1));
        if (!reduces(model.kind) || !supports(model.type, model.op) || model.op == call.model.op) continue;
        break;
      case 3:
        model.root = static_cast<int>(draw.pick(0, static_cast<std::uint64_t>(model.ranks) - 1));
        if (!has_root(model.kind) || model.root == call.model.root) continue;
        break;
      case 4:
        other.algorithm = draw_algorithm(draw, topology, model);
        if (other.algorithm == nullptr || other.algorithm->name == call.algorithm->name) continue;
        break;
      default:
        other = draw_call(draw, topology);
        if (other.model.kind == call.model.kind) continue;
    }
    std::vector<std::size_t> counts;
    if (!is_exact(model) || !build_program(*other.algorithm, topology, model.collective(0, counts), 0).ok()) continue;
    return other;
  }
}

LoopbackOptions draw_wire(Draw& draw, std::uint64_t seed, int ranks) {
  LoopbackOptions wire;
  wire.seed = seed;
  wire.tile_bytes = std::size_t{1} << (ranks < kManyRanks ? draw.pick(8, 14) : ranks < kHundredsOfRanks ? draw.pick(8, 11) : 8);
  wire.capacity_tiles = ranks < kHundredsOfRanks ? static_cast<int>(draw.pick(2, 5)) : 2;
  wire.mean_delay = microseconds(draw.one_of(std::array{0, 0, 20, 40, 500}));
  wire.refuse_probability = static_cast<double>(draw.pick(0, 3)) * 0.2;
  wire.late_copy = draw.chance(2);
  wire.window_bytes = draw.chance(2) ? draw.one_of(std::array{2048, 8192, 32768}) : 0;
  return wire;
}

LoopbackOptions draw_control(Draw& draw, std::uint64_t seed, int ranks) {
  LoopbackOptions control;
  control.seed = seed + 1;
  // A tile must hold a StragglerDetector::Words, and the calls of a rank that disagrees. The links must hold all messages to a
  // rank that pauses: otherwise messages are lost, also an abort.
  control.tile_bytes = ranks < kManyRanks ? 4096 : 1536;
  control.capacity_tiles = ranks < kManyRanks ? 32 : ranks < kHundredsOfRanks ? 24 : 3;
  control.mean_delay = microseconds(draw.one_of(std::array{0, 0, 30, 1000}));
  control.refuse_probability = static_cast<double>(draw.pick(0, 2)) * 0.2;
  return control;
}

void draw_fault(Draw& draw, Scenario& scenario) {
  const int ranks = scenario.ranks();
  static constexpr std::array kChances{Fault::none,  Fault::none,  Fault::none,     Fault::late,     Fault::absent,
                                       Fault::pause, Fault::stop,  Fault::stop,     Fault::kill,     Fault::kill,
                                       Fault::abort, Fault::abort, Fault::mismatch, Fault::mismatch, Fault::mismatch};
  do {
    scenario.fault = draw.one_of(kChances);
  } while (ranks >= kHundredsOfRanks &&
           (scenario.fault == Fault::stop || scenario.fault == Fault::absent));  // see draw_control
  scenario.culprit = static_cast<int>(draw.pick(0, static_cast<std::uint64_t>(ranks) - 1));
  scenario.at_step = draw.pick_size(9);
  scenario.at_call = draw.pick(0, scenario.calls.size() - 1);
  // A fraction of the peers' timeout, far enough from the other times of the engine.
  scenario.fault_time = scenario.timeout * static_cast<long>(draw.pick(1, 28)) / 40;
  if (scenario.fault == Fault::mismatch)
    scenario.odd_call = draw_other_call(draw, scenario.topology, scenario.calls[scenario.at_call], scenario.culprit);
}

}  // namespace

Scenario make_scenario(std::uint64_t seed) {
  Draw draw(seed);
  Scenario scenario;
  scenario.seed = seed;
  scenario.topology = draw_topology(draw);
  const int ranks = scenario.ranks();
  scenario.wire = draw_wire(draw, seed, ranks);
  scenario.control = draw_control(draw, seed, ranks);
  scenario.tile_bytes = draw.chance(2) ? scenario.wire.tile_bytes : std::min<std::size_t>(scenario.wire.tile_bytes, 1024);
  const std::uint64_t most_calls = ranks < kManyRanks ? 10 : ranks < kHundredsOfRanks ? 5 : 2;
  for (std::uint64_t left = draw.pick(2, most_calls); left > 0; --left)
    scenario.calls.push_back(draw_call(draw, scenario.topology));
  scenario.timeout = milliseconds(draw.one_of(std::array{1500, 3000, 10'000, 60'000}));
  // A rank without room for its control message tries again every millisecond, which is slow to simulate.
  if (ranks >= kManyRanks) scenario.timeout = std::min<std::chrono::nanoseconds>(scenario.timeout, milliseconds(3000));
  scenario.leaves = draw.chance(2) && ranks < kHundredsOfRanks;  // see draw_control: leave messages need room, too
  scenario.step_ns = draw.one_of(std::array{200, 1000, 5000});
  scenario.burst = draw.one_of(std::array{0, 8, 14});
  scenario.think_ns = draw.one_of(std::array{0, 0, 3000, 300'000});
  draw_fault(draw, scenario);
  scenario.board = draw.chance(2);
  if (scenario.board) {
    scenario.wire.node_of_rank = scenario.topology.node_of_rank;
    // As much as transports/shm gives, or hardly more than a board needs: then slow ranks are in the way of others.
    scenario.wire.notice_bytes = std::size_t{ranks < kHundredsOfRanks && draw.chance(2) ? 64U : 24U} << 10;
  }
  return scenario;
}

std::string Scenario::text() const {
  std::string text = fmt::format(
      "seed {}: {} ranks ({}), tiles of {} ({} in nodes) x {}, window {}, delay {} us, refused {:.1f}, {} copies, control by "
      "{}, timeout {} ms, {}; fault {} of rank {}",
      seed, ranks(), topology.shape(), wire.tile_bytes, tile_bytes, wire.capacity_tiles, wire.window_bytes,
      wire.mean_delay.count(), wire.refuse_probability, wire.late_copy ? "late" : "early",
      board ? fmt::format("boards of {} bytes a rank", wire.notice_bytes) : "links",
      std::chrono::duration_cast<milliseconds>(timeout).count(), leaves ? "ranks leave when done" : "ranks stay",
      kFaultNames[static_cast<std::size_t>(fault)], culprit);
  if (fault == Fault::pause || fault == Fault::stop || fault == Fault::kill || fault == Fault::abort)
    text += fmt::format(" at its step {}", at_step);
  if (fault == Fault::late || fault == Fault::absent) text += fmt::format(" in call {}", at_call);
  if (fault == Fault::late || fault == Fault::pause)
    text += fmt::format(" for {} ms", std::chrono::duration_cast<milliseconds>(fault_time).count());
  for (std::size_t k = 0; k < calls.size(); ++k) {
    text += fmt::format("\n  call {}: {} by {}", k, calls[k].model.text(), calls[k].algorithm->name);
    if (fault == Fault::mismatch && k == at_call)
      text += fmt::format("; rank {}: {} by {}", culprit, odd_call.model.text(), odd_call.algorithm->name);
  }
  return text;
}

}  // namespace shoal::testing
