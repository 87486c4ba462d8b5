// Bandwidth of reduce_nway and of a copy in device memory, by number of sources, type and SMs: one line of JSON per row.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/gpu/gpu_support.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

/// Seconds per call of `enqueue`: median of several runs of many calls.
template <class Enqueue>
double seconds_of(cuda::Stream stream, const Enqueue& enqueue) {
  constexpr int kRuns = 7;
  constexpr int kCalls = 20;
  std::vector<double> runs;
  for (int run = 0; run <= kRuns; ++run) {
    gpu::must(gpu::api().synchronize(stream), "synchronize");
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) enqueue();
    gpu::must(gpu::api().synchronize(stream), "synchronize");
    if (run > 0) runs.push_back(std::chrono::duration<double>(Clock::now() - start).count() / kCalls);  // run 0 is the warm-up
  }
  std::sort(runs.begin(), runs.end());
  return runs[runs.size() / 2];
}

void measure() {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr int kMostSources = 8;
  const auto device = gpu::must(gpu::api().describe_device(0), "device");
  gpu::DeviceMemory memory(kBytes * (kMostSources + 1));
  const auto stream = gpu::must(gpu::api().create_stream(false), "stream");
  for (const std::size_t bytes : {std::size_t{64} << 20, kBytes}) {
    const double copy_s = seconds_of(
        stream, [&] { gpu::must(gpu::api().copy(memory.get(), memory.get() + kBytes, bytes, stream), "cudaMemcpyAsync"); });
    const double copy_gbs = 2.0 * static_cast<double>(bytes) / copy_s / 1e9;
    std::printf("{\"what\": \"cudaMemcpyAsync\", \"bytes\": %zu, \"gbs\": %.1f}\n", bytes, copy_gbs);
    for (const DataType type : {DataType::float32, DataType::bfloat16, DataType::float16, DataType::float8_e4m3fn}) {
      for (const int sources : {1, 2, 4, 8}) {
        for (const int processors : {8, device.processors, 2 * device.processors, 4 * device.processors}) {
          kernels::FoldParameters fold;
          for (int k = 0; k < sources; ++k) fold.sources[k].address = memory.get() + static_cast<std::size_t>(k + 1) * kBytes;
          fold.source_count = sources;
          fold.targets[0] = memory.get();
          fold.count = bytes / size_of(type);
          fold.type = type;
          fold.max_blocks = processors;
          const double seconds = seconds_of(stream, [&] { gpu::must(gpu::api().launch(fold, stream), "reduce_nway"); });
          const double gbs = static_cast<double>(sources + 1) * static_cast<double>(bytes) / seconds / 1e9;
          std::printf(
              "{\"what\": \"reduce_nway\", \"type\": \"%s\", \"sources\": %d, \"blocks\": %d, \"bytes\": %zu, \"gbs\": %.1f, "
              "\"of_copy\": %.3f}\n",
              std::string(to_string(type)).c_str(), sources, processors, bytes, gbs, gbs / copy_gbs);
          std::fflush(stdout);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal

int main() {
  shoal::measure();
  return 0;
}
