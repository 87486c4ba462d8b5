// Executor: runs the Plans of one communicator over its links. The only code that touches links.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>

#include <shoal/status.h>

#include "src/device/device.h"
#include "src/engine/control.h"
#include "src/engine/operation.h"
#include "src/engine/plan.h"
#include "src/engine/plan_cache.h"
#include "src/engine/ring_queue.h"
#include "src/engine/waiter.h"
#include "src/engine/window_calls.h"
#include "transports/transport.h"

namespace shoal {

/// What an Executor works with; see make_communicator for how it comes about.
struct ExecutorParts {
  int rank = 0;
  Topology topology;
  std::vector<std::unique_ptr<Transport>> transports;  ///< data; outlive the links
  std::vector<std::unique_ptr<Link>> links;            ///< one to every other rank
  std::vector<std::uint32_t> transport_of_link;
  std::unique_ptr<ControlPlane> control;  ///< null in tests that need none
  const Device* device = nullptr;
  int cores = 1;  ///< cores that the ranks of this node may use together
};

/// Runs calls in the order of their sequence numbers.
///
/// Who drives: exactly one thread at a time holds the driver's seat: a caller that blocks on its call, or the process's
/// progress thread while calls are in flight that nobody waits for. A thread that finds the seat taken leaves its call in the
/// inbox.
///
/// Order on the wire: on every link the tiles of call n precede those of call n + 1, and each call starts with the caller's
/// signature. So the calls of a communicator form one long Program, and what the Verifier proves of each holds for all.
///
/// Thread rule: post, wait, close and status from any thread; the rest as named.
class Executor : public std::enable_shared_from_this<Executor> {
 public:
  explicit Executor(ExecutorParts parts);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// An Operation for one call with `plan`, reset and referenced once; `owned` is set where the plan is not cached.
  internal::Operation* acquire(Plan* plan, std::unique_ptr<Plan> owned, std::chrono::steady_clock::time_point deadline,
                               const void* input, void* output);
  /// Starts `operation` and returns; the progress thread goes on with it. Adds a reference of its own.
  void post(internal::Operation* operation);
  /// Starts `operation` and returns when it is done.
  void run(internal::Operation* operation);
  /// Blocks until `operation` is done or `deadline`; drives if nobody does.
  void wait(internal::Operation* operation, std::chrono::steady_clock::time_point deadline);

  /// Fails everything in flight and all later calls with `cause`, and tells the peers. The first cause stays.
  void close(const Status& cause);
  /// Says farewell to the peers, fails what is in flight with `aborted`.
  void shut_down();
  [[nodiscard]] Status status() const;
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  [[nodiscard]] const Topology& topology() const noexcept { return parts_.topology; }
  [[nodiscard]] int rank() const noexcept { return parts_.rank; }
  [[nodiscard]] const PlanContext& plan_context() const noexcept { return plan_context_; }
  /// Here because Operations keep the Executor alive, and they point to their Plans.
  [[nodiscard]] PlanCache& plans() noexcept { return plans_; }
  /// The transports that a call with `plan` uses: "shm", "tcp", "shm+tcp", "local".
  [[nodiscard]] std::string transports_of(const Plan& plan) const;
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

  // For whoever drives (drive.h). All but needs_thread() need the seat.
  bool try_take_seat() noexcept { return !seat_.exchange(true, std::memory_order_seq_cst); }
  /// Leaves the seat and sees to it that nothing is left undriven.
  void leave_seat();
  /// True where calls are in flight or in the inbox.
  [[nodiscard]] bool busy() const noexcept;
  /// Moves what can be moved; true where anything did.
  bool progress();
  /// The checks that need no hurry: control messages, deadlines, broken links, strays. True where anything changed.
  bool check();
  /// Announces sleep to transports and posters. False: something is there already.
  bool prepare_wait();
  void finish_wait();
  void append_wait_fds(std::vector<pollfd>& out) const;
  /// When check() has to run again at the latest.
  [[nodiscard]] std::chrono::steady_clock::time_point next_check() const noexcept;
  [[nodiscard]] Waiter& caller_waiter() noexcept { return caller_waiter_; }
  std::atomic<bool> wants_thread{false};  ///< set by post, cleared by the progress thread

