// ControlPlane: the slow, always readable channel between all ranks, beside the data links: aborts, close notices, deaths.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <shoal/status.h>

#include "src/progress/control_message.h"
#include "src/progress/control_queue.h"
#include "src/progress/far_control.h"
#include "src/progress/local_control.h"
#include "src/topology/group_name.h"
#include "transports/transport.h"

namespace shoal {

/// Small messages beside the data links, so that they never wait behind data. Communicators that share it are told apart by
/// their names; ranks are those of the job.
///
/// No send waits: what a peer does not take now stays in a queue, which poll() continues to send. Of messages that a newer one
/// replaces (waits, calls) only the newest is kept. A peer that has left kMostQueued messages unread counts as dead.
/// Thread rule: one thread at a time (the driver).
class ControlPlane {
 public:
  using Message = ControlMessage;

  ControlPlane() = default;
  /// `links` are connected through `transport`, one to every other rank with which this one shares no memory.
  ControlPlane(std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links);
  /// For the peers that share memory with this rank, and those that do not. Before any other call.
  void add(std::unique_ptr<LocalControl> local) { local_ = std::move(local); }
  void add(std::unique_ptr<FarControl> far) { far_ = std::move(far); }

  static constexpr std::size_t kMostQueued = ControlQueue::kMost;

  /// Reads the messages that have arrived and appends them to `messages`; true where anything arrived at all.
  bool poll(std::vector<Message>& messages);
  /// See FarControl.
  void read_now() {
    if (far_ != nullptr) far_->read_now();
  }
  /// A message may have arrived that poll() has not read. Cheap.
  [[nodiscard]] bool due() const { return (far_ != nullptr && far_->due()) || (local_ != nullptr && local_->has_news()); }
  /// poll() is to be called when bytes can be moved, also while no call is in flight.
  [[nodiscard]] bool pending() const noexcept {
    return (far_ != nullptr && far_->pending()) || (local_ != nullptr && local_->pending());
  }

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
  /// In a child of fork(): leaves the connections and the shared memory to the parent.
  void leave_to_parent() noexcept;

  // See Transport; of the peers that share no memory with this rank. The local ones wake the driver by their transport.
  /// -1 where there are none.
  [[nodiscard]] int wait_fd() const noexcept { return far_ == nullptr ? -1 : far_->wait_fd(); }
  bool prepare_wait() { return far_ == nullptr || far_->prepare_wait(); }
  void finish_wait(bool readable) {
    if (far_ != nullptr) far_->finish_wait(readable);
  }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return far_ == nullptr ? 0 : far_->memory_bytes(); }

 private:
  /// `ranks` null: to all.
  void send(Message::Kind kind, const GroupName& group, const std::span<const int>* ranks, std::span<const std::byte> payload);

  std::unique_ptr<FarControl> far_;      // null: all peers share memory with this rank
  std::unique_ptr<LocalControl> local_;  // null: no peer shares memory with this rank
};

}  // namespace shoal
