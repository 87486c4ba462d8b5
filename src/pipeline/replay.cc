#include "src/pipeline/replay.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "src/pipeline/orders.h"

namespace shoal::pipeline {
namespace {

/// The messages that one stage gets from one side.
struct Inbox {
  std::int64_t link_free_ps = 0;
  std::vector<std::optional<std::int64_t>> arrivals;  // by microbatch
};

class Player {
 public:
  Player(const PipelineSchedule& schedule, const StageTimes& times)
      : schedule_(schedule), times_(times), at_(schedule.ranks.size()), clocks_(schedule.ranks.size()) {
    const Inbox inbox{0, std::vector<std::optional<std::int64_t>>(static_cast<std::size_t>(schedule.shape.microbatches))};
    activations_.assign(static_cast<std::size_t>(schedule.shape.stages()), inbox);
    gradients_ = activations_;
    replay_.ranks.resize(schedule.ranks.size());
  }

  /// False if ranks wait forever.
  bool play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < at_.size(); ++rank) {
        while (at_[rank] < schedule_.ranks[rank].size() && run(rank, schedule_.ranks[rank][at_[rank]])) {
          ++at_[rank];
          moved = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] < schedule_.ranks[rank].size()) return false;
    }
    return true;
  }

  Replay take() { return std::move(replay_); }

 private:
  /// Runs an action; false if its message has not been sent yet.
  bool run(std::size_t rank, const Action& action) {
    std::int64_t& clock = clocks_[rank];
    RankReplay& result = replay_.ranks[rank];
    if (is_recv(action.op)) {
      const auto& arrival =
          inbox_of(action.op == ActionOp::recv_activation, action.stage).arrivals[static_cast<std::size_t>(action.microbatch)];
      if (!arrival) return false;
      clock = std::max(clock, *arrival);
    } else if (is_send(action.op)) {
      const CutTime& cut = times_.cuts[static_cast<std::size_t>(std::min(action.stage, peer_stage(action)))];
      Inbox& inbox = inbox_of(action.op == ActionOp::send_activation, peer_stage(action));
      inbox.link_free_ps = std::max(inbox.link_free_ps, clock) + cut.wire_ps;
      inbox.arrivals[static_cast<std::size_t>(action.microbatch)] = inbox.link_free_ps + cut.latency_ps;
      ++result.messages;
      result.sent_bytes += cut.bytes;
    } else {
      const std::int64_t end = clock + duration_ps(action, times_);
      result.spans.push_back({action, clock, end});
      replay_.step_ps = std::max(replay_.step_ps, end);
      if (is_compute(action.op)) result.busy_ps += end - std::exchange(clock, end);
    }
    return true;
  }

  Inbox& inbox_of(bool activation, int stage) {
    return (activation ? activations_ : gradients_)[static_cast<std::size_t>(stage)];
  }

  const PipelineSchedule& schedule_;
  const StageTimes& times_;
  std::vector<std::size_t> at_;       // by rank: its next action
  std::vector<std::int64_t> clocks_;  // by rank: when it can go on
  std::vector<Inbox> activations_;    // by receiving stage
  std::vector<Inbox> gradients_;
  Replay replay_;
};

}  // namespace

double Replay::bubble() const {
  if (step_ps == 0) return 0;
  double busy = 0;
  for (const RankReplay& rank : ranks) busy += static_cast<double>(rank.busy_ps);
  return 1 - busy / static_cast<double>(step_ps) / static_cast<double>(ranks.size());
}

std::int64_t duration_ps(const Action& action, const StageTimes& times) {
  const StageTime& time = times.stages[static_cast<std::size_t>(action.stage)];
  switch (action.op) {
    case ActionOp::forward:
      return time.forward_ps;
    case ActionOp::backward:
      return time.backward_ps();
    case ActionOp::backward_input:
      return time.input_ps;
    case ActionOp::backward_weight:
      return time.weight_ps;
    case ActionOp::reduce_gradients:
      return time.reduce_ps;
    default:
      return 0;
  }
}

Result<Replay> replay(const PipelineSchedule& schedule, const StageTimes& times) {
  if (Status status = check(times, schedule.shape); !status.ok()) return status;
  Player player(schedule, times);
  if (!player.play()) return Status(StatusCode::internal, "the ranks of the pipeline wait for each other forever");
  Replay result = player.take();
  const auto held = most_held_by_rank(schedule.shape, schedule.ranks);
  for (std::size_t rank = 0; rank < held.size(); ++rank) result.ranks[rank].most_held = held[rank];
  return result;
}

}  // namespace shoal::pipeline
