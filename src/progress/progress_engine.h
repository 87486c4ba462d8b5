// ProgressEngine: the connections of a process to the other ranks of a job, shared by all communicators of one create().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <poll.h>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/device/device.h"
#include "src/diagnosis/flight_record.h"
#include "src/diagnosis/signature.h"
#include "src/plan/operation.h"
#include "src/progress/control.h"
#include "src/progress/group_name.h"
#include "src/progress/spill_queue.h"
#include "src/progress/waiter.h"
#include "src/topology/topology.h"
#include "transports/transport.h"

namespace shoal {

class DriverLock;
class ProgressClient;
struct Group;

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
  std::chrono::milliseconds warn_after{0};      ///< a call that waits longer is reported on stderr; zero: never
  /// Whether tiles that block other communicators are moved to spill queues. Off only in a test that shows what these are for.
  bool spills_tiles = true;
  /// How much is kept of what arrives for communicators that this process has not made yet. When a peer sends more, the last
  /// communicator that it sent for fails: held back on the link, these tiles would block all other communicators as well.
  std::size_t early_bytes = std::size_t{64} << 20;
};

/// Tiles that are taken from one link, or copied, before the clock is read.
inline constexpr int kMostTilesInARow = 64;

/// Whether each rank of this node can have a core, so that polling takes none from another.
bool has_cores_to_spare(const ProgressEngineParts& parts);

/// Transports, links, control plane and the driver lock. Every communicator has an Executor; executors reach links only
/// through their ProgressEngine, which lives as long as the last of them.
///
/// At most one thread at a time holds the DriverLock: a caller that blocks on its call, or the process's progress thread while
/// calls are in flight that no caller drives. The driver drives all executors. A thread that finds the lock taken leaves its
/// call in the inbox.
///
/// Rank numbers here are those of the job. Thread rule: as named.
class ProgressEngine : public std::enable_shared_from_this<ProgressEngine> {
 public:
  /// A communicator whose number a peer has sent.
  struct Bound {
    GroupName name;
    ProgressClient* executor = nullptr;  ///< null: not made here yet, or closed
    bool over = false;                   ///< tiles that still arrive are dropped
    bool left = false;                   ///< no more tiles arrive
  };
  /// One link, and what all its users need to know about it.
  struct Wire {
    Link* link = nullptr;
    std::uint32_t transport = 0;                      ///< index of its transport
    std::uint64_t taken = 0;                          ///< tiles that the link has taken so far
    std::vector<std::unique_ptr<SpillQueue>> spills;  ///< by communicator; those not made here yet among them
    std::unordered_map<std::uint32_t, Bound> theirs;  ///< communicators by the numbers that the peer has given them
    /// Of them, the numbers of those that have not been made here yet.
    std::unordered_map<GroupName, std::uint32_t, GroupName::Hash> unmade;
    bool stuck = false;                  ///< the tile at its head was there in an earlier pass already
    std::uint64_t taken_when_stuck = 0;  ///< `taken` at that time
  };

