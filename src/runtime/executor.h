// Executor: runs the Plans of one communicator over the links of its ProgressEngine.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/base/ring_queue.h"
#include "src/diagnosis/call_history.h"
#include "src/diagnosis/flight_record.h"
#include "src/diagnosis/recorder.h"
#include "src/diagnosis/straggler_detector.h"
#include "src/diagnosis/watchdog.h"
#include "src/peer_memory/board.h"
#include "src/plan/operation.h"
#include "src/plan/plan.h"
#include "src/plan/plan_cache.h"
#include "src/progress/progress_client.h"
#include "src/progress/progress_engine.h"
#include "src/runtime/messages.h"
#include "src/runtime/peer_memory_calls.h"

namespace shoal {

/// Runs calls in the order of their sequence numbers.
///
/// Order on the wire: on every link the tiles of call n precede those of call n + 1, and each call starts with the caller's
/// signature. So the calls of a communicator form one long Program, and what the Verifier proves of each holds for all.
///
/// Rank numbers are those of the communicator unless said otherwise. Thread rule: acquire, post, run, wait, close, shut_down
/// and status from any thread; the rest by the holder of the DriverLock.
class Executor final : public ProgressClient, public std::enable_shared_from_this<Executor> {
 public:
  /// Attaches the new Executor to `engine`; shut_down() detaches it. Errors: those of ProgressEngine::attach().
  static Result<std::shared_ptr<Executor>> create(std::shared_ptr<ProgressEngine> engine, Group group);
  ~Executor() override;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// An Operation for one call with `plan`, reset and with one reference. `owned` is set where the plan is not cached. Null
  /// where there is no memory for the plan's scratch: then the call has had no effect.
  internal::Operation* acquire(Plan* plan, std::unique_ptr<Plan> owned, std::chrono::steady_clock::time_point deadline,
                               const void* input, void* output);
  /// The same for a send or recv, which are numbered on their own.
  internal::Operation* acquire_message(const internal::Message& message, std::chrono::steady_clock::time_point deadline);
  /// Starts `operation` and returns; the progress thread continues it. Adds a reference of its own.
  void post(internal::Operation* operation);
  /// Starts `operation` and returns when it is done.
  void run(internal::Operation* operation);
  /// run() without an Operation: for a small call over windows, or a call of a single rank, while no other call is in flight.
  /// Returns the outcome; nothing where the call cannot run in this way, and then it has had no effect. `plan` is cached.
  std::optional<Status> try_express(Plan& plan, std::chrono::milliseconds timeout, const void* input, void* output);
  /// Posts an Operation that the caller has just taken out of its call group; ends it where its communicator has closed
  /// meanwhile.
  static void post_late(internal::Operation* operation);
  /// Blocks until `operation` is done or `deadline` has passed; drives the engine while no other thread does.
  void wait(internal::Operation* operation, std::chrono::steady_clock::time_point deadline);

  /// Stores `hook`, which is called with the cause when this communicator closes, or at once where it is closed already. An
  /// empty hook removes the one of `owner`, and returns when that one is no longer being called. A hook must not wait and must
  /// not call the Executor. One hook for each owner. Any thread.
  void on_close(const void* owner, std::function<void(const Status&)> hook);
  /// Sends the close notice to the peers, fails calls in flight with `aborted`, detaches from the ProgressEngine. Called once,
  /// last.
  void shut_down();
  [[nodiscard]] Status status() const;

  [[nodiscard]] const Topology& topology() const noexcept { return group_.topology; }
  [[nodiscard]] const std::shared_ptr<ProgressEngine>& engine() const noexcept { return engine_; }
  [[nodiscard]] int rank() const noexcept { return group_.rank; }
  [[nodiscard]] const PlanContext& plan_context() const noexcept { return plan_context_; }
  /// Here because Operations keep the Executor alive, and they point to their Plans.
  [[nodiscard]] PlanCache& plans() noexcept { return plans_; }
  /// The transports that a call with `plan` uses: "shm", "tcp", "shm+tcp", "local".
  [[nodiscard]] std::string transports_of(const Plan& plan) const;
  /// All transports of the communicator, whichever of them a call uses.
  [[nodiscard]] std::string transports() const;
  /// Bytes of this communicator's tiles in spill queues; 0 in a callback.
  [[nodiscard]] std::size_t spilled_bytes() const;

  /// The ranks of the job that are in this communicator, in its order, and have not died or left. Any thread.
  [[nodiscard]] std::vector<int> present() const;

