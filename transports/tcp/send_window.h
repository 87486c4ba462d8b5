// The tiles that a link has taken and the peer has not acknowledged: their numbers, their memory, and which socket has which.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <shoal/status.h>

#include "transports/tcp/mirror_ring.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {

/// What one socket has to send of a SendWindow: numbers of tiles.
struct SendRange {
  std::uint64_t first = 0;  ///< [first, last) are pulled, and not completely in the kernel
  std::uint64_t last = 0;
  std::size_t sent_of_first = 0;  ///< bytes of the first that are in the kernel
  /// Of the tiles [resend, resend_end) the socket retransmits those that it had pulled before its connection was lost.
  std::uint64_t resend = 0;
  std::uint64_t resend_end = 0;

  [[nodiscard]] bool empty() const noexcept { return first == last; }
  [[nodiscard]] bool resends() const noexcept { return resend != resend_end; }
  /// Forgets what was pulled: the connection is lost.
  void drop() noexcept { first = last = sent_of_first = 0; }
};

/// Tiles are numbered from 0 in the order in which they are taken. Each is a frame in the window's memory, and stays there
/// until the peer has acknowledged it, so that it can be retransmitted. The payload of a lent tile is still in the caller's
/// memory; there is room to copy it. Of the counters:
/// acknowledged() <= sent() <= pulled <= taken() <= acknowledged() + kTiles. The window knows sockets by index only, and makes
/// no system call. Only make() allocates. Thread rule: that of the link.
class SendWindow {
 public:
  static constexpr std::size_t kTiles = 256;
  // What a socket pulls at once: one tile of any size, or several small ones up to these limits.
  static constexpr std::size_t kPullTiles = 16;
  static constexpr std::size_t kPullBytes = 64 << 10;

  SendWindow() = default;
  /// `bytes`: at least one frame of the largest size. `rings`: see MirrorRing. Errors: system_error where the kernel has no
  /// memory.
  static Result<SendWindow> make(std::size_t bytes, LinkRings* rings = nullptr);

  // Taking a tile: write it to next_frame(), then add() it.

  [[nodiscard]] bool has_room(std::size_t frame_bytes) const noexcept {
    return taken_ - acknowledged_ != kTiles && end_ - begin_ + frame_bytes <= memory_.size();
  }
  /// A window that has become empty starts again at its first bytes: a link that keeps up stays within a few warm pages.
  [[nodiscard]] std::byte* next_frame() noexcept {
    if (acknowledged_ == taken_) begin_ = end_ = 0;
    return memory_.data() + end_ % memory_.size();
  }
  /// `small`: see next_is_small(). `lent`: the payload in the caller's memory, which fills its frame; null where it lies in
  /// the frame. Precondition: has_room().
  void add(std::size_t frame_bytes, bool small, const std::byte* lent) noexcept {
    tile(taken_++) = {end_, static_cast<std::uint32_t>(frame_bytes), 0, small, false, false, lent};
    memory_.touch(end_, lent == nullptr ? frame_bytes : kFrameHeaderBytes);
    end_ += frame_bytes;
    lent_tiles_ += lent != nullptr ? 1 : 0;
  }

  // Pulling.

  [[nodiscard]] std::uint64_t unpulled() const noexcept { return taken_ - pulled_; }
  /// Of the next tile to pull. Precondition: unpulled() > 0.
  [[nodiscard]] bool next_is_small() noexcept { return tile(pulled_).small; }
  [[nodiscard]] std::size_t next_bytes() noexcept { return tile(pulled_).bytes; }
  /// Gives the next tiles to a socket that has nothing to send: one, or several of together at most `most_bytes`.
  void pull(SendRange& range, std::size_t socket, std::size_t most_bytes) noexcept;
  /// The socket has a new connection: it retransmits all tiles that it had pulled and that are not acknowledged.
  void start_resending(SendRange& range) const noexcept;
  /// Gives the socket the next tile to retransmit; false where there is none.
  bool pull_resend(SendRange& range, std::size_t socket) noexcept;

