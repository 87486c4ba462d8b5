// RemoteControl: control messages to and from peers that share no memory with this rank, over a link to each of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "src/progress/control_message.h"
#include "src/progress/control_queue.h"
#include "src/progress/far_control.h"
#include "transports/transport.h"

namespace shoal {

/// Thread rule: the driver.
class RemoteControl final : public FarControl {
 public:
  /// `links` are connected through `transport`.
  RemoteControl(std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links);
  ~RemoteControl() override;

  bool poll(std::vector<ControlMessage>& messages) override;
  /// A send also receives, and then a thread that waits for the transport is not woken for that message again.
  [[nodiscard]] bool due() const noexcept override { return due_; }
  /// A queue holds messages.
  [[nodiscard]] bool pending() const noexcept override { return queued_ != 0; }
  void send(const std::span<const int>* ranks, const OutgoingControl& message) override;
  void finish(std::chrono::steady_clock::time_point deadline) override;
  [[nodiscard]] int wait_fd() const noexcept override { return transport_->wait_fd(); }
  bool prepare_wait() override { return transport_->prepare_wait(); }
  void finish_wait(bool readable) override { transport_->finish_wait(readable); }
  void leave_to_parent() noexcept override { transport_->leave_to_parent(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return transport_->memory_bytes(); }

 private:
  /// What a link has taken, but whose memory it still needs.
  struct Taken {
    OutgoingControl::Payload payload;
    std::uint64_t ticket = 0;
  };
  struct Peer {
    std::unique_ptr<Link> link;
    std::uint64_t taken = 0;  ///< tiles that the link has taken
    bool gone = false;        ///< has sent its exit notice
    bool failed = false;      ///< its connection has ended, or is treated as ended
    bool overfull = false;    ///< its queue was full: poll() reports it
    bool active = false;      ///< is in active_
    ControlQueue queue;
    std::deque<Taken> in_link;
  };
  /// Null where there is no such peer.
  [[nodiscard]] Peer* peer_to(int rank) noexcept;
  /// The next poll() visits `peer`.
  void set_active(Peer& peer);
  /// Reads what has arrived from `peer`, sends what is queued, and reports its end. True where anything happened.
  bool visit(Peer& peer, std::vector<ControlMessage>& messages);
  void send_to(Peer& peer, const OutgoingControl& message);
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
