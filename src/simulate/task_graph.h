// TaskGraph: a Schedule on a Platform, as tasks that wait for each other and for workers, cores and wires.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <shoal/status.h>

#include "src/schedule/program.h"
#include "src/simulate/platform.h"

namespace shoal {

/// What happens, in which order and on which resource. It is the only input of the engine (simgrid_engine.h).
struct TaskGraph {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Wire {
    double gbyte_s = 0;
    double flow_share = 0;  ///< n flows together get gbyte_s / (1 + flow_share (n - 1))
  };
  /// Does one task's work at a time: among the ready tasks the one with the lowest number.
  struct Worker {
    std::uint32_t cpu = 0;
    int window = 1;  ///< links on which it may have a flow at the same time
  };
  struct Cpu {
    int cores = 1;  ///< shared fairly by the workers that are busy
  };
  /// Some work of a worker, then a flow if there is one. The flows of a link are sequential. A task is done one latency after
  /// its flow has left.
  struct Task {
    std::uint32_t worker = 0;
    std::uint32_t source = kNone;  ///< where the flow starts, an index into `sources`; kNone = no flow
    std::uint32_t sink = kNone;    ///< where it ends, an index into `sinks`
    std::uint32_t link = kNone;    ///< from one rank to another
    std::uint32_t missing = 0;     ///< tasks that must be done before
    double work_us = 0;
    double bytes = 0;
    double latency_us = 0;
  };
  using Route = std::vector<std::uint32_t>;  ///< wires

  std::vector<Wire> wires;
  std::vector<Cpu> cpus;
  std::vector<Worker> workers;
  std::vector<Route> sources;  ///< a flow crosses the wires of its source, then those of its sink
  std::vector<Route> sinks;
  std::uint32_t links = 0;
  std::vector<Task> tasks;
  std::vector<std::size_t> first_successor;  ///< of each task in `successors`, and the end of the last
  std::vector<std::uint32_t> successors;

  /// Builds first_successor, successors and Task::missing from pairs (before, after).
  void connect(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges);
};

/// How all nodes are alike, so that one of them represents all: what it sends to another node arrives at itself as the
/// message that another node sends to it at the same time. With equal nodes the fair shares of all wires are as in the full
/// simulation.
enum class Symmetry : std::uint8_t {
  none,        ///< every node is simulated
  rotation,    ///< node n sends to n + k what node 0 sends to k
  reflection,  ///< node n sends to n xor k what node 0 sends to k
};

/// Graphs with more tasks are refused; this many take about a gigabyte.
inline constexpr std::size_t kMaxTasks = 3'000'000;

/// The tasks of `schedule`, whose Programs are those of all ranks or, with a symmetry, those of the ranks of node 0 only.
///
/// A message is cut into at most kTilesOfStep tiles of kTileBytes or more. A tile of a send is work (posting, or copying if
/// the worker moves the bytes) and a flow. A tile of a receive is work that starts when all its operands have arrived. Steps
/// pass their results on tile by tile. The k-th chunk sent to a peer matches the k-th that it receives.
///
/// Errors: invalid_argument beyond kMaxTasks; internal if sends and receives do not match, which with a symmetry means that
/// the schedule does not have it.
Result<TaskGraph> task_graph(const Schedule& schedule, const Platform& platform, Symmetry symmetry = Symmetry::none);
inline constexpr std::size_t kTileBytes = 64 << 10;
inline constexpr std::uint32_t kTilesOfStep = 16;

}  // namespace shoal
