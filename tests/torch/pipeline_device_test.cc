// Pipelines with stages on the fake device.
#include <memory>
#include <vector>

#include "tests/torch/fake_device.h"
#include "tests/torch/pipeline_devices.h"

namespace shoal::parallel::pipeline_testing {
namespace {

TEST(PipelineDevices, StagesOnDevicesTrainAsOneProcess) {
  const auto device_of = [](int rank) { return rank == 1 ? at::Device(at::kCPU) : fake::device(rank); };
  check_devices(3, device_of, at::kCPU);
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
