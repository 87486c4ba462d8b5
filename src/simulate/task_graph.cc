#include "src/simulate/task_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "src/schedule/dependencies.h"
#include "src/schedule/layout.h"
#include "src/schedule/units.h"

namespace shoal {

void TaskGraph::connect(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
  first_successor.assign(tasks.size() + 1, 0);
  for (const auto& [before, after] : edges) {
    ++first_successor[before + 1];
    ++tasks[after].missing;
  }
  for (std::size_t i = 1; i < first_successor.size(); ++i) first_successor[i] += first_successor[i - 1];
  successors.resize(edges.size());
  auto next = first_successor;
  for (const auto& [before, after] : edges) successors[next[before]++] = after;
}

namespace {

constexpr std::size_t kMaxEdges = 40'000'000;  // 16 bytes each at the most
constexpr double kBytesPerUs = 1000;           // of a GB/s

/// Steps that run as one unit, as a run of tasks: one for each tile.
struct Unit {
  std::uint32_t first_task = 0;
  std::uint32_t tiles = 1;
};

/// Chunks [first, end) of a buffer or of the stream between two ranks, cut evenly into the tiles of a unit.
struct Extent {
  Unit unit;
  std::uint64_t first = 0;
  std::uint64_t end = 0;

  /// The chunk position at which `tile` begins, times `scale`; `scale` makes positions inside chunks integers.
  [[nodiscard]] std::uint64_t boundary(std::uint64_t tile, std::uint64_t scale) const {
    return first * scale + (end - first) * scale * tile / unit.tiles;
  }
};
constexpr std::uint64_t kScale = 720720;  // divisible by 1 .. 16, so that no boundary of tiles is rounded
static_assert(kTilesOfStep <= 16);

struct Message {
  Unit unit;
  std::uint32_t chunks = 1;
  std::uint32_t step = 0;  // of its Program
};

/// All messages from one rank to another, in order.
struct Stream {
  std::vector<Message> sends;
  std::vector<Message> recvs;

  [[nodiscard]] bool matches() const { return chunks(sends) == chunks(recvs); }
  static std::uint64_t chunks(const std::vector<Message>& messages) {
    std::uint64_t sum = 0;
    for (const Message& message : messages) sum += message.chunks;
    return sum;
  }
};

/// Key of a stream between nodes: its destination relative to its source, and the local ranks at its ends. Without a symmetry
/// `shift` is 0 and the ranks are those of the communicator.
struct StreamKey {
  int shift = 0;
  int to = 0;
  int from = 0;

  auto operator<=>(const StreamKey&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees generated code
};

double per_us(double gbyte_s, double bytes) { return gbyte_s > 0 ? bytes / (gbyte_s * kBytesPerUs) : 0; }

class Builder {
 public:
  Builder(const Schedule& schedule, const Platform& platform, Symmetry symmetry)
      : schedule_(schedule), topology_(schedule.topology), platform_(platform), symmetry_(symmetry) {
    local_rank_.reserve(topology_.node_of_rank.size());
    std::vector<int> ranks_of_node;
    for (const int node : topology_.node_of_rank) {
      if (static_cast<std::size_t>(node) >= ranks_of_node.size()) ranks_of_node.resize(static_cast<std::size_t>(node) + 1);
      local_rank_.push_back(ranks_of_node[static_cast<std::size_t>(node)]++);
    }
    nodes_ = static_cast<int>(ranks_of_node.size());
    add_machine(ranks_of_node);
  }

  Result<TaskGraph> build() {
    for (const Program& program : schedule_.programs) {
      if (Status status = add_program(program); !status.ok()) return status;
    }
    if (Status status = meet(); !status.ok()) return status;
    if (edges_.size() > kMaxEdges) return too_large(graph_.tasks.size());
    graph_.connect(edges_);
    return std::move(graph_);
  }

