// ProgressClient: what the ProgressEngine drives. Each communicator has one, its Executor.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <shoal/status.h>

#include "src/plan/operation.h"
#include "src/progress/control.h"
#include "src/progress/spill_queue.h"
#include "src/progress/wire.h"
#include "src/topology/group.h"

namespace shoal {

/// What a communicator and its ProgressEngine tell each other about the link to one member.
struct ClientLink {
  Link* link = nullptr;
  Wire* wire = nullptr;
  int peer = -1;                                    ///< the member: its rank in the communicator
  std::uint32_t their_number = kCommunicatorLimit;  ///< the peer's number of the communicator; the limit: not received yet
  bool bound = false;                               ///< this rank has sent its number to the peer
  bool requested = false;                           ///< Link::request() has been called, or was not necessary
  std::chrono::steady_clock::time_point requested_at{};
  bool paused = false;            ///< the peer has asked this rank to send no more tiles
  SpillQueue* spilled = nullptr;  ///< tiles that come before those on the link; null: none so far

  /// A call or message needs the link. `peer_too`: so does the peer's part in it.
  void request(bool peer_too) {
    if (requested) return;
    link->request(peer_too);
    requested = true;
    requested_at = std::chrono::steady_clock::now();
  }
};

/// What the calls in flight of a communicator do with a link.
enum class LinkUse {
  none,
  waits,   ///< wait for it, to send or to receive
  paused,  ///< would send on it, but the peer has asked them to pause
};

/// The calls of one communicator, as the ProgressEngine sees them. `job_rank`: a rank of the job. Thread rule: the holder of
/// the DriverLock, but for number(), group(), close() and closed().
class ProgressClient {
 public:
  virtual ~ProgressClient() = default;
  ProgressClient(const ProgressClient&) = delete;
  ProgressClient& operator=(const ProgressClient&) = delete;

  [[nodiscard]] const Group& group() const noexcept { return group_; }
  /// The number that this process gives the communicator in its tiles.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  /// close() has been called. Any thread.
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  // Calls.
  /// Queues a call, which is started when its turn has come.
  virtual void enqueue(internal::Operation* operation) = 0;
  /// No call is in flight.
  [[nodiscard]] virtual bool idle() const noexcept = 0;
  /// Some call in flight uses links.
  [[nodiscard]] virtual bool on_links() const noexcept = 0;
  /// The rank of the job that has to write to shared memory before the calls in flight can continue; or Transport::kAnyWriter
  /// or kNoWriter.
  [[nodiscard]] virtual int awaited_writer() const noexcept = 0;
  /// The first half of a pass: starts calls, sends; all of it where no call uses links.
  virtual bool start_and_send() = 0;
  /// The second half, where some call uses links: receives, folds, ends calls.
  virtual bool receive_and_end() = 0;
  /// The checks that need not run in every pass; may close.
  virtual bool check() = 0;
  [[nodiscard]] virtual std::chrono::steady_clock::time_point next_check() const noexcept = 0;

  // The end.
  /// Fails all calls in flight and all later calls with `cause`, and sends it to the peers. The first cause stays. Any thread.
  virtual void close(const Status& cause) = 0;
  /// After close(): sends the cause to the peers, once, and fails the calls in flight. True where anything changed.
  virtual bool end_if_closed() = 0;
  /// In a child of fork(): closes without a message to any peer. See ProgressEngine::leave_to_parent().
  virtual void leave_to_parent() = 0;

  /// A message about this communicator, or the death or leave of a rank of the job, has arrived on the control plane.
  virtual void on_control(const ControlPlane::Message& message) = 0;

  // Links.
  /// Null where `job_rank` is no member, or this rank.
  [[nodiscard]] virtual ClientLink* link_to(int job_rank) noexcept = 0;
  [[nodiscard]] virtual LinkUse use_of(int job_rank) const noexcept = 0;
  /// A tile of a message has arrived from `job_rank`.
  virtual void take_message(int job_rank, const Arrival& arrival) = 0;
  /// `job_rank` has aborted, and took back a zero-copy tile that this rank was reading. Closes.
  virtual void lent_tile_reclaimed(int job_rank) = 0;

  bool running = false;  ///< set by the ProgressEngine: it is in the engine's list of clients with calls in flight

 protected:
  ProgressClient(const Group& group, std::uint32_t number) : group_(group), number_(number) {}

  Group group_;
  const std::uint32_t number_;
  std::atomic<bool> closed_{false};
};

}  // namespace shoal
