// The Reactor of a TCP transport: knows which sockets can move bytes, and waits for them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "transports/tcp/connection.h"
#include "transports/tcp/ring_memory.h"
#include "transports/transport.h"

namespace shoal::tcp {

class Rendezvous;
class TcpLink;
class TileReceiver;
class TileSender;
struct LinkSocket;

/// Every socket is registered once, edge-triggered for both directions, and never re-armed: an edge sets a flag in the
/// LinkSocket, the flag is cleared when the kernel has no more to give. A socket whose ring is full keeps its flag but raises
/// no further edge unless more bytes arrive, so waiting does not spin, and releasing a tile makes it ready again without a
/// system call. Thread rule: that of the transport, one thread at a time.
class Reactor final : private ReconnectHandler {
 public:
  /// `link_memory_bytes`: the limit for the memory in the rings of all links; 0: none. Errors: system_error.
  static Result<std::shared_ptr<Reactor>> make(std::size_t link_memory_bytes = 0);
  ~Reactor() override;

  /// From now on lost connections are replaced; without this a link ends with its first lost connection.
  Result<bool> reconnect_by(std::unique_ptr<Rendezvous> rendezvous);
  [[nodiscard]] bool reconnects() const noexcept { return rendezvous_ != nullptr; }

  /// The link exists, with or without connections.
  void enrol(TcpLink& link);
  /// It has connections now.
  Result<bool> add(TcpLink& link);
  /// See Link::request().
  void request(TcpLink& link, bool peer_too);
  void remove(TcpLink& link) noexcept;
  /// Stops reports about one socket; to be called before it closes.
  void forget(LinkSocket& socket) noexcept;
  /// Starts reports about a new socket; false where the system refuses.
  [[nodiscard]] bool watch(LinkSocket& socket) noexcept;
  /// The connection of this socket is lost, or about to be. `silent_since`: start of the silence of its host.
  void note_lost(LinkSocket& socket, std::chrono::steady_clock::time_point silent_since = {});
  /// The link has ended: its connections are not replaced any more.
  void forget_lost(TcpLink& link);
  /// In a child of fork(): closes its copies of the sockets.
  void leave_to_parent() noexcept;
  /// Before this rank leaves: waits for the peers' acknowledgements, and retransmits what was lost, which would be impossible
  /// afterwards. Waits a moment at most, and not where a peer is gone without a close notice.
  void flush_links();
  /// Ends all links from this side: their owner, the transport, is being destroyed.
  void close_all();

  /// The socket can be read from; no effect where it is known already.
  void enqueue(LinkSocket& socket);
  /// The sender has small tiles that the next progress() or prepare_wait() sends.
  void defer(TileSender& sender);
  /// The sender has lent tiles, whose memory is to be freed as soon as there is nothing else to do.
  void note_lent(TileSender& sender);
  /// A peek() found no tile: the next progress() reads the receiver's socket first.
  void await_tile(TileReceiver& receiver);
  /// A link breaks: checks it more often, and reports it.
  void note_closing(TcpLink& link) noexcept;
  /// take_active() is to report the link.
  void note_active(TcpLink& link) noexcept;
  /// One more, or one less, of the links has a tile that no peek() has shown.
  void count_unseen(int change) noexcept { unseen_ += change; }
  /// The socket's front frame has arrived in part: before the caller sleeps, the kernel is told to wait for the rest.
  void note_partial(LinkSocket& socket) noexcept;
  /// A socket for tiles waits for room in the kernel.
  void note_blocked(LinkSocket& socket) noexcept;
  /// The kernel had no memory for the data of a link, and will not report when it has: the links try again soon.
  void retry_soon() noexcept;

  bool progress();
  [[nodiscard]] int wait_fd() const noexcept { return epoll_.get(); }
  bool prepare_wait();
  void finish_wait(bool readable);
  /// See Transport.
  void take_active(std::vector<Link*>& links);
  void use_check_sums() noexcept;
  void use_packing() noexcept;
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  [[nodiscard]] std::size_t connected_links() const noexcept { return links_.size(); }
  [[nodiscard]] RingMemory& ring_memory() noexcept { return ring_memory_; }

  /// False in a child of the process that made the transport: a fork shares the sockets and must not shut them down.
  [[nodiscard]] bool in_owner() const noexcept;

 private:
  explicit Reactor(std::size_t link_memory_bytes) noexcept;

  // ReconnectHandler
  std::optional<std::uint64_t> give_up(int rank, std::size_t socket_index) override;
  void resume(int rank, std::size_t socket_index, Connection connection, std::uint64_t received) override;
  void on_peer_lost(int rank, const std::string& why) override;
  void open(PeerSockets sockets) override;
  void on_not_connected(int rank, const Status& why) override;
  [[nodiscard]] TcpLink* link_to(int rank) const noexcept;
  void reconnect();
  [[nodiscard]] long watch_period_ms() const noexcept;

  bool send_deferred();
  bool copy_lent();
  bool collect();
  bool read_ready();
  bool read_awaited();
  void forget_awaited() noexcept;
  [[nodiscard]] bool any_blocked() noexcept;
  bool watch_links();
  void save_memory();
  void give_back_memory() noexcept;
  void set_timer(long period_ms) noexcept;

  Descriptor epoll_;
  Descriptor timer_;
  long timer_period_ms_ = 0;
  bool retries_soon_ = false;
  int owner_pid_ = 0;
  RingMemory ring_memory_;
  bool gave_back_ = false;                            // since the last save_memory()
  std::chrono::steady_clock::time_point saved_at_{};  // the last save_memory()
  std::vector<TcpLink*> links_;                       // those with connections
  std::vector<TcpLink*> by_rank_;                     // all; null: none
  std::vector<LinkSocket*> ready_;
  std::vector<TileSender*> deferred_;
  std::vector<TileSender*> lending_;
  // Lists, so that a pass or a sleep costs what has happened, not what there is. They hold each entry once.
  std::vector<TileReceiver*> awaited_;
  std::vector<TcpLink*> active_;      // since the last take_active()
  std::vector<LinkSocket*> partial_;  // since the last prepare_wait()
  std::vector<LinkSocket*> blocked_;  // those that were, at least
  int unseen_ = 0;                    // links with a tile that no peek() has shown
  std::unique_ptr<Rendezvous> rendezvous_;
  struct Lost {
    LinkSocket* socket = nullptr;
    std::chrono::steady_clock::time_point silent_since{};
  };
  std::vector<Lost> lost_;        // not passed to the rendezvous yet
  bool rendezvous_due_ = false;   // some are there, or a link has been requested
  bool uses_check_sums_ = false;  // so will links that are connected later
  bool uses_packing_ = false;
  bool unreported_ = false;  ///< something has moved since the last progress()
  unsigned calls_since_collect_ = 0;
  unsigned idle_calls_ = 0;  ///< of progress(), in a row
};

}  // namespace shoal::tcp
