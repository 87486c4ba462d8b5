// Pipelines with stages on one GPU, which several ranks share.
#include "tests/torch/gpu_test.h"
#include "tests/torch/pipeline_devices.h"

namespace shoal::parallel::pipeline_testing {
namespace {

class PipelineCuda : public testing::GpuTest {
 protected:
  static void check(int ranks, const PipelineOptions& options, int chunks = 1) {
    check_devices(
        ranks, [](int) { return gpu(); }, gpu(), options, chunks);
  }
};

TEST_F(PipelineCuda, StagesOnGpuTrainAsOneProcess) {
  for (const int ranks : {1, 2, 4}) check(ranks, device_options());
}

TEST_F(PipelineCuda, MessagesOnStreamsTrainAsOneProcess) {
  PipelineOptions options = device_options(MessageRoute::streams);
  for (const int ranks : {1, 2, 4}) check(ranks, options);
  options.schedule = pipeline::ScheduleKind::virtual_stages;
  check(2, options, 2);
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
