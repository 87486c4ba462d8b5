// The loops of packing, compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::tcp {

/// Codes of exponents: 0..5 are base + code, kEscape is none of all these, and 7 is `other`, wherever that lies.
struct Window {
  std::uint8_t base = 0;
  std::uint8_t other = 0;
};
inline constexpr unsigned kEscape = 6;
inline constexpr unsigned kOther = 7;

/// Exponents whose codes lie together: the first bits of all, the second, the third.
inline constexpr std::size_t kGroup = 64;
inline constexpr std::size_t kPlaneBytes = kGroup / 8;
inline constexpr std::size_t kGroupBytes = 3 * kPlaneBytes;

/// Of words of one width, each rotated left by one so that its exponent is its top byte and the sign its lowest bit.
struct WordKernels {
  std::size_t word_bytes;
  /// The top bytes of `count` words to `exponents`, all others to `rests`, behind which it may write kSlack more.
  void (*split)(const std::uint8_t* words, std::size_t count, std::uint8_t* rests, std::uint8_t* exponents);
  /// The other way; it may read kSlack behind `rests`.
  void (*join)(const std::uint8_t* rests, const std::uint8_t* exponents, std::size_t count, std::uint8_t* words);
};
inline constexpr std::size_t kSlack = 4;

struct PackingKernels {
  bool fast;  ///< gigabytes a second
  WordKernels words32;
  WordKernels words16;
  /// The codes of so many groups of exponents, for which there is room before `end`, and the escapes behind them. Where these
  /// end; null where there is no room for them.
  std::uint8_t* (*encode)(const std::uint8_t* exponents, std::size_t groups, Window window, std::uint8_t* to,
                          const std::uint8_t* end);
  /// The other way; null where fewer escapes come before `end` than the codes tell of.
  const std::uint8_t* (*decode)(const std::uint8_t* from, const std::uint8_t* end, std::size_t groups, Window window,
                                std::uint8_t* exponents);
};

/// Of the best instruction set that this processor has.
[[nodiscard]] const PackingKernels& packing_kernels() noexcept;

}  // namespace shoal::tcp
