#include "src/pipeline/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "src/pipeline/execution.h"
#include "src/pipeline/faults.h"

namespace shoal::pipeline {
namespace {

constexpr std::size_t kOps = static_cast<std::size_t>(ActionOp::reduce_gradients) + 1;

/// Where an action is: its rank follows from its stage. -1 = nowhere.
using Position = int;

/// Looks at counts, positions and held microbatches; not at what ranks wait for.
class StaticCheck {
 public:
  StaticCheck(const PipelineSchedule& schedule, const VerifyOptions& options, Faults& faults)
      : schedule_(schedule), shape_(schedule.shape), options_(options), faults_(faults) {}

  void run() {
    if (Status status = check(shape_); !status.ok()) {
      faults_.add(FaultKind::malformed, "the shape is not valid: " + status.message());
      return;
    }
    if (schedule_.ranks.size() != static_cast<std::size_t>(shape_.ranks)) {
      faults_.add(FaultKind::malformed, fmt::format("actions of {} ranks for {} ranks", schedule_.ranks.size(), shape_.ranks));
      return;
    }
    for (int rank = 0; rank < shape_.ranks; ++rank) check_actions(rank);
    if (!faults_.none()) return;  // the checks below rely on valid actions
    find_positions();
    for (int stage = 0; stage < shape_.stages(); ++stage) {
      for (int microbatch = 0; microbatch < shape_.microbatches; ++microbatch) check_microbatch(stage, microbatch);
      check_reduction(stage);
    }
    check_streams();
    if (faults_.none() && options_.pairs_in_order) check_pairs();
    if (faults_.none()) check_memory();
  }

 private:
  [[nodiscard]] const Actions& actions_of(int stage) const {
    return schedule_.ranks[static_cast<std::size_t>(shape_.rank_of(stage))];
  }

  [[nodiscard]] bool crosses(int stage, int other) const {
    return other >= 0 && other < shape_.stages() && shape_.rank_of(stage) != shape_.rank_of(other);
  }

  [[nodiscard]] bool splits() const { return shape_.kind == ScheduleKind::zb_h1; }
  [[nodiscard]] bool trains() const { return shape_.kind != ScheduleKind::forward_only; }

  // ---- single actions ----

  void check_actions(int rank) {
    const Actions& actions = schedule_.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (const std::string what = problem_of(rank, actions[i]); !what.empty()) {
        faults_.add(FaultKind::malformed, rank, i, actions[i], what);
      }
    }
  }

  /// Empty, or why an action cannot be in any schedule of this shape.
  [[nodiscard]] std::string problem_of(int rank, const Action& action) const {
    if (action.op > ActionOp::reduce_gradients) return "unknown op";
    if (action.stage < 0 || action.stage >= shape_.stages()) return fmt::format("there are {} stages", shape_.stages());
    if (shape_.rank_of(action.stage) != rank) return fmt::format("the stage is on rank {}", shape_.rank_of(action.stage));
    const int most = action.op == ActionOp::reduce_gradients ? 1 : shape_.microbatches;
    if (action.microbatch < 0 || action.microbatch >= most) {
      return fmt::format("microbatch {} of {}", action.microbatch, shape_.microbatches);
    }
    const bool whole = action.op == ActionOp::backward;
    const bool half = action.op == ActionOp::backward_input || action.op == ActionOp::backward_weight;
    if ((whole && splits()) || (half && !splits()) || (action.op != ActionOp::forward && is_compute(action.op) && !trains())) {
      return fmt::format("the schedule {} has no {}", to_string(shape_.kind), to_string(action.op));
    }
    if ((is_send(action.op) || is_recv(action.op)) && !crosses(action.stage, peer_stage(action))) {
      return fmt::format("no message goes between the stages {} and {}", action.stage, peer_stage(action));
    }
    return "";
  }

  // ---- counts and positions ----

  [[nodiscard]] std::size_t index(ActionOp op, int stage, int microbatch) const {
    return (static_cast<std::size_t>(op) * static_cast<std::size_t>(shape_.stages()) + static_cast<std::size_t>(stage)) *
               static_cast<std::size_t>(shape_.microbatches) +
           static_cast<std::size_t>(microbatch);
  }

  [[nodiscard]] Position position(ActionOp op, int stage, int microbatch) const {
    return positions_[index(op, stage, microbatch)];
  }

  void find_positions() {
    positions_.assign(index(static_cast<ActionOp>(kOps), 0, 0), -1);
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const Actions& actions = schedule_.ranks[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < actions.size(); ++i) {
        Position& known = positions_[index(actions[i].op, actions[i].stage, actions[i].microbatch)];
        if (known >= 0) {
          faults_.add(FaultKind::twice, rank, i, actions[i], fmt::format("is also action {}", known));
        } else {
          known = static_cast<Position>(i);
        }
        reduces_ = reduces_ || actions[i].op == ActionOp::reduce_gradients;
      }
    }
  }

  void missing(ActionOp op, int stage, int microbatch) {
    faults_.add(FaultKind::missing, shape_.rank_of(stage), std::nullopt, {op, stage, microbatch},
                fmt::format("the rank has no {} of stage {} for microbatch {}", to_string(op), stage, microbatch));
  }

