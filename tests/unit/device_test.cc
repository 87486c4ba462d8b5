// Every kernel of the host device, for every instruction set that it is compiled for and this CPU has, against the reference.
#include "src/device/targets.h"

#include <hwy/targets.h>

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/device/device.h"
#include "src/device/kernels.h"
#include "tests/unit/device_reference.h"

namespace shoal {
namespace {

constexpr unsigned kSeed = 20261121;
constexpr std::size_t kCanaryBytes = 96;
constexpr std::byte kCanary{0xA5};

/// A buffer of `bytes` at a chosen misalignment, with canaries on both sides.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t misalignment) : bytes_(bytes), memory_(bytes + 2 * kCanaryBytes + 128, kCanary) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kCanaryBytes;
    start_ = kCanaryBytes + (64 - address % 64) + misalignment;
  }
  std::byte* data() { return memory_.data() + start_; }
  bool intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < start_ || i >= start_ + bytes_) && memory_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::size_t start_;
};

/// Elements where every eighth or so is special: NaN, infinities, signed zeros, the smallest and the largest of all.
template <typename T>
T random_element(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  const bool special = (random() & 7) == 0;
  if constexpr (reference::kIsSmall<T>) {
    if (special) return {static_cast<decltype(T::bits)>(bits)};  // any bit pattern
    return T::encode(static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-60);
  } else if constexpr (std::is_floating_point_v<T>) {
    using L = std::numeric_limits<T>;
    const T specials[] = {L::quiet_NaN(),  -L::infinity(),   L::infinity(), T(0),        -T(0),
                          L::denorm_min(), -L::denorm_min(), L::max(),      L::lowest(), L::min()};
    if (special) return specials[bits % std::size(specials)];
    return static_cast<T>(static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-60);
  } else {
    return static_cast<T>(bits);
  }
}

template <typename T>
bool same(const T& a, const T& b) {
  return (reference::is_nan(a) && reference::is_nan(b)) || std::memcmp(&a, &b, sizeof(T)) == 0;
}

struct Case {
  DataType type;
  ReduceOp op;
  int divisor;  // 0: reduce(), else reduce_average()
  std::size_t operand_count;
  std::size_t count;
  int target_is;  // the operand that the target is; -1: none
};

std::string describe(const Case& c) {
  return std::string(to_string(c.type)) + " " + std::string(to_string(c.op)) + " divisor " + std::to_string(c.divisor) + ", " +
         std::to_string(c.operand_count) + " operands of " + std::to_string(c.count) + ", target is operand " +
         std::to_string(c.target_is);
}

/// Runs one case on the device and on the reference; the empty string where they agree.
template <typename T>
std::string run(const Case& c, std::mt19937_64& random) {
  const std::size_t bytes = c.count * sizeof(T);
  std::vector<Guarded> buffers;
  std::vector<std::vector<T>> operands;
  for (std::size_t k = 0; k <= c.operand_count; ++k) {  // the last one is the target
    buffers.emplace_back(bytes, random() % 64);
    std::vector<T>& elements = operands.emplace_back(c.count);
    for (T& element : elements) element = random_element<T>(random);
    if (bytes > 0) std::memcpy(buffers.back().data(), elements.data(), bytes);
  }
  std::vector<const std::byte*> pointers;
  for (std::size_t k = 0; k < c.operand_count; ++k) pointers.push_back(buffers[k].data());
  const std::size_t target = c.target_is < 0 ? c.operand_count : static_cast<std::size_t>(c.target_is);

  if (c.divisor == 0) {
    host_device().reduce(buffers[target].data(), pointers, c.count, c.type, c.op);
  } else {
    host_device().reduce_average(buffers[target].data(), pointers, c.count, c.type, c.divisor);
  }

  std::vector<T> column(c.operand_count);
  for (std::size_t i = 0; i < c.count; ++i) {
    for (std::size_t k = 0; k < c.operand_count; ++k) column[k] = operands[k][i];
    const T wanted = reference::fold(column, c.op, c.divisor);
    T got;
    std::memcpy(&got, buffers[target].data() + i * sizeof(T), sizeof(T));
    if (!same(got, wanted)) return describe(c) + ": wrong element " + std::to_string(i);
  }
  for (std::size_t k = 0; k <= c.operand_count; ++k) {
    if (!buffers[k].intact()) return describe(c) + ": wrote outside buffer " + std::to_string(k);
    if (k != target && bytes > 0 && std::memcmp(buffers[k].data(), operands[k].data(), bytes) != 0) {
      return describe(c) + ": changed operand " + std::to_string(k);
    }
  }
  return "";
}

