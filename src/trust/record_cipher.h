// Encryption of what travels on one connection: records that only the other end can read, change or put in another order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "src/trust/proof.h"

namespace shoal {

/// What a connection is encrypted with: a key for each direction, which no other connection has.
struct SealingKeys {
  Key send;
  Key receive;
  bool aes = false;  ///< both processors have AES-256-GCM in hardware; ChaCha20-Poly1305 otherwise
};

/// `use`: what kind of connection it is; no two kinds share keys. `transcript`: what both said in its handshake, the nonces of
/// both sides among it. `connects`: of its two ends, this one.
[[nodiscard]] SealingKeys derive_sealing_keys(const Key& key, std::string_view use, std::string_view transcript, bool connects,
                                              bool aes);

/// This processor can do AES-256-GCM.
[[nodiscard]] bool has_aes() noexcept;

/// A record is four bytes of length, the text in its sealed form, and sixteen bytes that authenticate both. The number of the
/// record on its connection is its nonce, so none can be left out, repeated or moved. Thread rule: one thread at a time.
class RecordCipher {
 public:
  static constexpr std::size_t kLengthBytes = 4;
  static constexpr std::size_t kTagBytes = 16;
  static constexpr std::size_t kOverheadBytes = kLengthBytes + kTagBytes;

  /// No record holds more than `most_bytes`.
  RecordCipher(const SealingKeys& keys, std::size_t most_bytes);

  // Sending: what has been sealed and has not left yet.
  [[nodiscard]] std::span<const std::byte> outgoing() const noexcept { return std::span(out_).subspan(out_begin_, out_bytes_); }
  void sent(std::size_t bytes) noexcept;
  /// Precondition: nothing is outgoing; at most most_bytes.
  void seal(std::span<const std::byte> text) noexcept;

  // Receiving.
  /// Where the socket's next bytes go.
  [[nodiscard]] std::span<std::byte> room() noexcept { return std::span(in_).subspan(in_begin_ + in_bytes_); }
  void arrived(std::size_t bytes) noexcept { in_bytes_ += bytes; }
  /// The length of the text of the record that has arrived whole; 0 where none has. More than `most_bytes` where it is none.
  [[nodiscard]] std::size_t waiting_bytes() const noexcept;
  /// Opens it into `target`; false where it was changed. Precondition: 0 < waiting_bytes() <= most_bytes.
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
