#include "torch_plugin/parallel/profiler/allocation_meter.h"

#include <atomic>

namespace shoal::parallel {

class AllocationMeter::Reports final : public c10::MemoryReportingInfoBase {
 public:
  explicit Reports(at::DeviceType device) : device_(device) {}

  void reportMemoryUsage(void* /*block*/, std::int64_t change, std::size_t /*total_allocated*/, std::size_t /*total_reserved*/,
                         c10::Device device) override {
    if (device.type() == device_) bytes_ += change;
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  const at::DeviceType device_;
  std::atomic<std::int64_t> bytes_ = 0;  // a backward on a device reports from a thread of its own
};

AllocationMeter::AllocationMeter(at::DeviceType device)
    : reports_(std::make_shared<Reports>(device)), guard_(c10::DebugInfoKind::PROFILER_STATE, reports_) {}

std::int64_t AllocationMeter::bytes() const { return reports_->bytes(); }

}  // namespace shoal::parallel
