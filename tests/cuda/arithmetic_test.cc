// The arithmetic and index arithmetic of the kernels, run on the host and compared bit by bit with the host device.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "kernels/host_run.h"
#include "src/device/device.h"

namespace shoal {
namespace {

using kernels::FoldParameters;

constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xA5};

/// A buffer at a chosen misalignment between guard bytes.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t misalignment) : bytes_(bytes), memory_(bytes + 2 * kGuardBytes + 64, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuardBytes;
    start_ = kGuardBytes + (64 - address % 64) % 64 + misalignment;
    memory_.resize(start_ + bytes + kGuardBytes, kGuard);
  }
  std::byte* data() { return memory_.data() + start_; }
  bool intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < start_ || i >= start_ + bytes_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::size_t start_ = 0;
};

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

/// Random patterns: mostly ordinary numbers of all magnitudes, sometimes NaN, infinity or zero.
void fill(std::byte* data, std::size_t count, DataType type, std::mt19937_64& random) {
  const std::size_t bytes = size_of(type);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = random();
    const std::uint64_t kind = random() % 16;
    const bool wide = type == DataType::float32 || type == DataType::float64;
    if (wide && kind < 12) {  // similar magnitudes, so that sums round
      const auto value = static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-60;
      const auto narrow = static_cast<float>(value);
      if (type == DataType::float64) std::memcpy(&bits, &value, 8);
      if (type == DataType::float32) std::memcpy(&bits, &narrow, 4);
    }
    if (kind == 12) bits = 0;
    if (kind == 13) bits = std::uint64_t{0x80} << (8 * (bytes - 1));                              // -0, or the smallest integer
    if (kind == 14) bits = (type == DataType::float64) ? 0x7FF0000000000000 : bits | 0x7F800000;  // infinity, or large
    std::memcpy(data + i * bytes, &bits, bytes);
  }
}

struct Case {
  DataType type;
  ReduceOp op;
  int divisor;
  int sources;
  std::size_t count;
  bool in_place = false;
  bool aligned_alike = true;
  std::size_t threads = 37;
};

std::string describe(const Case& c) {
  return fmt::format("{} {} divisor {}, {} sources of {}{}{}, {} threads", to_string(c.type), to_string(c.op), c.divisor,
                     c.sources, c.count, c.in_place ? ", in place" : "", c.aligned_alike ? "" : ", misaligned", c.threads);
}

/// Runs one case by the kernel's code and by the host device. Returns the difference, or "".
std::string compare(const Case& c, std::mt19937_64& random) {
  const std::size_t bytes = c.count * size_of(c.type);
  const std::size_t shared_misalignment = random() % 64;
  std::vector<Guarded> buffers;
  for (int k = 0; k <= c.sources; ++k) {
    buffers.emplace_back(bytes, c.aligned_alike ? shared_misalignment : random() % 64);
    fill(buffers.back().data(), c.count, c.type, random);
  }
  FoldParameters p;
  std::vector<const std::byte*> operands;
  std::vector<std::vector<std::byte>> copies;
  for (int k = 0; k < c.sources; ++k) {
    Guarded& buffer = buffers[static_cast<std::size_t>(k)];
    copies.emplace_back(buffer.data(), buffer.data() + bytes);
    p.sources[k].address = buffer.data();
  }
  for (const auto& copy : copies) operands.push_back(copy.data());
  const std::size_t target = c.in_place ? random() % static_cast<std::size_t>(c.sources) : static_cast<std::size_t>(c.sources);
  Guarded second(bytes, shared_misalignment);
  p.source_count = c.sources;
  p.targets[0] = buffers[target].data();
  p.targets[1] = random() % 2 == 0 ? second.data() : nullptr;
  p.count = c.count;
  p.type = c.type;
  p.op = c.op;
  p.divisor = c.divisor;
  kernels::run_on_host(
      p, [](auto* address) { return const_cast<std::byte*>(address); }, c.threads);

  std::vector<std::byte> wanted(bytes);
  if (c.divisor == 0) {
    host_device().reduce(wanted.data(), operands, c.count, c.type, c.op);
  } else {
    host_device().reduce_average(wanted.data(), operands, c.count, c.type, c.divisor);
  }
  const std::size_t element = size_of(c.type);
  for (std::size_t i = 0; i < c.count; ++i) {
    for (std::byte* got : {p.targets[0], p.targets[1]}) {
      if (got == nullptr || std::memcmp(got + i * element, wanted.data() + i * element, element) == 0) continue;
      if (is_nan(c.type, got + i * element) && is_nan(c.type, wanted.data() + i * element)) continue;
      return fmt::format("{}: wrong element {}", describe(c), i);
    }
  }
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    if (!buffers[k].intact()) return fmt::format("{}: wrote outside of buffer {}", describe(c), k);
    if (k != target && k < copies.size() && bytes != 0 && std::memcmp(buffers[k].data(), copies[k].data(), bytes) != 0)
      return fmt::format("{}: changed source {}", describe(c), k);
  }
  if (!second.intact()) return fmt::format("{}: wrote outside of the second target", describe(c));
  return "";
}

