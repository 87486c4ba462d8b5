// Every kernel on the GPU against the same code on the host: each type, operation, number of sources, odd size and
// misalignment. The host's side is held to the host device's by tests/cuda/arithmetic_test.cc.
//
//   gpu_kernels [--quick]
//
// --quick is for compute-sanitizer: fewer sizes, and no kernels that wait for each other, as it may run them one after the
// other.
#include <algorithm>
#include <random>
#include <string>

#include "kernels/host_run.h"
#include "tests/gpu/gpu_support.h"

namespace shoal {
namespace {

using kernels::CopyParameters;
using kernels::FoldParameters;
using kernels::FusedParameters;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kGuardBytes = 64;
int cases = 0;
int wrong = 0;

void complain(const std::string& what) {
  if (++wrong <= 20) std::printf("WRONG %s\n", what.c_str());
}

bool is_nan(DataType type, const std::byte* element) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, element, size_of(type));
  switch (type) {
    case DataType::float32:
      return (bits & 0x7FFFFFFF) > 0x7F800000;
    case DataType::float64:
      return (bits & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000;
    case DataType::float16:
      return (bits & 0x7FFF) > 0x7C00;
    case DataType::bfloat16:
      return (bits & 0x7FFF) > 0x7F80;
    case DataType::float8_e4m3fn:
      return (bits & 0x7F) == 0x7F;
    case DataType::float8_e5m2:
      return (bits & 0x7F) > 0x7C;
    default:
      return false;
  }
}

/// Equal bits; of two NaNs arithmetic may choose the payload.
std::size_t first_difference(DataType type, const Bytes& got, const Bytes& wanted) {
  const std::size_t element = size_of(type);
  for (std::size_t at = 0; at + element <= got.size(); at += element) {
    if (std::memcmp(got.data() + at, wanted.data() + at, element) == 0) continue;
    if (is_nan(type, got.data() + at) && is_nan(type, wanted.data() + at)) continue;
    return at / element;
  }
  return got.size();
}

Bytes random_bytes(std::size_t count, DataType type, std::mt19937_64& random) {
  const std::size_t element = size_of(type);
  Bytes data(count * element);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = random();
    if (random() % 4 != 0 && (type == DataType::float32 || type == DataType::float64)) {  // of like magnitude: sums round
      const double wide = static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-60;
      const auto narrow = static_cast<float>(wide);
      std::memcpy(&bits, type == DataType::float64 ? static_cast<const void*>(&wide) : &narrow, element);
    }
    std::memcpy(data.data() + i * element, &bits, element);
  }
  return data;
}

std::string words_for(DataType type, ReduceOp op, std::size_t count, int sources) {
  return std::string(to_string(type)) + " " + std::string(to_string(op)) + " of " + std::to_string(count) + " from " +
         std::to_string(sources);
}

