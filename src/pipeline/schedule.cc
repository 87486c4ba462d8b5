#include "src/pipeline/schedule.h"

#include <map>

#include "src/pipeline/orders.h"

namespace shoal::pipeline {
namespace {

/// Appends `compute` and its messages.
void append(const Shape& shape, const Action& compute, Actions& actions) {
  const auto message = [&](ActionOp op) {
    const Action action{op, compute.stage, compute.microbatch};
    const int peer = peer_stage(action);
    if (peer < 0 || peer >= shape.stages() || shape.rank_of(peer) == shape.rank_of(compute.stage)) return;
    actions.push_back(action);
  };
  const bool forward = compute.op == ActionOp::forward;
  const bool backward = compute.op == ActionOp::backward || compute.op == ActionOp::backward_input;
  if (forward) message(ActionOp::recv_activation);
  if (backward) message(ActionOp::recv_gradient);
  actions.push_back(compute);
  if (forward) message(ActionOp::send_activation);
  if (backward) message(ActionOp::send_gradient);
}

}  // namespace

PipelineSchedule complete(const Shape& shape, const std::vector<Actions>& computes, bool reduces) {
  PipelineSchedule schedule{shape, {}};
  for (const Actions& order : computes) {
    std::map<int, std::size_t> last_backward;  // by stage
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (order[i].op == ActionOp::backward || order[i].op == ActionOp::backward_weight) last_backward[order[i].stage] = i;
    }
    Actions& actions = schedule.ranks.emplace_back();
    for (std::size_t i = 0; i < order.size(); ++i) {
      append(shape, order[i], actions);
      const auto last = last_backward.find(order[i].stage);
      if (reduces && last != last_backward.end() && last->second == i) {
        actions.push_back({ActionOp::reduce_gradients, order[i].stage, 0});
      }
    }
  }
  return schedule;
}

Result<PipelineSchedule> make_schedule(const Shape& shape, const StageTimes& times, bool reduces) {
  if (Status status = check(shape); !status.ok()) return status;
  if (shape.kind == ScheduleKind::interleaved) {
    if (Status status = check(times, shape); !status.ok()) return status;
  }
  return complete(shape, compute_orders(shape, times), reduces);
}

}  // namespace shoal::pipeline
