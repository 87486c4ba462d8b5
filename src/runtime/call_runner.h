// CallRunner: starts, checks and ends the calls of one communicator; the driver's side of an Executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <shoal/status.h>

#include "src/diagnosis/call_monitor.h"
#include "src/peer_memory/board.h"
#include "src/plan/operation.h"
#include "src/plan/plan.h"
#include "src/progress/progress_client.h"
#include "src/progress/progress_engine.h"
#include "src/runtime/call_checks.h"
#include "src/runtime/call_trace.h"
#include "src/runtime/calls_in_flight.h"
#include "src/runtime/close_cause.h"
#include "src/runtime/link_calls.h"
#include "src/runtime/messages.h"
#include "src/runtime/peer_memory_calls.h"

namespace shoal {

/// Runs calls in the order of their sequence numbers: through PeerMemoryCalls, LinkCalls or Messages. Carries out what its
/// CallMonitor says: asks peers, reports waits, fails.
///
/// Rank numbers are those of the communicator unless said otherwise. Thread rule: the holder of the DriverLock; close(),
/// engine() and closing() from any thread.
class CallRunner : public ProgressClient {
 public:
  ~CallRunner() override;

  // See ProgressClient.
  void enqueue(internal::Operation* operation) override;
  [[nodiscard]] bool idle() const noexcept override { return calls_.empty() && messages_.size() == 0; }
  [[nodiscard]] bool on_links() const noexcept override { return links_.size() != 0 || messages_.size() != 0; }
  [[nodiscard]] int awaited_writer() const noexcept override { return peer_memory_calls_.awaited_writer(); }
  bool start_and_send() override;
  bool receive_and_end() override;
  bool check() override;
  [[nodiscard]] std::chrono::steady_clock::time_point next_check() const noexcept override { return checks_.next_check(); }
  void close(const Status& cause) override;
  bool end_if_closed() override { return closed() && end_calls(); }
  void leave_to_parent() override;
  void on_control(const ControlPlane::Message& message) override;
  [[nodiscard]] ClientLink* link_to(int job_rank) noexcept override { return links_.of_job_rank(job_rank); }
  [[nodiscard]] LinkUse use_of(int job_rank) const noexcept override;
  void take_message(int job_rank, const Arrival& arrival) override;
  void lent_tile_reclaimed(int job_rank) override;

  [[nodiscard]] const std::shared_ptr<ProgressEngine>& engine() const noexcept { return engine_; }

 protected:
  /// `engine` lives as long as this.
  CallRunner(std::shared_ptr<ProgressEngine> engine, const Group& group);

  [[nodiscard]] const LinkCalls& links() const noexcept { return links_; }
  [[nodiscard]] const PeerMemoryCalls& peer_memory() const noexcept { return peer_memory_calls_; }
  [[nodiscard]] const CallMonitor& monitor() const noexcept { return monitor_; }
  [[nodiscard]] CloseCause& closing() noexcept { return closing_; }
  [[nodiscard]] const CloseCause& closing() const noexcept { return closing_; }
  /// The next call, while no other is in flight: one_shot, or of a single rank. Attempt::ended: it has succeeded.
  PeerMemoryCalls::Attempt run_at_once(const Plan& plan, const void* input, void* output);
  /// That call has not ended: it continues as `operation`. `before`: monitor().chain() before it.
  void continue_with(internal::Operation* operation, const CallChain& before, bool published);
  /// The communicator is about to be destroyed: fails calls in flight, tells the peers, and detaches from the engine. True
  /// where that was the engine's last client.
  bool leave();

 private:
  void find_windows();
  void start(internal::Operation* operation);
  bool advance_peer_memory();
  /// Fails, or asks peers. `found_in_call`: a Status is to name the call that this rank is in.
  void settle(const CallProblem& problem, bool found_in_call);
  bool retire_completed();
  bool finish_messages(const Status& outcome);
  /// After close(): sends the cause to the peers, once, and fails the calls in flight.
  bool end_calls();
  void fail(Status cause);
  void disagree(const Disagreement& what);
  void await_report(Status otherwise);
  [[nodiscard]] bool asking() const noexcept { return monitor_.asks() && !closed(); }
  [[nodiscard]] Status reclaimed_by(int rank);
  [[nodiscard]] std::string while_in_call();

  std::shared_ptr<ProgressEngine> engine_;
  ControlPlane* const control_;  // null in tests that need none
  CallMonitor monitor_;
  const CallTrace trace_;
  LinkCalls links_;
  PeerMemoryLease lease_;  // of the windows of a group
  PeerMemoryCalls peer_memory_calls_;
  Messages messages_;
  CallsInFlight calls_;
  CallChecks checks_;
  std::uint64_t unclaimed_checked_at_ = 0;  // next call at the last check_unclaimed() that was due by the number of calls
  CloseCause closing_;
  bool announced_ = false;  // the cause has been sent to the peers
};

}  // namespace shoal
