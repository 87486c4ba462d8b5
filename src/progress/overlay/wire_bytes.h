// ByteWriter, ByteReader: fields of the messages between hosts, with every length checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/base/little_endian.h"

namespace shoal {

/// Appends fields in the byte order of all wire formats. Thread rule: a value.
class ByteWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>, "sent as bytes: no padding");
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    store_little(bytes_.data() + at, value);
  }
  void put(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  /// The length in 32 bits, then the bytes.
  void put_sized(std::span<const std::byte> bytes) {
    put(static_cast<std::uint32_t>(bytes.size()));
    put(bytes);
  }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads them. After a field that is cut short or out of range, ok() is false and all further fields read as zero.
/// Thread rule: a value.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  template <typename T>
  T get() noexcept {
    static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
    const auto bytes = get_bytes(sizeof(T));
    return ok_ ? load_little<T>(bytes.data()) : T{};
  }
  /// A number below `limit`, which is above 0.
  int get_below(int limit) noexcept {
    const auto value = get<std::uint32_t>();
    if (value >= static_cast<std::uint32_t>(limit)) fail();
    return ok_ ? static_cast<int>(value) : 0;
  }
  std::span<const std::byte> get_bytes(std::size_t size) noexcept {
    if (size > rest_.size()) fail();
    if (!ok_) return {};
    const auto bytes = rest_.first(size);
    rest_ = rest_.subspan(size);
    return bytes;
  }
  /// What put_sized() wrote, at most `most` bytes.
  std::vector<std::byte> get_sized(std::size_t most) {
    const auto size = get<std::uint32_t>();
    if (size > most) fail();
    const auto bytes = get_bytes(size);
    return {bytes.begin(), bytes.end()};
  }
  void fail() noexcept {
    ok_ = false;
    rest_ = {};
  }
  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace shoal
