// FarControl: control messages to and from peers that share no memory with this rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "src/progress/control_message.h"
#include "src/progress/control_queue.h"

namespace shoal {

/// The part of the ControlPlane for these peers. Thread rule: the driver.
class FarControl {
 public:
  FarControl() = default;
  virtual ~FarControl() = default;
  FarControl(const FarControl&) = delete;
  FarControl& operator=(const FarControl&) = delete;

  /// Reads the messages that have arrived and appends them to `messages`; true where anything arrived at all.
  virtual bool poll(std::vector<ControlMessage>& messages) = 0;
  /// Where another thread reads for poll(): reads now what that thread has not read yet.
  virtual void read_now() {}
  /// A message may have arrived that poll() has not read, and wait_fd() may not show it. Cheap.
  [[nodiscard]] virtual bool due() const noexcept = 0;
  /// The driver is needed to send or to receive messages, whether or not a call is in flight.
  [[nodiscard]] virtual bool pending() const noexcept = 0;
  /// To those of `ranks` that are such peers; null: to all of them.
  virtual void send(const std::span<const int>* ranks, const OutgoingControl& message) = 0;
  /// This rank sends nothing more. Gives slow peers until `deadline`, or a little longer, to take what has been sent, and drops
  /// the rest.
  virtual void finish(std::chrono::steady_clock::time_point deadline) = 0;

  // See Transport.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;
  virtual bool prepare_wait() = 0;
  virtual void finish_wait(bool readable) = 0;
  virtual void leave_to_parent() noexcept = 0;
  [[nodiscard]] virtual std::size_t memory_bytes() const noexcept = 0;
};

}  // namespace shoal