  explicit ProgressEngine(ProgressEngineParts parts);
  ~ProgressEngine();
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  // Facts; any thread.
  [[nodiscard]] int rank() const noexcept { return parts_.rank; }
  [[nodiscard]] std::size_t tile_bytes() const noexcept { return parts_.tile_bytes; }
  [[nodiscard]] std::chrono::milliseconds warn_after() const noexcept { return parts_.warn_after; }
  [[nodiscard]] const Topology& topology() const noexcept { return parts_.topology; }
  [[nodiscard]] const Device& device() const noexcept { return *parts_.device; }
  [[nodiscard]] const std::shared_ptr<FlightRecord>& flight_record() const noexcept { return parts_.flight_record; }
  [[nodiscard]] std::span<const std::unique_ptr<Transport>> transports() const noexcept { return parts_.transports; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  /// The ranks of this node have a core each.
  [[nodiscard]] bool cores_to_spare() const noexcept { return cores_to_spare_; }
  /// The wire to `rank`; null for this rank itself.
  [[nodiscard]] Wire* wire_to(int rank) noexcept;

  /// A number for one more communicator of this process, for its own tiles. Each is given out once, so no number means two
  /// communicators. kCommunicatorLimit where there is none left. Any thread.
  std::uint32_t next_number() noexcept;
  /// From now on `executor` receives what arrives for its communicator, beginning with what has arrived already. Takes the
  /// driver lock: any thread that does not hold it. Errors: unsupported, where all numbers have been given out or too much has
  /// arrived for too many communicators that were not made here; internal, where the communicator's name is in use.
  Status attach(ProgressClient& executor);
  /// Afterwards no thread drives `executor`. The last detach sends the peers the exit notice. By the holder of the driver
  /// lock.
  void detach(ProgressClient& executor);
  /// No executor is attached. By the holder of the driver lock.
  [[nodiscard]] bool deserted() const noexcept { return attached_.empty(); }

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

  // Links; by the holder of the driver lock.
  /// No other communicator uses the links.
  [[nodiscard]] bool alone() const noexcept { return attached_.size() == 1; }
  /// A tile of another communicator is at the head of a link that an executor has checked.
  void note_stray() noexcept { stray_ = true; }
  /// Queues a control record about the communicator that has `number` for the ProgressEngine at the other end of `wire`. Which
  /// side has given the number: see LinkControl.
  void say(Wire& wire, std::uint32_t number, LinkControl word);
  /// Sends the peer at once, before the first tile with `number`, the name of the communicator. False where the link has no
  /// room.
  [[nodiscard]] bool bind(Wire& wire, std::uint32_t number, const GroupName& name);

  // Calls. Any thread.
  /// Leaves `operation` (already referenced for the driver) in the inbox and makes sure that a thread drives it.
  void post(internal::Operation* operation) { post(std::span(&operation, 1)); }
  /// Several at once; the driver sees all of them or none.
  void post(std::span<internal::Operation* const> operations);
  /// Where no thread drives: starts `operation` (referenced for the driver too), without inbox or wake-up, and drives until it
  /// has ended or another thread waits for the driver lock. False: another thread drives.
  bool try_run(internal::Operation* operation);
  /// Where no thread drives: drives until `operation` has ended, `deadline` has passed, or another thread waits for the driver
  /// lock. False: another thread drives.
  bool try_drive(const internal::Operation& operation, std::chrono::steady_clock::time_point deadline);
  /// An executor has been closed: the driver ends its calls and sends the cause to the peers; where no thread drives, the
  /// caller does.
  void tend_to_closed();

  /// As try_run(), for a call that `client` has started already. `lock` is given back.
  void run_locked(DriverLock lock, ProgressClient& client, const internal::Operation& operation);

  /// Another thread waits for the driver lock.
  [[nodiscard]] bool driver_wanted() const noexcept { return drivers_waiting_.load(std::memory_order_relaxed) != 0; }

  // For the driver (drive.h).
  /// True where calls are in flight or in the inbox.
  [[nodiscard]] bool busy() const noexcept {
    return !running_.empty() || !words_.empty() || inbox_.load(std::memory_order_seq_cst) != nullptr;
  }
  /// A control message waits for a slow peer. The driver continues to send it, or the progress thread where no other thread
  /// drives; no call waits for it.
  [[nodiscard]] bool unsent() const noexcept { return parts_.control != nullptr && parts_.control->pending(); }
  /// Moves what can be moved now; true where anything moved.
  bool progress();
  /// The checks that need not run in every pass: control messages, where some are due, deadlines, broken links, unclaimed
  /// tiles. True where anything changed.
  bool check();
  /// check() now and then, control messages included, while every pass moves data: deadlines, aborts and deaths of one
  /// communicator must not wait until the traffic of another pauses.
  bool check_if_overdue() { return ++passes_ % kPassesBetweenLooks == 0 && check_after_pause(); }
  /// Reads the control messages of peers; an abort closes the communicator that it is about.
  bool poll_control();
  /// ok where other threads can wake the driver; else why not.
  [[nodiscard]] Status status() const;
  /// Announces sleep to transports and posters. False: something has arrived already.
  bool prepare_wait();
  /// `polled`: append_wait_fds()'s descriptors, among others, as poll left them; empty where they were not polled.
  void finish_wait(std::span<const pollfd> polled);
  void append_wait_fds(std::vector<pollfd>& out) const;
  /// When check() has to run again at the latest.
  [[nodiscard]] std::chrono::steady_clock::time_point next_check() const noexcept;
  [[nodiscard]] ControlPlane* control() noexcept { return parts_.control.get(); }
  /// The last wait message of a rank of the job.
  struct Wait {
    std::uint32_t communicator = 0;
    std::uint64_t sequence = 0;
    CallSignature call;
    std::chrono::steady_clock::time_point at;
  };
  /// Null where `job_rank` has sent none, in any communicator of this process.
  [[nodiscard]] const Wait* last_wait(int job_rank) const;
  std::atomic<bool> wants_thread{false};  ///< set by a thread that needs the progress thread, cleared by that

 private:
  friend class DriverLock;
  bool try_lock_driver() noexcept { return !driven_.exchange(true, std::memory_order_seq_cst); }
  void lock_driver();
  void unlock_driver();

  /// Messages of peers matter now. Of several engines that one thread drives some may be idle: a peer that is ahead sends them
  /// tiles that no call here can take yet, and these would keep the thread awake.
  [[nodiscard]] bool waits_for_peers() const noexcept { return !running_.empty() || !words_.empty() || unsent(); }
  /// Wakes the progress thread for what is left to drive. Where that thread cannot be started, fails the calls in flight.
  void call_thread(bool for_calls);
  void drain_inbox();
  void admit(internal::Operation* operation);
  void mark_running(ProgressClient& executor);
  void wake_driver() noexcept;
  void hear(const ControlPlane::Message& message);

  // routing.cc
  /// Finds a communicator by this process's number of it.
  [[nodiscard]] ProgressClient* find(std::uint32_t number) const noexcept;
  [[nodiscard]] ProgressClient* find(const GroupName& name) const noexcept;
  /// Handles the tiles at the heads of the links that their communicators could not use. `quiet`: nothing else has moved.
  bool route(bool quiet);
  bool stands_in_the_way(Wire& wire, const ProgressClient* owner, bool quiet) const;
  void spill(Wire& wire, Bound& bound, const Arrival& arrival);
  void hear(Wire& wire, const TileHeader& header);
  void hear_bind(Wire& wire, std::uint32_t number, const GroupName& name);
  void hear_unbind(Wire& wire, std::uint32_t number);
  void take_early_tiles(Wire& wire, ProgressClient& executor);
  void forget_number(Wire& wire, std::uint32_t number);
  void drop_spills(Wire& wire, std::uint32_t number);
  bool send_words();
  [[nodiscard]] bool is_retired(const GroupName& name) const { return retired_.contains(name); }
  void retire(const GroupName& name);
  void hear_early(const ControlPlane::Message& message);
  [[nodiscard]] bool has_early_room(std::size_t bytes) const noexcept { return bytes <= parts_.early_bytes - early_bytes_; }
  void refuse(int rank, const GroupName& name);

  ProgressEngineParts parts_;
  std::vector<Wire> wires_;        // parallel to parts_.links
  std::vector<int> wire_of_rank_;  // -1 for the own rank

  // The driver's state.
  std::vector<ProgressClient*> attached_;
  std::unordered_map<std::uint32_t, ProgressClient*> by_number_;
  std::unordered_map<GroupName, ProgressClient*, GroupName::Hash> by_name_;
  std::atomic<std::uint32_t> numbers_given_{0};
  std::vector<ProgressClient*> running_;  // those with calls in flight
  bool stray_ = false;
  struct Word {
    Wire* wire = nullptr;
    std::uint32_t number = 0;
    LinkControl word = LinkControl::pause;
  };
  std::vector<Word> words_;  // control records to send when the links have room
  // Communicators that have ended here: tiles that still arrive for them are dropped. When a member sends its first tile after
  // the name has been forgotten (kMaxRetired), the tile counts as one of a communicator that is still to be made; that only
  // takes room.
  static constexpr std::size_t kMaxRetired = 1 << 16;
  std::unordered_set<GroupName, GroupName::Hash> retired_;
  std::deque<GroupName> retired_order_;
  // What peers have sent for communicators that have not been made here yet.
  struct Early {
    Status abort;
    std::map<int, std::vector<std::byte>> left;   // by rank, its close notice
    std::map<int, std::vector<std::byte>> waits;  // by rank, the latest
    std::size_t bytes = 0;                        // of early_bytes_
  };
  static constexpr std::size_t kEarlyRecordBytes = 256;  // estimate, for each communicator, tile and message
  static constexpr std::size_t kMaxRefused = 1 << 16;
  std::unordered_map<GroupName, Early, GroupName::Hash> early_;
  std::size_t early_bytes_ = 0;          // of early_, and of spilled tiles of communicators that are not made here yet
  std::size_t refused_ = 0;              // entries of early_ that refuse() has made
  Status overflow_;                      // nothing more can be recorded, not even refusals
  std::unordered_map<int, Wait> waits_;  // by rank
  std::vector<bool> gone_;               // by rank: has sent its exit notice
  std::vector<Status> dead_;             // by rank: how it died

  bool left_to_parent_ = false;
  std::mutex groups_mutex_;
  std::map<std::vector<int>, std::uint32_t> groups_made_;  // by next_group_of()

  std::atomic<bool> driven_{false};     // some thread has the driver lock
  std::atomic<bool> attention_{false};  // an executor has been closed, and its end is still to be handled
  std::atomic<int> drivers_waiting_{0};
  std::atomic<internal::Operation*> inbox_{nullptr};
  std::atomic<bool> driver_sleeps_{false};
  Descriptor kick_;  // an event; wakes a driver that sleeps in poll

  const bool cores_to_spare_;
  Waiter caller_waiter_;
  std::vector<pollfd> caller_descriptors_;                  // on which a caller that drives sleeps
  std::vector<ControlPlane::Message> messages_;             // scratch of poll_control()
  bool control_due_ = true;                                 // a control message may have arrived since the last poll_control()
  static constexpr std::uint32_t kPassesBetweenLooks = 16;  // before the clock is read
  std::uint32_t passes_ = 0;                                // in which something moved
  std::chrono::steady_clock::time_point checked_at_{};
  bool check_after_pause();
  bool transports_due_ = false;  // a transport did not let the driver sleep, whether or not a call is on links
  bool deaths_pending_ = false;  // detected, but not passed to the executors yet
};

}  // namespace shoal