std::string run_any(const Case& c, std::mt19937_64& random) {
  switch (c.type) {
    case DataType::float32:
      return run<float>(c, random);
    case DataType::float64:
      return run<double>(c, random);
    case DataType::float16:
      return run<reference::Float16>(c, random);
    case DataType::bfloat16:
      return run<reference::Bfloat16>(c, random);
    case DataType::float8_e4m3fn:
      return run<reference::Float8E4M3Fn>(c, random);
    case DataType::float8_e5m2:
      return run<reference::Float8E5M2>(c, random);
    case DataType::int8:
      return run<std::int8_t>(c, random);
    case DataType::int16:
      return run<std::int16_t>(c, random);
    case DataType::int32:
      return run<std::int32_t>(c, random);
    case DataType::int64:
      return run<std::int64_t>(c, random);
    case DataType::uint8:
      return run<std::uint8_t>(c, random);
    case DataType::uint16:
      return run<std::uint16_t>(c, random);
    case DataType::uint32:
      return run<std::uint32_t>(c, random);
    case DataType::uint64:
      return run<std::uint64_t>(c, random);
  }
  return "unknown type";
}

/// Restricts Highway to one instruction set.
void use_target(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class HostDevice : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { use_target(GetParam()); }
  void TearDown() override { use_target(0); }
};

/// Every operation on `type`: the eight of ReduceOp, then averages by two divisors.
std::vector<std::pair<ReduceOp, int>> operations(DataType type) {
  std::vector<std::pair<ReduceOp, int>> all;
  for (int op = 0; op < kReduceOpCount; ++op) {
    if (supports(type, static_cast<ReduceOp>(op))) all.emplace_back(static_cast<ReduceOp>(op), 0);
  }
  all.emplace_back(ReduceOp::avg, 3);
  all.emplace_back(ReduceOp::avg, 300);  // does not fit into 8 bits
  return all;
}

void check_counts(const std::vector<std::size_t>& counts, const std::vector<std::size_t>& operand_counts) {
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  for (int type = 0; type < kDataTypeCount; ++type) {
    for (const auto& [op, divisor] : operations(static_cast<DataType>(type))) {
      for (const std::size_t operand_count : operand_counts) {
        for (const std::size_t count : counts) {
          // Out of place, and onto one operand; over all counts each operand is the target many times.
          const int in_place = static_cast<int>((count + static_cast<std::size_t>(op)) % operand_count);
          for (const int target_is : {-1, in_place}) {
            const Case c{static_cast<DataType>(type), op, divisor, operand_count, count, target_is};
            const std::string error = run_any(c, random);
            ASSERT_EQ(error, "");
          }
        }
      }
    }
  }
}

TEST_P(HostDevice, FoldsEveryTypeAndOperationForSmallCounts) {
  std::vector<std::size_t> counts;
  for (std::size_t count = 0; count <= 70; ++count) counts.push_back(count);
  check_counts(counts, {1, 2, 3, 4, 5, 8});
}

TEST_P(HostDevice, FoldsEveryTypeAndOperationForLargeOddCounts) { check_counts({1021, 2049}, {1, 2, 3, 4, 5, 8}); }

TEST_P(HostDevice, WritesOntoEveryOperand) {
  std::mt19937_64 random(kSeed);
  for (std::size_t operand_count = 1; operand_count <= 8; ++operand_count) {
    for (std::size_t k = 0; k < operand_count; ++k) {
      for (const std::size_t count : {7U, 67U, 333U}) {
        const Case c{DataType::bfloat16, ReduceOp::sum, 0, operand_count, count, static_cast<int>(k)};
        ASSERT_EQ(run<reference::Bfloat16>(c, random), "");
      }
    }
  }
}

/// All patterns through load and store: adding -0 changes nothing but makes NaNs quiet.
template <typename T>
void check_conversions(DataType type) {
  using Bits = decltype(T::bits);
  std::vector<Bits> all(std::size_t{1} << (8 * sizeof(Bits)));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Bits>(i);
  const std::vector<Bits> negative_zero(all.size(), T::kSign);
  std::vector<Bits> result(all.size());
  const std::byte* operands[] = {reinterpret_cast<const std::byte*>(all.data()),
                                 reinterpret_cast<const std::byte*>(negative_zero.data())};
  host_device().reduce(reinterpret_cast<std::byte*>(result.data()), operands, all.size(), type, ReduceOp::sum);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (reference::is_nan(T{all[i]})) {
      ASSERT_TRUE(reference::is_nan(T{result[i]})) << std::hex << i;
    } else {
      ASSERT_EQ(result[i], all[i]) << to_string(type) << ' ' << std::hex << i;
    }
  }
}