std::vector<std::pair<ReduceOp, int>> operations(DataType type) {
  std::vector<std::pair<ReduceOp, int>> all{{ReduceOp::avg, 3}, {ReduceOp::avg, 300}};
  for (int op = 0; op < kReduceOpCount; ++op) {
    if (supports(type, static_cast<ReduceOp>(op))) all.emplace_back(static_cast<ReduceOp>(op), 0);
  }
  return all;
}

/// Every type and operation, every count up to a few vectors, every number of sources of a node, random misalignments.
TEST(KernelArithmetic, FoldsMatchHostDevice) {
  std::mt19937_64 random(20261122);
  std::size_t cases = 0;
  for (int t = 0; t < kDataTypeCount; ++t) {
    const auto type = static_cast<DataType>(t);
    for (const auto& [op, divisor] : operations(type)) {
      for (const int sources : {1, 2, 3, 4, 5, 8, 16}) {
        for (std::size_t count = 0; count <= 40; count = count < 20 ? count + 1 : count + 5) {
          for (const bool alike : {true, false}) {
            const Case c{type, op, divisor, sources, count, (count + cases) % 3 == 0, alike, count % 2 == 0 ? 37U : 3U};
            ASSERT_EQ(compare(c, random), "");
            ++cases;
          }
        }
        for (const std::size_t count : {1021U, 4099U}) ASSERT_EQ(compare({type, op, divisor, sources, count}, random), "");
      }
    }
  }
  EXPECT_GT(cases, 10000U);
}

/// Every pair of 8-bit values, and every 16-bit value with a few others: covers decoding, rounding and overflow.
TEST(KernelArithmetic, SmallFloatsMatchHostDevice) {
  for (const DataType type : {DataType::float8_e4m3fn, DataType::float8_e5m2, DataType::float16, DataType::bfloat16}) {
    const std::size_t element = size_of(type);
    const std::size_t count = 65536;
    std::vector<std::byte> left(count * element);
    std::vector<std::byte> right(count * element);
    for (const std::uint16_t partner : {0x0000, 0x8000, 0x0001, 0x1000, 0x3C01, 0x3F80, 0x7BFF, 0xFBFE, 0x7C00, 0x7F7F}) {
      for (std::size_t i = 0; i < count; ++i) {
        const auto pattern = static_cast<std::uint16_t>(i);
        const std::uint16_t other = element == 1 ? static_cast<std::uint16_t>(i >> 8) : partner;
        std::memcpy(left.data() + i * element, &pattern, element);
        std::memcpy(right.data() + i * element, &other, element);
      }
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
        std::vector<std::byte> got(left.size());
        std::vector<std::byte> wanted(left.size());
        FoldParameters p;
        p.sources[0].address = left.data();
        p.sources[1].address = right.data();
        p.source_count = 2;
        p.targets[0] = got.data();
        p.count = count;
        p.type = type;
        p.op = op;
        kernels::run_on_host(
            p, [](auto* address) { return const_cast<std::byte*>(address); }, 64);
        const std::byte* operands[] = {left.data(), right.data()};
        host_device().reduce(wanted.data(), operands, count, type, op);
        for (std::size_t i = 0; i < count; ++i) {
          const std::byte* g = got.data() + i * element;
          const std::byte* w = wanted.data() + i * element;
          const bool same = std::memcmp(g, w, element) == 0 || (is_nan(type, g) && is_nan(type, w));
          ASSERT_TRUE(same) << to_string(type) << ' ' << to_string(op) << " of pattern " << i << " and " << partner;
        }
      }
      if (element == 1) break;  // all pairs are done
    }
  }
}

