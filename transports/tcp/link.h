// One link of the TCP transport: tiles cut over several sockets on one side, put back in order on the other.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transports/tcp/descriptor.h"
#include "transports/tcp/mirror_ring.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace shoal::tcp {

class Reactor;
class TcpLink;

/// One socket of a link with the state of both its directions.
struct Flow {
  TcpLink* link = nullptr;
  Descriptor socket;
  MirrorRing ring;  ///< bytes that arrived and are not released: [head, tail)

  // Sending: this flow has pulled the tiles [first, last) of the link's queue; sent_of_first bytes of the first are in the
  // kernel.
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::size_t sent_of_first = 0;
  bool blocked = false;  ///< the socket took less than offered; it will report when it takes more

  // Receiving. Offsets count up; the place in the ring is the offset modulo its size.
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::optional<FrameHeader> front;  ///< the header at `head`, once it has arrived and passed the checks
  bool front_whole = false;
  bool readable = true;  ///< reading may bring bytes: as far as known the socket is not drained
  bool hung_up = false;  ///< the peer will send no more: read until the end shows
  bool ended = false;    ///< nothing moves on this socket any more
  bool queued = false;   ///< stands in the Reactor's list of flows to read from
  int low_water = 1;     ///< SO_RCVLOWAT: the socket reports when it has so many bytes

  [[nodiscard]] bool idle() const noexcept { return first == last; }
};

/// See Link. Sending: try_send appends to a small queue, from which each socket pulls its next tiles only when the kernel has
/// taken all that it pulled before. Small tiles are pulled in the next progress(), with all that have joined them by then.
/// Receiving: frames stay in the ring of the socket that brought them until they are released.
/// Thread rule: that of the transport, one thread at a time.
class TcpLink final : public Link {
 public:
  /// Takes connected, non-blocking sockets that have finished the handshake.
  static Result<std::unique_ptr<TcpLink>> make(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address,
                                               std::vector<Descriptor> sockets, std::size_t tile_bytes,
                                               std::size_t tiles_per_socket);
  ~TcpLink() override;

  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return tile_bytes_; }
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override;
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return sent_; }
  void keep_copies() override;
  [[nodiscard]] const Arrival* peek() noexcept override;
  void release() noexcept override;
  [[nodiscard]] const Status& status() const noexcept override { return status_; }

  // For the Reactor.

  [[nodiscard]] std::vector<Flow>& flows() noexcept { return flows_; }
  /// Reads once from the socket; true where a frame has become whole or the socket has ended.
  bool receive(Flow& flow);
  /// Lets the socket report only when the rest of the frame at the head can have come: whoever sleeps is not woken by each of
  /// its packets, of which a slow wire brings dozens.
  void await_front(Flow& flow) noexcept;
  /// Whether the flow's ring has enough room for a worthwhile read.
  [[nodiscard]] bool has_room(const Flow& flow) const noexcept;
  /// The socket takes bytes again; true where it took some.
  bool send_more(Flow& flow);
  /// Sends the small tiles that wait for company; true where the kernel took some.
  bool send_held();
  bool held = false;    ///< stands in the Reactor's list of links with such tiles
  bool wanted = false;  ///< stands in the Reactor's list of links that were peeked in vain
  /// A socket waits for room in the kernel.
  [[nodiscard]] bool blocked() const noexcept;
  /// The peer has shut this socket: stop sending, read what is left.
  void hang_up(Flow& flow);
  /// A tile can be peeked that no peek() has shown yet.
  [[nodiscard]] bool has_news() const noexcept { return news_; }
  [[nodiscard]] bool closing() const noexcept { return closing_ && status_.ok(); }
  /// Called a few times a second: gives up on sockets that stay silent while the link closes, and on a host that has vanished.
  /// True where that, or another try to send, moved anything.
  bool watch();
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  /// Ends the link from this side. Tiles that have arrived can still be peeked.
  void close(Status reason);

 private:
  // Small payloads are copied behind their header: one piece for the kernel instead of three.
  static constexpr std::size_t kInlineBytes = 448;
  static constexpr std::size_t kQueueTiles = 64;
  // What a socket pulls at once: one tile of any size, or several small ones up to these limits.
  static constexpr std::size_t kPullTiles = 16;
  static constexpr std::size_t kPullBytes = 64 << 10;
  // Less comes in one or two packets: telling the kernel would cost more than it saves.
  static constexpr std::size_t kWorthwhileLowWater = 4 << 10;
  // What a socket reads at once where its front tile is not larger.
  static constexpr std::size_t kReadBytes = 64 << 10;
  // More would make the kernel enlarge the socket's buffer further.
  static constexpr std::size_t kMaxLowWater = 256 << 10;

  struct Outgoing {
    std::array<std::byte, kFrameHeaderBytes + kInlineBytes> bytes;
    const std::byte* data = nullptr;  ///< null where the payload stands in `bytes`
    std::size_t size_bytes = 0;
    bool done = false;
  };

  TcpLink(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address, std::size_t tile_bytes);

  Outgoing& outgoing(std::uint64_t tile) noexcept { return queue_[tile % kQueueTiles]; }
  void pull_tiles();
  Flow* choose_idle_flow() noexcept;
  void write(Flow& flow);
  void count_sent(Flow& flow, std::size_t bytes) noexcept;
  void examine(Flow& flow);
  static void set_low_water(Flow& flow, std::size_t bytes) noexcept;
  void find_next();
  void end_flow(Flow& flow, int error);
  void set_broken();
  void fail(const std::string& what);
  void stop_flow(Flow& flow) noexcept;

  std::shared_ptr<Reactor> reactor_;
  const int peer_;
  const std::string peer_address_;
  const std::size_t tile_bytes_;
  std::vector<Flow> flows_;
  Status status_;
  bool closing_ = false;  ///< at least one socket has ended: nothing is sent any more, what has arrived is still delivered
  int closing_error_ = 0;

  // Tiles are numbered from 0. Order of the counters: sent_ <= pulled_ <= taken_ <= sent_ + kQueueTiles.
  std::vector<Outgoing> queue_;
  struct Kept {
    std::uint64_t tile = 0;
    std::unique_ptr<std::byte[]> data;
  };
  std::vector<Kept> kept_;  ///< copies made by keep_copies(); at most one for each place of the queue
  std::uint64_t taken_ = 0;
  std::uint64_t pulled_ = 0;
  std::uint64_t sent_ = 0;
  std::size_t next_flow_ = 0;

  std::uint64_t next_ = 0;     ///< the number of the tile to deliver next
  Flow* next_from_ = nullptr;  ///< the flow whose front is that tile, whole
  Arrival arrival_;
  bool news_ = false;
  std::uint64_t received_bytes_ = 0;
  std::uint64_t watched_bytes_ = 0;
  std::chrono::steady_clock::time_point watched_since_;
};

}  // namespace shoal::tcp
