// Pipelines with stages on one GPU, which several ranks share. tests/gpu/run runs it where there is one.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/torch/pipeline_devices.h"

namespace shoal::parallel::pipeline_testing {
namespace {

/// Asks in a child: a process that has started CUDA cannot fork ranks.
bool has_cuda() {
  const pid_t child = fork();
  if (child == 0) std::_Exit(::torch::cuda::is_available() ? 0 : 1);
  int outcome = -1;
  return waitpid(child, &outcome, 0) == child && outcome == 0;
}

TEST(PipelineCuda, StagesOnGpuTrainAsOneProcess) {
  if (!has_cuda()) {
    ASSERT_EQ(std::getenv("SHOAL_TEST_GPU"), nullptr) << "torch has no CUDA device";
    GTEST_SKIP() << "torch has no CUDA device";
  }
  for (const int ranks : {1, 2, 4}) check_devices(ranks, [](int) { return at::Device(at::kCUDA, 0); }, {at::kCUDA, 0});
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