TEST(KernelArithmetic, CopiesAnySizeAtAnyAlignment) {
  for (std::size_t bytes = 0; bytes < 300; bytes += bytes < 40 ? 1 : 13) {
    for (std::size_t misalignment = 0; misalignment < 18; ++misalignment) {
      Guarded source(bytes, 5);
      Guarded target(bytes, misalignment);
      for (std::size_t i = 0; i < bytes; ++i) source.data()[i] = static_cast<std::byte>(i * 31 + 7);
      for (std::size_t t = 0; t < 7; ++t) kernels::copy_thread(target.data(), source.data(), bytes, t, 7);
      ASSERT_EQ(std::memcmp(source.data(), target.data(), bytes), 0) << bytes << " bytes at " << misalignment;
      ASSERT_TRUE(target.intact());
    }
  }
}

/// Head, vectors and tail cover each element once, and vectors are aligned.
TEST(KernelPartition, SplitsEveryRange) {
  for (const std::size_t element : {1U, 2U, 4U, 8U}) {
    for (std::uintptr_t address = 4096; address < 4096 + 40; ++address) {
      for (std::size_t count = 0; count < 100; ++count) {
        const kernels::Parts parts = kernels::split_range(address, count, element);
        const std::size_t per_vector = kernels::kVectorBytes / element;
        ASSERT_EQ(parts.head_elements + parts.vectors * per_vector + parts.tail_elements, count);
        if (parts.vectors != 0) {
          ASSERT_EQ((address + parts.head_elements * element) % kernels::kVectorBytes, 0U);
        }
        if (address % element == 0) {
          ASSERT_LT(parts.tail_elements, per_vector);
          ASSERT_LT(parts.head_elements, per_vector);
        }
        std::vector<int> met(count);
        for (std::size_t i = 0; i < parts.head_elements + parts.tail_elements; ++i) {
          ++met[kernels::single_element(parts, i, per_vector)];
        }
        for (std::size_t i = 0; i < parts.vectors * per_vector; ++i) ++met[parts.head_elements + i];
        for (const int times : met) ASSERT_EQ(times, 1);
      }
    }
  }
}

/// Shares are adjacent and cover all elements, also for counts near the end of the address space.
TEST(KernelPartition, SharesCoverEverything) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    const std::size_t element = std::size_t{1} << random() % 4;
    const std::size_t count = round < 2000 ? static_cast<std::size_t>(round) / 4 : random() >> (20 + random() % 44);
    const int ranks = 1 + static_cast<int>(random() % 32);
    std::size_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const kernels::Share share = kernels::share_of(count, element, rank, ranks);
      ASSERT_EQ(share.begin, std::min(next, count));
      ASSERT_TRUE(share.count == 0 || share.begin * element % kernels::kVectorBytes == 0);
      next = share.begin + share.count;
    }
    ASSERT_EQ(next, count);
  }
}

TEST(KernelPartition, BlocksAreBounded) {
  EXPECT_EQ(kernels::blocks_for(0, 8), 1);
  EXPECT_EQ(kernels::blocks_for(1, 8), 1);
  EXPECT_EQ(kernels::blocks_for(std::size_t{1} << 40, 8), 8);
  EXPECT_EQ(kernels::blocks_for(std::size_t{1} << 62, 1024), 1024);
  EXPECT_EQ(kernels::blocks_for(1 << 20, 0), 1);
}

TEST(KernelPartition, EpochsWrap) {
  EXPECT_TRUE(kernels::reached(5, 5));
  EXPECT_TRUE(kernels::reached(3, 0xFFFFFFF0U));
  EXPECT_FALSE(kernels::reached(0xFFFFFFF0U, 3));
  EXPECT_TRUE(kernels::reached(7 + (1U << 30), 7));
}

}  // namespace
}  // namespace shoal