void check_fold(DataType type, ReduceOp op, int divisor, int sources, std::size_t count, bool alike, std::mt19937_64& random) {
  ++cases;
  const std::size_t bytes = count * size_of(type);
  const std::size_t stride = bytes + 2 * kGuardBytes + 64;
  gpu::DeviceMemory memory(stride * static_cast<std::size_t>(sources + 2));
  const std::size_t misalignment = random() % 16;
  std::vector<Bytes> data;
  FoldParameters on_device;
  FoldParameters on_host;
  for (int k = 0; k < sources; ++k) {
    data.push_back(random_bytes(count, type, random));
    const std::size_t at = static_cast<std::size_t>(k) * stride + kGuardBytes + (alike ? misalignment : random() % 16);
    memory.write(data.back(), at);
    on_device.sources[k].address = memory.get() + at;
  }
  for (int k = 0; k < sources; ++k) on_host.sources[k].address = data[static_cast<std::size_t>(k)].data();
  const std::size_t first = static_cast<std::size_t>(sources) * stride + kGuardBytes + misalignment;
  const std::size_t second = first + stride;
  const Bytes guard(bytes + 2 * kGuardBytes, std::byte{0xA5});
  memory.write(guard, first - kGuardBytes);
  memory.write(guard, second - kGuardBytes);
  Bytes wanted(bytes);
  on_device.source_count = on_host.source_count = sources;
  on_device.targets[0] = memory.get() + first;
  if (count % 2 == 0) on_device.targets[1] = memory.get() + second;
  on_host.targets[0] = wanted.data();
  on_device.count = on_host.count = count;
  on_device.type = on_host.type = type;
  on_device.op = on_host.op = op;
  on_device.divisor = on_host.divisor = divisor;
  on_device.max_blocks = 1 + static_cast<int>(random() % 12);
  gpu::must(gpu::api().launch(on_device, nullptr), "reduce_nway");
  gpu::must(gpu::api().synchronize(nullptr), words_for(type, op, count, sources).c_str());
  kernels::run_on_host(
      on_host, [](auto* address) { return const_cast<std::byte*>(address); }, 1);
  for (const std::size_t target : {first, second}) {
    const Bytes around = memory.read(guard.size(), target - kGuardBytes);
    const Bytes got(around.begin() + kGuardBytes, around.end() - kGuardBytes);
    const bool used = target == first || on_device.targets[1] != nullptr;
    const bool intact = std::equal(around.begin(), around.begin() + kGuardBytes, guard.begin()) &&
                        std::equal(around.end() - kGuardBytes, around.end(), guard.begin());
    if (!intact) complain("reduce_nway wrote outside of its target: " + words_for(type, op, count, sources));
    if (!used) continue;
    if (const std::size_t at = first_difference(type, got, wanted); at != got.size())
      complain("reduce_nway " + words_for(type, op, count, sources) + ": element " + std::to_string(at));
  }
}

std::vector<std::pair<ReduceOp, int>> operations(DataType type) {
  std::vector<std::pair<ReduceOp, int>> all{{ReduceOp::avg, 3}, {ReduceOp::avg, 300}};
  for (int op = 0; op < kReduceOpCount; ++op) {
    if (supports(type, static_cast<ReduceOp>(op))) all.emplace_back(static_cast<ReduceOp>(op), 0);
  }
  return all;
}

void check_folds(bool quick) {
  std::mt19937_64 random(20261122);
  const std::vector<std::size_t> counts =
      quick ? std::vector<std::size_t>{1, 37, 4099} : std::vector<std::size_t>{1, 2, 7, 16, 31, 257, 4099, 100003};
  for (int t = 0; t < kDataTypeCount; ++t) {
    const auto type = static_cast<DataType>(t);
    for (const auto& [op, divisor] : operations(type)) {
      for (const int sources : quick ? std::vector<int>{2, 8} : std::vector<int>{1, 2, 3, 4, 8, 16}) {
        for (const std::size_t count : counts) check_fold(type, op, divisor, sources, count, random() % 3 != 0, random);
      }
    }
    std::printf("  %s done, %d cases, %d wrong\n", std::string(to_string(type)).c_str(), cases, wrong);
    std::fflush(stdout);
  }
  if (!quick) check_fold(DataType::bfloat16, ReduceOp::sum, 0, 8, 20000003, true, random);
}

