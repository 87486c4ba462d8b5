#include "bench/perf/pattern.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

namespace shoal::perf {
namespace {

/// Format of a floating type of 16 or 8 bits.
struct ShortFloat {
  int bits;
  int fraction_bits;
  int bias;
  bool finite;  ///< no infinity: only the largest pattern is special, a NaN
};

ShortFloat short_float(DataType type) {
  switch (type) {
    case DataType::float16:
      return {16, 10, 15, false};
    case DataType::bfloat16:
      return {16, 7, 127, false};
    case DataType::float8_e4m3fn:
      return {8, 3, 7, true};
    default:
      return {8, 2, 15, false};
  }
}

std::uint16_t encode_short(const ShortFloat& format, double value) {
  const int sign = std::signbit(value) ? 1 << (format.bits - 1) : 0;
  if (value == 0) return static_cast<std::uint16_t>(sign);
  int above = 0;
  (void)std::frexp(value, &above);  // |value| is in [2^(above - 1), 2^above)
  const int smallest = 1 - format.bias;
  const int exponent = std::max(above - 1, smallest);
  const auto significand = static_cast<int>(std::lround(std::ldexp(std::fabs(value), format.fraction_bits - exponent)));
  return static_cast<std::uint16_t>(sign | (((exponent - smallest) << format.fraction_bits) + significand));
}

double decode_short(const ShortFloat& format, std::uint16_t bits) {
  const int sign = 1 << (format.bits - 1);
  const int magnitude = bits & (sign - 1);
  const int fraction_mask = (1 << format.fraction_bits) - 1;
  const int fraction = magnitude & fraction_mask;
  const int biased = magnitude >> format.fraction_bits;
  const int infinity = (sign - 1) & ~fraction_mask;
  double value = 0;
  if (format.finite ? magnitude == sign - 1 : magnitude > infinity) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (!format.finite && magnitude == infinity) {
    value = std::numeric_limits<double>::infinity();
  } else if (biased == 0) {
    value = std::ldexp(fraction, 1 - format.bias - format.fraction_bits);
  } else {
    value = std::ldexp(fraction + fraction_mask + 1, biased - format.bias - format.fraction_bits);
  }
  return (bits & sign) != 0 ? -value : value;
}

/// Bits of the significand, the hidden one included: integers up to 2^bits are exact.
int significand_bits(DataType type) {
  switch (type) {
    case DataType::float64:
      return 53;
    case DataType::float32:
      return 24;
    default:
      return short_float(type).fraction_bits + 1;
  }
}

bool is_unsigned(DataType type) {
  return type == DataType::uint8 || type == DataType::uint16 || type == DataType::uint32 || type == DataType::uint64;
}

std::uint64_t mix(std::uint64_t value) {  // splitmix64's finisher
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

std::uint64_t hash(std::uint32_t seed, int rank, std::size_t index) {
  return mix(mix(seed * 0x10001ULL + static_cast<std::uint64_t>(rank)) ^ index);
}

/// Whether `rank` is one of the at most `most` ranks that contribute to element `index`; the selection moves with the index,
/// so that every rank contributes somewhere.
bool contributes(int rank, std::size_t index, int ranks, std::int64_t most) {
  if (ranks <= most) return true;
  return static_cast<std::int64_t>((static_cast<std::size_t>(rank) + index) % static_cast<std::size_t>(ranks)) < most;
}

/// A sum term: an integer of magnitude at most `limit` / ranks or, with more ranks than `limit`, 1 on some ranks.
std::int64_t sum_term(std::uint64_t random, int rank, std::size_t index, int ranks, std::int64_t limit, bool negative_too) {
  if (!contributes(rank, index, ranks, limit)) return 0;
  const std::int64_t largest = std::clamp<std::int64_t>(limit / ranks, 1, 1000);
  const auto span = static_cast<std::uint64_t>(negative_too ? 2 * largest + 1 : largest + 1);
  return static_cast<std::int64_t>(random % span) - (negative_too ? largest : 0);
}

/// A product's factor, at most `largest`: only four ranks contribute, so that no partial product overflows the smallest type.
std::int64_t prod_term(std::uint64_t random, int rank, std::size_t index, int ranks, bool negative_too, unsigned largest = 3) {
  if (!contributes(rank, index, ranks, 4)) return 1;
  const auto magnitude = static_cast<std::int64_t>(1 + random % largest);
  return negative_too && (random & 0x100) != 0 ? -magnitude : magnitude;
}

template <typename Unsigned>
Unsigned reduce_integer(std::span<const std::uint64_t> terms, ReduceOp op, bool is_signed) {
  using Signed = std::make_signed_t<Unsigned>;
  if (op == ReduceOp::avg) {  // of the exact sum; the terms are small
    std::int64_t sum = 0;
    for (const std::uint64_t wide : terms) {
      const auto term = static_cast<Unsigned>(wide);
      sum += is_signed ? std::int64_t{static_cast<Signed>(term)} : static_cast<std::int64_t>(term);
    }
    return static_cast<Unsigned>(sum / static_cast<std::int64_t>(terms.size()));
  }
  auto result = static_cast<Unsigned>(terms[0]);
  for (const std::uint64_t wide : terms.subspan(1)) {
    const auto term = static_cast<Unsigned>(wide);
    const bool less = is_signed ? static_cast<Signed>(term) < static_cast<Signed>(result) : term < result;
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        result = static_cast<Unsigned>(result + term);
        break;
      case ReduceOp::prod:
        result = static_cast<Unsigned>(std::uint64_t{result} * term);
        break;
      case ReduceOp::min:
        result = less ? term : result;
        break;
      case ReduceOp::max:
        result = less ? result : term;
        break;
      case ReduceOp::band:
        result &= term;
        break;
      case ReduceOp::bor:
        result |= term;
        break;
      case ReduceOp::bxor:
        result ^= term;
        break;
    }
  }
  return result;
}

std::size_t count_different(const std::byte* data, std::size_t count, std::size_t element_bytes,
                            const std::vector<std::byte>& period) {
  std::size_t wrong = 0;
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): only a type that does not exist has no bytes
  const std::size_t period_elements = period.size() / element_bytes;
  for (std::size_t start = 0; start < count; start += period_elements) {
    const std::size_t length = std::min(period_elements, count - start);
    const std::byte* block = data + start * element_bytes;
    if (std::memcmp(block, period.data(), length * element_bytes) == 0) continue;
    for (std::size_t i = 0; i < length; ++i) {
      wrong += std::memcmp(block + i * element_bytes, period.data() + i * element_bytes, element_bytes) != 0 ? 1 : 0;
    }
  }
  return wrong;
}

}  // namespace

