// One link of the TCP transport: the sender spreads tiles over several sockets, the receiver puts them back in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transports/tcp/acknowledger.h"
#include "transports/tcp/control_channel.h"
#include "transports/tcp/link_flush.h"
#include "transports/tcp/link_repair.h"
#include "transports/tcp/link_sockets.h"
#include "transports/tcp/tile_receiver.h"
#include "transports/tcp/tile_sender.h"
#include "transports/transport.h"

namespace shoal::tcp {

class Reactor;

/// See Link. A composition: each part has its own state, and the Reactor drives the parts. Thread rule: that of the transport,
/// one thread at a time.
class TcpLink final : public Link {
 public:
  /// A link without connections; `peer_address`: where the peer is to be reached, for messages.
  TcpLink(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address, const LinkShape& shape);
  /// A link with these connections: see open().
  static Result<std::unique_ptr<TcpLink>> make(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address,
                                               std::vector<Connection> connections, const LinkShape& shape);
  /// Takes connected, non-blocking sockets that have finished the handshake; the last one is for control records. Called once.
  Status open(std::string peer_address, std::vector<Connection> connections);
  ~TcpLink() override;

  [[nodiscard]] int peer() const noexcept override { return sockets_.status().peer(); }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return sockets_.shape().tile_bytes; }
  [[nodiscard]] bool connected() const noexcept override { return !sockets_.all().empty(); }
  void request(bool peer_too) override;
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override {
    return sender_.take(header, data, false);
  }
  bool try_lend(const TileHeader& header, std::span<const std::byte> data) override { return sender_.take(header, data, true); }
  void keep_copies() override;
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return sender_.window().sent(); }
  [[nodiscard]] const Arrival* peek() noexcept override { return connected() ? receiver_.peek() : nullptr; }
  void release() noexcept override { receiver_.release(); }
  [[nodiscard]] const Status& status() const noexcept override { return sockets_.status().status(); }

  [[nodiscard]] LinkSockets& sockets() noexcept { return sockets_; }
  [[nodiscard]] TileSender& sender() noexcept { return sender_; }
  [[nodiscard]] TileReceiver& receiver() noexcept { return receiver_; }
  [[nodiscard]] LinkRepair& repair() noexcept { return repair_; }
  [[nodiscard]] LinkFlush& flush() noexcept { return flush_; }

  /// Reads from a socket of this link; true where anything has changed for the caller.
  bool receive(LinkSocket& socket) { return socket.control ? receive_control() : receiver_.receive(socket); }
  /// Sends when the socket takes bytes again; true where it took some.
  bool send_more(LinkSocket& socket);
  /// Called a few times a second; true where that moved anything.
  bool watch();
  /// Called about once a second: acknowledges what has arrived where nothing more does, so that the peer's memory becomes free.
  /// `saves`: this rank has had more memory in its rings than its limit since the last call.
  void save_memory(bool saves);
  /// Returns memory of rings that holds no data to the system, because this rank has more than its limit.
  void give_back() noexcept;
  /// A socket has lost its connection, and what it had pulled.
  void on_drop(LinkSocket& socket);
  /// Ends the link from this side. Tiles that have arrived can still be peeked.
  void close(Status reason);
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  bool receive_control();

  std::shared_ptr<Reactor> reactor_;
  LinkSockets sockets_;
  ControlChannel control_;
  Acknowledger acknowledger_;
  TileSender sender_;
  TileReceiver receiver_;
  LinkFlush flush_;
  LinkRepair repair_;
};

}  // namespace shoal::tcp
