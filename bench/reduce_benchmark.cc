// Is a reduction on the host bound by memory? Each row folds n operands and, interleaved with it, lets memcpy move the same
// bytes.
//
// A fold of n operands reads n buffers and writes one: (n + 1) x bytes. memcpy of c bytes moves 2c, so its time for the same
// traffic is that of (n + 1) / 2 copies of `bytes`, here made among the same buffers. The counter `of_memcpy` is memcpy's
// median time divided by the fold's: at 1 and above, the arithmetic costs no time.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <shoal/types.h>

#include "src/device/device.h"

namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Page-aligned buffers, each displaced so that no two have the same offset within a page (addresses that agree in their lower
/// 12 bits stall loads behind stores; users' buffers rarely do).
class Buffers {
 public:
  Buffers(std::size_t count, std::size_t bytes) : memory_(count * stride(bytes) + kPage), stride_(stride(bytes)) {
    std::memset(memory_.data(), 0, memory_.size());  // zeros are numbers of every type; touching maps the pages
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    start_ = memory_.data() + (kPage - address % kPage) % kPage;
  }
  std::byte* operator[](std::size_t i) { return start_ + i * stride_; }

 private:
  static constexpr std::size_t kPage = 4096;
  static std::size_t stride(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage + std::size_t{5} * 64; }
  std::vector<std::byte> memory_;
  std::size_t stride_;
  std::byte* start_;
};

void reduce(benchmark::State& state, shoal::DataType type, std::size_t operand_count, bool in_place) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t count = bytes / shoal::size_of(type);
  Buffers buffers(operand_count + 1, bytes);
  std::vector<const std::byte*> operands;
  for (std::size_t k = 0; k < operand_count; ++k) operands.push_back(buffers[k]);
  std::byte* target = in_place ? buffers[0] : buffers[operand_count];
  const shoal::Device& device = shoal::host_device();

  // Small buffers take less time than the clock's resolution: repeat within one measurement.
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{1} << 20) / bytes);
  std::vector<double> fold_seconds;
  std::vector<double> copy_seconds;
  for (auto _ : state) {
    const auto start = Clock::now();
    for (std::size_t r = 0; r < repeats; ++r) {
      device.reduce(target, operands, count, type, shoal::ReduceOp::sum);
      benchmark::ClobberMemory();
    }
    const auto middle = Clock::now();
    for (std::size_t r = 0; r < repeats; ++r) {
      // The same lines are touched as by the fold: whole copies between neighbours, then half a one where n is even.
      std::size_t k = 0;
      for (; k + 2 <= operand_count + 1; k += 2) std::memcpy(buffers[k + 1], buffers[k], bytes);
      if (k < operand_count + 1) std::memcpy(buffers[k], buffers[k] + bytes / 2, bytes / 2);
      benchmark::ClobberMemory();
    }
    const auto end = Clock::now();
    fold_seconds.push_back(std::chrono::duration<double>(middle - start).count() / static_cast<double>(repeats));
    copy_seconds.push_back(std::chrono::duration<double>(end - middle).count() / static_cast<double>(repeats));
    state.SetIterationTime(fold_seconds.back() * static_cast<double>(repeats));
  }
  const double fold = median(fold_seconds);
  const double copy = median(copy_seconds);
  state.counters["fold_us"] = fold * 1e6;
  state.counters["traffic_GBs"] = static_cast<double>((operand_count + 1) * bytes) / fold / 1e9;
  state.counters["memcpy_us"] = copy * 1e6;
  state.counters["of_memcpy"] = copy / fold;
}

void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  Buffers buffers(2, bytes);
  std::vector<double> ours;
  std::vector<double> theirs;
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{1} << 20) / bytes);
  for (auto _ : state) {
    const auto start = Clock::now();
    for (std::size_t r = 0; r < repeats; ++r) {
      shoal::host_device().copy(buffers[1], buffers[0], bytes);
      benchmark::ClobberMemory();
    }
    const auto middle = Clock::now();
    for (std::size_t r = 0; r < repeats; ++r) {
      std::memcpy(buffers[1], buffers[0], bytes);
      benchmark::ClobberMemory();
    }
    const auto end = Clock::now();
    ours.push_back(std::chrono::duration<double>(middle - start).count() / static_cast<double>(repeats));
    theirs.push_back(std::chrono::duration<double>(end - middle).count() / static_cast<double>(repeats));
    state.SetIterationTime(ours.back() * static_cast<double>(repeats));
  }
  const double our_median = median(ours);
  state.counters["copy_us"] = our_median * 1e6;
  state.counters["traffic_GBs"] = static_cast<double>(2 * bytes) / our_median / 1e9;
  state.counters["of_memcpy"] = median(theirs) / our_median;
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  for (const std::int64_t kib : {16, 256, 4096, 65536}) benchmark->Arg(kib << 10);
  benchmark->UseManualTime()->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  using shoal::DataType;
  for (const DataType type :
       {DataType::float32, DataType::float16, DataType::bfloat16, DataType::float8_e4m3fn, DataType::int32}) {
    for (const std::size_t operand_count : {2U, 4U}) {
      for (const bool in_place : {false, true}) {
        const std::string name = "reduce/" + std::string(shoal::to_string(type)) +
                                 "/operands:" + std::to_string(operand_count) + (in_place ? "/in_place" : "/out_of_place");
        sizes(benchmark::RegisterBenchmark(name.c_str(), reduce, type, operand_count, in_place));
      }
    }
  }
  sizes(benchmark::RegisterBenchmark("copy", copy));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
