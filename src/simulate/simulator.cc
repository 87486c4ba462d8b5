#include "src/simulate/simulator.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <queue>
#include <string>
#include <utility>

#include "src/schedule/dependencies.h"
#include "src/schedule/layout.h"
#include "src/schedule/units.h"

namespace shoal {

CostModel::CostModel(const Topology& topology) : topology_(topology), crowding_(static_cast<std::size_t>(topology.nodes()), 0) {
  for (const int node : topology.node_of_rank) ++crowding_[static_cast<std::size_t>(node)];
  const double cores = topology.cores_per_node;
  for (double& ranks : crowding_) ranks = cores > 0 ? std::max(1.0, ranks / cores) : 1.0;
}

namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

/// When the first and the last tile of a value are available.
struct Span {
  double first = 0;
  double last = 0;

  void await(const Span& other) {
    first = std::max(first, other.first);
    last = std::max(last, other.last);
  }
};

/// A step or an n-way fold, the number of units that it still waits for, and the units that wait for it.
struct Unit {
  std::uint32_t rank = 0;
  std::uint32_t first_step = 0;
  std::uint32_t operands = 0;  // received ones
  std::uint32_t missing = 0;   // predecessors whose time is not known yet
  std::uint32_t receiver = kNone;
  std::size_t bytes = 0;
  Span ready;
  std::vector<std::uint32_t> successors;
};

/// The queue of messages that leave a node.
struct OutPort {
  bool busy = false;
  std::queue<std::uint32_t> sends;  // ready ones, in the order in which they became so
};

/// A unit is ready, or a port is free. Ordered by time, then by number, so that equal times have one order.
struct Event {
  double time_us = 0;
  bool is_port = false;
  std::uint32_t index = 0;

  auto operator<=>(const Event&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees generated code
};

/// A step that sends or receives, and the ranks at the two ends.
struct End {
  int from = 0;
  int to = 0;
  std::uint32_t unit = 0;

  [[nodiscard]] auto link() const { return std::pair{from, to}; }
};

class Simulator {
 public:
  explicit Simulator(const Schedule& schedule) : schedule_(schedule), costs_(schedule.topology) {}

  Result<Simulation> run() {
    const std::size_t ranks = schedule_.programs.size();
    result_.rank_us.assign(ranks, 0);
    cores_.assign(ranks, 0);
    in_ports_.assign(static_cast<std::size_t>(schedule_.topology.nodes()), 0);
    out_ports_.resize(in_ports_.size());
    for (const Program& program : schedule_.programs) add_program(program);
    if (Status status = match_messages(); !status.ok()) return status;

    waiting_ = units_.size();
    for (std::uint32_t i = 0; i < units_.size(); ++i) {
      if (units_[i].missing == 0) events_.push({0, false, i});
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.is_port) {
        start_next_send(out_ports_[event.index], event.time_us);
      } else {
        run_unit(event.index);
      }
    }
    if (waiting_ > 0) return Status(StatusCode::internal, std::to_string(waiting_) + " steps of the schedule wait forever");
    result_.total_us = *std::max_element(result_.rank_us.begin(), result_.rank_us.end());
    return result_;
  }

 private:
  [[nodiscard]] const Step& step_of(const Unit& unit) const { return schedule_.programs[unit.rank].steps[unit.first_step]; }

  void order(std::uint32_t before, std::uint32_t after) {
    if (before == kNone || before == after) return;
    units_[before].successors.push_back(after);
    ++units_[after].missing;
  }