 private:
  [[nodiscard]] static Status too_large(std::size_t tasks) {
    return {StatusCode::invalid_argument,
            fmt::format("more than {} tasks are too many to simulate; use fewer nodes or ranks", std::min(tasks, kMaxTasks))};
  }

  // ---- the machine ----

  std::uint32_t add_wire(double gbyte_s, double flow_share = 0) {
    graph_.wires.push_back({gbyte_s, flow_share});
    return static_cast<std::uint32_t>(graph_.wires.size() - 1);
  }

  /// Worker w has two ports in each direction: 2 w to the network, 2 w + 1 to the ranks of its node.
  void add_machine(const std::vector<int>& ranks_of_node) {
    const std::size_t nodes = symmetry_ == Symmetry::none ? ranks_of_node.size() : 1;
    std::vector<std::vector<std::array<std::uint32_t, 2>>> rails(nodes);  // up and down
    std::vector<std::uint32_t> bus(nodes, TaskGraph::kNone);
    for (std::size_t node = 0; node < nodes; ++node) {
      const int count = std::min(platform_.nics, ranks_of_node[node]);
      const double gbyte_s = platform_.nic_gbit_s / 8 * platform_.nics / count;
      for (int rail = 0; rail < count; ++rail) {
        rails[node].push_back({add_wire(gbyte_s), add_wire(gbyte_s, platform_.flow_share)});
      }
      if (platform_.node_memory_gbyte_s > 0) bus[node] = add_wire(platform_.node_memory_gbyte_s);
      const int cores = platform_.cores > 0 ? platform_.cores : ranks_of_node[node];
      if (node == 0 || !platform_.one_machine) graph_.cpus.push_back({cores});
    }
    for (const Program& program : schedule_.programs) {
      const auto node = static_cast<std::size_t>(topology_.node_of_rank[static_cast<std::size_t>(program.rank)]);
      graph_.workers.push_back({platform_.one_machine ? 0 : static_cast<std::uint32_t>(node), platform_.network_window});
      const auto& [up, down] = rails[node][static_cast<std::size_t>(local_rank_[static_cast<std::size_t>(program.rank)]) *
                                           rails[node].size() / static_cast<std::size_t>(ranks_of_node[node])];
      graph_.sources.push_back({up});
      graph_.sinks.push_back({down});
      graph_.sources.push_back({add_wire(platform_.memory_gbyte_s)});
      if (bus[node] != TaskGraph::kNone) graph_.sources.back().push_back(bus[node]);
      graph_.sinks.push_back({add_wire(platform_.memory_gbyte_s)});
    }
  }

  [[nodiscard]] bool is_network(int rank, int peer) const {
    return topology_.node_of_rank[static_cast<std::size_t>(rank)] != topology_.node_of_rank[static_cast<std::size_t>(peer)];
  }

  /// The worker that simulates `rank`.
  [[nodiscard]] std::uint32_t worker_of(int rank) const {
    return static_cast<std::uint32_t>(symmetry_ == Symmetry::none ? rank : local_rank_[static_cast<std::size_t>(rank)]);
  }

  // ---- the steps ----

  Status add_program(const Program& program) {
    const std::vector<std::uint32_t> unit_of_step = units_of_steps(topology_, program);
    const ChunkLayout layout(schedule_.collective_of(program.rank), topology_.ranks(), program.rank, program.message_chunks);
    const Dependencies dependencies(program);
    std::vector<Unit> units;
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
      const Step& step = program.steps[i];
      const auto bytes = static_cast<double>(layout.bytes(step.op == StepOp::send ? step.source : step.target).size_bytes);
      if (unit_of_step[i] == units.size()) {
        units.push_back(add_unit(program.rank, step, bytes));
        if (graph_.tasks.size() > kMaxTasks) return too_large(graph_.tasks.size());
      }
      const Unit& unit = units[unit_of_step[i]];
      add_work(program.rank, step, unit, bytes);
      if (step.peer >= 0) add_to_stream(program.rank, step, i, unit);
      waits_.assign(dependencies.of(i).begin(), dependencies.of(i).end());
      std::ranges::sort(waits_);
      waits_.erase(std::unique(waits_.begin(), waits_.end()), waits_.end());
      for (const std::uint32_t before : waits_) {
        if (unit_of_step[before] == unit_of_step[i]) continue;
        order(program.steps[before], units[unit_of_step[before]], step, unit);
      }
    }
    graph_.links += static_cast<std::uint32_t>(links_.size());
    links_.clear();
    return {};
  }