 private:
  struct LinkState {
    Link* link = nullptr;
    // A call waiting for its turn, and the index of this link in its plan.
    struct Turn {
      internal::Operation* operation = nullptr;
      std::uint32_t plan_link = 0;
    };
    // A tile that the link has taken but whose memory it still needs.
    struct Outstanding {
      internal::Operation* operation = nullptr;
      std::uint32_t plan_link = 0;
      std::uint32_t instruction = 0;
      std::size_t bytes = 0;
      std::uint64_t ticket = 0;
    };
    RingQueue<Turn> senders;
    RingQueue<Turn> receivers;
    RingQueue<Outstanding> outstanding;
    std::uint64_t taken = 0;                             // tiles that the link has taken so far
    std::chrono::steady_clock::time_point gone_since{};  // broken, or the peer has left, with a call unfinished
  };

  void drain_inbox();
  void start(internal::Operation* operation);
  void start_on_links(internal::Operation* operation);
  bool retire_sent(LinkState& state);
  bool advance_send(LinkState& state);
  bool advance_receive(LinkState& state);
  bool receive_signature(LinkState& state, internal::Operation* operation, std::uint32_t plan_link, const Arrival& head);
  bool receive_tile(LinkState& state, internal::Operation* operation, std::uint32_t plan_link, const Arrival& head);
  bool fold(internal::Operation* operation, std::uint32_t index);
  bool advance_local(internal::Operation* operation);
  bool advance_window_call();
  void mark_done(internal::Operation* operation, std::uint32_t instruction, std::size_t bytes);
  void mark_sent(internal::Operation* operation, std::uint32_t plan_link, std::uint32_t instruction, std::size_t bytes);
  bool send_signature(LinkState& state);
  bool send_late_signatures();
  void taken_by_link(LinkState& state, std::uint32_t instruction, std::size_t bytes);
  bool retire_completed();
  void finish(internal::Operation* operation, const Status& outcome);
  bool fail(Status cause);
  bool check_stray_calls();
  bool check_links();
  bool check_deadlines();
  Status mismatch(std::uint64_t sequence, const CallSignature& mine, int peer, const CallSignature& theirs) const;
  Status out_of_step(const LinkState& state, const Arrival& head, const internal::Operation& operation) const;
  Status left_too_early(int peer);
  [[nodiscard]] std::optional<std::uint64_t> past_call(std::uint32_t wire_sequence) const noexcept;
  std::string late_report(const internal::Operation& operation);

  ExecutorParts parts_;
  PlanContext plan_context_;
  PlanCache plans_;
  std::vector<int> link_of_rank_;
  std::vector<LinkState> links_;
  WindowCalls window_calls_;

  std::atomic<bool> seat_{false};
  std::atomic<internal::Operation*> inbox_{nullptr};
  std::atomic<std::uint64_t> next_sequence_{0};
  std::atomic<std::size_t> in_flight_{0};  // started or in the inbox, not finished
  std::atomic<bool> driver_sleeps_{false};
  int kick_fd_ = -1;  // wakes a driver that sleeps in poll

  // Driver's.
  std::vector<internal::Operation*> waiting_;  // out of the inbox, not yet their turn
  RingQueue<internal::Operation*> active_;     // started, by sequence
  std::uint64_t next_start_ = 0;
  static constexpr std::size_t kLedgerSize = 256;
  std::array<CallSignature, kLedgerSize> ledger_{};         // of the latest started calls, by sequence
  std::chrono::steady_clock::time_point signatures_due_{};  // when those that wait for a first tile go alone; zero: none waits
  Waiter caller_waiter_;
  std::vector<pollfd> caller_descriptors_;  // what a caller that drives sleeps on

  std::atomic<bool> closed_{false};
  std::atomic<bool> announced_{false};  // the peers have been told
  mutable std::mutex cause_mutex_;      // guards cause_; never taken on the path of a call that goes well
  Status cause_;
};

}  // namespace shoal