/// Converts all patterns of 16 bits, because the device has instructions for that.
void check_conversions() {
  for (const DataType type : {DataType::float16, DataType::bfloat16, DataType::float8_e4m3fn, DataType::float8_e5m2}) {
    const std::size_t element = size_of(type);
    Bytes left(65536 * element);
    Bytes right(left.size());
    for (const std::uint16_t partner : {0x0000, 0x8000, 0x0001, 0x1000, 0x3C01, 0x3F80, 0x7BFF, 0xFBFE, 0x7C00, 0x7F7F}) {
      for (std::size_t i = 0; i < 65536; ++i) {
        const auto pattern = static_cast<std::uint16_t>(i);
        const std::uint16_t other = element == 1 ? static_cast<std::uint16_t>(i >> 8) : partner;
        std::memcpy(left.data() + i * element, &pattern, element);
        std::memcpy(right.data() + i * element, &other, element);
      }
      gpu::DeviceMemory memory(3 * left.size());
      memory.write(left);
      memory.write(right, left.size());
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
        ++cases;
        FoldParameters p;
        p.source_count = 2;
        p.count = 65536;
        p.type = type;
        p.op = op;
        p.max_blocks = 8;
        Bytes wanted(left.size());
        FoldParameters host = p;
        host.sources[0].address = left.data();
        host.sources[1].address = right.data();
        host.targets[0] = wanted.data();
        kernels::run_on_host(
            host, [](auto* address) { return const_cast<std::byte*>(address); }, 1);
        p.sources[0].address = memory.get();
        p.sources[1].address = memory.get() + left.size();
        p.targets[0] = memory.get() + 2 * left.size();
        gpu::must(gpu::api().launch(p, nullptr), "reduce_nway");
        const Bytes got = memory.read(left.size(), 2 * left.size());
        if (const std::size_t at = first_difference(type, got, wanted); at != got.size())
          complain("conversion " + words_for(type, op, at, partner));
      }
    }
  }
}

void check_copies() {
  std::mt19937_64 random(3);
  for (const std::size_t bytes : {1U, 15U, 16U, 17U, 1000U, 65537U, 3000001U}) {
    for (int round = 0; round < 4; ++round) {
      ++cases;
      const Bytes data = random_bytes(bytes, DataType::uint8, random);
      gpu::DeviceMemory memory(4 * (bytes + 256));
      const std::size_t from = random() % 32;
      memory.write(data, from);
      CopyParameters p;
      for (int s = 0; s < 2; ++s) {
        const std::size_t to = static_cast<std::size_t>(s + 1) * (bytes + 256) + (round == 0 ? from : random() % 32);
        p.segments[s] = {{memory.get() + from}, memory.get() + to, bytes};
      }
      p.segment_count = 2;
      p.max_blocks = 1 + round * 3;
      gpu::must(gpu::api().launch(p, nullptr), "copy_segments");
      gpu::must(gpu::api().synchronize(nullptr), "copy_segments");
      for (int s = 0; s < 2; ++s) {
        if (memory.read(bytes, static_cast<std::size_t>(p.segments[s].target - memory.get())) != data)
          complain("copy_segments of " + std::to_string(bytes));
      }
    }
  }
}

