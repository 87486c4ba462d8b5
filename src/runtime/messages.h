// Messages: send and recv of one communicator, beside its calls.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/base/flat_map.h"
#include "src/base/ring_queue.h"
#include "src/plan/operation.h"
#include "src/progress/progress_client.h"
#include "src/progress/progress_engine.h"
#include "src/progress/spill_queue.h"
#include "src/runtime/match_queues.h"

namespace shoal {

class LinkCalls;
struct Group;

/// Matches sends with receives and moves their bytes.
///
/// A sender announces each message to its receiver, in the order of its calls: tag, type and size, and the bytes themselves
/// where they are few (eager). A receive takes the oldest announcement that matches, so messages of one sender and tag do not
/// overtake each other (MPI-4.0 section 3.5). For a larger message the receiver then sends `clear`, and the bytes travel
/// straight into its buffer (rendezvous). Eager messages that no receive matches yet are kept. A sender may have kEagerWindow
/// of them in flight; further ones wait for `clear`, as large ones do.
///
/// Announcements that no receive matches yet are kept, up to kMostUnmatched of each peer. One more is an error: back-pressure
/// on the sender could hold back the very announcement that a receive waits for.
///
/// The tiles have a number of their own (kMessageBit) and never block a link: each can be taken when it arrives. Thread rule:
/// the driver. Ranks are those of the communicator.
class Messages {
 public:
  /// `number`: the communicator's, in the tiles of this process. `links`: of its calls; all arguments outlive it.
  Messages(ProgressEngine& engine, const Group& group, std::uint32_t number, LinkCalls& links);

  /// Queues a send or recv until its turn: messages are announced in the order of their numbers.
  void enqueue(internal::Operation* operation);
  /// Calls in flight.
  [[nodiscard]] std::size_t size() const noexcept { return waiting_.size() + live_.size(); }
  /// Starts the messages whose turn it is, and sends what the links take.
  bool advance();
  /// A mismatch that advance() has found; ok where there is none.
  Status take_failure();
  /// Handles a tile from `peer`. Errors: mismatch, where ranks disagree; internal, where the peer must not send such a tile.
  Status take(int peer, const Arrival& arrival);
  /// The calls that have ended; the caller finishes them.
  std::vector<internal::Operation*>& ended() noexcept { return ended_; }
  /// Aborts all calls: they are in ended() then.
  void give_up();

  /// A call in flight waits for something from `peer` or for room to send to it.
  [[nodiscard]] bool wants(int peer) const noexcept;
  /// As wants(), but only messages that name `peer`: without it they cannot end.
  [[nodiscard]] bool needs(int peer) const noexcept;
  /// Started, the oldest first.
  [[nodiscard]] const std::list<internal::Operation*>& live() const noexcept { return live_; }
  /// The oldest of them that a thread waits for; null where none is.
  [[nodiscard]] const internal::Operation* awaited() const noexcept;
  /// Not started, because an earlier message has not started; in no order.
  [[nodiscard]] const std::vector<internal::Operation*>& waiting() const noexcept { return waiting_; }
  /// Unmatched messages of one sender that a rank keeps.
  static constexpr std::size_t kMostUnmatched = std::size_t{1} << 18;
  /// What a sender sends first of a message.
  struct Announcement {
    std::uint64_t size_bytes = 0;
    std::int32_t tag = 0;
    std::uint8_t type = 0;
    std::uint8_t eager = 0;  ///< the bytes follow in the same tile
    std::uint16_t reserved = 0;
  };
  static_assert(sizeof(Announcement) == 16, "travels as it lies in memory");
  /// The announcement at the front of `tile`; all bytes of the message follow it where it is eager, else none. Nothing where
  /// the tile is no announcement.
  static std::optional<Announcement> parse_announcement(std::span<const std::byte> tile) noexcept;
  /// "float32 x 10", of any type.
  static std::string describe(const Announcement& announcement);
  /// "recv of int32 x 10 from rank 3 (tag 2)".
  static std::string describe(const internal::Operation& operation);