  void add_program(const Program& program) {
    const std::vector<std::uint32_t> unit_of_step = units_of_steps(schedule_.topology, program);
    const ChunkLayout layout(schedule_.collective_of(program.rank), schedule_.topology.ranks(), program.rank,
                             program.message_chunks);
    const Dependencies dependencies(program);
    const auto base = static_cast<std::uint32_t>(units_.size());
    std::vector<std::uint32_t> last_send(schedule_.programs.size(), kNone);
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
      const Step& step = program.steps[i];
      const std::uint32_t index = base + unit_of_step[i];
      if (index == units_.size()) {
        units_.emplace_back();
        units_.back().rank = static_cast<std::uint32_t>(program.rank);
        units_.back().first_step = i;
        units_.back().bytes = layout.bytes(step.op == StepOp::send ? step.source : step.target).size_bytes;
      }
      if (step.op == StepOp::send) {
        sends_.push_back({program.rank, step.peer, index});
        order(std::exchange(last_send[static_cast<std::size_t>(step.peer)], index), index);
      }
      if (step.op == StepOp::recv || step.op == StepOp::recv_reduce) {
        recvs_.push_back({step.peer, program.rank, index});
        ++units_[index].operands;
      }
      for (const std::uint32_t other : dependencies.of(i)) order(base + unit_of_step[other], index);
    }
  }

  Status match_messages() {
    std::ranges::stable_sort(sends_, {}, &End::link);
    std::ranges::stable_sort(recvs_, {}, &End::link);
    senders_.assign(schedule_.programs.size(), 0);
    for (std::size_t i = 0; i < std::max(sends_.size(), recvs_.size()); ++i) {
      if (i == sends_.size() || i == recvs_.size() || sends_[i].link() != recvs_[i].link()) return unmatched(i);
      const auto [from, to, sender] = sends_[i];
      const bool is_first = i == 0 || sends_[i - 1].link() != sends_[i].link();
      if (is_first && schedule_.topology.link_class(from, to) == LinkClass::network) ++senders_[static_cast<std::size_t>(to)];
      units_[sender].receiver = recvs_[i].unit;
      ++units_[recvs_[i].unit].missing;
    }
    return {};
  }

  /// The error for the first message that has one end only.
  [[nodiscard]] Status unmatched(std::size_t i) const {
    const bool is_sent = i < sends_.size() && (i == recvs_.size() || sends_[i].link() < recvs_[i].link());
    const auto link = (is_sent ? sends_ : recvs_)[i].link();
    const auto count = [&](const std::vector<End>& ends) { return std::to_string(std::ranges::count(ends, link, &End::link)); };
    return {StatusCode::internal, "rank " + std::to_string(link.first) + " sends " + count(sends_) + " messages to rank " +
                                      std::to_string(link.second) + ", which receives " + count(recvs_)};
  }

  void run_unit(std::uint32_t index) {
    const Unit& unit = units_[index];
    const int rank = static_cast<int>(unit.rank);
    const std::size_t tile = costs_.tile(unit.bytes);
    const Step& step = step_of(unit);
    switch (step.op) {
      case StepOp::send: {
        if (schedule_.topology.link_class(rank, step.peer) != LinkClass::network) {
          send_through_memory(unit, rank, step.peer);
          break;
        }
        const std::size_t port = port_of(rank);
        out_ports_[port].sends.push(index);
        if (!out_ports_[port].busy) start_next_send(out_ports_[port], unit.ready.first);
        break;
      }
      case StepOp::recv:
        if (schedule_.topology.link_class(rank, step.peer) == LinkClass::network) {
          finish(unit, unit.ready);
        } else {
          compute(unit, costs_.port_us(step.peer, rank, unit.bytes), costs_.port_us(step.peer, rank, tile));
        }
        break;
      case StepOp::recv_reduce:
        compute(unit, fold_us(unit, unit.bytes), fold_us(unit, tile));
        break;
      case StepOp::reduce:
        compute(unit, costs_.reduce_us(rank, unit.bytes), costs_.reduce_us(rank, tile));
        break;
      case StepOp::copy:
        compute(unit, costs_.copy_us(rank, unit.bytes), costs_.copy_us(rank, tile));
        break;
    }
  }

  /// Time to fold `bytes` of every operand. Operands in shared memory have to be fetched from there first, and the rank's own
  /// from memory.
  [[nodiscard]] double fold_us(const Unit& unit, std::size_t bytes) const {
    const int rank = static_cast<int>(unit.rank);
    double total_us = costs_.copy_us(rank, bytes);
    for (std::uint32_t i = 0; i < unit.operands; ++i) {
      const int peer = schedule_.programs[unit.rank].steps[unit.first_step + i].peer;
      total_us += costs_.reduce_us(rank, bytes);
      if (schedule_.topology.link_class(rank, peer) != LinkClass::network) total_us += costs_.port_us(peer, rank, bytes);
    }
    return total_us;
  }

