// A pipeline whose stages are on devices, compared bit for bit with one process on the CPU.
#include <memory>
#include <string>
#include <vector>

#include "tests/torch/fake_device.h"
#include "tests/torch/pipeline_ranks.h"

namespace shoal::parallel::pipeline_testing {
namespace {

constexpr int kRanks = 3;
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

/// Rank 1 computes on the CPU.
at::Device device_of(int rank) { return rank == 1 ? at::Device(at::kCPU) : fake::device(rank); }

at::Tensor square_error(const at::Tensor& output, const at::Tensor& target) { return (output - target).square().mean(); }

TEST(PipelineDevices, StagesOnDevicesTrainAsOneProcess) {
  run_ranks(kRanks, [](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto stage = std::make_shared<DenseUnit>(rank, device_of(rank));
    PipelineModel model(stage, communicator, {.schedule = pipeline::ScheduleKind::one_f_one_b, .microbatches = 4});
    ::torch::manual_seed(1);
    const at::Tensor images = ::torch::randn({10, kFeatures});
    const at::Tensor targets = ::torch::randn({10, kFeatures});
    const StepOutput losses = model.step(images.to(device_of(rank)), targets, square_error);
    const StepOutput outputs = model.evaluate(images);

    OneProcess alone(0);
    for (int each = 0; each < kRanks; ++each) alone.units.push_back(std::make_shared<DenseUnit>(each, at::kCPU));
    check_all_equal(losses.outputs(), alone.step(images, targets, 4, square_error), "loss");
    check_all_equal(outputs.outputs(), alone.evaluate(images, 4), "output");
    const auto wanted = alone.units[static_cast<std::size_t>(rank)]->named_parameters();
    for (const auto& found : stage->named_parameters()) {
      check(found.value().grad().device() == device_of(rank), "the gradient is on the stage's device");
      check_equal(found.value().grad().to(at::kCPU), wanted[found.key()].grad(), "gradient of " + found.key());
    }
  });
}

TEST(PipelineDevices, StagesOfRankShareDevice) {
  run_ranks(1, [](Communicator& communicator) {
    const std::vector<std::shared_ptr<Unit>> chunks{std::make_shared<DenseUnit>(0, at::kCPU),
                                                    std::make_shared<DenseUnit>(1, fake::device(1))};
    const auto make = [&] {
      PipelineModel(chunks, communicator, {.schedule = pipeline::ScheduleKind::virtual_stages, .microbatches = 1});
    };
    check_throws<c10::ValueError>(make, {"chunk 1", "weight", "fake:1", "cpu"});
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
