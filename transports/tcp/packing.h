// Lossless packing of payloads: the exponents of floats, which differ little, take three bits instead of eight.
#pragma once

#include <cstddef>
#include <span>

namespace shoal::tcp {

/// Smaller payloads are not worth packing.
inline constexpr std::size_t kLeastPackable = 2048;

/// Packs `payload` into `out`, which has room for as many bytes. Returns the packed size, at most 94 % of the payload; 0
/// where that is not enough, and the contents of `out` are undefined then. The data type need not be known: a sample of the
/// bytes shows whether they look like elements of 32 or 16 bits with similar exponents. packing.cc has the layout.
[[nodiscard]] std::size_t pack(std::span<const std::byte> payload, std::span<std::byte> out) noexcept;

/// The reverse, safe for any bytes; false where they are not a packed payload of that size, whose contents are undefined
/// then.
[[nodiscard]] bool unpack(std::span<const std::byte> packed, std::span<std::byte> payload) noexcept;

}  // namespace shoal::tcp
