// Packing of payloads: the exponents of floats, which differ little, in three bits instead of eight, and nothing is lost.
#pragma once

#include <cstddef>
#include <span>

namespace shoal::tcp {

/// Less is not worth a look.
inline constexpr std::size_t kLeastPackable = 2048;

/// Packs `payload` into `out`, which has room for as many bytes. How many it takes, at most 94 % of them; 0 where they would
/// not do, and `out` holds nothing of use. It knows no data type: a sample of the bytes says whether they look like words of 32
/// or 16 bits whose exponents are alike. The layout stands in packing.cc.
[[nodiscard]] std::size_t pack(std::span<const std::byte> payload, std::span<std::byte> out) noexcept;

/// The other way, of bytes from anywhere; false where they are no packing of a payload of that size, which holds nothing of use
/// then.
[[nodiscard]] bool unpack(std::span<const std::byte> packed, std::span<std::byte> payload) noexcept;

}  // namespace shoal::tcp
