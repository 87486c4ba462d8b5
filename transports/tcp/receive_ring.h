// What one socket has received: frames, of which the front one is checked and shown.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <shoal/status.h>

#include "transports/tcp/mirror_ring.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {

/// Bytes are written to free_space() and added; examine() checks the frame at the head. Frames lie contiguous and aligned, and
/// are not copied again, except that packed payloads are unpacked. Makes no system call; only make() allocates.
/// Thread rule: that of the link.
class ReceiveRing {
 public:
  enum class Front {
    none,        ///< not even its header has arrived
    partial,     ///< its header has arrived and is valid
    whole,       ///< it has arrived, and passed all checks
    bad_header,  ///< from here on: it was damaged or cannot be used
    repeated,    ///< its number is below `least`
    bad_checksum,
    bad_packing,
  };

  ReceiveRing() = default;
  /// For payloads of at most `max_payload_bytes`; `bytes` hold at least one frame of that size. `rings`: see MirrorRing.
  /// Errors: system_error where the kernel has no memory.
  static Result<ReceiveRing> make(std::size_t bytes, std::size_t max_payload_bytes, LinkRings* rings = nullptr);

  [[nodiscard]] std::size_t size() const noexcept { return ring_.size(); }
  /// Bytes that have arrived and are not released.
  [[nodiscard]] std::size_t filled_bytes() const noexcept { return tail_ - head_; }
  /// Contiguous room for the next bytes.
  [[nodiscard]] std::span<std::byte> free_space() noexcept {
    return {ring_.data() + tail_ % ring_.size(), ring_.size() - filled_bytes()};
  }
  void add(std::size_t bytes) noexcept {
    ring_.touch(tail_, bytes);
    tail_ += bytes;
  }

  /// `least`: the lowest number that the front tile may have, beside those that have arrived.
  Front examine(std::uint64_t least) noexcept;
  [[nodiscard]] bool front_is_whole() const noexcept { return front_whole_; }
  /// Bytes of the front frame that have not arrived; 0 while its header has not, and where it is whole.
  [[nodiscard]] std::size_t missing_bytes() const noexcept {
    return front_ && !front_whole_ ? frame_bytes(*front_) - filled_bytes() : 0;
  }
  /// The header at the head, once it has arrived and is valid.
  [[nodiscard]] const std::optional<FrameHeader>& front() const noexcept { return front_; }
  /// The payload of the front tile. Precondition: front_is_whole().
  [[nodiscard]] std::span<const std::byte> payload() const noexcept;
  /// What is wrong with the header after Front::bad_header.
  [[nodiscard]] std::string describe_bad_header() const;
  /// Frees the front frame. Precondition: front_is_whole().
  void release() noexcept;
  /// Discards what has arrived behind a whole front frame: it is retransmitted, or cannot be used.
  void cut_short() noexcept;
  /// Returns memory that holds nothing which has arrived to the system. Spans of free_space() are invalid afterwards.
  void give_back() noexcept { ring_.give_back(tail_, head_ + ring_.size()); }

  /// Tiles below this number have arrived on this socket, whole and undamaged.
  [[nodiscard]] std::uint64_t received() const noexcept { return received_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  struct alignas(64) CacheLine {
    std::array<std::byte, 64> bytes;
  };

  [[nodiscard]] const std::byte* head() const noexcept { return ring_.data() + head_ % ring_.size(); }
  [[nodiscard]] std::size_t unpacked_lines() const noexcept {
    return (max_payload_bytes_ + sizeof(CacheLine) - 1) / sizeof(CacheLine);
  }
  [[nodiscard]] std::byte* unpacked() const noexcept { return reinterpret_cast<std::byte*>(unpacked_.get()); }

  [[nodiscard]] bool is_sound() const noexcept;
  bool unpack_payload() noexcept;

  MirrorRing ring_;
  std::size_t max_payload_bytes_ = 0;
  // Offsets count up; the place in the ring is the offset modulo its size. Arrived and not released: [head_, tail_).
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
  std::optional<FrameHeader> front_;
  bool front_whole_ = false;
  std::unique_ptr<CacheLine[]> unpacked_;  // payload of the front tile, where it was packed; pages come with the first one
  std::uint64_t received_ = 0;
};

// Every tile passes through these functions, so they are inlined; see tests/cost.

inline ReceiveRing::Front ReceiveRing::examine(std::uint64_t least) noexcept {
  if (front_whole_) return Front::whole;
  const std::size_t arrived = filled_bytes();
  if (!front_) {
    if (arrived < kFrameHeaderBytes) return Front::none;
    front_ = decode_frame(std::span<const std::byte, kFrameHeaderBytes>(head(), kFrameHeaderBytes), max_payload_bytes_);
    if (!front_) return Front::bad_header;
    if (front_->position < std::max(least, received_)) return Front::repeated;
  }
  if (arrived < frame_bytes(*front_)) return Front::partial;
  if (front_->payload_sum && !is_sound()) return Front::bad_checksum;
  // At once, not when the tile is shown: a tile that cannot be unpacked counts as not arrived.
  if (front_->packed_bytes != 0 && !unpack_payload()) return Front::bad_packing;
  front_whole_ = true;
  received_ = front_->position + 1;
  return Front::whole;
}

inline std::span<const std::byte> ReceiveRing::payload() const noexcept {
  const std::size_t size = front_->tile.size_bytes;
  return {front_->packed_bytes != 0 ? unpacked() : head() + payload_offset(size), size};
}

inline void ReceiveRing::release() noexcept {
  head_ += frame_bytes(*front_);
  front_.reset();
  front_whole_ = false;
  // An empty ring starts again at its first bytes: a link that keeps up stays within a few warm pages.
  if (head_ == tail_) head_ = tail_ = 0;
}

}  // namespace shoal::tcp
