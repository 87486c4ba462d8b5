// The fake as a libshoal_cuda.so: programs in the same folder load it as their CUDA.
#include "tests/cuda/fake_cuda.h"

extern "C" __attribute__((visibility("default"))) shoal::cuda::CudaApi* shoal_cuda_api(int version, char*, std::size_t) {
  if (version != shoal::cuda::kCudaApiVersion) return nullptr;
  static auto* const fake = new shoal::testing::FakeCuda({});  // never destroyed, like the real one
  return fake;
}
