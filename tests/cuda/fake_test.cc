// The fake is asynchronous, denies the host access to device memory, and records errors of its user.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "src/cuda/summary.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

using cuda::FlagOperation;
using testing::FakeCuda;

TEST(FakeCuda, HostCannotAccessDeviceMemory) {
  FakeCuda cuda({});
  auto* memory = static_cast<volatile char*>(*cuda.allocate(100));
  EXPECT_DEATH(static_cast<void>(memory[0] + 1), "");
  std::memset(cuda.host_address(const_cast<char*>(memory)), 7, 100);
  std::vector<char> copy(100);
  ASSERT_TRUE(cuda.copy(copy.data(), const_cast<char*>(memory), 100, nullptr).ok());
  ASSERT_TRUE(cuda.synchronize(nullptr).ok());
  EXPECT_EQ(copy[99], 7);
  EXPECT_NE(cuda.errors(true), "");
  ASSERT_TRUE(cuda.release(const_cast<char*>(memory)).ok());
  EXPECT_EQ(cuda.errors(true), "");
}

TEST(FakeCuda, SummaryIsOneLine) {
  testing::FakeCudaOptions options;
  options.mps = true;
  FakeCuda cuda(options);
  const std::string summary = *cuda::summary_of(cuda);
  EXPECT_THAT(summary, testing::Mentions("CUDA 13.0", "0 fake", "4 SMs", "9.0", "cudaIpc", "stream", "MPS"));
  EXPECT_EQ(summary.find('\n'), std::string::npos);
}

TEST(FakeCuda, StreamsWaitForFlagsAndEvents) {
  FakeCuda cuda({});
  auto* flag = static_cast<std::uint32_t*>(*cuda.allocate_pinned(4));
  *flag = 0;
  const auto first = cuda.create_stream(false);
  const auto second = cuda.create_stream(false);
  const auto event = cuda.create_event();
  const FlagOperation wait{FlagOperation::Kind::wait, flag, 3};
  const FlagOperation write{FlagOperation::Kind::write, flag, 4};
  ASSERT_TRUE(cuda.flags(*first, {&wait, 1}).ok());
  ASSERT_TRUE(cuda.record(*event, *first).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(*cuda.has_happened(*event));
  ASSERT_TRUE(cuda.flags(*second, {&write, 1}).ok());
  ASSERT_TRUE(cuda.wait_host(*event).ok());
  EXPECT_TRUE(*cuda.has_happened(*event));
  EXPECT_EQ(cuda.errors(false), "");
  std::uint32_t elsewhere = 0;
  const FlagOperation bad{FlagOperation::Kind::write, &elsewhere, 1};
  ASSERT_TRUE(cuda.flags(*second, {&bad, 1}).ok());
  EXPECT_NE(cuda.errors(false), "");
  ASSERT_TRUE(cuda.synchronize(*second).ok());
  ASSERT_TRUE(cuda.destroy_event(*event).ok());
  ASSERT_TRUE(cuda.release_pinned(flag).ok());
}

TEST(FakeCuda, RefusesTheChosenCall) {
  testing::FakeCudaOptions options;
  options.refused_call = "allocate";
  options.refused_after = 1;
  FakeCuda cuda(options);
  const auto first = cuda.allocate(10);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(cuda.allocate(10).ok());
}

}  // namespace
}  // namespace shoal
