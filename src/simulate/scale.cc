#include "src/simulate/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "src/schedule/layout.h"
#include "src/simulate/simgrid_engine.h"

namespace shoal {
namespace {

// What SimGrid simulates in a few seconds. Its time grows faster than linearly with the number of hosts.
constexpr std::size_t kMaxQuickTasks = 100'000;
constexpr int kMaxQuickRanks = 512;
constexpr std::size_t kMaxWholeTasks = 1'000'000;
constexpr int kMaxWholeRanks = 2048;

/// How many chunks each local rank of `node` sends to each node, relative to `node` by `symmetry`.
using Traffic = std::map<std::pair<int, int>, std::uint64_t>;  // local rank, shift -> chunks

Traffic traffic_of(const Algorithm& algorithm, const RanksByNode& nodes, const Collective& collective, int node,
                   Symmetry symmetry) {
  const std::span<const int> ranks = nodes[static_cast<std::size_t>(node)];
  const int count = static_cast<int>(nodes.nodes());
  Traffic traffic;
  for (std::size_t local = 0; local < ranks.size(); ++local) {
    const Program program = algorithm.build(nodes, collective, ranks[local]);
    for (const Step& step : program.steps) {
      if (step.op != StepOp::send) continue;
      const int goal = static_cast<int>(nodes.node_of(step.peer));
      const int shift = symmetry == Symmetry::rotation ? (goal - node + count) % count : goal ^ node;
      traffic[{static_cast<int>(local), shift}] += std::max(step.source.chunk_count, 1U);
    }
  }
  return traffic;
}

/// Approximate number of tasks of a rank.
std::size_t tasks_of(const Program& program, const Topology& topology, const Collective& collective) {
  const ChunkLayout layout(collective, topology.ranks(), program.rank, program.message_chunks);
  std::size_t tasks = 0;
  for (const Step& step : program.steps) {
    const std::size_t bytes = layout.bytes(step.op == StepOp::send ? step.source : step.target).size_bytes;
    tasks += std::clamp<std::size_t>(bytes / kTileBytes, 1, kTilesOfStep);
  }
  return tasks;
}

Result<TaskGraph> graph_of(const Algorithm& algorithm, const Topology& topology, const Collective& collective,
                           const Platform& platform, Symmetry symmetry) {
  if (symmetry != Symmetry::none)
    return task_graph(schedule_of_first_node(algorithm, topology, collective), platform, symmetry);
  const auto schedule = build_schedule(algorithm, topology, collective);
  if (!schedule.ok()) return schedule.status();
  return task_graph(*schedule, platform);
}

}  // namespace

Schedule schedule_of_first_node(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  Schedule schedule{topology, collective, {}};
  const RanksByNode nodes(topology);
  for (const int rank : nodes[0]) schedule.programs.push_back(algorithm.build(nodes, collective, rank));
  return schedule;
}

Symmetry find_symmetry(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  const RanksByNode nodes(topology);
  for (std::size_t node = 0; node < nodes.nodes(); ++node) {
    if (nodes[node].size() != nodes.largest()) return Symmetry::none;
  }
  const int count = static_cast<int>(nodes.nodes());
  for (const Symmetry symmetry : {Symmetry::rotation, Symmetry::reflection}) {
    if (symmetry == Symmetry::reflection && !std::has_single_bit(nodes.nodes())) continue;
    const auto traffic = [&](int node) { return traffic_of(algorithm, nodes, collective, node, symmetry); };
    const Traffic first = traffic(0);
    const std::set<int> others{1 % count, count / 2, count - 1};
    if (std::ranges::all_of(others, [&](int node) { return traffic(node) == first; })) return symmetry;
  }
  return Symmetry::none;
}

double bus_bytes(const Collective& collective, int ranks) {
  const auto bytes = static_cast<double>(collective.input_bytes());
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return bytes * 2 * (ranks - 1) / ranks;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::gather:
    case CollectiveKind::scatter:
    case CollectiveKind::all_to_all:
      return bytes * (ranks - 1);
    default:
      return bytes;
  }
}

Result<ScalePrediction> predict_at_scale(const Algorithm& algorithm, const Topology& topology, const Collective& collective,
                                         const Platform& platform, const std::function<void(double)>& progress) {
  if (Status status = check(platform); !status.ok()) return status;
  const auto first = build_program(algorithm, topology, collective, 0);
  if (!first.ok()) return first.status();
  const std::size_t tasks = tasks_of(*first, topology, collective) * static_cast<std::size_t>(topology.ranks());

  Symmetry symmetry = Symmetry::none;
  if (tasks > kMaxQuickTasks || topology.ranks() > kMaxQuickRanks) {
    // On one machine all nodes compete for its cores, so no node can represent the others.
    if (!platform.one_machine) symmetry = find_symmetry(algorithm, topology, collective);
    if (symmetry == Symmetry::none && (tasks > kMaxWholeTasks || topology.ranks() > kMaxWholeRanks)) {
      return Status(StatusCode::unsupported,
                    fmt::format("the nodes differ, and about {} tasks are too many to simulate", tasks));
    }
  }
  // Nodes can send the same messages in different orders: then the single simulated node waits for itself forever.
  const auto error = [&](const Status& status) {
    if (symmetry == Symmetry::none || status.code() != StatusCode::internal) return status;
    return Status(StatusCode::unsupported,
                  "no node can represent all, and all nodes are too many to simulate: " + status.message());
  };
  const auto graph = graph_of(algorithm, topology, collective, platform, symmetry);
  if (!graph.ok()) return error(graph.status());
  const auto run = run_on_simgrid(*graph, progress);
  if (!run.ok()) return error(run.status());
  return ScalePrediction{first->algorithm, run->total_us,
                         run->total_us > 0 ? bus_bytes(collective, topology.ranks()) / run->total_us / 1000 : 0,
                         graph->tasks.size(), symmetry == Symmetry::none ? "every node" : "one node for all"};
}

}  // namespace shoal
