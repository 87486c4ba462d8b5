#include "torch_plugin/parallel/runtime/step_run.h"

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>

#include "src/pipeline/orders.h"
#include "torch_plugin/parallel/gradients/missing_gradient.h"
#include "torch_plugin/parallel/recompute/recompute.h"

namespace shoal::parallel {
namespace {

using pipeline::Action;
using pipeline::ActionOp;
using std::chrono::steady_clock;

const char* text_of(ActionOp op) {
  switch (op) {
    case ActionOp::forward:
      return "forward";
    case ActionOp::backward:
      return "backward";
    case ActionOp::send_activation:
      return "sending the activation";
    case ActionOp::recv_activation:
      return "receiving the activation";
    case ActionOp::send_gradient:
      return "sending the gradient";
    case ActionOp::recv_gradient:
      return "receiving the gradient";
    default:
      return "an action that does not run";
  }
}

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

std::string shape_text(const at::Tensor& tensor) { return c10::str(tensor.scalar_type(), " ", tensor.sizes()); }

/// All undefined tensors are the same one, which means nothing.
bool is_same(const at::Tensor& a, const at::Tensor& b) { return a.defined() && a.is_same(b); }

}  // namespace

StepRun::StepRun(Communicator& communicator, const StepTask& task, CutLayouts& layouts, StepMessages::Deadline deadline)
    : communicator_(communicator),
      task_(task),
      most_held_(pipeline::most_held_by_stage(task.shape, {task.actions})),
      messages_(communicator, task.streams, task.shape, task.microbatches, task.actions, layouts, deadline),
      place_(StepPlace::between_actions(communicator.rank(), task.chunks.size(), "start of the step")) {}

std::vector<at::Tensor> StepRun::run() {
  try {
    run_all();
  } catch (...) {
    // Streams that have failed go on with undefined values, of which the exception may tell.
    const Status streams = messages_.status();
    const StepError error(place_, streams.ok() ? status_of_current_exception() : streams);
    communicator_.abort(error.what());  // does nothing where an error of a call has closed it
    if (task_.gradients != nullptr) task_.gradients->abort(error.what());
    throw error;
  }
  return std::move(results_);
}

void StepRun::run_all() {
  start_ = steady_clock::now();
  messages_.start();
  if (task_.trains && task_.batch_norm == BatchNormStatistics::deferred) statistics_.emplace(task_.chunks);
  if (task_.gradients != nullptr) {
    place_.action = "preparing the reduction of the gradients";
    task_.gradients->begin_step(task_.microbatches.batch());
  }
  const int first = task_.shape.rank_of(0);
  const int last = task_.shape.rank_of(task_.shape.stages() - 1);
  const bool has_labels = task_.trains && task_.target_layout.is_tensor();
  if (place_.rank == first && task_.targets.defined()) targets_ = task_.targets.to(task_.device);
  if (has_labels && first != last) {
    place_.action = "moving the targets from the first to the last stage";
    if (place_.rank == first) messages_.send_labels(task_.targets, last);
    if (place_.rank == last) messages_.expect_labels(task_.target_layout);
  }
  for (const Action& action : task_.actions) {
    set_place(action);
    messages_.release_sent();
    throw_unless_ok(communicator_.status());  // a failure elsewhere ends this rank before it computes on
    throw_unless_ok(messages_.status());
    run_action(action);
  }
  place_ = StepPlace::between_actions(place_.rank, task_.chunks.size(), "waiting for the messages of the step");
  messages_.finish();
  if (task_.gradients != nullptr) {
    place_.action = "reducing the gradients over the replicas";
    task_.gradients->finish_step();
  }
  if (statistics_) statistics_->commit();  // behind all that may fail
  statistics_.reset();
  durations_.step_s = seconds_since(start_);
}

void StepRun::set_place(const Action& action) {
  const bool is_message = is_send(action.op) || is_recv(action.op);
  place_ = {place_.rank, action.stage, action.microbatch, text_of(action.op),
            is_message ? task_.shape.rank_of(peer_stage(action)) : -1};
}

void StepRun::run_action(const Action& action) {
  Held& held = this->held(action.stage, action.microbatch);
  switch (action.op) {
    case ActionOp::recv_activation:
      held.input = messages_.receive(action).to(task_.device);
      return;
    case ActionOp::recv_gradient:
      held.output_gradient = messages_.receive(action).to(task_.device);
      return;
    case ActionOp::forward:
    case ActionOp::backward:
      return compute(action);
    case ActionOp::send_activation:
    case ActionOp::send_gradient:
      return send(action);
    default:
      throw std::logic_error("this action does not run");
  }
}

void StepRun::compute(const Action& action) {
  const bool is_backward = action.op == ActionOp::backward;
  const double begin_s = seconds_since(start_);
  if (is_backward) {
    backward(action);
  } else {
    forward(action);
  }
  // A message through host memory would wait for the device: that is time in which this rank computes.
  if (!task_.device.is_cpu() && task_.streams == nullptr)
    c10::impl::VirtualGuardImpl(task_.device.type()).synchronizeDevice(task_.device.index());
  const double end_s = seconds_since(start_);
  durations_.busy_s += end_s - begin_s;
  durations_.actions.push_back({is_backward, action.stage, action.microbatch, begin_s, end_s});
}

bool StepRun::is_here(int stage) const {
  return stage >= 0 && stage < task_.shape.stages() && task_.shape.rank_of(stage) == place_.rank;
}

bool StepRun::recomputes(int stage) const {
  const auto chunk = static_cast<std::size_t>(stage / task_.shape.ranks);
  return task_.trains && task_.recomputes[chunk] && most_held_[static_cast<std::size_t>(stage)] > 1;
}

at::Tensor StepRun::input_of(const Action& action) {
  const Microbatches& microbatches = task_.microbatches;
  if (action.stage == 0) {
    const at::Tensor images =
        task_.images.narrow(0, microbatches.begin(action.microbatch), microbatches.size(action.microbatch));
    return images.detach().to(task_.device);
  }
  at::Tensor input = held(action.stage, action.microbatch).input;
  if (is_here(action.stage - 1)) input = held(action.stage - 1, action.microbatch).output.detach();
  if (!task_.trains) return input;
  TORCH_CHECK_VALUE(input.is_floating_point() || input.is_complex(), "its input is ", shape_text(input),
                    ", which can have no gradient; cut the model where a tensor of a floating type crosses");
  return input.requires_grad_();
}

at::Tensor StepRun::output_of(const Action& action, const at::Tensor& input) {
  std::optional<UnitSeeds> seeds;
  if (task_.seed) {
    MicrobatchSeed seed = *task_.seed;
    seed.microbatch = action.microbatch;
    seeds.emplace(seed, input.device());
    UnitSeeds::begin_unit(-1 - action.stage);  // for a stage that is not of a chain
  }
  // Not in the second run of a stage that recomputes.
  std::optional<BatchNormObserver> observer;
  const bool is_smallest = action.microbatch == task_.microbatches.count() - 1;
  if (statistics_ || (task_.looks_for_few_values && is_smallest)) {
    observer.emplace([&](const BatchNormCall& call) { on_batch_norm(action, call); });
  }
  const std::shared_ptr<Unit>& chunk = chunk_of(action.stage);
  try {
    return recomputes(action.stage) ? recompute(chunk, input) : chunk->forward(input);
  } catch (const c10::Error& error) {
    rethrow_single_value(error, task_.microbatches, action.microbatch);
    throw;
  }
}

void StepRun::on_batch_norm(const Action& action, const BatchNormCall& call) {
  if (task_.looks_for_few_values && action.microbatch == task_.microbatches.count() - 1 && call.values() < kEnoughValues) {
    std::string name = "without a name";
    for (const BatchNormLayer& layer : batch_norm_layers(*chunk_of(action.stage))) {
      if (is_same(*layer.running_mean, call.running_mean) || is_same(*layer.weight, call.weight)) name = layer.name;
    }
    few_values_.push_back({action.stage, std::move(name), call.values()});
  }
  if (statistics_) statistics_->add(call);
}

void StepRun::forward(const Action& action) {
  Held& held = this->held(action.stage, action.microbatch);
  held.input = input_of(action);
  const std::int64_t images = task_.microbatches.size(action.microbatch);
  held.output = output_of(action, held.input);
  TORCH_CHECK_VALUE(held.output.defined(), "the output is undefined");
  TORCH_CHECK_VALUE(held.output.dim() >= 1 && held.output.size(0) == images, "the output is ", shape_text(held.output), " for ",
                    images, " images; its first dimension must count them");
  if (task_.trains) {
    if (is_last(action.stage)) held.output = scaled_loss(held.output, action.microbatch);
    // A stage whose parameters are all frozen, in front of all others, has no graph.
    if (held.output.requires_grad()) held.root = ::torch::autograd::impl::gradient_edge(held.output);
    return;
  }
  held.input.reset();
  if (is_here(action.stage - 1)) held_.erase({action.stage - 1, action.microbatch});
  if (!is_last(action.stage)) return;
  results_.push_back(held.output.to(at::kCPU));
  held_.erase({action.stage, action.microbatch});
}

at::Tensor StepRun::scaled_loss(const at::Tensor& output, int microbatch) {
  place_.action = "loss";
  const bool waits = task_.target_layout.is_tensor() && !targets_.defined();
  if (waits) targets_ = messages_.labels().to(task_.device);
  const Microbatches& microbatches = task_.microbatches;
  const at::Tensor target =
      targets_.defined() ? targets_.narrow(0, microbatches.begin(microbatch), microbatches.size(microbatch)) : targets_;
  const at::Tensor loss = task_.loss(output, target);
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1 && loss.is_floating_point(), "the loss is ",
                    loss.defined() ? shape_text(loss) : "undefined", "; it must be one floating-point number");
  TORCH_CHECK_VALUE(loss.requires_grad(), "the loss does not depend on a parameter of the last stage or on its input");
  const auto value = loss.item<double>();
  TORCH_CHECK_VALUE(std::isfinite(value), "the loss is ", value, ", which is not finite");
  results_.push_back(loss.detach().reshape({}));
  return task_.reduction == LossReduction::mean ? loss * microbatches.share(microbatch) : loss;
}

