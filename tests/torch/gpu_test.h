// Tests that need a GPU: skipped without one, but failed where SHOAL_TEST_GPU says that there is one. tests/gpu/run runs them.
#pragma once

#include <cstdlib>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>

namespace shoal::testing {

/// All ranks of such a test share the first GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (has_cuda()) return;
    ASSERT_EQ(std::getenv("SHOAL_TEST_GPU"), nullptr) << "torch has no CUDA device";
    GTEST_SKIP() << "torch has no CUDA device";
  }
  static at::Device gpu() { return {at::kCUDA, 0}; }

 private:
  /// Asks in a child: a process that has started CUDA cannot fork ranks.
  static bool has_cuda() {
    const pid_t child = fork();
    if (child == 0) std::_Exit(::torch::cuda::is_available() ? 0 : 1);
    int outcome = -1;
    return waitpid(child, &outcome, 0) == child && outcome == 0;
  }
};

}  // namespace shoal::testing
