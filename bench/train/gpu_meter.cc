#include "bench/train/gpu_meter.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace shoal::train {
namespace {

// The declarations of NVML (nvml.h, stable since version 2 of these symbols) used here. The header comes with CUDA, on which
// this program must not depend.
struct Utilization {
  unsigned int gpu;
  unsigned int memory;
};
using Init = int (*)();
using GetHandle = int (*)(unsigned int, void**);
using GetUtilization = int (*)(void*, Utilization*);
using ErrorString = const char* (*)(int);
constexpr int kSuccess = 0;
constexpr auto kPeriod = std::chrono::milliseconds(200);

}  // namespace

class GpuMeter::Sampler {
 public:
  Sampler(GetUtilization get, void* device) : get_(get), device_(device), thread_([this] { run(); }) {}
  ~Sampler() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::optional<double> take() {
    const std::lock_guard lock(mutex_);
    if (samples_ == 0) return std::nullopt;
    const double mean = sum_ / samples_;
    sum_ = 0;
    samples_ = 0;
    return mean;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kPeriod, [this] { return stop_; })) {
      Utilization now{};
      if (get_(device_, &now) != kSuccess) continue;
      sum_ += now.gpu;
      ++samples_;
    }
  }

  const GetUtilization get_;
  void* const device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  double sum_ = 0;
  int samples_ = 0;
  std::thread thread_;
};

GpuMeter::GpuMeter(int gpu) {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why_not_ = "no NVIDIA driver on this host (libnvidia-ml.so.1)";
    return;
  }
  const auto init = reinterpret_cast<Init>(::dlsym(library, "nvmlInit_v2"));
  const auto get_handle = reinterpret_cast<GetHandle>(::dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  const auto get_utilization = reinterpret_cast<GetUtilization>(::dlsym(library, "nvmlDeviceGetUtilizationRates"));
  const auto error_string = reinterpret_cast<ErrorString>(::dlsym(library, "nvmlErrorString"));
  if (init == nullptr || get_handle == nullptr || get_utilization == nullptr || error_string == nullptr) {
    why_not_ = "libnvidia-ml.so.1 lacks functions: the driver is too old";
    return;
  }
  void* device = nullptr;
  int code = init();
  if (code == kSuccess) code = get_handle(static_cast<unsigned int>(gpu), &device);
  Utilization probe{};
  if (code == kSuccess) code = get_utilization(device, &probe);
  if (code != kSuccess) {
    why_not_ = std::string("NVML: ") + error_string(code);
    return;
  }
  sampler_ = std::make_unique<Sampler>(get_utilization, device);
}

GpuMeter::~GpuMeter() = default;

std::optional<double> GpuMeter::take_percent() { return sampler_ ? sampler_->take() : std::nullopt; }

}  // namespace shoal::train
