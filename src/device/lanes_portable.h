// Lanes without vector instructions: 64 bytes of elements in plain arrays, which the compiler may vectorise. For targets for
// which Highway has no vectors; also the shortest definition of what the vector lanes (lanes-inl.h) must compute.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace shoal::host::portable {

/// Element formats that C++20 has no type for.
struct Float16 {};
struct Bfloat16 {};
/// 8 bits: a sign, 7 - kFractionBits of exponent, and the fraction. kFirstSpecial: where infinity and NaN begin.
template <int kFractionBits, std::uint32_t kFirstSpecial>
struct Float8 {};
using Float8E4M3Fn = Float8<3, 0x7F>;
using Float8E5M2 = Float8<2, 0x7C>;

/// How elements of type T lie in memory and which type they are computed in.
template <typename T>
struct Format {
  using Stored = T;
  using Computed = T;
  static T decode(T value) { return value; }
  static T encode(T value) { return value; }
};

template <>
struct Format<Float16> {
  using Stored = std::uint16_t;
  using Computed = float;

  static float decode(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000U) << 16;
    const std::uint32_t magnitude = (half & 0x7FFFU) << 13;  // exponent and mantissa where a float has them, exponent bias 15
    const std::uint32_t normal = magnitude + (112U << 23);   // the bias of a float is 127
    const std::uint32_t infinite = magnitude | 0x7F800000U | (magnitude > 0x0F800000U ? 0x00400000U : 0U);  // NaNs become quiet
    const auto tiny = std::bit_cast<std::uint32_t>(static_cast<float>(half & 0x3FFU) * 0x1p-24F);
    const std::uint32_t bits = magnitude >= 0x0F800000U ? infinite : magnitude < 0x00800000U ? tiny : normal;
    return std::bit_cast<float>(sign | bits);
  }

  static std::uint16_t encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t nan = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
    // Adding one half aligns the mantissa with the quantum of small halves, 2^-24: the adder rounds to nearest even.
    const std::uint32_t tiny = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
    const std::uint32_t finite = magnitude < 0x38800000U ? tiny : normal;       // 2^-14, the smallest normal half
    const std::uint32_t rounded = magnitude >= 0x477FF000U ? 0x7C00U : finite;  // 65520 and above round to infinity
    return static_cast<std::uint16_t>(sign | (magnitude > 0x7F800000U ? nan : rounded));
  }
};

template <>
struct Format<Bfloat16> {
  using Stored = std::uint16_t;
  using Computed = float;

  static float decode(std::uint16_t upper) { return std::bit_cast<float>(static_cast<std::uint32_t>(upper) << 16); }

  static std::uint16_t encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t quiet = bits | 0x00400000U;
    const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
    return static_cast<std::uint16_t>(((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded) >> 16);
  }
};

/// The constants by which floats of 8 bits and of 32 bits differ, for both kinds of lanes.
template <int kFractionBits, std::uint32_t kFirstSpecial>
struct Float8Numbers {
  static constexpr int kShift = 23 - kFractionBits;  ///< from the fraction of one to that of the other
  static constexpr int kBias = (1 << (6 - kFractionBits)) - 1;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kSmallestNormal = kRebias + (1U << 23);  ///< as the bits of a float
  static constexpr std::uint32_t kNan = 0x7F;
  static constexpr std::uint32_t kNormalBits = 1U << kFractionBits;  ///< from here on values have a hidden bit
  /// The unit of values without a hidden bit: 2^(1 - kBias - kFractionBits).
  static constexpr float kQuantum = std::bit_cast<float>(static_cast<std::uint32_t>(128 - kBias - kFractionBits) << 23);
  /// A float whose last bit has the value of one quantum: adding it to a smaller number rounds that to nearest even.
  static constexpr float kRounder = kQuantum * 0x1p23F;
};

template <int kFractionBits, std::uint32_t kFirstSpecial>
struct Format<Float8<kFractionBits, kFirstSpecial>> {
  using Stored = std::uint8_t;
  using Computed = float;
  using N = Float8Numbers<kFractionBits, kFirstSpecial>;

  static float decode(std::uint8_t bits8) {
    const std::uint32_t magnitude = bits8 & 0x7FU;
    const std::uint32_t shifted = magnitude << N::kShift;
    const auto tiny = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * N::kQuantum);
    const std::uint32_t finite = magnitude < N::kNormalBits ? tiny : shifted + N::kRebias;
    const std::uint32_t bits = magnitude >= kFirstSpecial ? shifted | 0x7F800000U : finite;
    return std::bit_cast<float>(((bits8 & 0x80U) << 24) | bits);
  }

  static std::uint8_t encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t tiny =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + N::kRounder) - std::bit_cast<std::uint32_t>(N::kRounder);
    const std::uint32_t last = (magnitude >> N::kShift) & 1U;
    const std::uint32_t normal = (magnitude - N::kRebias + ((1U << (N::kShift - 1)) - 1U) + last) >> N::kShift;
    const std::uint32_t rounded = magnitude < N::kSmallestNormal ? tiny : normal < kFirstSpecial ? normal : kFirstSpecial;
    const std::uint32_t result = magnitude > 0x7F800000U ? N::kNan : rounded;
    return static_cast<std::uint8_t>(((bits >> 24) & 0x80U) | result);
  }
};

