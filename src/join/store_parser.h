// Parses the fields of a TCP store's messages (store_protocol.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <tuple>

namespace shoal {

/// Parses fields at the front of the bytes that have arrived so far. The caller removes them only when a whole message has
/// arrived. Each function returns nullopt while its field has not arrived whole. Safe for any bytes.
class StoreParser {
 public:
  explicit StoreParser(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  std::optional<char> byte() {
    const auto found = bytes(1);
    return found ? std::optional(found->front()) : std::nullopt;
  }
  std::optional<std::uint32_t> number() { return value<std::uint32_t>(); }
  std::optional<std::uint64_t> long_number() { return value<std::uint64_t>(); }
  template <typename Array>
  std::optional<Array> array() {
    const auto found = bytes(std::tuple_size_v<Array>);
    if (!found) return std::nullopt;
    Array value;
    std::memcpy(value.data(), found->data(), value.size());
    return value;
  }
  /// Also nullopt if it is longer than `limit`, which sets hostile().
  std::optional<std::string_view> block(std::uint32_t limit) {
    const auto length = number();
    if (!length) return std::nullopt;
    hostile_ |= *length > limit;
    return hostile_ ? std::nullopt : bytes(*length);
  }
  std::optional<std::string_view> bytes(std::size_t count) {
    if (rest_.size() < count) return std::nullopt;
    const std::string_view found = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return found;
  }
  [[nodiscard]] bool hostile() const { return hostile_; }
  [[nodiscard]] std::size_t taken() const { return size_ - rest_.size(); }

 private:
  template <typename T>
  std::optional<T> value() {
    const auto found = bytes(sizeof(T));
    if (!found) return std::nullopt;
    T value = 0;
    std::memcpy(&value, found->data(), sizeof value);
    return value;
  }

  std::string_view rest_;
  std::size_t size_;
  bool hostile_ = false;
};

}  // namespace shoal
