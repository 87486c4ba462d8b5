// AllocationMeter: how many bytes of tensors a thread has allocated and not freed.
#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace shoal::parallel {

/// While it exists, torch's allocators report to it what this thread, and backwards that it starts, allocate and free on one
/// kind of device. The host's allocator and the caching allocator of CUDA do so (the latter whole blocks, multiples of 512
/// bytes). It takes the place of torch's own profiler meanwhile. Blocks from before it began should not be freed while it
/// exists: they are not known and not counted. Thread rule: the thread that made it.
class AllocationMeter {
 public:
  explicit AllocationMeter(at::DeviceType device);
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  /// Allocated minus freed since the start.
  [[nodiscard]] std::int64_t bytes() const;
  /// The most that bytes() was since the start or the last restart_peak().
  [[nodiscard]] std::int64_t peak() const;
  void restart_peak();

 private:
  class Reports;
  std::shared_ptr<Reports> reports_;
  c10::DebugInfoGuard guard_;
};

}  // namespace shoal::parallel
