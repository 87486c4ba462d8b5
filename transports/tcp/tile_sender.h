// The sending half of a link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <shoal/status.h>

#include "transports/tcp/link_sockets.h"
#include "transports/tcp/send_window.h"
#include "transports/tcp/tile_encoder.h"
#include "transports/transport.h"

namespace shoal::tcp {

/// Takes tiles into its window. Each socket pulls its next tiles from there only when the kernel has taken all that it pulled
/// before. Small tiles are pulled in the next progress(), with all that have joined them by then. A lent tile is copied later,
/// if the peer has not acknowledged it when there is nothing else to do. Thread rule: that of the link.
class TileSender {
 public:
  explicit TileSender(LinkSockets& sockets)
      : sockets_(sockets), encoder_(sockets.shape().integrity, sockets.shape().packing, sockets.shape().lend_from_bytes) {}
  /// Allocates the window, and returns the size of its memory in bytes. Errors: system_error where the kernel has no memory.
  Result<std::size_t> open();

  /// False where there is no room, or the link is closing.
  bool take(const TileHeader& header, std::span<const std::byte> data, bool lend);
  [[nodiscard]] const SendWindow& window() const noexcept { return window_; }
  [[nodiscard]] TileEncoder& encoder() noexcept { return encoder_; }
  /// Whether take() has found no room since the last call of this function.
  [[nodiscard]] bool consume_refusal() noexcept { return std::exchange(refused_, false); }

  /// Pulls and sends the small tiles that wait for further tiles; true where the kernel took some.
  bool send_deferred();
  /// The kernel takes bytes of this socket again; true where it took some.
  bool send_more(LinkSocket& socket);
  /// The peer has the tiles of this socket below `received`.
  void on_acknowledged(std::size_t socket, std::uint64_t received);
  /// Continues with a new connection: what the peer does not have is retransmitted.
  void resume(LinkSocket& socket, std::uint64_t received);

  /// For a time with nothing else to do: copies lent tiles that have been sent, so that their memory is free. True where
  /// sent_tiles() has grown.
  bool copy_sent_lent() noexcept { return window_.copy_sent_lent(); }
  /// For a caller that aborts: copies all.
  void copy_all_lent() noexcept { window_.copy_all_lent(); }

  /// Returns memory of the window that holds no frame to the system.
  void give_back() noexcept { window_.give_back(); }

  bool deferred = false;  ///< is in the Reactor's list of senders with small tiles that wait
  bool lending = false;   ///< is in the Reactor's list of senders with lent tiles

 private:
  // Tiles up to this size wait for further ones.
  static constexpr std::size_t kSmallBytes = 448;
  // Send memory for each socket: this many tiles of the largest size, and at least this many bytes.
  static constexpr std::size_t kSocketTiles = 4;
  static constexpr std::size_t kSocketBytes = 512 << 10;

  void pull_tiles();
  void resend_tiles();
  void write(LinkSocket& socket);
  void write_encrypted(LinkSocket& socket);
  bool write_lent(LinkSocket& socket, std::size_t& taken);

  LinkSockets& sockets_;
  SendWindow window_;
  TileEncoder encoder_;
  bool resends_ = false;  // some socket may have tiles to retransmit
  bool refused_ = false;
};

}  // namespace shoal::tcp