void encode_floating(DataType type, double value, std::byte* out) {
  switch (type) {
    case DataType::float64:
      std::memcpy(out, &value, sizeof value);
      return;
    case DataType::float32: {
      const auto narrow = static_cast<float>(value);
      std::memcpy(out, &narrow, sizeof narrow);
      return;
    }
    default: {
      const std::uint16_t bits = encode_short(short_float(type), value);
      static_assert(std::endian::native == std::endian::little);
      std::memcpy(out, &bits, size_of(type));
    }
  }
}

double decode_floating(DataType type, const std::byte* in) {
  switch (type) {
    case DataType::float64: {
      double value = 0;
      std::memcpy(&value, in, sizeof value);
      return value;
    }
    case DataType::float32: {
      float value = 0;
      std::memcpy(&value, in, sizeof value);
      return value;
    }
    default: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, in, size_of(type));
      return decode_short(short_float(type), bits);
    }
  }
}

Pattern::Pattern(DataType type, ReduceOp op, int ranks, std::uint32_t seed)
    : type_(type), op_(op), ranks_(ranks), seed_(seed), result_(kPeriod * size_of(type)) {
  if (is_floating(type)) {
    make_floating_result();
  } else {
    make_integer_result();
  }
}

double Pattern::floating_value(int rank, std::size_t index) const {
  const std::uint64_t random = hash(seed_, rank, index);
  const std::int64_t limit = std::int64_t{1} << std::min(significand_bits(type_), 40);
  switch (op_) {
    case ReduceOp::prod:
      // Products of 3 need more bits than an 8-bit float has.
      return static_cast<double>(prod_term(random, rank, index, ranks_, true, size_of(type_) == 1 ? 2 : 3));
    case ReduceOp::min:
    case ReduceOp::max:
      return static_cast<double>(random % 255) - 127;
    default:
      return static_cast<double>(sum_term(random, rank, index, ranks_, limit, true));
  }
}

std::uint64_t Pattern::integer_value(int rank, std::size_t index) const {
  const std::uint64_t random = hash(seed_, rank, index);
  const bool negative_too = !is_unsigned(type_);
  const int bits = static_cast<int>(8 * size_of(type_));
  const std::int64_t limit = (std::int64_t{1} << std::min(bits - 1, 40)) - 1;
  switch (op_) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return static_cast<std::uint64_t>(sum_term(random, rank, index, ranks_, limit, negative_too));
    case ReduceOp::prod:
      return static_cast<std::uint64_t>(prod_term(random, rank, index, ranks_, negative_too));
    // One bit in which this rank differs: with many ranks random words would leave only zeros, or only ones.
    case ReduceOp::band:
      return ~(std::uint64_t{1} << (random % static_cast<std::uint64_t>(bits)));
    case ReduceOp::bor:
      return std::uint64_t{1} << (random % static_cast<std::uint64_t>(bits));
    default:
      return random;
  }
}

