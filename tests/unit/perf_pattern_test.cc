// The result check of the benchmark: it accepts every order of reduction and refuses everything else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/perf/pattern.h"

namespace shoal::perf {
namespace {

/// One element of any type, reduced without vectors: in double for floating types with rounding to the type after every
/// operation, modulo 2^n for integers.
class Element {
 public:
  Element(DataType type, const std::byte* data) : type_(type) { std::memcpy(bytes_, data, size_of(type)); }

  void fold(const Element& other, ReduceOp op) {
    if (is_floating(type_)) {
      fold_floating(decode_floating(type_, other.bytes_), op);
    } else {
      switch (type_) {
        case DataType::int8:
          return fold_integer<std::int8_t>(other, op);
        case DataType::int16:
          return fold_integer<std::int16_t>(other, op);
        case DataType::int32:
          return fold_integer<std::int32_t>(other, op);
        case DataType::int64:
          return fold_integer<std::int64_t>(other, op);
        case DataType::uint8:
          return fold_integer<std::uint8_t>(other, op);
        case DataType::uint16:
          return fold_integer<std::uint16_t>(other, op);
        case DataType::uint32:
          return fold_integer<std::uint32_t>(other, op);
        default:
          return fold_integer<std::uint64_t>(other, op);
      }
    }
  }

  void divide(int ranks) {
    if (is_floating(type_)) {
      encode_floating(type_, decode_floating(type_, bytes_) / ranks, bytes_);
      return;
    }
    switch (type_) {
      case DataType::int8:
        return divide_integer<std::int8_t>(ranks);
      case DataType::int16:
        return divide_integer<std::int16_t>(ranks);
      case DataType::int32:
        return divide_integer<std::int32_t>(ranks);
      case DataType::int64:
        return divide_integer<std::int64_t>(ranks);
      case DataType::uint8:
        return divide_integer<std::uint8_t>(ranks);
      case DataType::uint16:
        return divide_integer<std::uint16_t>(ranks);
      case DataType::uint32:
        return divide_integer<std::uint32_t>(ranks);
      default:
        return divide_integer<std::uint64_t>(ranks);
    }
  }

  void store(std::byte* out) const { std::memcpy(out, bytes_, size_of(type_)); }

 private:
  void fold_floating(double other, ReduceOp op) {
    const double own = decode_floating(type_, bytes_);
    double result = own + other;
    if (op == ReduceOp::prod) result = own * other;
    if (op == ReduceOp::min) result = std::min(own, other);
    if (op == ReduceOp::max) result = std::max(own, other);
    encode_floating(type_, result, bytes_);
  }

  template <typename Integer>
  Integer get() const {
    Integer value;
    std::memcpy(&value, bytes_, sizeof value);
    return value;
  }

  template <typename Integer>
  void fold_integer(const Element& other, ReduceOp op) {
    using Unsigned = std::make_unsigned_t<Integer>;
    const Integer own = get<Integer>();
    const Integer more = other.get<Integer>();
    const auto a = static_cast<std::uint64_t>(static_cast<Unsigned>(own));
    const auto b = static_cast<std::uint64_t>(static_cast<Unsigned>(more));
    Integer result = static_cast<Integer>(a + b);
    if (op == ReduceOp::prod) result = static_cast<Integer>(a * b);
    if (op == ReduceOp::min) result = std::min(own, more);
    if (op == ReduceOp::max) result = std::max(own, more);
    if (op == ReduceOp::band) result = static_cast<Integer>(a & b);
    if (op == ReduceOp::bor) result = static_cast<Integer>(a | b);
    if (op == ReduceOp::bxor) result = static_cast<Integer>(a ^ b);
    std::memcpy(bytes_, &result, sizeof result);
  }

  template <typename Integer>
  void divide_integer(int ranks) {
    const auto result = static_cast<Integer>(get<Integer>() / static_cast<Integer>(ranks));
    std::memcpy(bytes_, &result, sizeof result);
  }

