// Pipelines with stages on the fake device.
#include <memory>
#include <vector>

#include "tests/torch/fake_cuda_api.h"
#include "tests/torch/fake_device.h"
#include "tests/torch/pipeline_devices.h"

namespace shoal::parallel::pipeline_testing {
namespace {

TEST(PipelineDevices, StagesOnDevicesTrainAsOneProcess) {
  const auto device_of = [](int rank) { return rank == 1 ? at::Device(at::kCPU) : fake::device(rank); };
  check_devices(3, device_of, at::kCPU);
}

/// Messages on streams of the fake device, which is a CUDA for shoal. Ranks are processes, which share no memory of it.
class PipelineStreams : public ::testing::Test {
 protected:
  void SetUp() override { fake::cuda_behaviour().exports_memory = false; }
  void TearDown() override { fake::cuda_behaviour().exports_memory = true; }
  const PipelineOptions on_streams = device_options(MessageRoute::streams, c10::DeviceType::PrivateUse1);
};

TEST_F(PipelineStreams, TrainAsOneProcess) {
  for (const int ranks : {1, 2, 3}) check_devices(ranks, fake::device, at::kCPU, on_streams);
}

TEST_F(PipelineStreams, TrainWithSeveralStagesOfRank) {
  PipelineOptions options = on_streams;
  options.schedule = pipeline::ScheduleKind::virtual_stages;
  for (const int ranks : {2, 4}) check_devices(ranks, fake::device, at::kCPU, options, 2);
}

TEST_F(PipelineStreams, FailureOfOneRankIsNamedOnAll) {
  run_ranks(3, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    int calls = 0;
    const auto stage =
        std::make_shared<HookedUnit>(std::make_shared<DenseUnit>(rank, fake::device(rank)), [&](at::Tensor input) {
          if (rank == 1 && calls++ == 2) throw std::runtime_error("planted");
          return input;
        });
    PipelineModel model(stage, communicator, on_streams);
    const at::Tensor images = ::torch::randn({8, kFeatures});
    check_throws<StepError>([&] { model.step(images, images, square_error); }, {"rank 1", "microbatch 2", "planted"});
    check(fake::freed_memory_is_untouched(), "no stream wrote to memory of a message that failed");
  });
}

TEST_F(PipelineStreams, StageInHostMemoryIsRefused) {
  run_ranks(2, [&](Communicator& communicator) {
    const at::Device device = communicator.rank() == 1 ? at::Device(at::kCPU) : fake::device(0);
    const auto make = [&] {
      PipelineModel(std::make_shared<DenseUnit>(communicator.rank(), device), communicator, on_streams);
    };
    check_throws<c10::ValueError>(make, {"rank 1", "streams", "cpu"});
    check(communicator.status().ok(), "the communicator is open");
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
