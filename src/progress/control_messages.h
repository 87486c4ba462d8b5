// ControlMessages: passes the control messages of peers on to the communicators that they are about.
#pragma once

#include <poll.h>

#include <memory>
#include <span>
#include <vector>

#include "src/diagnosis/last_waits.h"
#include "src/progress/client_directory.h"
#include "src/progress/control.h"
#include "src/progress/early_records.h"
#include "src/progress/peer_states.h"

namespace shoal {

/// Thread rule: the driver.
class ControlMessages {
 public:
  /// `plane` is null in tests that need none. All arguments outlive it.
  ControlMessages(ControlPlane* plane, ClientDirectory& clients, EarlyRecords& early, int ranks)
      : plane_(plane), clients_(clients), early_(early), peers_(ranks) {}

  [[nodiscard]] ControlPlane* plane() const noexcept { return plane_; }
  [[nodiscard]] PeerStates& peers() noexcept { return peers_; }
  [[nodiscard]] const LastWaits& last_waits() const noexcept { return last_waits_; }

  /// Reads what has arrived; an abort closes the communicator that it is about. True where anything arrived. For the moment
  /// before a failure is reported, whose cause a peer may have sent already.
  bool poll();
  /// The same in two halves, at a smaller cost. What peers had sent by links before these messages can be received between
  /// them.
  bool read_if_due();
  void pass_on();
  /// Messages have been read and not passed on.
  [[nodiscard]] bool has_read() const noexcept { return !messages_.empty(); }
  void report_deaths() { peers_.report_deaths(clients_.all()); }
  void set_due() noexcept { due_ = true; }
  /// A message waits for a slow peer.
  [[nodiscard]] bool unsent() const noexcept { return plane_ != nullptr && plane_->pending(); }

  // See Transport.
  bool prepare_wait();
  void finish_wait(std::span<const pollfd> polled);
  void append_wait_fd(std::vector<pollfd>& out) const;

 private:
  void pass_on(const ControlPlane::Message& message);

  ControlPlane* const plane_;
  ClientDirectory& clients_;
  EarlyRecords& early_;
  PeerStates peers_;
  LastWaits last_waits_;
  std::vector<ControlPlane::Message> messages_;  // read, not passed on
  bool due_ = true;                              // a message may have arrived since the last poll()
};

}  // namespace shoal
