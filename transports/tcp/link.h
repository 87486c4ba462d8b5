// One link of the TCP transport: the sender spreads tiles over several sockets, the receiver puts them back in order.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/descriptor.h"
#include "src/trust/record_cipher.h"
#include "transports/tcp/drain_rate.h"
#include "transports/tcp/mirror_ring.h"
#include "transports/tcp/rendezvous.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace shoal::tcp {

class Reactor;
class TcpLink;

inline constexpr std::size_t kMostSockets = 16;  ///< to a peer, for tiles

struct alignas(64) CacheLine {
  std::array<std::byte, 64> bytes;
};

/// One socket of a link with the state of both its directions. The last flow of a link carries control records, all others
/// tiles.
struct Flow {
  TcpLink* link = nullptr;
  bool words = false;  ///< carries control records
  Descriptor socket;
  MirrorRing ring;  ///< bytes that arrived and are not released: [head, tail); none for control records

  // Sending: this flow has pulled the tiles [first, last) of the link's queue; sent_of_first bytes of the first are in the
  // kernel. Of the tiles [again, again_end) it retransmits those that it had pulled before its socket was lost.
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::size_t sent_of_first = 0;
  std::uint64_t again = 0;
  std::uint64_t again_end = 0;
  std::unique_ptr<RecordCipher> cipher;  ///< where the job encrypts; belongs to the socket
  bool blocked = false;                  ///< the socket took less than offered; it will report when it takes more
  std::uint64_t taken_bytes = 0;         ///< bytes that the kernel has taken since the socket exists
  DrainRate rate;                        ///< used where there are several sockets

  // Receiving. Offsets count up; the place in the ring is the offset modulo its size.
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::optional<FrameHeader> front;       ///< the header at `head`, once it has arrived and passed the checks
  std::unique_ptr<CacheLine[]> unpacked;  ///< payload of `front`, where it was packed; room for the largest
  bool front_whole = false;
  std::uint64_t received = 0;  ///< tiles below this number have arrived on this flow, whole and undamaged
  std::uint64_t told = 0;      ///< the latest `received` that was sent to the peer
  int distrusted = 0;          ///< how often in a row the peer has sent damaged data
  bool readable = true;        ///< reading may bring bytes: as far as known the socket is not drained
  bool hung_up = false;        ///< the peer will send no more: read to the end
  bool ended = false;          ///< nothing moves on this socket any more
  bool down = false;           ///< it has no socket: a new one is being made
  bool queued = false;         ///< is in the Reactor's list of flows to read from
  int low_water = 1;           ///< SO_RCVLOWAT: the socket reports when it has this many bytes

  [[nodiscard]] bool idle() const noexcept { return first == last && !down; }
};

/// Parameters that must be the same at both ends of a link, except for the last two.
struct LinkShape {
  std::size_t tile_bytes = 0;
  std::size_t tiles_per_socket = 0;
  int sockets = 1;  ///< for tiles
  bool integrity = false;
  bool rails = false;  ///< the sockets use several networks: a silent one is replaced by another
  std::size_t lend_from_bytes = 0;
  bool packing = false;  ///< payloads leave packed where that makes them smaller
  std::chrono::milliseconds lost_after{};
};