  DataType type_;
  std::byte bytes_[8] = {};
};

/// A pairwise reduction in a random order.
std::vector<std::byte> reduce_in_random_order(const Pattern& pattern, DataType type, ReduceOp op, int ranks, std::size_t count,
                                              std::mt19937& random) {
  const std::size_t element_bytes = size_of(type);
  std::vector<std::vector<std::byte>> inputs(static_cast<std::size_t>(ranks), std::vector<std::byte>(count * element_bytes));
  for (int rank = 0; rank < ranks; ++rank) pattern.fill(inputs[static_cast<std::size_t>(rank)].data(), count, rank);
  std::vector<std::byte> result(count * element_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<Element> terms;
    for (const auto& input : inputs) terms.emplace_back(type, input.data() + i * element_bytes);
    std::shuffle(terms.begin(), terms.end(), random);
    while (terms.size() > 1) {
      const std::size_t at = random() % (terms.size() - 1);
      terms[at].fold(terms[at + 1], op);
      terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    if (op == ReduceOp::avg) terms[0].divide(ranks);
    terms[0].store(result.data() + i * element_bytes);
  }
  return result;
}

class EveryPair : public ::testing::TestWithParam<int> {};

TEST_P(EveryPair, AcceptsAnyOrderAndRefusesOneChangedElement) {
  const int ranks = GetParam();
  std::mt19937 random(17);
  constexpr std::size_t kCount = 67;
  for (int t = 0; t < kDataTypeCount; ++t) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto type = static_cast<DataType>(t);
      const auto op = static_cast<ReduceOp>(o);
      // Above 127 ranks an int8 cannot hold the number of ranks that an average divides by.
      if (!supports(type, op) || (op == ReduceOp::avg && size_of(type) == 1 && ranks > 100)) continue;
      SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(op)));
      const Pattern pattern(type, op, ranks, 5);
      std::vector<std::byte> result = reduce_in_random_order(pattern, type, op, ranks, kCount, random);
      EXPECT_EQ(pattern.count_wrong_result(result.data(), kCount), 0U);
      // The highest byte holds the sign or the exponent: a change there is more than a rounding.
      result[(kCount / 2 + 1) * size_of(type) - 1] ^= std::byte{0x41};
      EXPECT_EQ(pattern.count_wrong_result(result.data(), kCount), 1U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryPair, ::testing::Values(1, 2, 3, 4, 7, 17, 300));

TEST(Pattern, DetectsAnyMissingRank) {
  // A sum that lacks one rank must be detected, also where not every rank contributes to every element.
  for (const auto& [type, ranks] :
       {std::pair{DataType::float32, 5}, std::pair{DataType::int8, 200}, std::pair{DataType::bfloat16, 300}}) {
    const Pattern pattern(type, ReduceOp::sum, ranks, 1);
    const std::vector<std::byte> zeros(Pattern::kPeriod * size_of(type));
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_GT(pattern.count_wrong_input(zeros.data(), Pattern::kPeriod, rank), 0U) << to_string(type) << " rank " << rank;
    }
  }
}

TEST(Pattern, DistinguishesRanksSeedsAndPositions) {
  constexpr std::size_t kCount = 10000;
  const Pattern pattern(DataType::float32, ReduceOp::sum, 4, 0);
  std::vector<float> data(kCount);
  pattern.fill(data.data(), kCount, 2);
  EXPECT_EQ(pattern.count_wrong_input(data.data(), kCount, 2), 0U);
  EXPECT_GT(pattern.count_wrong_input(data.data(), kCount, 1), kCount / 2);
  EXPECT_GT(Pattern(DataType::float32, ReduceOp::sum, 4, 1).count_wrong_input(data.data(), kCount, 2), kCount / 2);
  std::rotate(data.begin(), data.begin() + 4096, data.end());
  EXPECT_GT(pattern.count_wrong_input(data.data(), kCount, 2), kCount / 2);
}

TEST(Pattern, CountsEachWrongElementOfALongMessage) {
  constexpr std::size_t kCount = 3 * Pattern::kPeriod + 11;
  const Pattern pattern(DataType::int32, ReduceOp::max, 3, 0);
  std::vector<std::int32_t> result(kCount, std::numeric_limits<std::int32_t>::min());
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<std::int32_t> input(kCount);
    pattern.fill(input.data(), kCount, rank);
    for (std::size_t i = 0; i < kCount; ++i) result[i] = std::max(result[i], input[i]);
  }
  EXPECT_EQ(pattern.count_wrong_result(result.data(), kCount), 0U);
  for (const std::size_t at : {std::size_t{0}, Pattern::kPeriod, kCount - 1}) result[at] ^= 1;
  EXPECT_EQ(pattern.count_wrong_result(result.data(), kCount), 3U);
  EXPECT_EQ(pattern.count_wrong_result(result.data(), 0), 0U);
}

TEST(Pattern, RefusesNaN) {
  const Pattern pattern(DataType::float32, ReduceOp::avg, 2, 0);
  const float bad = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(pattern.count_wrong_result(&bad, 1), 1U);
}

TEST(ShortFloats, SurviveRoundTrip) {
  for (const auto& [type, largest] : {std::pair{DataType::float16, 256.0}, std::pair{DataType::bfloat16, 256.0},
                                      std::pair{DataType::float8_e4m3fn, 4.5}, std::pair{DataType::float8_e5m2, 3.0}}) {
    for (const double value : {0.0, 1.0, -1.0, 2.0, 3.0, 0x1p-9, -0x3p-9, 4.5, -81.0, 127.0, 0.5, 256.0}) {
      if (std::fabs(value) > largest) continue;
      std::byte bits[2];
      encode_floating(type, value, bits);
      EXPECT_EQ(decode_floating(type, bits), value);
    }
  }
  std::byte one[2];
  encode_floating(DataType::float16, 1, one);
  EXPECT_EQ(one[1], std::byte{0x3c});
  encode_floating(DataType::bfloat16, 1, one);
  EXPECT_EQ(one[1], std::byte{0x3f});
  for (const auto& [type, bits] : {std::pair{DataType::float8_e4m3fn, 0x38}, std::pair{DataType::float8_e5m2, 0x3c}}) {
    one[1] = std::byte{0xaa};
    encode_floating(type, 1, one);
    EXPECT_EQ(one[0], static_cast<std::byte>(bits));
    EXPECT_EQ(one[1], std::byte{0xaa});  // one byte is written, and one read
    EXPECT_EQ(decode_floating(type, one), 1);
  }
  const std::byte top{0x7f};  // this format has no infinity: only the largest pattern is special
  EXPECT_TRUE(std::isnan(decode_floating(DataType::float8_e4m3fn, &top)));
  const std::byte below{0x7e};
  EXPECT_EQ(decode_floating(DataType::float8_e4m3fn, &below), 448);
}

}  // namespace
}  // namespace shoal::perf
