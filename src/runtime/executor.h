// Executor: runs the Plans of one communicator over the links of its ProgressEngine.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/plan/operation.h"
#include "src/plan/plan.h"
#include "src/plan/plan_cache.h"
#include "src/progress/progress_engine.h"
#include "src/runtime/call_runner.h"

namespace shoal {

/// The callers' side: gives calls their numbers, hands them to the driver, and waits for them.
///
/// Rank numbers are those of the communicator unless said otherwise. Thread rule: any thread.
class Executor final : public CallRunner, public std::enable_shared_from_this<Executor> {
 public:
  /// Attaches the new Executor to `engine`; shut_down() detaches it. Errors: those of ProgressEngine::attach().
  static Result<std::shared_ptr<Executor>> create(std::shared_ptr<ProgressEngine> engine, const Group& group);
  ~Executor() override;

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
  /// not call the Executor. One hook for each owner.
  void on_close(const void* owner, std::function<void(const Status&)> hook);
  /// Sends the close notice to the peers, fails calls in flight with `aborted`, detaches from the ProgressEngine. Called once,
  /// last.
  void shut_down();
  [[nodiscard]] Status status() const;

  [[nodiscard]] const Topology& topology() const noexcept { return group_.topology; }
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
  /// The ranks of the job that are in this communicator, in its order, and have not died or left.
  [[nodiscard]] std::vector<int> present() const;

 private:
  Executor(std::shared_ptr<ProgressEngine> engine, const Group& group);
  void wait_to_the_end(internal::Operation* operation);
  /// `plan` null: of any call.
  [[nodiscard]] std::string names_of_transports(const Plan* plan) const;

  PlanContext plan_context_;
  PlanCache plans_;
  Plan message_plan_;  // of all messages; owns the pool of their Operations
  std::atomic<std::uint64_t> next_sequence_{0};
  std::atomic<std::uint64_t> next_message_{0};
};

/// The Executor that runs `operation`.
inline Executor& executor_of(const internal::Operation& operation) noexcept {
  return static_cast<Executor&>(*operation.client());
}

}  // namespace shoal