  /// The sender's core writes the message to where the receiver reads it.
  void send_through_memory(const Unit& unit, int rank, int peer) {
    const auto link = static_cast<std::size_t>(schedule_.topology.link_class(rank, peer));
    result_.bytes[link] += unit.bytes;
    ++result_.messages[link];
    const double duration_us = costs_.port_us(rank, peer, unit.bytes);
    const double tile_us = costs_.port_us(rank, peer, costs_.tile(unit.bytes));
    double& core = cores_[unit.rank];
    const double begin = std::max(core, unit.ready.first);
    core = begin + duration_us;
    const Span sent{begin + tile_us, std::max(begin + duration_us, unit.ready.last + tile_us)};
    const double flight = costs_.flight_us(rank, peer);
    release(unit.receiver, {sent.first + flight, sent.last + flight});
    finish(unit, sent);
  }

  void finish(const Unit& unit, const Span& done) {
    --waiting_;
    result_.rank_us[unit.rank] = std::max(result_.rank_us[unit.rank], done.last);
    for (const std::uint32_t successor : unit.successors) release(successor, done);
  }

  void release(std::uint32_t index, const Span& done) {
    Unit& unit = units_[index];
    unit.ready.await(done);
    if (--unit.missing == 0) events_.push({unit.ready.first, false, index});
  }

  void compute(const Unit& unit, double duration_us, double tile_us) {
    double& core = cores_[unit.rank];
    const double begin = std::max(core, unit.ready.first);
    core = begin + duration_us;
    finish(unit, {begin + tile_us, std::max(begin + duration_us, unit.ready.last + tile_us)});
  }

  /// A port that becomes free at `now_us` takes the message that has waited longest for it.
  void start_next_send(OutPort& port, double now_us) {
    port.busy = !port.sends.empty();
    if (!port.busy) return;
    const Unit& unit = units_[port.sends.front()];
    port.sends.pop();
    const int rank = static_cast<int>(unit.rank);
    const int peer = step_of(unit).peer;
    const LinkClass link = schedule_.topology.link_class(rank, peer);
    result_.bytes[static_cast<std::size_t>(link)] += unit.bytes;
    ++result_.messages[static_cast<std::size_t>(link)];

    const int flows = senders_[static_cast<std::size_t>(peer)];
    const double port_us = costs_.port_us(rank, peer, unit.bytes, flows);
    const double tile_us = costs_.port_us(rank, peer, costs_.tile(unit.bytes), flows);
    double& in = in_ports_[port_of(peer)];
    const double arrival = std::max(in, now_us);
    in = arrival + port_us;
    events_.push({now_us + port_us, true, static_cast<std::uint32_t>(&port - out_ports_.data())});
    const double flight = costs_.flight_us(rank, peer);
    const double last = std::max(arrival + port_us, unit.ready.last + tile_us);
    release(unit.receiver, {arrival + tile_us + flight, last + flight});
    finish(unit, {now_us + tile_us, std::max(now_us + port_us, unit.ready.last + tile_us)});
  }

  [[nodiscard]] std::size_t port_of(int rank) const {
    return static_cast<std::size_t>(schedule_.topology.node_of_rank[static_cast<std::size_t>(rank)]);
  }

  const Schedule& schedule_;
  CostModel costs_;
  Simulation result_;
  std::vector<Unit> units_;
  std::vector<End> sends_;  // of each link in the order of its messages
  std::vector<End> recvs_;
  std::vector<int> senders_;      // to each rank over the network
  std::vector<double> cores_;     // when each rank's core is free
  std::vector<double> in_ports_;  // when each node's port has taken in all messages on their way
  std::vector<OutPort> out_ports_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::size_t waiting_ = 0;  // units that have not finished
};

}  // namespace

Result<Simulation> simulate(const Schedule& schedule) { return Simulator(schedule).run(); }

}  // namespace shoal
