#include "src/pipeline/orders.h"

#include <algorithm>
#include <set>
#include <utility>

namespace shoal::pipeline {
namespace {

/// `first` forwards, then a backward and a forward in turn, then the remaining backwards.
Actions in_turn(int stage, int microbatches, int first) {
  Actions order;
  int forwards = 0;
  for (; forwards < std::min(first, microbatches); ++forwards) order.push_back({ActionOp::forward, stage, forwards});
  for (int backward = 0; backward < microbatches; ++backward) {
    order.push_back({ActionOp::backward, stage, backward});
    if (forwards < microbatches) order.push_back({ActionOp::forward, stage, forwards++});
  }
  return order;
}

/// 1f1b whose rank s computes the gradients of the weights s microbatches late: they fill its bubble at the end of the step.
Actions with_split_backward(const Shape& shape, int stage) {
  Actions order;
  for (const Action& action : in_turn(stage, shape.microbatches, shape.ranks - stage)) {
    if (action.op == ActionOp::forward) {
      order.push_back(action);
      continue;
    }
    order.push_back({ActionOp::backward_input, stage, action.microbatch});
    if (action.microbatch >= stage) order.push_back({ActionOp::backward_weight, stage, action.microbatch - stage});
  }
  for (int microbatch = std::max(0, shape.microbatches - stage); microbatch < shape.microbatches; ++microbatch) {
    order.push_back({ActionOp::backward_weight, stage, microbatch});
  }
  return order;
}

/// Microbatches go through the chunks of a rank in groups of as many as there are ranks.
Actions over_chunks(const Shape& shape, int rank) {
  const int p = shape.ranks;
  const int v = shape.chunks;
  const int count = shape.microbatches * v;
  const auto action = [&](int k, ActionOp op) -> Action {
    const int chunk = k / p % v;
    const int microbatch = k / (p * v) * p + k % p;
    return {op, (op == ActionOp::forward ? chunk : v - 1 - chunk) * p + rank, microbatch};
  };
  Actions order;
  int forwards = 0;
  for (; forwards < std::min(count, 2 * (p - 1 - rank) + (v - 1) * p); ++forwards) {
    order.push_back(action(forwards, ActionOp::forward));
  }
  for (int backwards = 0; backwards < count; ++backwards) {
    if (forwards < count) order.push_back(action(forwards++, ActionOp::forward));
    order.push_back(action(backwards, ActionOp::backward));
  }
  return order;
}

Actions forwards_of(int stage, int microbatches) {
  Actions order;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    order.push_back({ActionOp::forward, stage, microbatch});
  }
  return order;
}

/// Plays a step from the beginning; what each rank begins is its order.
class ListScheduler {
 public:
  ListScheduler(const Shape& shape, const StageTimes& times, const std::vector<int>& caps)
      : times_(times), caps_(caps), microbatches_(shape.microbatches), ranks_(static_cast<std::size_t>(shape.ranks)) {
    for (Rank& rank : ranks_) {
      rank.activations.reserve(static_cast<std::size_t>(microbatches_));
      rank.gradients.reserve(static_cast<std::size_t>(microbatches_));
    }
    ranks_.front().activations.assign(static_cast<std::size_t>(microbatches_), 0);
  }

  std::vector<Actions> run() {
    moments_.insert(0);
    while (!moments_.empty()) {
      const std::int64_t now = *moments_.begin();
      moments_.erase(moments_.begin());
      for (bool began = true; began;) {
        began = false;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) began = begin(rank, now) || began;
      }
    }
    std::vector<Actions> orders;
    for (Rank& rank : ranks_) orders.push_back(std::move(rank.order));
    return orders;
  }

 private:
  struct Rank {
    Actions order;
    int forwards = 0;
    int backwards = 0;
    std::int64_t free_at = 0;               // the end of what it computes
    std::vector<std::int64_t> activations;  // when each arrives, as far as they have been sent
    std::vector<std::int64_t> gradients;    // likewise; of the last stage: when its forwards end
    std::int64_t activation_link_free = 0;  // when the link to the next rank has sent what was given to it
    std::int64_t gradient_link_free = 0;
  };

  static bool has_arrived(const std::vector<std::int64_t>& arrivals, int microbatch, std::int64_t now) {
    const auto index = static_cast<std::size_t>(microbatch);
    return index < arrivals.size() && arrivals[index] <= now;
  }