 private:
  static constexpr std::size_t kEagerBytes = 2048;
  static constexpr std::uint32_t kEagerWindow = 32;

  enum class Kind : std::uint32_t { announce = 1, clear = 2, data = 3, taken = 4 };

  /// An announcement that no receive has matched.
  struct Unexpected {
    int peer = 0;
    std::uint32_t number = 0;
    Announcement announcement;
    std::vector<std::byte> bytes;          // of an eager one
    internal::Operation* local = nullptr;  // the send itself, where this rank is the sender
  };
  struct Outstanding {
    internal::Operation* operation = nullptr;
    std::size_t bytes = 0;
    std::uint64_t ticket = 0;
  };
  struct Peer {
    ClientLink* link = nullptr;                   // null for this rank
    RingQueue<internal::Operation*> to_announce;  // sends, in order
    FlatMap<internal::Operation*> announced;      // sends that wait for `clear`, by number
    RingQueue<internal::Operation*> to_send;      // cleared sends; one after the other
    RingQueue<Outstanding> outstanding;           // taken by the link, which still needs the memory
    RingQueue<std::uint32_t> to_clear;            // numbers of the messages
    FlatMap<internal::Operation*> receiving;      // receives that this rank has cleared, by number
    std::size_t unmatched = 0;                    // of its messages in unexpected_
    std::uint32_t next_number = 0;
    std::uint32_t eager_sent = 0;
    std::uint32_t eager_taken = 0;  // as the peer has reported
    std::uint32_t taken = 0;        // of the peer's eager messages
    std::uint32_t taken_said = 0;
    bool in_use = false;  // is in in_use_
    [[nodiscard]] bool owes_taken() const noexcept { return taken - taken_said >= kEagerWindow / 2; }
    [[nodiscard]] bool has_work() const noexcept {
      return !to_announce.empty() || !to_send.empty() || !outstanding.empty() || !to_clear.empty() || owes_taken();
    }
  };

  void start(internal::Operation* operation);
  bool advance(Peer& peer);
  bool bind(Peer& peer);
  bool announce(Peer& peer);
  bool send_data(Peer& peer);
  bool send_word(Peer& peer, Kind kind, std::uint32_t number);
  void taken_by_link(Peer& peer, internal::Operation* operation, std::size_t bytes);
  bool retire_sent(Peer& peer);
  void moved(internal::Operation* operation, std::size_t bytes);
  void end(internal::Operation* operation);
  Status match(internal::Operation* receive, const Unexpected& message, std::span<const std::byte> bytes);
  Status keep(Unexpected message);
  [[nodiscard]] std::optional<Unexpected> take_unexpected(const internal::Message& receive);
  [[nodiscard]] internal::Operation* take_posted(int from, int tag);
  Peer& peer(int rank) noexcept { return peers_[static_cast<std::size_t>(rank)]; }
  /// The peer, which the next advance() visits.
  Peer& use(int rank);

  TileRouter& router_;
  const Device& device_;
  const std::size_t tile_bytes_;  // largest tile, except between nodes
  const std::uint32_t number_;
  const int rank_;
  const Group& group_;
  std::vector<Peer> peers_;                    // by rank
  std::vector<Peer*> in_use_;                  // those with something to send, or whose links still need memory
  std::vector<internal::Operation*> waiting_;  // a heap, the lowest number first
  std::uint64_t next_start_ = 0;
  std::list<internal::Operation*> live_;      // started
  std::list<internal::Operation*> spare_;     // list nodes for later messages
  MatchQueues<internal::Operation*> posted_;  // receives without a message; those from any rank under kAny
  MatchQueues<Unexpected> unexpected_;        // by arrival
  std::vector<internal::Operation*> ended_;
  Status failure_;  // found by start()
};

}  // namespace shoal
