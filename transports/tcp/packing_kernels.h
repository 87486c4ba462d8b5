// The loops of packing, compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::tcp {

/// Codes of exponents: 0..5 mean base + code, 7 means `other` (any value), and kEscape means none of these.
struct Window {
  std::uint8_t base = 0;
  std::uint8_t other = 0;
};
inline constexpr unsigned kEscape = 6;
inline constexpr unsigned kOther = 7;

/// Number of exponents whose codes are stored together: the first bits of all, the second, the third.
inline constexpr std::size_t kGroup = 64;
inline constexpr std::size_t kPlaneBytes = kGroup / 8;
inline constexpr std::size_t kGroupBytes = 3 * kPlaneBytes;

/// For elements of one width, each rotated left by one so that its exponent is its top byte and the sign its lowest bit.
struct ElementKernels {
  std::size_t element_bytes;
  /// Stores the top bytes of `count` elements to `exponents`, all others to `rests`, behind which it may write kSlack more.
  void (*split)(const std::uint8_t* elements, std::size_t count, std::uint8_t* rests, std::uint8_t* exponents);
  /// The reverse; it may read kSlack behind `rests`.
  void (*join)(const std::uint8_t* rests, const std::uint8_t* exponents, std::size_t count, std::uint8_t* elements);
};
inline constexpr std::size_t kSlack = 4;

struct PackingKernels {
  bool fast;  ///< reaches gigabytes per second
  ElementKernels elements32;
  ElementKernels elements16;
  /// Writes the codes of this many groups of exponents, for which there is room before `end`, and the escapes behind them.
  /// Returns the end of the escapes; null where there is no room for them.
  std::uint8_t* (*encode)(const std::uint8_t* exponents, std::size_t groups, Window window, std::uint8_t* to,
                          const std::uint8_t* end);
  /// The reverse; null where there are fewer escapes before `end` than the codes need.
  const std::uint8_t* (*decode)(const std::uint8_t* from, const std::uint8_t* end, std::size_t groups, Window window,
                                std::uint8_t* exponents);
};

/// The kernels for the best instruction set that this processor has.
[[nodiscard]] const PackingKernels& packing_kernels() noexcept;

}  // namespace shoal::tcp
