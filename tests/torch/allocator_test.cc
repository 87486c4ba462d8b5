// getMemAllocator(): tensors in memory that the ranks of a host share.
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include <ATen/EmptyTensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {
namespace {

/// Whether `address` lies in a file made by memfd_create(2).
bool in_shared_memory(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    if (begin <= wanted && wanted < end) return line.find("/memfd:") != std::string::npos;
  }
  return false;
}

at::Tensor empty_in(c10::Allocator& allocator, std::int64_t elements) {
  return at::detail::empty_generic({elements}, &allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), at::kFloat,
                                   std::nullopt);
}

class MemoryAllocator : public ::testing::Test {
 protected:
  const c10::intrusive_ptr<ProcessGroupShoal> group_ =
      c10::make_intrusive<ProcessGroupShoal>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  const std::shared_ptr<c10::Allocator> allocator_ = group_->getMemAllocator();
};

TEST_F(MemoryAllocator, TensorsUseSharedMemory) {
  at::Tensor tensor = empty_in(*allocator_, 100'001);
  EXPECT_TRUE(tensor.device().is_cpu());
  EXPECT_TRUE(in_shared_memory(tensor.data_ptr()));
  EXPECT_FALSE(in_shared_memory(at::empty({100'001}).data_ptr()));
  tensor.fill_(2);
  std::vector<at::Tensor> tensors{tensor};
  group_->allreduce(tensors)->wait();
  EXPECT_EQ(tensor.sum().item<double>(), 200'002);
}

TEST_F(MemoryAllocator, ResizeKeepsElements) {
  at::Tensor tensor = empty_in(*allocator_, 10).fill_(7);
  tensor.resize_({5000});
  EXPECT_TRUE(in_shared_memory(tensor.data_ptr()));
  EXPECT_EQ(tensor.narrow(0, 0, 10).sum().item<double>(), 70);
}

TEST_F(MemoryAllocator, EmptyTensorsWork) {
  EXPECT_EQ(empty_in(*allocator_, 0).numel(), 0);
  EXPECT_EQ(allocator_->allocate(0).get(), nullptr);
}

TEST_F(MemoryAllocator, AllocatorOutlivesItsGroupAndReusesMemory) {
  const std::shared_ptr<c10::Allocator> allocator =
      c10::make_intrusive<ProcessGroupShoal>(c10::make_intrusive<c10d::HashStore>(), 0, 1)->getMemAllocator();
  // In all more memory than any machine has, so it must be freed.
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(empty_in(*allocator, std::int64_t{1} << 28).numel(), std::int64_t{1} << 28);
  void* raw = allocator->raw_allocate(100);
  EXPECT_TRUE(in_shared_memory(raw));
  allocator->raw_deallocate(raw);
}

TEST_F(MemoryAllocator, TooLargeAllocationThrows) {
  try {
    (void)empty_in(*allocator_, std::int64_t{1} << 58);
    FAIL() << "an impossible allocation succeeded";
  } catch (const c10::DistBackendError& error) {
    EXPECT_NE(std::string(error.what()).find("shoal"), std::string::npos);
  }
}

}  // namespace
}  // namespace shoal::torch