  /// Lets a rank begin its next action at `now`; false if it cannot begin any.
  bool begin(std::size_t at, std::int64_t now) {
    Rank& rank = ranks_[at];
    if (rank.free_at > now) return false;
    const StageTime& time = times_.stages[at];
    const int stage = static_cast<int>(at);
    if (rank.backwards < rank.forwards && has_arrived(rank.gradients, rank.backwards, now)) {
      rank.order.push_back({ActionOp::backward, stage, rank.backwards++});
      rank.free_at = now + time.backward_ps();
      if (at > 0) send(rank.free_at, times_.cuts[at - 1], rank.gradient_link_free, ranks_[at - 1].gradients);
    } else if (rank.forwards < microbatches_ && rank.forwards - rank.backwards < caps_[at] &&
               has_arrived(rank.activations, rank.forwards, now)) {
      rank.order.push_back({ActionOp::forward, stage, rank.forwards++});
      rank.free_at = now + time.forward_ps;
      if (at + 1 < ranks_.size()) {
        send(rank.free_at, times_.cuts[at], rank.activation_link_free, ranks_[at + 1].activations);
      } else {
        rank.gradients.push_back(rank.free_at);
      }
    } else {
      return false;
    }
    moments_.insert(rank.free_at);
    return true;
  }

  void send(std::int64_t ready, const CutTime& cut, std::int64_t& link_free, std::vector<std::int64_t>& arrivals) {
    link_free = std::max(ready, link_free) + cut.wire_ps;
    arrivals.push_back(link_free + cut.latency_ps);
    moments_.insert(arrivals.back());
  }

  const StageTimes& times_;
  const std::vector<int>& caps_;
  int microbatches_;
  std::vector<Rank> ranks_;
  std::set<std::int64_t> moments_;  // when something ends or arrives
};

/// Calls `count(stage, change)` for each change of the microbatches that the stages of `actions` hold.
template <typename Count>
void for_each_change(const Actions& actions, Count count) {
  const bool splits = std::ranges::any_of(actions, [](const Action& a) { return a.op == ActionOp::backward_weight; });
  const bool keeps = splits || std::ranges::any_of(actions, [](const Action& a) { return a.op == ActionOp::backward; });
  for (const Action& action : actions) {
    if (action.op == ActionOp::forward) {
      count(action.stage, 1);
      if (!keeps) count(action.stage, -1);
    }
    if (action.op == ActionOp::backward || action.op == ActionOp::backward_weight) count(action.stage, -1);
  }
}

}  // namespace

std::vector<Actions> list_schedule(const Shape& shape, const StageTimes& times, const std::vector<int>& caps) {
  return ListScheduler(shape, times, caps).run();
}

std::vector<Actions> compute_orders(const Shape& shape, const StageTimes& times) {
  if (shape.kind == ScheduleKind::interleaved) {
    return list_schedule(shape, times, std::vector<int>(static_cast<std::size_t>(shape.ranks), shape.active()));
  }
  std::vector<Actions> orders;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int following = shape.ranks - rank;  // stages from this one on
    switch (shape.kind) {
      case ScheduleKind::simple:
        orders.push_back(in_turn(rank, shape.microbatches, shape.microbatches));
        break;
      case ScheduleKind::one_f_one_b:
      case ScheduleKind::interleaved:
        orders.push_back(in_turn(rank, shape.microbatches, following));
        break;
      case ScheduleKind::eager_1f1b:
        orders.push_back(in_turn(rank, shape.microbatches, 2 * following - 1));
        break;
      case ScheduleKind::virtual_stages:
        orders.push_back(over_chunks(shape, rank));
        break;
      case ScheduleKind::zb_h1:
        orders.push_back(with_split_backward(shape, rank));
        break;
      case ScheduleKind::forward_only:
        orders.push_back(forwards_of(rank, shape.microbatches));
        break;
    }
  }
  return orders;
}

std::vector<int> most_held_by_stage(const Shape& shape, const std::vector<Actions>& ranks) {
  std::vector<int> held(static_cast<std::size_t>(shape.stages()));
  std::vector<int> most(held.size());
  for (const Actions& actions : ranks) {
    for_each_change(actions, [&](int stage, int change) {
      const auto at = static_cast<std::size_t>(stage);
      most[at] = std::max(most[at], held[at] += change);
    });
  }
  return most;
}

std::vector<int> most_held_by_rank(const Shape& shape, const std::vector<Actions>& ranks) {
  std::vector<int> most(static_cast<std::size_t>(shape.ranks));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    int held = 0;
    for_each_change(ranks[rank], [&](int, int change) { most[rank] = std::max(most[rank], held += change); });
  }
  return most;
}

}  // namespace shoal::pipeline
