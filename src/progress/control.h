// ControlPlane: the slow, always readable channel between all ranks, beside the data links: aborts, close notices, deaths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/topology/group_name.h"
#include "transports/transport.h"

namespace shoal {

/// The Status in an abort's payload: one byte StatusCode, then the message. Safe for any bytes; never ok.
Status parse_abort(int from, std::span<const std::byte> data);

/// Small messages over a Transport of its own, so that they never wait behind data. Communicators that share it are told apart
/// by their names; ranks are those of the job.
///
/// No send waits: what a peer's link does not take now stays in a queue, which poll() continues to send. Of messages that a
/// newer one replaces (waits, calls) only the newest is kept. A peer that has left kMostQueued messages unread counts as dead.
/// Thread rule: one thread at a time (the driver).
class ControlPlane {
 public:
  /// What a peer has sent, or what has happened to it.
  struct Message {
    enum class Kind : std::uint32_t {
      abort = 1,     ///< closes the communicator, for the reason in `status`
      farewell = 2,  ///< close notice: left the communicator in order; `payload`: its last calls, a CallHistory
      goodbye = 3,   ///< exit notice: left all communicators in order
      death = 4,     ///< its connection broke without an exit notice; `status`: how
      waits = 5,     ///< has waited for long in a call of the communicator; `payload`: for which ranks
      calls = 6,     ///< is in other calls than this rank; `payload`: the calls that it has made, a CallHistory
    };
    Kind kind = Kind::abort;
    GroupName group;  ///< unused in an exit notice or a death
    int rank = 0;
    Status status;
    std::vector<std::byte> payload;
  };

  /// `links` are connected through `transport`; one to every other rank (none for a job of one).
  ControlPlane(std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links);
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  static constexpr std::size_t kMostQueued = 4096;

  /// Reads the messages that have arrived and appends them to `messages`; true where anything arrived at all.
  bool poll(std::vector<Message>& messages);
  /// A message may have arrived that poll() has not read: a send also receives, and then a thread that waits for the transport
  /// is not woken for that message again.
  [[nodiscard]] bool due() const noexcept { return due_; }
  /// A queue holds messages: poll() is to be called when the transport can move bytes.
  [[nodiscard]] bool pending() const noexcept { return queued_ != 0; }

  /// Sends the reason why this rank closes `group` to those of `ranks` whose connection is open.
  void send_abort(const GroupName& group, std::span<const int> ranks, const Status& cause);
  /// Sends them the close notice of this rank for `group`, with its last calls.
  void send_farewell(const GroupName& group, std::span<const int> ranks, std::span<const std::byte> history);
  /// Sends them for which ranks this rank waits.
  void send_wait(const GroupName& group, std::span<const int> ranks, std::span<const std::byte> what);
  /// Sends the calls of this rank to `rank`, which makes other calls.
  void send_calls(const GroupName& group, int rank, std::span<const std::byte> history);
  /// Sends every peer the exit notice of this rank.
  void send_goodbye();
  /// For the end, when no communicator is left that could be delayed: gives slow peers up to 100 ms to take what is queued.
  /// Messages that they have not taken by then are lost.
  void finish();

  [[nodiscard]] Transport* transport() const noexcept { return transport_.get(); }

 private:
  using Payload = std::shared_ptr<const std::vector<std::byte>>;  // one for all receivers of a message
  struct Queued {
    Message::Kind kind = Message::Kind::abort;
    GroupName group;
    Payload payload;
  };
  /// What a link has taken, but whose memory it still needs.
  struct Taken {
    Payload payload;
    std::uint64_t ticket = 0;
  };
  struct Peer {
    std::unique_ptr<Link> link;
    std::uint64_t taken = 0;  ///< tiles that the link has taken
    bool gone = false;        ///< has sent its exit notice
    bool failed = false;      ///< its connection has ended, or is treated as ended
    bool overfull = false;    ///< its queue was full: poll() reports it
    bool active = false;      ///< is in active_
    std::deque<Queued> queue;
    std::deque<Taken> in_link;
  };
  /// Null where there is no such peer.
  [[nodiscard]] Peer* peer_to(int rank) noexcept;
  /// The next poll() visits `peer`.
  void set_active(Peer& peer);
  /// Reads what has arrived from `peer`, sends what is queued, and reports its end. True where anything happened.
  bool visit(Peer& peer, std::vector<Message>& messages);
  void send_to(Peer& peer, Queued message);
  /// `ranks` null: to all.
  void send(Message::Kind kind, const GroupName& group, const std::span<const int>* ranks, std::span<const std::byte> payload);
  void enqueue(Peer& peer, Queued message);
  bool flush(Peer& peer);
  void drop_queue(Peer& peer);
  /// Some peer has not received all messages that were sent to it.
  [[nodiscard]] bool is_unfinished() const;

  std::unique_ptr<Transport> transport_;  // outlives the links
  std::vector<Peer> peers_;
  std::vector<int> peer_of_rank_;  // index in peers_; -1: none
  std::vector<Peer*> active_;      // those with messages to read or to send
  std::vector<Link*> arrivals_;    // scratch of poll()
  std::size_t queued_ = 0;         // messages in all queues
  bool due_ = false;
};

}  // namespace shoal