void StepRun::backward(const Action& action) {
  Held& held = this->held(action.stage, action.microbatch);
  if (is_here(action.stage + 1)) {
    Held& next = this->held(action.stage + 1, action.microbatch);
    held.output_gradient = std::move(next.input_gradient);
    held_.erase({action.stage + 1, action.microbatch});
  }
  const bool is_last_backward = action.microbatch == task_.microbatches.count() - 1;
  if (task_.gradients != nullptr && is_last_backward) {
    task_.gradients->before_last_backward(action.stage / task_.shape.ranks);
  }
  if (held.root.is_valid()) {
    if (is_last(action.stage)) held.output_gradient = at::ones_like(held.output);
    ::torch::autograd::Engine::get_default_engine().execute({std::move(held.root)}, {std::move(held.output_gradient)},
                                                            /*keep_graph=*/false, /*create_graph=*/false,
                                                            /*accumulate_grad=*/true);
  }
  const bool is_first = action.stage == 0;
  if (!is_first) {
    held.input_gradient = held.input.grad();
    TORCH_CHECK_VALUE(held.input_gradient.defined(),
                      "the output does not depend on the input, so the stage before has no gradient");
  }
  if (is_last_backward) check_gradients(action.stage);
  held.input.reset();
  held.output.reset();
  held.output_gradient.reset();
  if (is_first) held_.erase({action.stage, action.microbatch});
}

void StepRun::check_gradients(int stage) const {
  for (const auto& named : chunk_of(stage)->named_parameters()) {
    const std::string refusal = refusal_without_gradient(named.key(), named.value());
    TORCH_CHECK_VALUE(refusal.empty(), refusal);
  }
}

void StepRun::send(const Action& action) {
  Held& held = this->held(action.stage, action.microbatch);
  const bool is_gradient = action.op == ActionOp::send_gradient;
  messages_.send(action, is_gradient ? held.input_gradient : held.output);
  held.output.reset();
  if (is_gradient || !task_.trains) held_.erase({action.stage, action.microbatch});
}

}  // namespace shoal::parallel