  // Sending.

  /// The bytes that the socket has to send. Precondition: the range is not empty, and no tile is lent.
  [[nodiscard]] std::span<const std::byte> due(const SendRange& range) noexcept;
  /// The same up to the end of the first lent tile, in one part or two. Returns their number.
  [[nodiscard]] std::size_t gather_due(const SendRange& range, std::array<iovec, 2>& parts) noexcept;
  /// The kernel has taken this many of the bytes that were due.
  void count_sent(SendRange& range, std::size_t bytes) noexcept;
  /// The peer has the tiles of this socket below `received`: their memory is free. Tiles that are not in the kernel are
  /// ignored.
  void acknowledge(std::size_t socket, std::uint64_t received) noexcept;

  // Lent tiles.

  [[nodiscard]] bool has_lent() const noexcept { return lent_tiles_ > 0; }
  /// Copies the lent tiles that the kernel has taken; true where sent() has grown.
  bool copy_sent_lent() noexcept;
  void copy_all_lent() noexcept;

  /// Number of tiles taken.
  [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }
  /// Tiles below this number do not need the caller's memory any more.
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  /// Tiles below this number are acknowledged.
  [[nodiscard]] std::uint64_t acknowledged() const noexcept { return acknowledged_; }
  /// Returns memory that holds no frame to the system.
  void give_back() noexcept { memory_.give_back(end_, begin_ + memory_.size()); }
  [[nodiscard]] std::size_t frame_memory_bytes() const noexcept { return memory_.size(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return tiles_.size() * sizeof(Tile) + memory_.size(); }

 private:
  // A frame in memory_, from the offset `begin`.
  struct Tile {
    std::uint64_t begin = 0;
    std::uint32_t bytes = 0;
    std::uint16_t socket = 0;
    bool small = false;
    bool in_kernel = false;
    bool acknowledged = false;
    const std::byte* lent = nullptr;
  };

  Tile& tile(std::uint64_t number) noexcept { return tiles_[number % kTiles]; }
  void copy_lent(Tile& tile) noexcept;
  void advance_sent() noexcept;

  std::vector<Tile> tiles_;
  MirrorRing memory_;  // frames: [begin_, end_), modulo its size
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t pulled_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::size_t lent_tiles_ = 0;
};

// Every tile passes through these functions, so they are inlined; see tests/cost.

inline void SendWindow::pull(SendRange& range, std::size_t socket, std::size_t most_bytes) noexcept {
  const auto own = static_cast<std::uint16_t>(socket);
  range.first = pulled_;
  std::size_t bytes = tile(pulled_).bytes;
  tile(pulled_++).socket = own;
  while (pulled_ < taken_ && pulled_ - range.first < kPullTiles) {
    Tile& next = tile(pulled_);
    if (bytes + next.bytes > most_bytes) break;
    bytes += next.bytes;
    next.socket = own;
    ++pulled_;
  }
  range.last = pulled_;
}

// The frames are contiguous in memory, in the order in which the tiles were taken.
inline std::span<const std::byte> SendWindow::due(const SendRange& range) noexcept {
  const std::uint64_t begin = tile(range.first).begin + range.sent_of_first;
  const Tile& end = tile(range.last - 1);
  return {memory_.data() + begin % memory_.size(), end.begin + end.bytes - begin};
}

inline void SendWindow::count_sent(SendRange& range, std::size_t bytes) noexcept {
  while (bytes > 0) {
    const std::size_t left = tile(range.first).bytes - range.sent_of_first;
    if (bytes < left) {
      range.sent_of_first += bytes;
      break;
    }
    bytes -= left;
    range.sent_of_first = 0;
    tile(range.first++).in_kernel = true;
  }
  advance_sent();
}

inline void SendWindow::advance_sent() noexcept {
  while (sent_ < pulled_ && tile(sent_).in_kernel && tile(sent_).lent == nullptr) ++sent_;
}

}  // namespace shoal::tcp