  // For the ProgressEngine: see ProgressClient.
  void enqueue(internal::Operation* operation) override {
    if (!operation->is_message()) return waiting_.push_back(operation);
    flight_record_.start_message();
    messages_.enqueue(operation);
  }
  [[nodiscard]] bool idle() const noexcept override { return active_.empty() && waiting_.empty() && messages_.size() == 0; }
  [[nodiscard]] bool on_links() const noexcept override { return calls_on_links_ != 0 || messages_.size() != 0; }
  bool start_and_send() override;
  bool receive_and_end() override;
  bool check() override;
  [[nodiscard]] std::chrono::steady_clock::time_point next_check() const noexcept override;
  void close(const Status& cause) override;
  bool end_if_closed() override { return closed() && end_calls(); }
  void leave_to_parent() override;
  void peer_left(int job_rank, std::span<const std::byte> its_calls) override;
  void peer_gone(int job_rank) override;
  void peer_waits(int job_rank, std::span<const std::byte> what) override;
  void peer_disagrees(int job_rank, std::span<const std::byte> its_calls) override;
  void peer_died(int job_rank, const Status& how) override;
  void take_message(int job_rank, const Arrival& arrival) override;
  void set_number_of(int job_rank, std::uint32_t number) override;
  [[nodiscard]] std::optional<std::uint32_t> number_of(int job_rank) noexcept override;
  [[nodiscard]] bool has_bound(int job_rank) noexcept override;
  void take_spilled(int job_rank, SpillQueue& aside) override;
  [[nodiscard]] Status taken_back_by(int job_rank) override;
  void set_paused(int job_rank, bool paused) override;
  [[nodiscard]] bool uses(int job_rank) const noexcept override;
  [[nodiscard]] bool is_paused(int job_rank) const noexcept override;

 private:
  struct LinkState {
    Link* link = nullptr;
    ProgressEngine::Wire* wire = nullptr;
    int peer = -1;
    std::uint32_t their_number = kCommunicatorLimit;  // the peer's number of the communicator; the limit: not received yet
    bool bound = false;                               // this rank has sent its number to the peer
    bool paused = false;                              // the peer has asked this rank to send no more tiles
    SpillQueue* aside = nullptr;                      // tiles that were moved off the link; null: none so far
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
    std::chrono::steady_clock::time_point gone_since{};  // when a call first needed a link that is broken or a peer that left
  };

  Executor(std::shared_ptr<ProgressEngine> engine, Group group);

  [[nodiscard]] LinkState* link_to(int job_rank) noexcept;
  /// The oldest tile of this communicator that has arrived and is not released; null where there is none.
  [[nodiscard]] const Arrival* head(LinkState& state) const noexcept;
  void release(LinkState& state);
  /// After close(): sends the cause to the peers, once, and fails the calls in flight.
  bool end_calls();
  void find_windows();
  void wait_to_the_end(internal::Operation* operation);
  /// Call `sequence` with `plan` starts: writes this rank's signature of it into the flight record and returns the entry
  /// there.
  const CallSignature& enter(std::uint64_t sequence, const Plan& plan) noexcept;
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
  // Records a piece of work of `operation` with `peer`, which began at `begin` and has just ended. `in_node`: its stage where
  // the peer is on this host. Only while the Recorder is on.
  void record(const internal::Operation& operation, int peer, Stage in_node, std::size_t bytes, Recorder::Time begin);
  void mark_done(internal::Operation* operation, std::uint32_t instruction, std::size_t bytes);
  void mark_sent(internal::Operation* operation, std::uint32_t plan_link, std::uint32_t instruction, std::size_t bytes);
  bool send_signature(LinkState& state);
  void taken_by_link(LinkState& state, std::uint32_t instruction, std::size_t bytes);
  bool retire_completed();
  bool finish_messages(const Status& outcome);
  void finish(internal::Operation* operation, const Status& outcome);
  bool fail(Status cause);
  bool disagree(int peer, std::uint64_t sequence, Status words);
  bool await_words(Status otherwise);

  // executor_checks.cc
  bool send_late_signatures();
  bool check_stray_calls();
  bool check_links();
  bool check_waits();
  bool check_deadlines();
  bool check_messages();
  [[nodiscard]] Status unexpected_tile(const LinkState& state, const Arrival& head);
  [[nodiscard]] Status mismatch(std::uint64_t sequence, const CallSignature& mine, int peer, const CallSignature& theirs) const;
  [[nodiscard]] Status in_another_call(std::uint64_t sequence, const CallSignature& mine, int peer, std::uint64_t its_sequence,
                                       const std::optional<CallSignature>& theirs) const;
  [[nodiscard]] Status first_mismatch(int peer, const NumberedCall& theirs) const;
  bool out_of_step(const LinkState& state, const Arrival& head, const internal::Operation& operation);
  /// This rank waits for a peer's report: in which call the two first differed, or why the peer has aborted. No call makes
  /// progress meanwhile.
  [[nodiscard]] bool asking() const noexcept { return question_ && !closed(); }
  [[nodiscard]] Status left_too_early(int peer);
  [[nodiscard]] Status died(int rank, const Status& how);
  /// The mismatch that this rank is asking a peer about, where there is one; else `consequence`.
  [[nodiscard]] Status or_mismatch(const Status& consequence) const;
  [[nodiscard]] std::optional<std::uint64_t> past_call(std::uint32_t wire_sequence) const noexcept;
  [[nodiscard]] std::string late_report(const internal::Operation& operation);
  [[nodiscard]] std::string late_turn_report(const internal::Operation& operation);
  [[nodiscard]] std::string before_its_turn(const internal::Operation& operation);
  /// A line on standard error.
  void warn(std::chrono::steady_clock::duration waited, const std::string& what, const std::string& why) const;
  [[nodiscard]] Late late_ranks(const internal::Operation& operation);
  void tell_wait(const internal::Operation& oldest, std::chrono::steady_clock::time_point now);
  /// "; not in the call: rank 3; rank 3: between its calls, after call 4 (barrier)".
  [[nodiscard]] std::string who_is_late(const internal::Operation& operation);
  [[nodiscard]] std::string why_late(const internal::Operation& message) const;
  /// "; rank 3: " and the call that the rank is in instead, from its flight record or its last wait message; empty where there
  /// is neither.
  [[nodiscard]] std::string whereabouts(int rank) const;
  /// " of communicator 0 (4 ranks)"; for a group also the job's rank of each member.
  [[nodiscard]] std::string of_communicator() const { return group_.in_words(); }
  [[nodiscard]] std::string name_of(int member) const { return group_.name_of(member); }
  [[nodiscard]] std::chrono::steady_clock::duration time_limit_for(const LinkState& state) const;
  /// "; rank 0 was in call 4 (barrier) of communicator 0 (2 ranks)".
  [[nodiscard]] std::string while_in();

