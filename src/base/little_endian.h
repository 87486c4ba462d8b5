// Values in the byte order of all wire formats, which is little-endian.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace shoal {

/// Reverses the bytes of a number where this processor has the other order. Arrays of bytes stay as they are.
template <typename T>
void swap_if_big(std::byte* bytes) noexcept {
  if constexpr (std::endian::native == std::endian::big && std::is_scalar_v<T>) std::reverse(bytes, bytes + sizeof(T));
}

template <typename T>
void store_little(std::byte* at, const T& value) noexcept {
  std::memcpy(at, &value, sizeof(T));
  swap_if_big<T>(at);
}

template <typename T>
T load_little(const std::byte* at) noexcept {
  static_assert(!std::is_same_v<T, bool>, "a peer may have written any byte");
  T value;
  std::memcpy(&value, at, sizeof(T));
  swap_if_big<T>(reinterpret_cast<std::byte*>(&value));
  return value;
}

}  // namespace shoal
