// How busy the rank's GPU is.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace shoal::train {

/// Asks NVIDIA's management library (NVML), which comes with the driver, a few times a second, in a thread of its own. Thread
/// rule: one thread.
class GpuMeter {
 public:
  /// For GPU number `gpu` of this host. Without an NVIDIA driver there is nothing to measure: why_not() says so.
  explicit GpuMeter(int gpu);
  ~GpuMeter();
  GpuMeter(const GpuMeter&) = delete;
  GpuMeter& operator=(const GpuMeter&) = delete;

  /// Mean utilisation in percent since the last call (NVML: share of time in which a kernel ran); nothing where it is not
  /// known.
  std::optional<double> take_percent();
  /// Empty where it measures.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

 private:
  class Sampler;
  std::string why_not_;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace shoal::train
