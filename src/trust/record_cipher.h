// Encryption of one connection: records that only the other end can read, and that cannot be changed or reordered unnoticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "src/trust/proof.h"

namespace shoal {

/// The keys of a connection, one for each direction; no other connection has the same.
struct SealingKeys {
  Key send;
  Key receive;
  bool aes = false;  ///< both processors have AES-256-GCM in hardware; ChaCha20-Poly1305 otherwise
};

/// `use`: the kind of the connection; no two kinds share keys. `transcript`: what both ends sent in the handshake, including
/// the nonces of both. `connects`: this end has opened the connection.
[[nodiscard]] SealingKeys derive_sealing_keys(const Key& key, std::string_view use, std::string_view transcript, bool connects,
                                              bool aes);

/// Whether this processor has AES-256-GCM in hardware.
[[nodiscard]] bool has_aes() noexcept;

/// A record is four bytes of length, the encrypted text, and sixteen bytes that authenticate both. The number of the record on
/// its connection is its nonce, so no record can be left out, repeated or moved. Thread rule: one thread at a time.
class RecordCipher {
 public:
  static constexpr std::size_t kLengthBytes = 4;
  static constexpr std::size_t kTagBytes = 16;
  static constexpr std::size_t kOverheadBytes = kLengthBytes + kTagBytes;

  /// No record holds more than `most_bytes`.
  RecordCipher(const SealingKeys& keys, std::size_t most_bytes);

  // Sending: the encrypted bytes that have not been sent yet.
  [[nodiscard]] std::span<const std::byte> outgoing() const noexcept { return std::span(out_).subspan(out_begin_, out_bytes_); }
  void sent(std::size_t bytes) noexcept;
  /// Encrypts `text` into outgoing(). Precondition: nothing is outgoing; `text` has at most most_bytes.
  void seal(std::span<const std::byte> text) noexcept;

  // Receiving.
  /// The buffer for the socket's next bytes.
  [[nodiscard]] std::span<std::byte> room() noexcept { return std::span(in_).subspan(in_begin_ + in_bytes_); }
  void arrived(std::size_t bytes) noexcept { in_bytes_ += bytes; }
  /// The length of the text of the next record, if it has arrived whole, else 0. More than `most_bytes` for a malformed record.
  [[nodiscard]] std::size_t waiting_bytes() const noexcept;
  /// Decrypts that record into `target`; false if it was changed. Precondition: 0 < waiting_bytes() <= most_bytes.
  [[nodiscard]] bool open(std::byte* target) noexcept;

  [[nodiscard]] std::size_t most_bytes() const noexcept { return most_bytes_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return out_.size() + in_.size(); }

 private:
  void make_room() noexcept;

  const SealingKeys keys_;
  const std::size_t most_bytes_;
  std::uint64_t sealed_ = 0;  ///< records
  std::uint64_t opened_ = 0;
  std::vector<std::byte> out_;
  std::size_t out_begin_ = 0;
  std::size_t out_bytes_ = 0;
  std::vector<std::byte> in_;
  std::size_t in_begin_ = 0;
  std::size_t in_bytes_ = 0;
};

}  // namespace shoal
