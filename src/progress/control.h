// ControlPlane: the slow, always readable channel between all ranks, beside the data links: aborts, farewells, deaths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/progress/group_name.h"
#include "transports/transport.h"

namespace shoal {

/// What an abort's payload says: one byte StatusCode, then the words. Safe for any bytes; never ok.
Status parse_abort(int from, std::span<const std::byte> data);

/// Small messages over a Transport of its own, so that they never wait behind data. Communicators that share it are told apart
/// by their names; ranks are those of the job.
///
/// No send waits: what a peer's link does not take now stands in a queue, which poll() goes on with. Of the messages that a
/// newer one replaces (waits, calls) the newest stands there; a peer that has left kMostQueued unread is taken for dead. Thread
/// rule: one thread at a time (the driver).
class ControlPlane {
 public:
  /// What a peer has said, or what has become of it.
  struct Message {
    enum class Kind : std::uint32_t {
      abort = 1,     ///< closes the communicator, for the reason in `status`
      farewell = 2,  ///< leaves the communicator in order: `payload` says after which calls, a CallHistory
      goodbye = 3,   ///< leaves all communicators in order
      death = 4,     ///< has broken its connection without a goodbye: `status` says how
      waits = 5,     ///< has waited for long in a call of the communicator: `payload` says for whom
      calls = 6,     ///< is in other calls than this rank: `payload` says which it has made, a CallHistory
    };
    Kind kind = Kind::abort;
    GroupName group;  ///< not of a goodbye or a death
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

  /// Reads what has come and appends it to `messages`; true where anything came at all.
  bool poll(std::vector<Message>& messages);
  /// Something may have come that poll() has not read: a send moves what comes, too, and who waits for the transport is not
  /// woken for it again.
  [[nodiscard]] bool due() const noexcept { return due_; }
  /// Something stands in a queue: poll() is to be called when the transport can move bytes.
  [[nodiscard]] bool pending() const noexcept { return queued_ != 0; }

  /// Tells those of `ranks` that still listen why this rank closes `group`.
  void send_abort(const GroupName& group, std::span<const int> ranks, const Status& cause);
  /// Tells them that this rank leaves `group` in order, and its last calls.
  void send_farewell(const GroupName& group, std::span<const int> ranks, std::span<const std::byte> history);
  /// Tells them what this rank waits for.
  void send_wait(const GroupName& group, std::span<const int> ranks, std::span<const std::byte> what);
  /// Tells `rank`, which makes other calls, those of this rank.
  void send_calls(const GroupName& group, int rank, std::span<const std::byte> history);
  /// Tells every peer that this rank leaves altogether.
  void send_goodbye();
  /// For the end, when no communicator is left that could be held up: gives slow peers a moment to take what is
  /// queued; what they have not taken then is lost.
  void finish();

  [[nodiscard]] Transport* transport() const noexcept { return transport_.get(); }

 private:
  using Payload = std::shared_ptr<const std::vector<std::byte>>;  // one for all receivers of a message
  struct Queued {
    Message::Kind kind = Message::Kind::abort;
    GroupName group;
    Payload payload;
  };
  /// What a link has taken, but still needs the memory of.
  struct Taken {
    Payload payload;
    std::uint64_t ticket = 0;
  };
  struct Peer {
    std::unique_ptr<Link> link;
    std::uint64_t taken = 0;  ///< tiles that the link has taken
    bool gone = false;        ///< has said goodbye
    bool failed = false;      ///< its connection has ended, or counts as ended
    bool overfull = false;    ///< its queue was full: poll() reports it
    std::deque<Queued> queue;
    std::deque<Taken> in_link;
  };
  /// `ranks` null: to all.
  void send(Message::Kind kind, const GroupName& group, const std::span<const int>* ranks, std::span<const std::byte> payload);
  void enqueue(Peer& peer, Queued message);
  bool flush(Peer& peer);
  void drop_queue(Peer& peer);
  /// Some peer has not got all that has been sent.
  [[nodiscard]] bool is_unfinished() const;

  std::unique_ptr<Transport> transport_;  // outlives the links
  std::vector<Peer> peers_;
  std::size_t queued_ = 0;  // messages in all queues
  bool due_ = false;
};

}  // namespace shoal