template <typename T>
struct Lanes {
  using Stored = typename Format<T>::Stored;
  using Computed = typename Format<T>::Computed;
  static constexpr std::size_t kElementBytes = sizeof(Stored);
  static constexpr std::size_t kBytes = 64;
  static constexpr std::size_t kCount = kBytes / sizeof(Stored);

  struct Value {
    Computed lane[kCount];
  };

  static Value load(const std::byte* from) {
    Stored stored[kCount];
    std::memcpy(stored, from, kBytes);
    Value value;
    for (std::size_t i = 0; i < kCount; ++i) value.lane[i] = Format<T>::decode(stored[i]);
    return value;
  }
  static void store(const Value& value, std::byte* to) {
    Stored stored[kCount];
    for (std::size_t i = 0; i < kCount; ++i) stored[i] = Format<T>::encode(value.lane[i]);
    std::memcpy(to, stored, kBytes);
  }

  static Value sum(Value a, const Value& b) {
    for (std::size_t i = 0; i < kCount; ++i) a.lane[i] = static_cast<Computed>(wide(a.lane[i]) + wide(b.lane[i]));
    return a;
  }
  static Value prod(Value a, const Value& b) {
    for (std::size_t i = 0; i < kCount; ++i) a.lane[i] = static_cast<Computed>(wide(a.lane[i]) * wide(b.lane[i]));
    return a;
  }
  static Value min(Value a, const Value& b) {
    for (std::size_t i = 0; i < kCount; ++i) a.lane[i] = min_of(a.lane[i], b.lane[i]);
    return a;
  }
  static Value max(Value a, const Value& b) {
    for (std::size_t i = 0; i < kCount; ++i) a.lane[i] = max_of(a.lane[i], b.lane[i]);
    return a;
  }
  static Value divide(Value a, int divisor) {
    for (std::size_t i = 0; i < kCount; ++i) a.lane[i] = static_cast<Computed>(a.lane[i] / static_cast<Computed>(divisor));
    return a;
  }
  static Value band(Value a, const Value& b) {
    for (std::size_t i = 0; i < kCount; ++i) a.lane[i] &= b.lane[i];
    return a;
  }
  static Value bor(Value a, const Value& b) {
    for (std::size_t i = 0; i < kCount; ++i) a.lane[i] |= b.lane[i];
    return a;
  }
  static Value bxor(Value a, const Value& b) {
    for (std::size_t i = 0; i < kCount; ++i) a.lane[i] ^= b.lane[i];
    return a;
  }

 private:
  /// Integers are computed in an unsigned type of at least 32 bits, where overflow wraps instead of being undefined.
  static auto wide(Computed value) {
    if constexpr (std::is_floating_point_v<Computed>) {
      return value;
    } else if constexpr (sizeof(Computed) == 8) {
      return static_cast<std::uint64_t>(value);
    } else {
      return static_cast<std::uint32_t>(value);
    }
  }
  static Computed min_of(Computed a, Computed b) {
    if constexpr (std::is_floating_point_v<Computed>) {
      const Computed smaller = a < b ? a : b;                 // b if either is a NaN
      const Computed zero_or_equal = is_negative(a) ? a : b;  // of two equal values, -0 is the smaller
      const Computed ordered = a == b ? zero_or_equal : smaller;
      return a != a ? a : ordered;
    } else {
      return a < b ? a : b;
    }
  }
  static Computed max_of(Computed a, Computed b) {
    if constexpr (std::is_floating_point_v<Computed>) {
      const Computed larger = a > b ? a : b;
      const Computed zero_or_equal = is_negative(a) ? b : a;
      const Computed ordered = a == b ? zero_or_equal : larger;
      return a != a ? a : ordered;
    } else {
      return a > b ? a : b;
    }
  }
  static bool is_negative(Computed value) {
    if constexpr (sizeof(Computed) == 4) {
      return (std::bit_cast<std::uint32_t>(value) >> 31) != 0;
    } else {
      return (std::bit_cast<std::uint64_t>(value) >> 63) != 0;
    }
  }
};

/// Portable C++ has no streaming stores.
inline void stream_bytes(std::byte* target, const std::byte* source, std::size_t bytes) { std::memcpy(target, source, bytes); }

}  // namespace shoal::host::portable
