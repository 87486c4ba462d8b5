#include "torch_plugin/parallel/profiler/allocation_meter.h"

#include <atomic>

namespace shoal::parallel {

class AllocationMeter::Reports final : public c10::MemoryReportingInfoBase {
 public:
  explicit Reports(at::DeviceType device) : device_(device) {}

  void reportMemoryUsage(void* /*block*/, std::int64_t change, std::size_t /*total_allocated*/, std::size_t /*total_reserved*/,
                         c10::Device device) override {
    if (device.type() != device_) return;
    const std::int64_t now = bytes_ += change;
    std::int64_t peak = peak_;
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  void restart_peak() { peak_ = bytes_.load(); }

 private:
  const at::DeviceType device_;
  std::atomic<std::int64_t> bytes_ = 0;  // a backward on a device reports from a thread of its own
  std::atomic<std::int64_t> peak_ = 0;
};

AllocationMeter::AllocationMeter(at::DeviceType device)
    : reports_(std::make_shared<Reports>(device)), guard_(c10::DebugInfoKind::PROFILER_STATE, reports_) {}

std::int64_t AllocationMeter::bytes() const { return reports_->bytes(); }
std::int64_t AllocationMeter::peak() const { return reports_->peak(); }
void AllocationMeter::restart_peak() { reports_->restart_peak(); }

}  // namespace shoal::parallel
