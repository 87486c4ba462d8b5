// ProgressEngine: the connections of a process to the other ranks of a job, shared by all communicators of one create().
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include <shoal/status.h>

#include "src/device/device.h"
#include "src/diagnosis/flight_record.h"
#include "src/plan/operation.h"
#include "src/progress/client_directory.h"
#include "src/progress/control.h"
#include "src/progress/control_messages.h"
#include "src/progress/driver_gate.h"
#include "src/progress/early_records.h"
#include "src/progress/inbox.h"
#include "src/progress/progress_client.h"
#include "src/progress/tile_router.h"
#include "src/progress/waiter.h"
#include "src/topology/group.h"
#include "src/topology/topology.h"
#include "transports/transport.h"

namespace shoal {

class DriverLock;

/// What a ProgressEngine is made of; connect_job makes it.
struct ProgressEngineParts {
  int rank = 0;
  Topology topology;
  std::vector<std::unique_ptr<Transport>> transports;  ///< data; outlive the links
  std::vector<std::unique_ptr<Link>> links;            ///< one to every other rank
  std::vector<std::uint32_t> transport_of_link;
  /// Largest tile, except between nodes.
  std::size_t tile_bytes = std::numeric_limits<std::size_t>::max();
  std::unique_ptr<ControlPlane> control;  ///< null in tests that need none
  const Device* device = nullptr;
  std::shared_ptr<FlightRecord> flight_record;  ///< where calls are recorded; null: nowhere
  int cores = 1;                                ///< cores that the ranks of this node may use together
  WaitPolicy wait = WaitPolicy::automatic;      ///< of threads that wait in a call
  std::chrono::milliseconds warn_after{0};      ///< a call that waits longer is reported on stderr; zero: never
  /// Whether tiles that block other communicators are moved to spill queues. Off only in a test that shows what these are for.
  bool spills_tiles = true;
  /// How much is kept of what arrives for communicators that this process has not made yet. When a peer sends more, the last
  /// communicator that it sent for fails: held back on the link, these tiles would block all other communicators as well.
  std::size_t early_bytes = std::size_t{64} << 20;
};

/// How many ranks of this node share a core, rounded up.
int ranks_per_core(const ProgressEngineParts& parts);
/// Whether a thread may poll without a pause: by `parts.wait`; if that is automatic, where each rank of this node can have a
/// core, so that polling takes none from another.
bool may_spin(const ProgressEngineParts& parts);

/// Drives all communicators of one create(): each has an Executor, which reaches links only through its ProgressEngine. Lives
/// as long as the last of them.
///
/// At most one thread at a time holds the DriverLock: a caller that blocks on its call, or the process's progress thread while
/// calls are in flight that no caller drives. The driver drives all executors. A thread that finds the lock taken leaves its
/// call in the inbox.
///
/// Rank numbers here are those of the job. Thread rule: as named.
class ProgressEngine : public std::enable_shared_from_this<ProgressEngine> {
 public:
  explicit ProgressEngine(ProgressEngineParts parts);
  ~ProgressEngine();
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  // Facts; any thread.
  [[nodiscard]] const ProgressEngineParts& parts() const noexcept { return parts_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  /// The ranks of this node have a core each.
  [[nodiscard]] bool may_spin() const noexcept { return may_spin_; }

  // Parts with thread rules of their own.
  [[nodiscard]] ClientDirectory& clients() noexcept { return clients_; }
  [[nodiscard]] TileRouter& router() noexcept { return router_; }
  [[nodiscard]] ControlMessages& control_messages() noexcept { return control_messages_; }

  /// From now on `client` receives what arrives for its communicator, beginning with what has arrived already. Takes the
  /// driver lock: any thread that does not hold it. Errors: those of ClientDirectory::add(); unsupported, where too much has
  /// arrived for too many communicators that were not made here.
  Status attach(ProgressClient& client);
  /// Afterwards no thread drives `client`. True where it was the last one; then the peers are sent the exit notice. By the
  /// holder of the driver lock.
  bool detach(ProgressClient& client);

  /// In a child of fork(), which has none of this process's connections: closes every communicator without a message to any
  /// peer.
  void leave_to_parent() noexcept;
  [[nodiscard]] bool left_to_parent() const noexcept { return left_to_parent_; }

  /// The ranks of the job that have neither died nor left it, as far as this rank knows. Takes the driver lock: any thread
  /// that does not hold it.
  std::vector<int> present();
  /// A group of `members` (ranks of the job, ascending or not) with a name that all of them compute alike, provided that all
  /// ask for groups of these members equally often. Any thread.
  Group next_group_of(const std::vector<int>& members);

  // Calls. Any thread.
  /// Leaves `operations` (already referenced for the driver) in the inbox and makes sure that a thread drives them. The driver
  /// sees all of them or none.
  void post(std::span<internal::Operation* const> operations);
  /// Where no thread drives: starts `operation` (referenced for the driver too), without inbox or wake-up, and drives until it
  /// has ended or another thread waits for the driver lock. False: another thread drives.
  bool try_run(internal::Operation* operation);
  /// The same for a call that `client` has started already, by the holder of `lock`.
  void drive_started(const DriverLock& lock, ProgressClient& client, const internal::Operation& operation);
  /// Where no thread drives: drives until `operation` has ended, `deadline` has passed, or another thread waits for the driver
  /// lock. False: another thread drives.
  bool try_drive(const internal::Operation& operation, std::chrono::steady_clock::time_point deadline);
  /// A client has been closed: the driver ends its calls and sends the cause to the peers; where no thread drives, the caller
  /// does.
  void tend_to_closed();
  /// Another thread waits for the driver lock.
  [[nodiscard]] bool driver_wanted() const noexcept { return gate_.is_wanted(); }

  // For the driver (drive.h).
  /// True where calls are in flight or in the inbox.
  [[nodiscard]] bool busy() const noexcept { return !running_.empty() || router_.has_records() || !inbox_.empty(); }
  /// A control message waits for a slow peer. The driver continues to send it, or the progress thread where no other thread
  /// drives; no call waits for it.
  [[nodiscard]] bool unsent() const noexcept { return control_messages_.unsent(); }
  /// Moves what can be moved now; true where anything moved.
  bool progress();
  /// The checks that need not run in every pass: control messages, where some are due, deadlines, broken links, unclaimed
  /// tiles. True where anything changed.
  bool check();
  /// check() now and then, control messages included, while every pass moves data: deadlines, aborts and deaths of one
  /// communicator must not wait until the traffic of another pauses.
  bool check_if_overdue();
  /// ok where other threads can wake the driver; else why not.
  [[nodiscard]] Status status() const;
  /// Announces sleep to transports and posters. False: something has arrived already.
  bool prepare_wait();
  /// What it has announced holds still. To be called after one more progress(), before blocking.
  [[nodiscard]] bool may_sleep() const noexcept { return awaited_writer() == announced_writer_; }
  /// `polled`: append_wait_fds()'s descriptors, among others, as poll left them; empty where they were not polled.
  void finish_wait(std::span<const pollfd> polled);
  void append_wait_fds(std::vector<pollfd>& out) const;
  /// When check() has to run again at the latest.
  [[nodiscard]] std::chrono::steady_clock::time_point next_check() const noexcept;
  std::atomic<bool> wants_thread{false};  ///< set by a thread that needs the progress thread, cleared by that

 private:
  friend class DriverLock;
  /// What a driver leaves undone.
  enum class Unfinished { nothing, sends, calls };
  /// For DriverLock, before it gives the lock back.
  Unfinished end_drive();
  /// Wakes the progress thread for what is left to drive. Where that thread cannot be started, fails the calls in flight.
  void call_thread(bool for_calls);

  /// Messages of peers matter now. Of several engines that one thread drives some may be idle: a peer that is ahead sends them
  /// tiles that no call here can take yet, and these would keep the thread awake.
  [[nodiscard]] bool waits_for_peers() const noexcept { return !running_.empty() || router_.has_records() || unsent(); }
  /// Whose writes to shared memory matter to the calls in flight; see Transport::await_writer().
  [[nodiscard]] int awaited_writer() const noexcept;
  void drain_inbox();
  /// Moves data, as progress(), and looks at nothing else. True where any moved.
  bool move_data();
  /// Reads control messages, then what peers had sent on the links before them, then passes the messages on.
  bool handle_control();
  void mark_running(ProgressClient& client);

  ProgressEngineParts parts_;
  const bool may_spin_;
  ClientDirectory clients_;
  EarlyRecords early_;
  ControlMessages control_messages_;
  TileRouter router_;
  std::vector<ProgressClient*> running_;  // those with calls in flight
  bool left_to_parent_ = false;

  DriverGate gate_;
  Inbox inbox_;
  std::atomic<bool> attention_{false};  // a client has been closed, and its end is still to be handled

  // The driver's state.
  Waiter caller_waiter_;
  std::vector<pollfd> caller_descriptors_;                  // on which a caller that drives sleeps
  static constexpr std::uint32_t kPassesBetweenLooks = 16;  // before the clock is read
  std::uint32_t passes_ = 0;                                // in which something moved
  std::chrono::steady_clock::time_point checked_at_{};
  int announced_writer_ = Transport::kAnyWriter;
  bool transports_due_ = false;  // a transport did not let the driver sleep, whether or not a call is on links
};

}  // namespace shoal
