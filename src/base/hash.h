// A hash that is the same in every process and on every host, which std::hash is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shoal {

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325;

/// `hash` with one more value. Source: Fowler, Noll and Vo, FNV-1a with 64 bits.
constexpr std::uint64_t hash_with(std::uint64_t hash, std::uint64_t value) noexcept { return (hash ^ value) * 0x100000001b3; }

/// FNV-1a of `bytes`.
inline std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept {
  std::uint64_t hash = kHashStart;
  for (const std::byte byte : bytes) hash = hash_with(hash, static_cast<std::uint64_t>(byte));
  return hash;
}

}  // namespace shoal
