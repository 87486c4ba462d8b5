// Action: one thing that a rank does in a step of training; and its text form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/pipeline/shape.h"

namespace shoal::pipeline {

/// `backward` is a whole backward; `backward_input` and `backward_weight` are its halves.
enum class ActionOp : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_activation,   ///< the stage's output, to the next stage
  recv_activation,   ///< the stage's input, from the previous stage
  send_gradient,     ///< the gradient of the stage's input, to the previous stage
  recv_gradient,     ///< the gradient of the stage's output, from the next stage
  reduce_gradients,  ///< starts the sum over the replicas of the stage's gradients; waited for at the end of the step
};
std::string_view to_string(ActionOp op) noexcept;

[[nodiscard]] constexpr bool is_compute(ActionOp op) noexcept { return op <= ActionOp::backward_weight; }
[[nodiscard]] constexpr bool is_send(ActionOp op) noexcept {
  return op == ActionOp::send_activation || op == ActionOp::send_gradient;
}
[[nodiscard]] constexpr bool is_recv(ActionOp op) noexcept {
  return op == ActionOp::recv_activation || op == ActionOp::recv_gradient;
}

struct Action {
  ActionOp op = ActionOp::forward;
  int stage = 0;
  int microbatch = 0;  ///< reduce_gradients: 0

  bool operator==(const Action&) const = default;
};

/// The actions of one rank, in order.
using Actions = std::vector<Action>;

/// The actions of all ranks of one pipeline.
struct PipelineSchedule {
  Shape shape;
  std::vector<Actions> ranks;

  bool operator==(const PipelineSchedule&) const = default;
};

/// The stage at the other end of a message.
[[nodiscard]] constexpr int peer_stage(const Action& action) noexcept {
  const bool forwards = action.op == ActionOp::send_activation || action.op == ActionOp::recv_gradient;
  return action.stage + (forwards ? 1 : -1);
}

/// "F3", "B3", "I3", "W3"; ">F3" and "<F3" for sending and receiving an activation, ">B3" and "<B3" for a gradient, "R" for
/// reduce_gradients. With `name_stage` the stage is in front: "5F3".
std::string to_text(const Action& action, bool name_stage);

/// Compute actions, and others if `messages`, separated by spaces. Stages are named if the rank has several.
std::string to_text(const Shape& shape, const Actions& actions, bool messages = false);

/// "rank 1 action 4 (F3 of stage 1)", for messages.
std::string describe(int rank, std::size_t position, const Action& action);

}  // namespace shoal::pipeline
