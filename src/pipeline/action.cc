#include "src/pipeline/action.h"

#include <fmt/format.h>

namespace shoal::pipeline {

std::string_view to_string(ActionOp op) noexcept {
  switch (op) {
    case ActionOp::forward:
      return "forward";
    case ActionOp::backward:
      return "backward";
    case ActionOp::backward_input:
      return "backward_input";
    case ActionOp::backward_weight:
      return "backward_weight";
    case ActionOp::send_activation:
      return "send_activation";
    case ActionOp::recv_activation:
      return "recv_activation";
    case ActionOp::send_gradient:
      return "send_gradient";
    case ActionOp::recv_gradient:
      return "recv_gradient";
    case ActionOp::reduce_gradients:
      return "reduce_gradients";
  }
  return "?";
}

std::string to_text(const Action& action, bool name_stage) {
  constexpr std::string_view kTexts[] = {"F", "B", "I", "W", ">F", "<F", ">B", "<B"};
  const std::string stage = name_stage ? fmt::format("{}", action.stage) : "";
  if (action.op >= ActionOp::reduce_gradients) return stage + (action.op == ActionOp::reduce_gradients ? "R" : "?");
  return fmt::format("{}{}{}", stage, kTexts[static_cast<std::size_t>(action.op)], action.microbatch);
}

std::string to_text(const Shape& shape, const Actions& actions, bool messages) {
  std::string text;
  for (const Action& action : actions) {
    if (!messages && !is_compute(action.op)) continue;
    text += (text.empty() ? "" : " ") + to_text(action, shape.chunks > 1);
  }
  return text;
}

std::string describe(int rank, std::size_t position, const Action& action) {
  return fmt::format("rank {} action {} ({} of stage {})", rank, position, to_text(action, false), action.stage);
}

}  // namespace shoal::pipeline