  Unit add_unit(int rank, const Step& step, double bytes) {
    const auto tiles = static_cast<std::uint32_t>(std::clamp(bytes / kTileBytes, 1.0, double{kTilesOfStep}));
    const Unit unit{static_cast<std::uint32_t>(graph_.tasks.size()), tiles};
    TaskGraph::Task task;
    task.worker = worker_of(rank);
    if (step.op == StepOp::send) {
      const bool network = is_network(rank, step.peer);
      const std::uint32_t port = network ? 0 : 1;
      task.source = 2 * task.worker + port;
      task.sink = 2 * worker_of(step.peer) + port;
      task.link = links_.try_emplace(step.peer, graph_.links + static_cast<std::uint32_t>(links_.size())).first->second;
      task.bytes = bytes / tiles;
      task.latency_us = network ? platform_.network_latency_us : platform_.memory_latency_us;
    }
    graph_.tasks.insert(graph_.tasks.end(), tiles, task);
    return unit;
  }

  /// The work of one step of a unit, shared by its tiles.
  void add_work(int rank, const Step& step, const Unit& unit, double bytes) {
    double message_us = 0;
    double tile_us = 0;
    if (step.peer >= 0 && is_network(rank, step.peer)) {
      message_us = platform_.message_us;
      tile_us += per_us(platform_.network_core_gbyte_s, bytes / unit.tiles);
    } else if (step.peer >= 0) {
      tile_us += per_us(platform_.copy_gbyte_s, bytes / unit.tiles);
    }
    if (step.op != StepOp::send && step.op != StepOp::recv) tile_us += per_us(platform_.fold_gbyte_s, bytes / unit.tiles);
    for (std::uint32_t i = 0; i < unit.tiles; ++i) graph_.tasks[unit.first_task + i].work_us += tile_us;
    graph_.tasks[unit.first_task].work_us += message_us;
  }

  /// `after` waits for `before`, tile by tile, if one writes what the other touches.
  void order(const Step& before, const Unit& before_unit, const Step& after, const Unit& after_unit) {
    const bool before_reads = before.op != StepOp::recv;
    const bool before_writes = before.op != StepOp::send;
    const bool after_reads = after.op != StepOp::recv;
    const bool after_writes = after.op != StepOp::send;
    if (before_writes && after_reads)
      overlap(extent(before.target, before_unit), extent(after.source, after_unit), before.target, after.source);
    if (before_reads && after_writes)
      overlap(extent(before.source, before_unit), extent(after.target, after_unit), before.source, after.target);
    if (before_writes && after_writes)
      overlap(extent(before.target, before_unit), extent(after.target, after_unit), before.target, after.target);
  }

  static Extent extent(const Slice& slice, const Unit& unit) {
    return {unit, slice.first_chunk, std::uint64_t{slice.first_chunk} + slice.chunk_count};
  }

  void overlap(const Extent& before, const Extent& after, const Slice& a, const Slice& b) {
    if (a.buffer == b.buffer) overlap(before, after);
  }

  /// Every tile of `after` waits for the tiles of `before` that it overlaps.
  void overlap(const Extent& before, const Extent& after) {
    std::uint32_t i = 0;
    for (std::uint32_t j = 0; j < after.unit.tiles; ++j) {
      const std::uint64_t begin = after.boundary(j, kScale);
      const std::uint64_t end = after.boundary(j + 1, kScale);
      while (i < before.unit.tiles && before.boundary(i + 1, kScale) <= begin) ++i;
      for (std::uint32_t k = i; k < before.unit.tiles && before.boundary(k, kScale) < end; ++k) {
        edges_.emplace_back(before.unit.first_task + k, after.unit.first_task + j);
      }
    }
  }

