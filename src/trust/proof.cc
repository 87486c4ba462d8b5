#include "src/trust/proof.h"

#include <sodium.h>

#include <cstdint>

#include "src/base/little_endian.h"
#include "src/trust/raw.h"

namespace shoal {
namespace {

static_assert(crypto_auth_hmacsha256_BYTES == std::tuple_size_v<Proof>);
static_assert(crypto_auth_hmacsha256_KEYBYTES == sizeof(Key));

// Selects the implementation for this processor; further calls do nothing.
void use_sodium() {
  static const int ready = sodium_init();
  static_cast<void>(ready);
}

}  // namespace

Key random_key() {
  use_sodium();
  Key key;
  randombytes_buf(key.bytes.data(), key.bytes.size());
  return key;
}

Nonce random_nonce() {
  use_sodium();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Key key_from_text(std::string_view text) { return derive_key(Key{}, "shoal job key", text); }

Key derive_key(const Key& key, std::string_view purpose, std::string_view salt) {
  return Key{prove(key, "derive", {purpose, salt})};
}

Proof prove(const Key& key, std::string_view role, std::initializer_list<std::string_view> parts) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw(key.bytes.data()), key.bytes.size());
  // Each part with its length in front, so that no two lists of parts give the same bytes.
  const auto add = [&state](std::string_view part) {
    std::array<std::byte, 8> length{};
    store_little(length.data(), std::uint64_t{part.size()});
    crypto_auth_hmacsha256_update(&state, raw(length.data()), length.size());
    crypto_auth_hmacsha256_update(&state, raw(part.data()), part.size());
  };
  add(role);
  for (const std::string_view part : parts) add(part);
  Proof proof;
  crypto_auth_hmacsha256_final(&state, raw(proof.data()));
  return proof;
}

bool same(std::span<const std::byte> one, std::span<const std::byte> other) noexcept {
  return one.size() == other.size() && sodium_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string to_hex(const Key& key) {
  std::array<char, 2 * sizeof(Key) + 1> text{};
  sodium_bin2hex(text.data(), text.size(), raw(key.bytes.data()), key.bytes.size());
  return text.data();
}

}  // namespace shoal