std::vector<std::byte> Pattern::input_of(int rank) const {
  const std::size_t element_bytes = size_of(type_);
  std::vector<std::byte> input(kPeriod * element_bytes);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    std::byte* out = input.data() + i * element_bytes;
    if (is_floating(type_)) {
      encode_floating(type_, floating_value(rank, i), out);
    } else {
      const std::uint64_t value = integer_value(rank, i);
      static_assert(std::endian::native == std::endian::little);
      std::memcpy(out, &value, element_bytes);
    }
  }
  return input;
}

void Pattern::make_floating_result() {
  const bool rounds = op_ == ReduceOp::avg;
  if (rounds) {
    result_value_.resize(kPeriod);
    result_tolerance_.resize(kPeriod);
  }
  const double unit = std::ldexp(1.0, -significand_bits(type_));
  for (std::size_t i = 0; i < kPeriod; ++i) {
    double result = floating_value(0, i);
    double magnitude = std::fabs(result);
    for (int rank = 1; rank < ranks_; ++rank) {
      const double term = floating_value(rank, i);
      magnitude += std::fabs(term);
      switch (op_) {
        case ReduceOp::prod:
          result *= term;
          break;
        case ReduceOp::min:
          result = std::min(result, term);
          break;
        case ReduceOp::max:
          result = std::max(result, term);
          break;
        default:
          result += term;
      }
    }
    if (rounds) {
      // A library may divide the sum, multiply it by a rounded 1/n, or scale the terms first and round every partial sum.
      result_value_[i] = result / ranks_;
      result_tolerance_[i] = (ranks_ + 2) * unit * magnitude / ranks_;
    } else {
      encode_floating(type_, result, result_.data() + i * size_of(type_));
    }
  }
}

void Pattern::make_integer_result() {
  const std::size_t element_bytes = size_of(type_);
  const bool is_signed = !is_unsigned(type_);
  std::vector<std::uint64_t> terms(static_cast<std::size_t>(ranks_));
  for (std::size_t i = 0; i < kPeriod; ++i) {
    for (int rank = 0; rank < ranks_; ++rank) terms[static_cast<std::size_t>(rank)] = integer_value(rank, i);
    std::uint64_t result = 0;
    switch (element_bytes) {
      case 1:
        result = reduce_integer<std::uint8_t>(terms, op_, is_signed);
        break;
      case 2:
        result = reduce_integer<std::uint16_t>(terms, op_, is_signed);
        break;
      case 4:
        result = reduce_integer<std::uint32_t>(terms, op_, is_signed);
        break;
      default:
        result = reduce_integer<std::uint64_t>(terms, op_, is_signed);
    }
    std::memcpy(result_.data() + i * element_bytes, &result, element_bytes);
  }
}

void Pattern::fill(void* data, std::size_t count, int rank) const {
  const std::vector<std::byte> period = input_of(rank);
  auto* out = static_cast<std::byte*>(data);
  const std::size_t bytes = count * size_of(type_);
  for (std::size_t at = 0; at < bytes; at += period.size()) {
    std::memcpy(out + at, period.data(), std::min(period.size(), bytes - at));
  }
}

std::size_t Pattern::count_wrong_input(const void* data, std::size_t count, int rank, std::size_t first) const {
  return count_different(static_cast<const std::byte*>(data), count, size_of(type_), from(input_of(rank), first));
}

std::vector<std::byte> Pattern::from(std::vector<std::byte> period, std::size_t first) const {
  std::rotate(period.begin(), period.begin() + static_cast<std::ptrdiff_t>(first % kPeriod * size_of(type_)), period.end());
  return period;
}

std::size_t Pattern::count_wrong_result(const void* data, std::size_t count, std::size_t first) const {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (result_value_.empty()) return count_different(bytes, count, size_of(type_), from(result_, first));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = decode_floating(type_, bytes + i * size_of(type_));
    const std::size_t at = (first + i) % kPeriod;
    const bool close = std::fabs(value - result_value_[at]) <= result_tolerance_[at];  // false for NaN
    wrong += close ? 0 : 1;
  }
  return wrong;
}

}  // namespace shoal::perf
