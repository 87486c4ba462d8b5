// Shared by the programs of tests/gpu and bench/gpu: the real CudaApi, device buffers, checks. Without a test framework, which
// the machine with the GPU may not have.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "src/cuda/cuda_api.h"

extern "C" shoal::cuda::CudaApi* shoal_cuda_api(int version, char* message, std::size_t message_bytes);

namespace shoal::gpu {

/// The real CudaApi. Ends the program with status 77 (skipped) if there is none.
inline cuda::CudaApi& api() {
  static cuda::CudaApi* const opened = [] {
    char message[512] = "";
    cuda::CudaApi* found = shoal_cuda_api(cuda::kCudaApiVersion, message, sizeof message);
    if (found == nullptr) {
      std::printf("skipped: %s\n", message);
      std::exit(77);
    }
    return found;
  }();
  return *opened;
}

inline void must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::printf("FAILED %s: %s\n", what, status.to_string().c_str());
  std::fflush(stdout);
  std::_Exit(1);
}
template <typename T>
T must(Result<T> result, const char* what) {
  must(result.status(), what);
  return std::move(result).value();
}

/// Memory of the device.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : memory_(static_cast<std::byte*>(must(api().allocate(bytes), "cudaMalloc"))) {}
  ~DeviceMemory() { static_cast<void>(api().release(memory_)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  [[nodiscard]] std::byte* get() const { return memory_; }
  void write(const std::vector<std::byte>& data, std::size_t offset = 0) {
    if (data.empty()) return;
    must(api().copy(memory_ + offset, data.data(), data.size(), nullptr), "copy to the device");
    must(api().synchronize(nullptr), "synchronize");
  }
  std::vector<std::byte> read(std::size_t bytes, std::size_t offset = 0) {
    std::vector<std::byte> data(bytes);
    if (bytes == 0) return data;
    must(api().copy(data.data(), memory_ + offset, bytes, nullptr), "copy to the host");
    must(api().synchronize(nullptr), "synchronize");
    return data;
  }

 private:
  std::byte* memory_;
};

}  // namespace shoal::gpu