/// Ranks as streams of this process: their kernels are small enough to be on the device together.
void check_fused(int ranks, DataType type, ReduceOp op, bool two_shot, std::size_t count, std::uint32_t epoch,
                 std::mt19937_64& random) {
  ++cases;
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t room = (count * size_of(type) + 255) / 256 * 256;
  const std::size_t flag_bytes = sizeof(std::uint32_t) * kernels::kMaxPeers * kernels::kMaxFusedBlocks;
  gpu::DeviceMemory memory(n * (4 * room + flag_bytes));
  auto* cancelled = static_cast<std::uint32_t*>(gpu::must(gpu::api().allocate_pinned(4), "pinned"));
  *cancelled = 0;
  std::vector<Bytes> inputs;
  std::vector<FusedParameters> all(n);
  const auto place = [&](std::size_t rank, std::size_t part) { return memory.get() + (rank * 4 + part) * room; };
  Bytes flags(n * flag_bytes);
  for (std::size_t i = 0; i < flags.size(); i += 4) std::memcpy(flags.data() + i, &epoch, 4);
  memory.write(flags, n * 4 * room);
  FoldParameters fold;
  for (std::size_t rank = 0; rank < n; ++rank) {
    inputs.push_back(random_bytes(count, type, random));
    memory.write(inputs.back(), rank * 4 * room);
  }
  std::vector<cuda::Stream> streams;
  for (std::size_t rank = 0; rank < n; ++rank) {
    streams.push_back(gpu::must(gpu::api().create_stream(false), "stream"));
    FusedParameters& p = all[rank];
    p.input = place(rank, 0);
    p.output = place(rank, 1);
    for (std::size_t r = 0; r < n; ++r) {
      p.staging[r] = place(r, 2);
      p.results[r] = place(r, 3);
      p.flags[r] = reinterpret_cast<std::uint32_t*>(memory.get() + n * 4 * room + r * flag_bytes);
    }
    p.rank = static_cast<int>(rank);
    p.ranks = ranks;
    p.count = count;
    p.type = type;
    p.op = op;
    p.divisor = kernels::divisor_of(op, ranks);
    p.two_shot = two_shot;
    p.blocks = 4;
    p.epoch = epoch;
    p.cancelled = cancelled;
  }
  for (std::size_t rank = 0; rank < n; ++rank) gpu::must(gpu::api().launch(all[rank], streams[rank]), "all_reduce_fused");
  for (const cuda::Stream stream : streams) {
    gpu::must(gpu::api().synchronize(stream), "all_reduce_fused");
    gpu::must(gpu::api().destroy_stream(stream), "stream");
  }
  Bytes wanted(count * size_of(type));
  for (std::size_t rank = 0; rank < n; ++rank) fold.sources[rank].address = inputs[rank].data();
  fold.source_count = ranks;
  fold.targets[0] = wanted.data();
  fold.count = count;
  fold.type = type;
  fold.op = op;
  fold.divisor = kernels::divisor_of(op, ranks);
  kernels::run_on_host(
      fold, [](auto* address) { return const_cast<std::byte*>(address); }, 1);
  for (std::size_t rank = 0; rank < n; ++rank) {
    const Bytes got = memory.read(wanted.size(), (rank * 4 + 1) * room);
    if (const std::size_t at = first_difference(type, got, wanted); at != got.size())
      complain(std::string(two_shot ? "two_shot " : "one_shot ") + words_for(type, op, count, ranks) + ": element " +
               std::to_string(at));
  }
  static_cast<void>(gpu::api().release_pinned(cancelled));
}

void check_all_fused(bool quick) {
  std::mt19937_64 random(5);
  std::uint32_t epoch = 0xFFFFFFF0U;  // it wraps around during the test
  for (const int ranks : quick ? std::vector<int>{1} : std::vector<int>{1, 2, 3, 8}) {
    for (int t = 0; t < kDataTypeCount; ++t) {
      const auto type = static_cast<DataType>(t);
      for (const auto& [op, divisor] : operations(type)) {
        if (divisor == 300 || (op == ReduceOp::avg && divisor == 0)) continue;
        for (const std::size_t count : {std::size_t{1}, std::size_t{333}, quick ? std::size_t{5003} : std::size_t{200003}}) {
          for (const bool two_shot : {false, true}) {
            check_fused(ranks, type, op, two_shot, count, epoch, random);
            epoch += 2;
          }
        }
      }
    }
    std::printf("  fused kernels of %d ranks done, %d cases, %d wrong\n", ranks, cases, wrong);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
           0);  // a queue for each stream: kernels in one of them would wait for each other
  const bool quick = argc > 1 && std::string(argv[1]) == "--quick";
  const auto device = shoal::gpu::must(shoal::gpu::api().describe_device(0), "device");
  std::printf("%s, sm_%d%d, %d SMs\n", device.name.c_str(), device.major, device.minor, device.processors);
  shoal::check_folds(quick);
  shoal::check_conversions();
  shoal::check_copies();
  shoal::check_all_fused(quick);
  std::printf("%s: %d cases, %d wrong\n", shoal::wrong == 0 ? "passed" : "FAILED", shoal::cases, shoal::wrong);
  return shoal::wrong == 0 ? 0 : 1;
}
