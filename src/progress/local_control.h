// LocalControl: control messages to and from peers that share memory with this rank, over a NoticeBoard.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include <shoal/status.h>

#include "src/progress/control_message.h"
#include "src/progress/control_queue.h"
#include "src/progress/notice_board.h"
#include "transports/transport.h"

namespace shoal {

/// The part of the ControlPlane for these peers. No connection and no descriptor belongs to it. A peer that does not read has
/// its messages kept in a queue here, so that it delays no other peer. Thread rule: the driver.
class LocalControl {
 public:
  /// `rank` and `peers` are those that `transport`, which is connected and outlives this object, has connected.
  LocalControl(Transport& transport, int rank, std::span<const int> peers);

  /// The transport has memory for notices.
  [[nodiscard]] bool usable() const noexcept { return board_.usable(); }
  /// poll() may find something. Costs the same for any number of peers.
  [[nodiscard]] bool has_news();
  /// Appends the messages that have been written, then the peers that have ended since: what a peer has written counts before
  /// its end. True where anything happened.
  bool poll(std::vector<ControlMessage>& messages);
  /// A queue holds messages.
  [[nodiscard]] bool pending() const noexcept { return !queues_.empty(); }
  /// To those of `ranks` that are peers; null: to all peers.
  void send(const std::span<const int>* ranks, const OutgoingControl& message);
  /// Leaves on the board what is queued, for peers that read it when this rank has ended. Where there is too little room, gives
  /// slow peers until `deadline` to read, and drops the rest.
  void finish(std::chrono::steady_clock::time_point deadline);
  /// In a child of fork(): from now on nothing is read or written.
  void leave_to_parent() noexcept { left_to_parent_ = true; }

 private:
  struct Peer {
    bool gone = false;    ///< has sent its exit notice
    bool failed = false;  ///< has been reported as dead
    Status problem;       ///< not ok: is to be reported as dead
    ControlQueue queue;

    [[nodiscard]] bool reads() const noexcept { return !gone && !failed && problem.ok(); }
  };
  struct Ended {
    std::size_t position;
    Status how;
  };
  /// Of a rank in ranks_; its size where the rank is not there.
  [[nodiscard]] std::size_t position_of(int rank) const noexcept;
  /// Takes from the transport which peers have ended. `look`: it asks the system.
  void take_ended(bool look);
  void enqueue(std::size_t position, OutgoingControl message);
  /// Moves what the slow peer has not read from the board to its queue.
  void take_back(std::size_t position);
  /// Moves messages from the queue of a peer that reads again to the board; `last`: also of one that does not, as far as there
  /// is room. True where any was.
  bool flush(std::size_t position, bool last);
  bool flush_all(bool last = false);
  void report_end(std::size_t position, const Status& how, std::vector<ControlMessage>& messages);
  void wake(std::span<const std::size_t> positions);

  Transport& transport_;
  std::vector<int> ranks_;  // sorted; the position is the rank's on the board
  std::size_t own_;
  NoticeBoard board_;
  std::vector<Peer> peers_;          // by position
  std::vector<std::size_t> queues_;  // positions of peers with a queue that is not empty
  std::vector<std::size_t> faulty_;  // positions of peers with a problem to report
  std::vector<Ended> ended_;
  std::vector<Link*> ended_links_;  // scratch of take_ended()
  bool due_ = false;                // something has been queued
  bool left_to_parent_ = false;
};

}  // namespace shoal
