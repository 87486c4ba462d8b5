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

/// 1f1b with four microbatches, and the route of its messages.
inline PipelineOptions device_options(MessageRoute messages = MessageRoute::host_memory,
                                      c10::DeviceType cuda_devices = c10::DeviceType::CUDA) {
  return {
      .schedule = pipeline::ScheduleKind::one_f_one_b, .microbatches = 4, .messages = messages, .cuda_devices = cuda_devices};
}

/// Two steps and an evaluation of `ranks` ranks, each on its device, with `chunks` stages each. `reference`: the device of the
/// one process.
inline void check_devices(int ranks, const std::function<at::Device(int rank)>& device_of, at::Device reference,
                          const PipelineOptions& options = device_options(), int chunks = 1) {
  run_ranks(ranks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const at::Device device = device_of(rank);
    std::vector<std::shared_ptr<Unit>> stages;
    for (int chunk = 0; chunk < chunks; ++chunk) stages.push_back(std::make_shared<DenseUnit>(chunk * ranks + rank, device));
    PipelineModel model(stages, communicator, options);
    ::torch::manual_seed(1);
    const at::Tensor images = ::torch::randn({10, kFeatures});
    const at::Tensor targets = ::torch::randn({10, kFeatures});
    OneProcess alone(0);
    for (int each = 0; each < ranks * chunks; ++each) alone.units.push_back(std::make_shared<DenseUnit>(each, reference));
    const auto on_cpu = [](std::vector<at::Tensor> tensors) {
      for (at::Tensor& tensor : tensors) tensor = tensor.to(at::kCPU);
      return tensors;
    };
    const at::Tensor far_images = images.to(reference);
    for (int step = 0; step < 2; ++step) {
      const StepOutput losses = model.step(images.to(device), targets, square_error);
      check_all_equal(losses.outputs(), on_cpu(alone.step(far_images, targets.to(reference), 4, square_error)), "loss");
    }
    const StepOutput outputs = model.evaluate(images);
    check_all_equal(outputs.outputs(), on_cpu(alone.evaluate(far_images, 4)), "output");
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const auto wanted = alone.units[static_cast<std::size_t>(chunk * ranks + rank)]->named_parameters();
      for (const auto& found : stages[static_cast<std::size_t>(chunk)]->named_parameters()) {
        check(found.value().grad().device() == device, "the gradient is on the stage's device");
        check_equal(found.value().grad().to(at::kCPU), wanted[found.key()].grad().to(at::kCPU), "gradient of " + found.key());
      }
    }
  });
}

}  // namespace shoal::parallel::pipeline_testing