  std::shared_ptr<ProgressEngine> engine_;
  const std::uint32_t record_number_ = Recorder::next_number();
  PlanContext plan_context_;
  PlanCache plans_;
  std::vector<int> link_of_rank_;
  std::vector<int> link_of_job_rank_;  // -1: not a member, or this rank
  std::vector<LinkState> links_;
  PeerMemoryLease lease_;  // of the windows of a group
  PeerMemoryCalls peer_memory_calls_;
  std::vector<bool> left_;                 // ranks that have sent a close notice or left the job
  std::map<int, CallHistory> last_calls_;  // as those ranks sent them, by rank
  struct Absentee {
    int rank;
    std::chrono::steady_clock::time_point since;
  };
  // A member that left the job without joining this group's first call (only where Group::is_meeting).
  std::optional<Absentee> absentee_;

  Plan message_plan_;  // of all messages; owns the pool of their Operations
  Messages messages_;

  std::atomic<std::uint64_t> next_sequence_{0};
  std::atomic<std::uint64_t> next_message_{0};

  // The driver's state.
  std::vector<internal::Operation*> waiting_;  // posted; an earlier call has not started
  RingQueue<internal::Operation*> active_;     // started, by sequence
  std::size_t calls_on_links_ = 0;             // active calls that use links
  std::vector<const std::byte*> operands_;     // of the fold in progress: never more than there are ranks
  std::uint64_t next_start_ = 0;
  CallChain chain_;                      // of the calls before next_start_
  std::uint64_t strays_looked_for_ = 0;  // next_start_ at the last check_stray_calls() that was due by the number of calls
  FlightRecordEntry flight_record_;      // the latest started calls
  Watchdog watchdog_;
  StragglerDetector straggler_detector_;
  struct Question {
    Status otherwise;  ///< the cause to report where no answer arrives
    std::chrono::steady_clock::time_point until;
  };
  std::optional<Question> question_;
  std::chrono::steady_clock::time_point window_gone_since_{};  // as LinkState::gone_since, for a call over windows
  std::chrono::steady_clock::time_point signatures_due_{};  // when signatures are sent without a first tile; zero: none waits

  bool announced_ = false;  // the cause has been sent to the peers
  std::mutex hook_mutex_;   // guards close_hooks_, also while they are called; locked before any mutex of a hook
  std::map<const void*, std::function<void(const Status&)>> close_hooks_;  // by owner
  mutable std::mutex cause_mutex_;                                         // guards cause_; never taken in a call that succeeds
  Status cause_;
};

/// The Executor that runs `operation`.
inline Executor& executor_of(const internal::Operation& operation) noexcept {
  return static_cast<Executor&>(*operation.client());
}

inline const CallSignature& Executor::enter(std::uint64_t sequence, const Plan& plan) noexcept {
  flight_record_.start(sequence, chain_.of(plan.signature));
  chain_.add(plan.signature_hash);
  return flight_record_.call(sequence);
}

inline const Arrival* Executor::head(LinkState& state) const noexcept {
  if (state.aside != nullptr && !state.aside->empty()) return state.aside->front();
  const Arrival* arrival = state.link->peek();
  if (arrival == nullptr || arrival->header.communicator == state.their_number) return arrival;
  engine_->note_stray();
  return nullptr;
}

inline void Executor::release(LinkState& state) {
  state.gone_since = {};  // data that the peer sent before it left is still arriving
  if (state.aside == nullptr || state.aside->empty()) return state.link->release();
  if (state.aside->pop()) engine_->say(*state.wire, state.their_number, LinkControl::resume);
}

/// TileHeader::edge of the tile that carries the signature of the sender's call.
inline constexpr std::uint32_t kCallEdge = 0xFFFFFFFF;
/// The signature in such a tile; nothing where `head` is another tile.
std::optional<CallSignature> signature_in(const Arrival& head);

}  // namespace shoal
