// One element of each data type: how it lies in memory, what it is computed in, and the operations. Compiled for the host and
// for the device; the semantics are those of the host device (src/device/README.md), bit for bit but for the payload of NaNs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "kernels/portable.h"

namespace shoal::kernels {

/// A type that is computed as it is stored.
template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
  SHOAL_HOST_DEVICE static T decode(T value) { return value; }
  SHOAL_HOST_DEVICE static T encode(T value) { return value; }
};

/// A float of 16 or 8 bits, computed in float32. kSpecial: the first pattern that is no finite number; a value that is too
/// large becomes that pattern. kNan: the NaN that all NaNs become, without its sign.
template <typename Bits, int kFractionBits, int kBias, std::uint32_t kSpecial, std::uint32_t kNan>
struct SmallFloat {
  using Stored = Bits;
  using Computed = float;

  static constexpr int kShift = 23 - kFractionBits;  ///< between the two fractions
  static constexpr int kSignShift = 32 - 8 * static_cast<int>(sizeof(Bits));
  static constexpr std::uint32_t kSign = 1U << (8 * sizeof(Bits) - 1);
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kHidden = 1U << kFractionBits;  ///< the smallest pattern that has a hidden bit
  static constexpr std::uint32_t kQuantumBits = static_cast<std::uint32_t>(128 - kBias - kFractionBits) << 23;
  static constexpr std::uint32_t kSmallestNormal = kRebias + (1U << 23);
  /// A float32 whose last bit is worth the smallest value of this format: adding it rounds to a multiple of that.
  static constexpr std::uint32_t kRounderBits = kQuantumBits + (23U << 23);

  SHOAL_HOST_DEVICE static float decode(Bits stored) {
    const std::uint32_t magnitude = stored & (kSign - 1U);
    const std::uint32_t sign = (stored & kSign) << kSignShift;
    const std::uint32_t wide = magnitude << kShift;
    if (magnitude >= kSpecial) return std::bit_cast<float>(sign | wide | 0x7F800000U);
    if (magnitude >= kHidden) return std::bit_cast<float>(sign | (wide + kRebias));
    const float quantum = std::bit_cast<float>(std::uint32_t{kQuantumBits});
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * quantum));
  }

  SHOAL_HOST_DEVICE static Bits encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t sign = (bits >> kSignShift) & kSign;
    if (magnitude > 0x7F800000U) return static_cast<Bits>(sign | kNan);
    if (magnitude < kSmallestNormal) {
      const float rounder = std::bit_cast<float>(std::uint32_t{kRounderBits});
      return static_cast<Bits>(sign | (std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + rounder) - kRounderBits));
    }
    // To nearest, ties to even: just under one half, and one more where the last bit kept is odd.
    const std::uint32_t odd = (magnitude >> kShift) & 1U;
    const std::uint32_t rounded = (magnitude - kRebias + ((1U << (kShift - 1)) - 1U) + odd) >> kShift;
    return static_cast<Bits>(sign | (rounded < kSpecial ? rounded : kSpecial));
  }
};

using Float8E4M3Fn = SmallFloat<std::uint8_t, 3, 7, 0x7F, 0x7F>;
using Float8E5M2 = SmallFloat<std::uint8_t, 2, 15, 0x7C, 0x7F>;

struct Float16 : SmallFloat<std::uint16_t, 10, 15, 0x7C00, 0x7E00> {
#ifdef __CUDA_ARCH__
  // One instruction each, with the same results.
  __device__ __forceinline__ static float decode(std::uint16_t stored) { return __half2float(__ushort_as_half(stored)); }
  __device__ __forceinline__ static std::uint16_t encode(float value) { return __half_as_ushort(__float2half_rn(value)); }
#endif
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  using Computed = float;
  SHOAL_HOST_DEVICE static float decode(std::uint16_t stored) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(stored) << 16);
  }
  SHOAL_HOST_DEVICE static std::uint16_t encode(float value) {
#ifdef __CUDA_ARCH__
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits | 0x00400000U) >> 16);
    return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
#endif
  }
};

/// Integers are computed in an unsigned type of at least 32 bits, where overflow wraps; floats as they are.
template <typename C>
SHOAL_HOST_DEVICE auto wrapping(C value) {
  if constexpr (std::is_floating_point_v<C>) {
    return value;
  } else if constexpr (sizeof(C) == 8) {
    return static_cast<std::uint64_t>(value);
  } else {
    return static_cast<std::uint32_t>(value);
  }
}

template <typename C>
SHOAL_HOST_DEVICE bool sign_bit(C value) {
  if constexpr (sizeof(C) == 4) {
    return (std::bit_cast<std::uint32_t>(value) >> 31) != 0;
  } else {
    return (std::bit_cast<std::uint64_t>(value) >> 63) != 0;
  }
}

/// The operations, on the types that elements are computed in. Device code is compiled without fusing multiplications with
/// additions (-fmad=false).
struct Sum {
  template <typename C>
  SHOAL_HOST_DEVICE static C apply(C a, C b) {
    return static_cast<C>(wrapping(a) + wrapping(b));
  }
};
struct Prod {
  template <typename C>
  SHOAL_HOST_DEVICE static C apply(C a, C b) {
    return static_cast<C>(wrapping(a) * wrapping(b));
  }
};
/// IEEE 754-2019 minimum: the first NaN wins, -0 lies below +0.
struct Min {
  template <typename C>
  SHOAL_HOST_DEVICE static C apply(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) {
      if (a != a) return a;
      if (a == b) return sign_bit(a) ? a : b;
    }
    return a < b ? a : b;
  }
};
struct Max {
  template <typename C>
  SHOAL_HOST_DEVICE static C apply(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) {
      if (a != a) return a;
      if (a == b) return sign_bit(a) ? b : a;
    }
    return b < a ? a : b;
  }
};
struct Band {
  template <typename C>
  SHOAL_HOST_DEVICE static C apply(C a, C b) {
    return static_cast<C>(a & b);
  }
};
struct Bor {
  template <typename C>
  SHOAL_HOST_DEVICE static C apply(C a, C b) {
    return static_cast<C>(a | b);
  }
};
struct Bxor {
  template <typename C>
  SHOAL_HOST_DEVICE static C apply(C a, C b) {
    return static_cast<C>(a ^ b);
  }
};

/// The last step of an average. Integers divide what has wrapped, towards zero; an int's divisor may not fit into the element.
template <typename C>
SHOAL_HOST_DEVICE C divide(C value, int divisor) {
  if constexpr (std::is_floating_point_v<C> || (std::is_unsigned_v<C> && sizeof(C) >= sizeof(int))) {
    return static_cast<C>(value / static_cast<C>(divisor));
  } else {
    return static_cast<C>(value / divisor);
  }
}

}  // namespace shoal::kernels
