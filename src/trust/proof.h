// How two ends of a connection prove to each other that they hold the job's key, without sending it.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

/// A secret of 256 bits. A value; keep it out of messages and command lines.
struct Key {
  std::array<std::byte, 32> bytes{};
};

/// A number that is used once, and cannot be guessed: an answer that covers it was made after it, so a recorded answer does not
/// match.
using Nonce = std::array<std::byte, 16>;
/// An HMAC-SHA256 (RFC 2104, FIPS 180-4).
using Proof = std::array<std::byte, 32>;

/// From the system's random numbers. Thread rule of all functions here: any thread.
Key random_key();
Nonce random_nonce();

/// The key for a text: its hash, so that any text of sufficient entropy will do.
Key key_from_text(std::string_view text);

/// A key for one purpose, which reveals nothing about `key` or the keys for other purposes. Another `salt` gives another key.
Key derive_key(const Key& key, std::string_view purpose, std::string_view salt = {});

/// The proof that its maker holds `key` and means exactly these parts in this order, in the role `role`.
Proof prove(const Key& key, std::string_view role, std::initializer_list<std::string_view> parts);

/// Compares in a time that does not depend on where they differ.
bool same(std::span<const std::byte> one, std::span<const std::byte> other) noexcept;

/// The bytes of a record, nonce or proof in the form that prove() takes.
template <std::size_t N>
std::string_view as_text(const std::array<std::byte, N>& bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), N};
}
inline std::string_view as_text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// 64 hexadecimal digits.
std::string to_hex(const Key& key);

}  // namespace shoal