/// See Link. Sending: try_send appends a copy to the link's own memory. Each socket pulls its next tiles from there only when
/// the kernel has taken all that it pulled before. The copy stays until the peer acknowledges the tile; it is retransmitted
/// where a socket is lost before. A lent tile is copied later, if the peer has not acknowledged it when there is nothing else
/// to do. Small tiles are pulled in the next progress(), with all that have joined them by then.
/// Receiving: frames stay in the ring of the socket that brought them until they are released.
/// Thread rule: that of the transport, one thread at a time.
class TcpLink final : public Link {
 public:
  /// Takes connected, non-blocking sockets that have finished the handshake; the last one is for control records.
  static Result<std::unique_ptr<TcpLink>> make(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address,
                                               std::vector<Connection> connections, const LinkShape& shape);
  ~TcpLink() override;

  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return shape_.tile_bytes; }
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override { return take(header, data, false); }
  bool try_lend(const TileHeader& header, std::span<const std::byte> data) override { return take(header, data, true); }
  void keep_copies() override;
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return sent_; }
  [[nodiscard]] const Arrival* peek() noexcept override;
  void release() noexcept override;
  [[nodiscard]] const Status& status() const noexcept override { return status_; }

  // For the Reactor.

  [[nodiscard]] std::vector<Flow>& flows() noexcept { return flows_; }
  /// Reads once from the socket; true where a frame has become whole or the socket has ended.
  bool receive(Flow& flow);
  /// Makes the socket report only when the rest of the front frame can have arrived: a sleeping caller is not woken by each
  /// packet, of which a frame has dozens on a slow network.
  void await_front(Flow& flow) noexcept;
  /// Whether the flow's ring has enough room for a worthwhile read.
  [[nodiscard]] bool has_room(const Flow& flow) const noexcept;
  /// Sends when the socket takes bytes again; true where it took some.
  bool send_more(Flow& flow);
  /// For a time with nothing else to do: copies lent tiles that have been sent, so that their memory is free. True where
  /// sent_tiles() has grown.
  bool keep_sent() noexcept;
  bool lending = false;  ///< is in the Reactor's list of links with lent tiles
  [[nodiscard]] bool has_lent() const noexcept { return lent_tiles_ > 0; }
  /// Sends the small tiles that wait for further tiles; true where the kernel took some.
  bool send_held();
  bool held = false;    ///< is in the Reactor's list of links with such tiles
  bool wanted = false;  ///< is in the Reactor's list of links whose peek() found no tile
  /// A socket for tiles waits for room in the kernel.
  [[nodiscard]] bool blocked() const noexcept {
    return std::any_of(flows_.begin(), flows_.end() - 1, [](const Flow& flow) { return flow.blocked; });
  }
  /// The peer has shut this socket, or it broke: read what is left.
  void hang_up(Flow& flow);
  /// A new connection is about to replace that of a flow: gives the old one up. Returns the number below which the flow's
  /// tiles have arrived; empty where the link has ended.
  std::optional<std::uint64_t> give_up(std::size_t flow);
  /// Continues with a new socket. The peer has the flow's tiles below `received`; those behind them are retransmitted.
  void resume(std::size_t flow, Connection connection, std::uint64_t received);
  /// The peer cannot be reached any more.
  void lose_peer(const std::string& why);
  /// For tiles that are sent from now on.
  void use_check_sums() noexcept { sums_ = true; }
  void use_packing() noexcept { packs_ = true; }
  /// A tile can be peeked that no peek() has shown yet.
  [[nodiscard]] bool has_news() const noexcept { return news_; }
  [[nodiscard]] bool closing() const noexcept { return closing_ && status_.ok(); }
  /// Called a few times a second: ends sockets that stay silent while the link closes, and a link whose host has vanished.
  /// True where that, or another attempt to send, moved anything.
  bool watch();
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  /// Ends the link from this side. Tiles that have arrived can still be peeked.
  void close(Status reason);
  /// This rank is about to leave: acknowledges what has arrived. Asks the peer to do so, too, where it has not acknowledged
  /// all tiles that the caller counts on; tiles of calls that have not ended do not count.
  void ask();
  /// The answer to ask() has not arrived, but still may: bytes are in flight or lost, or the peer has not had time to read.
  [[nodiscard]] bool awaits_answer(std::chrono::steady_clock::time_point now) noexcept;
  void ask_no_more() noexcept;
  /// The peer is gone, without a close notice.
  [[nodiscard]] bool failed() const noexcept { return !left_ && (closing_ || gone_); }

 private:
  // Tiles up to this size wait for further ones.
  static constexpr std::size_t kSmallBytes = 448;
  static constexpr std::size_t kQueueTiles = 256;
  // Send memory for each socket: this many tiles of the largest size, and at least this many bytes.
  static constexpr std::size_t kOpenTiles = 4;
  static constexpr std::size_t kOpenBytes = 512 << 10;
  // A peer that sends damaged data this often in a row, by new connections too, has failed.
  static constexpr int kMostDistrust = 16;
  // After so many tiles in a row that packing makes no smaller, only every so many-th is tried until one is.
  static constexpr std::uint64_t kUnpackableTiles = 16;
  // What a socket pulls at once: one tile of any size, or several small ones up to these limits.
  static constexpr std::size_t kPullTiles = 16;
  static constexpr std::size_t kPullBytes = 64 << 10;
  // How long to wait for the peer's acknowledgement once the data is in its kernel.
  static constexpr std::chrono::milliseconds kLookPatience{50};
  // Fewer bytes arrive in one or two packets: the system call would cost more than it saves.
  static constexpr std::size_t kWorthwhileLowWater = 4 << 10;
  // What a socket reads at once where its front tile is not larger.
  static constexpr std::size_t kReadBytes = 64 << 10;
  // More would make the kernel enlarge the socket's buffer further.
  static constexpr std::size_t kMaxLowWater = 256 << 10;

  // A frame in memory_, from the offset `begin`.
  struct Outgoing {
    std::uint64_t begin = 0;
    std::uint32_t bytes = 0;
    std::uint16_t flow = 0;
    bool small = false;
    bool in_kernel = false;
    bool acknowledged = false;
    const std::byte* lent = nullptr;  ///< the payload in the caller's memory, if it is not in memory_ (which has room); it
                                      ///< fills its frame
  };

  TcpLink(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address, const LinkShape& shape);

  Outgoing& outgoing(std::uint64_t tile) noexcept { return queue_[tile % kQueueTiles]; }
  [[nodiscard]] std::span<Flow> tile_flows() noexcept { return std::span(flows_).first(flows_.size() - 1); }
  [[nodiscard]] Flow& word_flow() noexcept { return flows_.back(); }
  [[nodiscard]] std::size_t index_of(const Flow& flow) const noexcept {
    return static_cast<std::size_t>(&flow - flows_.data());
  }
  bool take(const TileHeader& header, std::span<const std::byte> data, bool lend);
  std::size_t try_to_pack(std::span<const std::byte> data, std::byte* target) noexcept;
  void keep(Outgoing& tile) noexcept;
  void advance_sent() noexcept;
  void pull_tiles();
  bool pull_again(Flow& flow) noexcept;
  Flow* first_idle_flow() noexcept;
  Flow* soonest_flow() noexcept;
  [[nodiscard]] std::size_t tell_after_bytes() const noexcept { return asked_ ? 0 : memory_.size() / (shape_.rails ? 4 : 2); }
  void adopt(Flow& flow, Connection connection);
  void write(Flow& flow);
  void write_sealed(Flow& flow);
  [[nodiscard]] std::span<const std::byte> due(const Flow& flow) noexcept;
  bool send_some(Flow& flow, std::span<const std::byte> bytes, std::size_t& taken);
  bool send_lent(Flow& flow, std::size_t& taken);
  bool note_taken(Flow& flow, ssize_t count, std::size_t offered, std::size_t& taken);
  ssize_t read_sealed(Flow& flow, std::byte* target, std::size_t room);
  ssize_t read(Flow& flow, std::byte* target, std::size_t want, std::size_t room);
  void count_sent(Flow& flow, std::size_t bytes) noexcept;
  void acknowledge(std::size_t flow, std::uint64_t received) noexcept;
  bool receive_words(Flow& flow);
  void hear(const ControlRecord& word);
  void tell_received();
  void say(const ControlRecord& word);
  void flush_words();
  void forget_words(std::size_t bytes) noexcept;
  void examine(Flow& flow);
  bool is_sound(Flow& flow);
  bool unpack_front(Flow& flow);
  static void set_low_water(Flow& flow, std::size_t bytes) noexcept;
  void find_next();
  /// Whether a lost socket is to be replaced.
  [[nodiscard]] bool may_resume() const noexcept;
  [[nodiscard]] Status silent_for(std::chrono::milliseconds time) const;
  [[nodiscard]] std::chrono::milliseconds silence_of(const Flow& flow) const noexcept;
  void end_flow(Flow& flow, int error);
  void drop(Flow& flow, std::chrono::milliseconds silent = {});
  static void cut_short(Flow& flow) noexcept;
  void distrust(Flow& flow, const std::string& what);
  [[nodiscard]] bool is_ending() const noexcept;
  void start_closing();
  bool watch_closing();
  [[nodiscard]] bool is_under_way() const noexcept;
  void set_broken();
  void stop_flow(Flow& flow) noexcept;

  std::shared_ptr<Reactor> reactor_;
  const int peer_;
  const std::string peer_address_;
  const LinkShape shape_;
  bool sums_;                     ///< payloads leave with checksums
  bool packs_;                    ///< payloads leave packed
  std::uint64_t unpackable_ = 0;  ///< tiles in a row that packing made no smaller
  std::vector<Flow> flows_;
  Status status_;
  bool closing_ = false;  ///< at least one socket has ended: nothing is sent any more, what has arrived is still delivered
  int closing_error_ = 0;
  bool left_ = false;                                     ///< the peer has sent its close notice
  bool gone_ = false;                                     ///< the peer cannot be reached
  std::string trouble_;                                   ///< what went wrong before, for the message
  std::chrono::steady_clock::time_point silent_since_{};  ///< start of its silence; zero: it answers
  bool asked_ = false;                                    ///< the peer is about to leave: acknowledge each tile at once
  bool asking_ = false;                                   ///< this rank is about to leave, and has asked
  std::chrono::steady_clock::time_point quiet_since_{};   ///< since then all sent bytes are in the kernel of the peer

  // Tiles are numbered from 0. Order of the counters: forgotten_ <= sent_ <= pulled_ <= taken_ <= forgotten_ + kQueueTiles.
  std::vector<Outgoing> queue_;
  MirrorRing memory_;  ///< frames that may have to be retransmitted: [memory_begin_, memory_end_)
  std::uint64_t memory_begin_ = 0;
  std::uint64_t memory_end_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t pulled_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t forgotten_ = 0;  ///< tiles below this number are acknowledged
  std::uint64_t given_up_ = 0;   ///< some tiles below this number belong to calls that have failed
  std::size_t lent_tiles_ = 0;
  bool again_ = false;    ///< some flow may have tiles to retransmit
  bool refused_ = false;  ///< a tile was refused for want of room

  std::array<std::byte, 32 * kControlRecordBytes> words_in_;
  std::size_t words_got_ = 0;
  std::array<std::byte, 32 * kControlRecordBytes> words_out_;
  std::size_t words_due_ = 0;
  std::size_t untold_bytes_ = 0;  ///< received, not acknowledged yet
  std::size_t untold_tiles_ = 0;

  std::uint64_t next_ = 0;     ///< the number of the tile to deliver next
  Flow* next_from_ = nullptr;  ///< the flow whose front is that tile, whole
  Arrival arrival_;
  bool news_ = false;
  std::uint64_t received_bytes_ = 0;
  std::uint64_t watched_bytes_ = 0;  ///< received, and in the kernel
  std::chrono::steady_clock::time_point watched_since_;
};

}  // namespace shoal::tcp
