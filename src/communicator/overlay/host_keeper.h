// HostKeeper: the thread of a rank that passes control messages between the board of its host and other hosts.
#pragma once

#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/communicator/overlay/host_board.h"
#include "src/progress/overlay/host_control.h"
#include "src/progress/overlay/host_table.h"
#include "transports/common/connect_deadline.h"
#include "transports/tcp/keeper_sockets.h"

namespace shoal {

/// Each rank of a job of several hosts has one. That of the keeper has the connections with other hosts, those of the other
/// ranks wait to take over. The thread sleeps until the board, a connection, the end of a process or the time wakes it, also
/// while the program computes. It runs no code of the program.
///
/// Thread rule: any thread.
class HostKeeper {
 public:
  struct Parts {
    const HostTable* table = nullptr;  ///< outlives it
    int rank = 0;
    HostControl::Options options;
    std::unique_ptr<tcp::KeeperSockets> sockets;  ///< has not begun
    std::vector<std::string> addresses;           ///< of all ranks
    std::unique_ptr<HostBoard> board;             ///< null where this rank is the only one of its host
    /// Takes what this rank has learnt. Called by one thread at a time, which must not wait or call the HostKeeper.
    std::function<void(const OverlayMessage&)> deliver;
  };
  /// Errors: system_error where there is no descriptor or no thread; invalid_argument for a malformed address.
  static Result<std::unique_ptr<HostKeeper>> start(Parts parts);
  ~HostKeeper();
  HostKeeper(const HostKeeper&) = delete;
  HostKeeper& operator=(const HostKeeper&) = delete;

  /// Returns when this rank, where it is the keeper, is connected with all neighbours. Errors: timeout, naming ranks; those of
  /// `time_limit`.
  Status wait_connected(ConnectDeadline time_limit);
  /// Reads and passes on what has arrived, without waiting for the thread to get a core.
  void read_now();
  /// A message of this rank, for other hosts.
  void write(const OverlayMessage& message);
  /// Its last one: it leaves the job. Takes over before, where the keeper has left already, so that the message is passed on.
  void leave(const OverlayMessage& goodbye);
  /// Sends what is still to be sent, and ends the connections: until `deadline`, and up to a second longer where this rank has
  /// just taken over.
  void finish(std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] std::size_t memory_bytes() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  class Forks;

  explicit HostKeeper(Parts parts);
  Status begin();
  void loop();
  /// The thread sleeps until there is something to do. Releases the lock meanwhile.
  void sleep(std::unique_lock<std::mutex>& lock);
  void step(Time now);
  void look(Time now);
  void act(Time now);
  void read_board(Time now);
  void take(HostBoard::News& news, Time now);
  void handle(const tcp::KeeperSockets::Event& event, Time now);
  /// Reports the watched processes that have ended, and watches the next ones.
  void watch_processes(Time now);
  void on_process_ended(int rank, Time now);
  void publish(const OverlayMessage& message);
  void wake();
  [[nodiscard]] KeeperClaim claim() const { return parts_.board != nullptr ? parts_.board->claim() : own_claim_; }
  [[nodiscard]] tcp::KeeperSockets& sockets() const noexcept { return *parts_.sockets; }
  /// Neighbours with which there is no connection.
  [[nodiscard]] std::vector<int> unconnected_hosts() const;
  /// Nothing that this rank has to pass on is left here.
  [[nodiscard]] bool has_passed_on() const;
  void leave_to_parent() noexcept;

  Parts parts_;
  mutable std::mutex mutex_;  // guards all of the following, and what `parts_` holds; the thread has it unless it sleeps
  std::condition_variable progressed_;
  HostControl control_;
  KeeperClaim own_claim_;                // where there is no board
  KeeperClaim seen_claim_;               // by the last look()
  std::map<int, Descriptor> processes_;  // by rank: the next two of this host
  Descriptor wake_event_;
  std::vector<pollfd> descriptors_;
  Time claimed_at_{};
  bool leaving_ = false;
  bool sleeps_ = false;
  bool stops_ = false;
  bool left_to_parent_ = false;
  std::thread thread_;
};

}  // namespace shoal