  /// `before` must exist, and be in front of `after` on the same rank.
  void expect_order(const Action& before, const Action& after) {
    const Position first = position(before.op, before.stage, before.microbatch);
    const Position second = position(after.op, after.stage, after.microbatch);
    if (first < 0 || second < 0 || first < second) return;  // a missing action is a fault by itself
    faults_.add(FaultKind::order, shape_.rank_of(after.stage), static_cast<std::size_t>(second), after,
                fmt::format("needs action {} ({}) before it", first, to_text(before, true)));
  }

  void check_microbatch(int stage, int microbatch) {
    const auto action = [&](ActionOp op) { return Action{op, stage, microbatch}; };
    const auto expect = [&](ActionOp op) {
      if (position(op, stage, microbatch) < 0) missing(op, stage, microbatch);
    };
    const ActionOp backward = splits() ? ActionOp::backward_input : ActionOp::backward;
    expect(ActionOp::forward);
    if (trains()) {
      expect(backward);
      expect_order(action(ActionOp::forward), action(backward));
    }
    if (splits()) {
      expect(ActionOp::backward_weight);
      expect_order(action(backward), action(ActionOp::backward_weight));
    }
    check_transfer(stage, stage + 1, microbatch, ActionOp::forward, ActionOp::send_activation, ActionOp::recv_activation);
    if (trains()) {
      check_transfer(stage, stage - 1, microbatch, backward, ActionOp::send_gradient, ActionOp::recv_gradient);
    }
  }

  /// What stage `from` computes by `op` reaches stage `to` before that computes.
  void check_transfer(int from, int to, int microbatch, ActionOp op, ActionOp send, ActionOp recv) {
    if (to < 0 || to >= shape_.stages()) return;
    if (!crosses(from, to)) {
      expect_order({op, from, microbatch}, {op, to, microbatch});
      return;
    }
    const bool sent = position(send, from, microbatch) >= 0;
    const bool received = position(recv, to, microbatch) >= 0;
    if (!sent && !received) missing(send, from, microbatch);  // only one of them missing: check_streams() reports it
    expect_order({op, from, microbatch}, {send, from, microbatch});
    expect_order({recv, to, microbatch}, {op, to, microbatch});
  }

  void check_reduction(int stage) {
    if (!reduces_) return;
    if (position(ActionOp::reduce_gradients, stage, 0) < 0) missing(ActionOp::reduce_gradients, stage, 0);
    const ActionOp last = splits() ? ActionOp::backward_weight : ActionOp::backward;
    for (int microbatch = 0; microbatch < shape_.microbatches; ++microbatch) {
      expect_order({last, stage, microbatch}, {ActionOp::reduce_gradients, stage, 0});
    }
  }

  // ---- messages ----

  void check_streams() {
    for (int stage = 0; stage < shape_.stages(); ++stage) {
      for (const auto& [to, send, recv] : {std::tuple{stage + 1, ActionOp::send_activation, ActionOp::recv_activation},
                                           std::tuple{stage - 1, ActionOp::send_gradient, ActionOp::recv_gradient}}) {
        if (crosses(stage, to)) check_stream({stage, send}, {to, recv});
      }
    }
  }

  using End = std::pair<int, ActionOp>;

