// ControlPlane: the slow, always readable channel between all ranks, beside the data links: aborts, farewells, deaths.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "transports/transport.h"

namespace shoal {

/// What an abort's payload says: one byte StatusCode, then the words. Safe for any bytes; never ok.
Status parse_abort(int from, std::span<const std::byte> data);

/// Small messages over a Transport of its own, so that they never wait behind data. Communicators that share it are told apart
/// by their numbers; ranks are those of the job.
/// Thread rule: one thread at a time (the driver).
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
    std::uint32_t communicator = 0;  ///< of an abort or a farewell
    int rank = 0;
    Status status;
    std::vector<std::byte> payload;
  };

  /// `links` are connected through `transport`; one to every other rank (none for a job of one).
  ControlPlane(std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links);

  /// Reads what has come and appends it to `messages`; true where anything came at all.
  bool poll(std::vector<Message>& messages);
  /// Something may have come that poll() has not read: a send moves what comes, too, and who waits for the transport is not
  /// woken for it again.
  [[nodiscard]] bool due() const noexcept { return due_; }

  /// Tells those of `ranks` that still listen why this rank closes `communicator`. Best effort, never blocks for long.
  void send_abort(std::uint32_t communicator, std::span<const int> ranks, const Status& cause);
  /// Tells them that this rank leaves `communicator` in order, and its last calls.
  void send_farewell(std::uint32_t communicator, std::span<const int> ranks, std::span<const std::byte> history);
  /// Tells them what this rank waits for.
  void send_wait(std::uint32_t communicator, std::span<const int> ranks, std::span<const std::byte> what);
  /// Tells `rank`, which makes other calls, those of this rank.
  void send_calls(std::uint32_t communicator, int rank, std::span<const std::byte> history);
  /// Tells every peer that this rank leaves altogether.
  void send_goodbye();

  [[nodiscard]] Transport* transport() const noexcept { return transport_.get(); }

 private:
  struct Peer {
    std::unique_ptr<Link> link;
    std::uint64_t taken = 0;  ///< tiles that the link has taken
    bool gone = false;        ///< has said goodbye
    bool failed = false;      ///< its connection has ended
    bool pending = false;     ///< scratch of send(): the message at hand has not left yet
  };
  /// `ranks` null: to all.
  void send(Message::Kind kind, std::uint32_t communicator, const std::span<const int>* ranks,
            std::span<const std::byte> payload);

  std::unique_ptr<Transport> transport_;  // outlives the links
  std::vector<Peer> peers_;
  bool due_ = false;
};

}  // namespace shoal