TEST_P(HostDevice, KeepsEveryValueOf16And8Bits) {
  check_conversions<reference::Float16>(DataType::float16);
  check_conversions<reference::Bfloat16>(DataType::bfloat16);
  check_conversions<reference::Float8E4M3Fn>(DataType::float8_e4m3fn);
  check_conversions<reference::Float8E5M2>(DataType::float8_e5m2);
}

/// Every sum and product of two values of 8 bits: all that rounding and overflow can do.
template <typename T>
void check_pairs(DataType type) {
  std::vector<std::uint8_t> left(65536);
  std::vector<std::uint8_t> right(left.size());
  std::vector<std::uint8_t> result(left.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    left[i] = static_cast<std::uint8_t>(i);
    right[i] = static_cast<std::uint8_t>(i >> 8);
  }
  const std::byte* operands[] = {reinterpret_cast<const std::byte*>(left.data()),
                                 reinterpret_cast<const std::byte*>(right.data())};
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
    host_device().reduce(reinterpret_cast<std::byte*>(result.data()), operands, left.size(), type, op);
    for (std::size_t i = 0; i < left.size(); ++i) {
      const T wanted = reference::fold(std::vector<T>{{left[i]}, {right[i]}}, op, 0);
      ASSERT_TRUE(same(T{result[i]}, wanted)) << to_string(type) << ' ' << to_string(op) << std::hex << " of " << int{left[i]}
                                              << " and " << int{right[i]} << " is " << int{result[i]};
    }
  }
}

TEST_P(HostDevice, CombinesEveryPairOf8Bits) {
  check_pairs<reference::Float8E4M3Fn>(DataType::float8_e4m3fn);
  check_pairs<reference::Float8E5M2>(DataType::float8_e5m2);
}

/// Results beyond the largest 8-bit value, in patterns written by hand.
TEST_P(HostDevice, ShowsOverflowOf8Bits) {
  const auto sum = [](DataType type, const std::vector<std::uint8_t>& values) {
    std::vector<const std::byte*> operands;
    for (const auto& value : values) operands.push_back(reinterpret_cast<const std::byte*>(&value));
    std::uint8_t result = 0;
    host_device().reduce(reinterpret_cast<std::byte*>(&result), operands, 1, type, ReduceOp::sum);
    return int{result};
  };
  // float8_e4m3fn: 448 = 0x7E, 16 = 0x58, 18 = 0x59, NaN = 0x7F.
  EXPECT_EQ(sum(DataType::float8_e4m3fn, {0x7E, 0x58}), 0x7E);        // 464 is a tie: the even 448
  EXPECT_EQ(sum(DataType::float8_e4m3fn, {0x7E, 0x59}), 0x7F);        // 466 is nearer to 480, which the format lacks
  EXPECT_EQ(sum(DataType::float8_e4m3fn, {0xFE, 0xFE}), 0xFF);        // the NaN keeps the sign
  EXPECT_EQ(sum(DataType::float8_e4m3fn, {0x7E, 0x7E, 0xFE}), 0x7E);  // no overflow between operands
  EXPECT_EQ(sum(DataType::float8_e4m3fn, {0x38, 0x18, 0x18}), 0x39);  // 1 + 1/16 + 1/16: rounded once
  // float8_e5m2: 57344 = 0x7B, 4096 = 0x6C, 3584 = 0x6B, infinity = 0x7C.
  EXPECT_EQ(sum(DataType::float8_e5m2, {0x7B, 0x6B}), 0x7B);
  EXPECT_EQ(sum(DataType::float8_e5m2, {0x7B, 0x6C}), 0x7C);  // 61440 is a tie: the even infinity
  EXPECT_EQ(sum(DataType::float8_e5m2, {0xFB, 0xFB}), 0xFC);
  EXPECT_EQ(sum(DataType::float8_e5m2, {0x7C, 0xFC}) & 0x7F, 0x7F);  // infinity - infinity
}

