#include "src/trust/record_cipher.h"

#include <sodium.h>

#include <array>
#include <cstring>
#include <string>

#include "src/base/little_endian.h"
#include "src/trust/raw.h"

namespace shoal {
namespace {

static_assert(crypto_aead_aes256gcm_KEYBYTES == sizeof(Key) && crypto_aead_chacha20poly1305_ietf_KEYBYTES == sizeof(Key));
static_assert(crypto_aead_aes256gcm_ABYTES == RecordCipher::kTagBytes);
static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == RecordCipher::kTagBytes);
constexpr std::size_t kNonceBytes = crypto_aead_aes256gcm_NPUBBYTES;
static_assert(kNonceBytes == crypto_aead_chacha20poly1305_ietf_NPUBBYTES);

std::array<std::byte, kNonceBytes> nonce_of(std::uint64_t record) noexcept {
  std::array<std::byte, kNonceBytes> nonce{};
  store_little(nonce.data(), record);
  return nonce;
}

}  // namespace

bool has_aes() noexcept {
  static const bool has = sodium_init() >= 0 && crypto_aead_aes256gcm_is_available() != 0;
  return has;
}

SealingKeys derive_sealing_keys(const Key& key, std::string_view use, std::string_view transcript, bool connects, bool aes) {
  const Key there = derive_key(key, std::string(use) + " to the listening side", transcript);
  const Key back = derive_key(key, std::string(use) + " to the connecting side", transcript);
  return {connects ? there : back, connects ? back : there, aes};
}

RecordCipher::RecordCipher(const SealingKeys& keys, std::size_t most_bytes)
    : keys_(keys), most_bytes_(most_bytes), out_(most_bytes + kOverheadBytes), in_(2 * (most_bytes + kOverheadBytes)) {
  static_cast<void>(has_aes());  // initialises libsodium
}

void RecordCipher::sent(std::size_t bytes) noexcept {
  out_begin_ += bytes;
  out_bytes_ -= bytes;
}

void RecordCipher::seal(std::span<const std::byte> text) noexcept {
  std::byte* at = out_.data();
  store_little(at, static_cast<std::uint32_t>(text.size()));
  const auto nonce = nonce_of(sealed_++);
  const auto encrypt = keys_.aes ? crypto_aead_aes256gcm_encrypt : crypto_aead_chacha20poly1305_ietf_encrypt;
  encrypt(raw(at + kLengthBytes), nullptr, raw(text.data()), text.size(), raw(at), kLengthBytes, nullptr, raw(nonce.data()),
          raw(keys_.send.bytes.data()));
  out_begin_ = 0;
  out_bytes_ = text.size() + kOverheadBytes;
}

std::size_t RecordCipher::waiting_bytes() const noexcept {
  if (in_bytes_ < kLengthBytes) return 0;
  const std::size_t length = load_little<std::uint32_t>(in_.data() + in_begin_);
  if (length == 0 || length > most_bytes_) return most_bytes_ + 1;
  return in_bytes_ >= length + kOverheadBytes ? length : 0;
}

bool RecordCipher::open(std::byte* target) noexcept {
  const std::byte* at = in_.data() + in_begin_;
  const std::size_t length = waiting_bytes();
  const auto nonce = nonce_of(opened_++);
  const auto decrypt = keys_.aes ? crypto_aead_aes256gcm_decrypt : crypto_aead_chacha20poly1305_ietf_decrypt;
  const int outcome = decrypt(raw(target), nullptr, nullptr, raw(at + kLengthBytes), length + kTagBytes, raw(at), kLengthBytes,
                              raw(nonce.data()), raw(keys_.receive.bytes.data()));
  in_begin_ += length + kOverheadBytes;
  in_bytes_ -= length + kOverheadBytes;
  make_room();
  return outcome == 0;
}

// Makes room for one more whole record after the bytes that have arrived.
void RecordCipher::make_room() noexcept {
  if (in_bytes_ == 0) {
    in_begin_ = 0;
  } else if (in_begin_ > most_bytes_ + kOverheadBytes - 1) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_bytes_);
    in_begin_ = 0;
  }
}

}  // namespace shoal
