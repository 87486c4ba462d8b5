// Element-by-element reference for the tests of a Device, independent of the code under test.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <shoal/types.h>

namespace shoal::reference {

/// A float of 16 or 8 bits with this many bits of exponent and mantissa: exact conversions by the definition of the format.
/// kFinite: no infinity, and only the largest pattern is a NaN.
template <typename Bits, int kExponentBits, int kMantissaBits, bool kFinite = false>
struct Small {
  Bits bits;

  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr Bits kSign = static_cast<Bits>(1 << (8 * sizeof(Bits) - 1));
  static constexpr Bits kUnsigned = static_cast<Bits>(kSign - 1);
  /// The first pattern above the largest value: infinity, where the format has it.
  static constexpr Bits kEnd = kFinite ? kUnsigned : static_cast<Bits>(((1 << kExponentBits) - 1) << kMantissaBits);

  static double magnitude(Bits bits) {
    const int exponent = bits >> kMantissaBits;
    const int mantissa = bits & ((1 << kMantissaBits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - kBias - kMantissaBits);
    return std::ldexp(mantissa + (1 << kMantissaBits), exponent - kBias - kMantissaBits);
  }
  double decode() const {
    const auto unsigned_bits = static_cast<Bits>(bits & kUnsigned);
    const double sign = (bits & kSign) != 0 ? -1.0 : 1.0;
    if (unsigned_bits > kEnd || (kFinite && unsigned_bits == kEnd)) return std::numeric_limits<double>::quiet_NaN();
    if (unsigned_bits == kEnd) return sign * std::numeric_limits<double>::infinity();
    return sign * magnitude(unsigned_bits);
  }
  /// The nearest of all values of the format, the even one of two. Beyond the largest one, the number that the next pattern
  /// would be stands for infinity, or for NaN where there is no infinity.
  static Small encode(double value) {
    if (std::isnan(value)) return {kUnsigned};
    const Bits sign = std::signbit(value) ? kSign : Bits{0};
    const double wanted = std::min(std::fabs(value), magnitude(kEnd));
    static const std::vector<double> known = [] {
      std::vector<double> values;
      for (int i = 0; i <= kEnd; ++i) values.push_back(magnitude(static_cast<Bits>(i)));
      return values;
    }();
    const auto above = std::lower_bound(known.begin(), known.end(), wanted) - known.begin();
    if (known[above] == wanted) return {static_cast<Bits>(sign | above)};
    const double down = wanted - known[above - 1];
    const double up = known[above] - wanted;
    const bool take_above = up < down || (up == down && above % 2 == 0);
    return {static_cast<Bits>(sign | (take_above ? above : above - 1))};
  }
};
using Float16 = Small<std::uint16_t, 5, 10>;
using Bfloat16 = Small<std::uint16_t, 8, 7>;
using Float8E4M3Fn = Small<std::uint8_t, 4, 3, true>;
using Float8E5M2 = Small<std::uint8_t, 5, 2>;

template <typename T>
inline constexpr bool kIsSmall = false;
template <typename Bits, int kExponentBits, int kMantissaBits, bool kFinite>
inline constexpr bool kIsSmall<Small<Bits, kExponentBits, kMantissaBits, kFinite>> = true;

template <typename T>
bool is_nan(T value) {
  if constexpr (kIsSmall<T>) {
    return std::isnan(value.decode());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

/// float64 arithmetic, rounded to T: for float32 the same as float32 arithmetic, since float64 has more than twice its bits.
template <typename T>
T combine_floating(T a, T b, ReduceOp op) {
  const double x = a;
  const double y = b;
  switch (op) {
    case ReduceOp::prod:
      return static_cast<T>(x * y);
    case ReduceOp::min:
      if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<T>::quiet_NaN();
      if (x == y) return std::signbit(x) ? a : b;
      return x < y ? a : b;
    case ReduceOp::max:
      if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<T>::quiet_NaN();
      if (x == y) return std::signbit(x) ? b : a;
      return x > y ? a : b;
    default:
      return static_cast<T>(x + y);
  }
}

/// Unsigned 64-bit arithmetic, cut to T.
template <typename T>
T combine_integers(T a, T b, ReduceOp op) {
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::prod:
      return static_cast<T>(x * y);
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::band:
      return static_cast<T>(x & y);
    case ReduceOp::bor:
      return static_cast<T>(x | y);
    case ReduceOp::bxor:
      return static_cast<T>(x ^ y);
    default:
      return static_cast<T>(x + y);
  }
}

/// The fold that device.h promises, of one element of each operand. divisor 0: no average.
template <typename T>
T fold(const std::vector<T>& operands, ReduceOp op, int divisor) {
  if constexpr (kIsSmall<T>) {
    std::vector<float> wide;
    for (const T& operand : operands) wide.push_back(static_cast<float>(operand.decode()));
    if (wide.size() == 1 && divisor == 0) return operands[0];
    return T::encode(fold(wide, op, divisor));
  } else {
    T value = operands[0];
    for (std::size_t k = 1; k < operands.size(); ++k) {
      if constexpr (std::is_floating_point_v<T>) {
        value = combine_floating(value, operands[k], op);
      } else {
        value = combine_integers(value, operands[k], op);
      }
    }
    if (divisor == 0) return value;
    if constexpr (std::is_floating_point_v<T>) {
      return value / static_cast<T>(divisor);
    } else if constexpr (std::is_signed_v<T>) {
      return static_cast<T>(static_cast<std::int64_t>(value) / divisor);
    } else {
      return static_cast<T>(static_cast<std::uint64_t>(value) / static_cast<std::uint64_t>(divisor));
    }
  }
}

}  // namespace shoal::reference