/// Rounding is to nearest even and happens once: big + small + small is not (big + small) rounded, + small rounded.
TEST_P(HostDevice, RoundsOnceToNearestEven) {
  const auto sum = [](DataType type, const std::vector<std::uint16_t>& values) {
    std::vector<const std::byte*> operands;
    for (const auto& value : values) operands.push_back(reinterpret_cast<const std::byte*>(&value));
    std::uint16_t result = 0;
    host_device().reduce(reinterpret_cast<std::byte*>(&result), operands, 1, type, ReduceOp::sum);
    return result;
  };
  // float16: 1 = 0x3C00, its ulp 2^-10, half an ulp 2^-11 = 0x1000.
  EXPECT_EQ(sum(DataType::float16, {0x3C00, 0x1000}), 0x3C00);          // tie goes to the even neighbour below
  EXPECT_EQ(sum(DataType::float16, {0x3C01, 0x1000}), 0x3C02);          // tie goes to the even neighbour above
  EXPECT_EQ(sum(DataType::float16, {0x3C00, 0x1000, 0x1000}), 0x3C01);  // rounding after each step would lose both halves
  EXPECT_EQ(sum(DataType::float16, {0x7BFF, 0x4BFF}), 0x7BFF);          // 65504 + 15.99 stays finite
  EXPECT_EQ(sum(DataType::float16, {0x7BFF, 0x4C00}), 0x7C00);          // 65504 + 16 is a tie: infinity
  EXPECT_EQ(sum(DataType::float16, {0x0001, 0x0001}), 0x0002);          // the smallest numbers are not flushed to zero
  // bfloat16: 1 = 0x3F80, its ulp 2^-7, half an ulp 2^-8 = 0x3B80.
  EXPECT_EQ(sum(DataType::bfloat16, {0x3F80, 0x3B80}), 0x3F80);
  EXPECT_EQ(sum(DataType::bfloat16, {0x3F81, 0x3B80}), 0x3F82);
  EXPECT_EQ(sum(DataType::bfloat16, {0x3F80, 0x3B80, 0x3B80}), 0x3F81);
  EXPECT_EQ(sum(DataType::bfloat16, {0x7F7F, 0x7F7F}), 0x7F80);
  EXPECT_EQ(sum(DataType::bfloat16, {0x0001, 0x0001}), 0x0002);
}

/// The sum of 16-bit operands passes 65504 on the way and comes back.
TEST_P(HostDevice, DoesNotOverflowBetweenOperands) {
  const std::uint16_t big = 0x7BFF;
  const std::uint16_t minus_big = 0xFBFF;
  const auto* b = reinterpret_cast<const std::byte*>(&big);
  const auto* m = reinterpret_cast<const std::byte*>(&minus_big);
  const std::byte* operands[] = {b, b, b, m, m};
  std::uint16_t result = 0;
  host_device().reduce(reinterpret_cast<std::byte*>(&result), operands, 1, DataType::float16, ReduceOp::sum);
  EXPECT_EQ(result, big);
}

TEST_P(HostDevice, MinAndMaxKeepTheFirstNan) {
  const std::uint32_t first = 0x7FC00111;
  const std::uint32_t second = 0xFFC00222;
  const std::uint32_t one = 0x3F800000;
  const auto address = [](const std::uint32_t& value) { return reinterpret_cast<const std::byte*>(&value); };
  const std::byte* operands[] = {address(one), address(first), address(second), address(one)};
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    std::uint32_t result = 0;
    host_device().reduce(reinterpret_cast<std::byte*>(&result), operands, 1, DataType::float32, op);
    EXPECT_EQ(result, first) << to_string(op);
  }
}

TEST_P(HostDevice, CopiesAnySizeAtAnyAlignment) {
  std::mt19937_64 random(kSeed);
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{4097}, 40 * kMiB + 333}) {
    for (const std::size_t misalignment : {0U, 1U, 63U}) {
      Guarded source(bytes, 7);
      Guarded target(bytes, misalignment);
      for (std::size_t i = 0; i < bytes; ++i) source.data()[i] = static_cast<std::byte>(i * 2654435761U >> 13);
      host_device().copy(target.data(), source.data(), bytes);
      ASSERT_EQ(std::memcmp(source.data(), target.data(), bytes), 0) << bytes << " bytes at " << misalignment;
      ASSERT_TRUE(target.intact()) << bytes << " bytes at " << misalignment;
    }
  }
}

/// The streaming copy by itself, also for sizes that copy() would not stream.
TEST_P(HostDevice, StreamsAnySizeAtAnyAlignment) {
  for (std::size_t bytes = 0; bytes < 700; bytes += 13) {
    for (std::size_t misalignment = 0; misalignment < 64; misalignment += 7) {
      Guarded source(bytes, 5);
      Guarded target(bytes, misalignment);
      for (std::size_t i = 0; i < bytes; ++i) source.data()[i] = static_cast<std::byte>(i * 31);
      host::byte_kernels().stream(target.data(), source.data(), bytes);
      ASSERT_EQ(std::memcmp(source.data(), target.data(), bytes), 0) << bytes << " bytes at " << misalignment;
      ASSERT_TRUE(target.intact()) << bytes << " bytes at " << misalignment;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Target, HostDevice, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

/// Without this the suite above could run the same code for every parameter.
TEST(HostDeviceDispatch, EveryTargetHasItsOwnKernels) {
  std::set<host::Kernel> seen;
  const auto targets = hwy::SupportedAndGeneratedTargets();
  for (const std::int64_t target : targets) {
    use_target(target);
    seen.insert(host::float32_kernels().sum);
  }
  use_target(0);
  EXPECT_EQ(seen.size(), targets.size());
}

}  // namespace
}  // namespace shoal
