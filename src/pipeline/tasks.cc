#include "src/pipeline/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "src/pipeline/error.h"
#include "src/pipeline/replay.h"

namespace shoal::pipeline {
namespace {

constexpr double kBytesPerUsOfGbyteS = 1000;
constexpr double kInstantGbyteS = 1e6;  // of a wire whose time does not count

class TaskBuilder {
 public:
  TaskBuilder(const PipelineSchedule& schedule, const StageTimes& times, double bytes_per_us)
      : schedule_(schedule), times_(times), counts_bytes_(bytes_per_us > 0) {
    const auto ranks = static_cast<std::uint32_t>(schedule.ranks.size());
    const double gbyte_s = counts_bytes_ ? bytes_per_us / kBytesPerUsOfGbyteS : kInstantGbyteS;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      graph_.wires.insert(graph_.wires.end(), 2, {gbyte_s, 0});
      graph_.sources.push_back({2 * rank});
      graph_.sinks.push_back({2 * rank + 1});
      graph_.cpus.push_back({2});  // one core for the reduction, which runs beside the computing
      graph_.workers.push_back({rank, kWindow});
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) graph_.workers.push_back({rank, kWindow});  // reductions
  }

  TaskGraph build() {
    for (std::uint32_t rank = 0; rank < schedule_.ranks.size(); ++rank) add_rank(rank);
    for (const auto& [tag, ends] : messages_) {
      if (ends.first && ends.second) edges_.emplace_back(*ends.first, *ends.second);
    }
    graph_.links = static_cast<std::uint32_t>(links_.size());
    graph_.connect(edges_);
    return std::move(graph_);
  }

 private:
  static constexpr int kWindow = 1 << 20;  // a rank may have any number of messages under way

  /// A message: whether it is an activation, its receiving stage, its microbatch.
  using Tag = std::tuple<bool, int, int>;

  std::uint32_t add(TaskGraph::Task task, std::optional<std::uint32_t> before) {
    const auto number = static_cast<std::uint32_t>(graph_.tasks.size());
    graph_.tasks.push_back(task);
    if (before) edges_.emplace_back(*before, number);
    return number;
  }

  void add_rank(std::uint32_t rank) {
    std::optional<std::uint32_t> last;  // compute task
    std::vector<Tag> awaited;
    for (const Action& action : schedule_.ranks[rank]) {
      if (is_recv(action.op)) {
        awaited.emplace_back(action.op == ActionOp::recv_activation, action.stage, action.microbatch);
      } else if (is_send(action.op)) {
        const Tag tag{action.op == ActionOp::send_activation, peer_stage(action), action.microbatch};
        messages_[tag].first = add(message(rank, action), last);
      } else {
        TaskGraph::Task task;
        task.worker = is_compute(action.op) ? rank : rank + static_cast<std::uint32_t>(schedule_.ranks.size());
        task.work_us = microseconds(duration_ps(action, times_));
        const std::uint32_t number = add(task, last);
        if (!is_compute(action.op)) continue;
        last = number;
        for (const Tag& tag : awaited) messages_[tag].second = number;
        awaited.clear();
      }
    }
  }

  TaskGraph::Task message(std::uint32_t rank, const Action& send) {
    const int to = peer_stage(send);
    const CutTime& cut = times_.cuts[static_cast<std::size_t>(std::min(send.stage, to))];
    TaskGraph::Task task;
    task.worker = task.source = rank;
    task.sink = static_cast<std::uint32_t>(schedule_.shape.rank_of(to));
    task.link = links_.try_emplace({send.stage, to}, static_cast<std::uint32_t>(links_.size())).first->second;
    task.bytes = counts_bytes_ ? static_cast<double>(cut.bytes) : 1;
    task.latency_us = microseconds(cut.latency_ps);
    return task;
  }

  const PipelineSchedule& schedule_;
  const StageTimes& times_;
  bool counts_bytes_;
  TaskGraph graph_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;
  std::map<Tag, std::pair<std::optional<std::uint32_t>, std::optional<std::uint32_t>>> messages_;  // its task, its reader
  std::map<std::pair<int, int>, std::uint32_t> links_;                                             // by stages
};

}  // namespace

Result<TaskGraph> task_graph(const PipelineSchedule& schedule, const StageTimes& times, double bytes_per_us) {
  if (Status status = check(times, schedule.shape); !status.ok()) return status;
  std::size_t tasks = 0;
  for (const Actions& actions : schedule.ranks) tasks += actions.size();
  if (tasks > kMaxTasks) {
    return invalid(fmt::format("{} actions are too many to simulate, at most {}", tasks, kMaxTasks));
  }
  return TaskBuilder(schedule, times, bytes_per_us).build();
}

}  // namespace shoal::pipeline