  // ---- the messages ----

  void add_to_stream(int rank, const Step& step, std::uint32_t index, const Unit& unit) {
    const bool sends = step.op == StepOp::send;
    const int from = sends ? rank : step.peer;
    const int to = sends ? step.peer : rank;
    StreamKey key{0, static_cast<int>(worker_of(to)), static_cast<int>(worker_of(from))};
    if (symmetry_ != Symmetry::none) {
      const int start = topology_.node_of_rank[static_cast<std::size_t>(from)];
      const int goal = topology_.node_of_rank[static_cast<std::size_t>(to)];
      key.shift = symmetry_ == Symmetry::rotation ? (goal - start + nodes_) % nodes_ : start ^ goal;
    }
    const std::uint32_t chunks = sends ? step.source.chunk_count : step.target.chunk_count;
    (sends ? streams_[key].sends : streams_[key].recvs).push_back({unit, std::max(chunks, 1U), index});
  }

  /// Receives wait for their sends.
  Status meet() {
    const auto differs = [](const auto& entry) { return !entry.second.matches(); };
    if (symmetry_ != Symmetry::none && std::ranges::any_of(streams_, differs)) ignore_senders();
    for (const auto& [key, stream] : streams_) {
      if (!stream.matches()) {
        return {StatusCode::internal, fmt::format("rank {} sends {} chunks to rank {}, which receives {}", key.from,
                                                  Stream::chunks(stream.sends), key.to, Stream::chunks(stream.recvs))};
      }
      meet(stream);
    }
    return {};
  }

  /// In some schedules nodes are alike except for the local ranks that send. Then the messages that a rank receives from the
  /// nodes at one distance are dealt to its receives in the order of the Programs, regardless of which local rank sent them.
  void ignore_senders() {
    std::map<StreamKey, Stream> merged;
    for (auto& [key, stream] : streams_) {
      Stream& into = merged[key.shift == 0 ? key : StreamKey{key.shift, key.to, -1}];
      into.sends.insert(into.sends.end(), stream.sends.begin(), stream.sends.end());
      into.recvs.insert(into.recvs.end(), stream.recvs.begin(), stream.recvs.end());
    }
    for (auto& [key, stream] : merged) {
      std::ranges::stable_sort(stream.sends, {}, &Message::step);
      std::ranges::stable_sort(stream.recvs, {}, &Message::step);
    }
    streams_ = std::move(merged);
  }

  /// The k-th chunk sent is the k-th chunk received.
  void meet(const Stream& stream) {
    std::size_t i = 0;
    std::uint64_t sent = 0;  // chunks before send i
    std::uint64_t received = 0;
    for (const Message& recv : stream.recvs) {
      const Extent want{recv.unit, received, received + recv.chunks};
      while (sent + stream.sends[i].chunks <= want.first) sent += stream.sends[i++].chunks;
      std::uint64_t begin = sent;
      for (std::size_t k = i; k < stream.sends.size() && begin < want.end; begin += stream.sends[k++].chunks) {
        overlap(Extent{stream.sends[k].unit, begin, begin + stream.sends[k].chunks}, want);
      }
      received += recv.chunks;
    }
  }

  const Schedule& schedule_;
  const Topology& topology_;
  const Platform& platform_;
  Symmetry symmetry_;
  int nodes_ = 0;
  std::vector<int> local_rank_;
  TaskGraph graph_;
  std::map<StreamKey, Stream> streams_;
  std::map<int, std::uint32_t> links_;  // of the current Program, by peer
  std::vector<std::uint32_t> waits_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;
};

}  // namespace

Result<TaskGraph> task_graph(const Schedule& schedule, const Platform& platform, Symmetry symmetry) {
  return Builder(schedule, platform, symmetry).build();
}

}  // namespace shoal
