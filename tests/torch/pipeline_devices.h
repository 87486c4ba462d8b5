// A pipeline with stages on devices, compared bit for bit with one process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/torch/pipeline_ranks.h"

namespace shoal::parallel::pipeline_testing {

constexpr std::int64_t kFeatures = 6;

/// A dense layer and tanh, with the same values on every device.
struct DenseUnit final : Unit {
  DenseUnit(int stage, at::Device device) {
    ::torch::manual_seed(static_cast<std::uint64_t>(stage) + 7);
    weight = register_parameter("weight", ::torch::randn({kFeatures, kFeatures}).to(device));
    bias = register_parameter("bias", ::torch::randn({kFeatures}).to(device));
  }
  at::Tensor forward(at::Tensor input) override { return at::addmm(bias, input, weight).tanh(); }
  at::Tensor weight, bias;
};

inline at::Tensor square_error(const at::Tensor& output, const at::Tensor& target) { return (output - target).square().mean(); }

/// A step and an evaluation of `ranks` ranks, each on its device. `reference`: the device of the one process.
inline void check_devices(int ranks, const std::function<at::Device(int rank)>& device_of, at::Device reference) {
  run_ranks(ranks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto stage = std::make_shared<DenseUnit>(rank, device_of(rank));
    PipelineModel model(stage, communicator, {.schedule = pipeline::ScheduleKind::one_f_one_b, .microbatches = 4});
    ::torch::manual_seed(1);
    const at::Tensor images = ::torch::randn({10, kFeatures});
    const at::Tensor targets = ::torch::randn({10, kFeatures});
    const StepOutput losses = model.step(images.to(device_of(rank)), targets, square_error);
    const StepOutput outputs = model.evaluate(images);

    OneProcess alone(0);
    for (int each = 0; each < ranks; ++each) alone.units.push_back(std::make_shared<DenseUnit>(each, reference));
    const auto on_cpu = [](std::vector<at::Tensor> tensors) {
      for (at::Tensor& tensor : tensors) tensor = tensor.to(at::kCPU);
      return tensors;
    };
    const at::Tensor far_images = images.to(reference);
    check_all_equal(losses.outputs(), on_cpu(alone.step(far_images, targets.to(reference), 4, square_error)), "loss");
    check_all_equal(outputs.outputs(), on_cpu(alone.evaluate(far_images, 4)), "output");
    const auto wanted = alone.units[static_cast<std::size_t>(rank)]->named_parameters();
    for (const auto& found : stage->named_parameters()) {
      check(found.value().grad().device() == device_of(rank), "the gradient is on the stage's device");
      check_equal(found.value().grad().to(at::kCPU), wanted[found.key()].grad().to(at::kCPU), "gradient of " + found.key());
    }
  });
}

}  // namespace shoal::parallel::pipeline_testing
