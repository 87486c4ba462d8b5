// Measures the utilisation of the rank's GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace shoal::train {

/// Polls NVIDIA's management library (NVML), which comes with the driver, a few times a second in a separate thread. Thread
/// rule: one thread.
class GpuMeter {
 public:
  /// For GPU number `gpu` of this host. Without an NVIDIA driver it measures nothing, and why_not() returns the reason.
  explicit GpuMeter(int gpu);
  ~GpuMeter();
  GpuMeter(const GpuMeter&) = delete;
  GpuMeter& operator=(const GpuMeter&) = delete;

  /// Mean utilisation in percent since the last call (NVML: share of time in which a kernel ran); nullopt if unknown.
  std::optional<double> take_percent();
  /// Empty if it measures.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

 private:
  class Sampler;
  std::string why_not_;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace shoal::train