  [[nodiscard]] std::vector<std::size_t> positions_of(const End& end) const {
    std::vector<std::size_t> found;
    const Actions& actions = actions_of(end.first);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].stage == end.first && actions[i].op == end.second) found.push_back(i);
    }
    return found;
  }

  void unmatched(const End& end, std::size_t at, const std::string& what) {
    faults_.add(FaultKind::unmatched, shape_.rank_of(end.first), at, actions_of(end.first)[at], what);
  }

  void check_stream(const End& sender, const End& receiver) {
    const auto sends = positions_of(sender);
    const auto recvs = positions_of(receiver);
    const std::size_t both = std::min(sends.size(), recvs.size());
    for (std::size_t k = 0; k < both; ++k) {
      const int sent = actions_of(sender.first)[sends[k]].microbatch;
      const int received = actions_of(receiver.first)[recvs[k]].microbatch;
      if (sent == received) continue;
      unmatched(sender, sends[k],
                fmt::format("is message {} from stage {} to stage {}, where the receive of microbatch {} is message {}", k,
                            sender.first, receiver.first, received, k));
      return;  // later messages of the stream are shifted by this one
    }
    const auto counts = fmt::format("{} sends and {} receives between the stages {} and {}", sends.size(), recvs.size(),
                                    sender.first, receiver.first);
    if (sends.size() > both) unmatched(sender, sends[both], counts);
    if (recvs.size() > both) unmatched(receiver, recvs[both], counts);
  }

  /// The messages from one rank to another, as the end on `rank` has them.
  struct PairEnd {
    std::vector<Action> messages;  // with the stage that receives
    std::vector<std::size_t> positions;
  };

  [[nodiscard]] PairEnd pair_end(int rank, int peer, bool sends) const {
    PairEnd end;
    const Actions& actions = schedule_.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action action = actions[i];
      if (!(sends ? is_send(action.op) : is_recv(action.op)) || shape_.rank_of(peer_stage(action)) != peer) continue;
      if (sends) {
        action.stage = peer_stage(action);
        action.op = action.op == ActionOp::send_activation ? ActionOp::recv_activation : ActionOp::recv_gradient;
      }
      end.messages.push_back(action);
      end.positions.push_back(i);
    }
    return end;
  }

  void check_pairs() {
    for (int from = 0; from < shape_.ranks; ++from) {
      for (int to = 0; to < shape_.ranks; ++to) {
        if (from == to) continue;
        const PairEnd sent = pair_end(from, to, true);
        const PairEnd received = pair_end(to, from, false);
        const auto [at, other] = std::ranges::mismatch(sent.messages, received.messages);
        if (at == sent.messages.end()) continue;
        const auto k = static_cast<std::size_t>(at - sent.messages.begin());
        const std::size_t position = sent.positions[k];
        faults_.add(FaultKind::unmatched, from, position, schedule_.ranks[static_cast<std::size_t>(from)][position],
                    fmt::format("is message {} to rank {}, which expects {} there", k, to, to_text(*other, true)));
      }
    }
  }

  // ---- memory ----

  void check_memory() {
    if (options_.held_bound.empty()) return;
    if (options_.held_bound.size() != schedule_.ranks.size()) {
      faults_.add(FaultKind::malformed, fmt::format("{} bounds for {} ranks", options_.held_bound.size(), shape_.ranks));
      return;
    }
    const ActionOp last = splits() ? ActionOp::backward_weight : ActionOp::backward;
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const int bound = options_.held_bound[static_cast<std::size_t>(rank)];
      int held = 0;
      const Actions& actions = schedule_.ranks[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].op == last) --held;
        if (actions[i].op != ActionOp::forward) continue;
        held = trains() ? held + 1 : 1;
        if (held <= bound) continue;
        faults_.add(FaultKind::memory, rank, i, actions[i], fmt::format("holds {} microbatches, its bound is {}", held, bound));
        break;
      }
    }
  }

  const PipelineSchedule& schedule_;
  const Shape& shape_;
  const VerifyOptions& options_;
  Faults& faults_;
  std::vector<Position> positions_;  // by index()
  bool reduces_ = false;
};

}  // namespace

std::string_view to_string(FaultKind kind) noexcept {
  switch (kind) {
    case FaultKind::malformed:
      return "malformed";
    case FaultKind::missing:
      return "missing";
    case FaultKind::twice:
      return "twice";
    case FaultKind::order:
      return "order";
    case FaultKind::unmatched:
      return "unmatched";
    case FaultKind::deadlock:
      return "deadlock";
    case FaultKind::memory:
      return "memory";
    case FaultKind::replicas_differ:
      return "replicas_differ";
  }
  return "?";
}

std::vector<Fault> verify(const PipelineSchedule& schedule, const VerifyOptions& options) {
  Faults faults;
  StaticCheck(schedule, options, faults).run();
  if (faults.none()) find_deadlock(schedule, options.sends, faults);
  return faults.take();
}

std::vector<Fault> verify_replicas(std::span<const PipelineSchedule> replicas, const VerifyOptions& options) {
  Faults faults;
  for (std::size_t replica = 0; replica < replicas.size(); ++replica) {
    const PipelineSchedule& schedule = replicas[replica];
    const PipelineSchedule& first = replicas.front();
    if (replica == 0) {
      for (Fault& fault : verify(schedule, options)) faults.add(std::move(fault));
      continue;
    }
    if (schedule.shape != first.shape || schedule.ranks.size() != first.ranks.size()) {
      faults.add(FaultKind::replicas_differ, fmt::format("replica {} has another shape than replica 0", replica));
      continue;
    }
    for (std::size_t rank = 0; rank < first.ranks.size(); ++rank) {
      const Actions& mine = schedule.ranks[rank];
      const Actions& theirs = first.ranks[rank];
      const auto [at, other] = std::ranges::mismatch(mine, theirs);
      if (at == mine.end() && other == theirs.end()) continue;
      const auto text = [](const auto& it, const Actions& actions) {
        return it == actions.end() ? std::string("nothing") : to_text(*it, true);
      };
      const auto place = static_cast<std::size_t>(at - mine.begin());
      faults.add({FaultKind::replicas_differ, static_cast<int>(rank), static_cast<int>(place), -1, -1,
                  fmt::format("rank {} action {}: replica {} has {}, replica 0 has {}", rank, place, replica, text(at, mine),
                              text(other, theirs))});
    }
  }
  return faults.take();
}

Status to_status(const std::vector<Fault>& faults) {
  if (faults.empty()) return {};
  std::string message = fmt::format("{}: {}", to_string(faults.front().kind), faults.front().message);
  if (faults.size() > 1) message += fmt::format(" (and {} more faults)", faults.size() - 1);
  return {StatusCode::internal, message};
}

}  // namespace shoal::pipeline
