// CommunicatorImpl: the implementation of Communicator.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <shoal/communicator.h>

#include "src/communicator/call_statistics.h"
#include "src/communicator/connect_job.h"
#include "src/communicator/integer_average.h"
#include "src/communicator/request_checks.h"
#include "src/runtime/executor.h"
#include "src/selector/selector.h"

namespace shoal::internal {

/// The error of a blocking `call` in a callback of Work::on_completion.
Status waits_in_callback(std::string_view call);
/// The error of a `call` that must wait for other ranks, between group_begin() and group_end().
Status waits_in_group(std::string_view call);

/// Checks calls, finds or makes their Plans, passes them to the Executor. Thread rule: any thread.
class CommunicatorImpl {
 public:
  CommunicatorImpl(ConnectedJob wired, CommunicatorOptions options);
  ~CommunicatorImpl();
  CommunicatorImpl(const CommunicatorImpl&) = delete;
  CommunicatorImpl& operator=(const CommunicatorImpl&) = delete;

  /// The implementation of `communicator`, for tools that inspect it.
  static CommunicatorImpl& of(Communicator& communicator) noexcept { return *communicator.impl_; }

  /// As Communicator::submit() and submit_async().
  Status run(const Request& request, const CallOptions& options);
  Result<Work> start(const Request& request, const CallOptions& options);

  /// The parts of a new communicator of `ranks` of this one. Errors: as Communicator::group().
  Result<ConnectedJob> make_group(std::span<const int> ranks);
  /// As Communicator::shrink().
  Result<std::unique_ptr<CommunicatorImpl>> shrink(std::span<const int> without, std::chrono::milliseconds timeout);
  /// As Communicator::abort().
  void abort(const std::string& reason);
  [[nodiscard]] const CommunicatorOptions& options() const noexcept { return options_; }

  /// ok, or why the communicator is closed.
  [[nodiscard]] Status check_open() const;
  [[nodiscard]] Executor& executor() noexcept { return *executor_; }
  [[nodiscard]] const Executor& executor() const noexcept { return *executor_; }
  [[nodiscard]] const std::string& transports() const noexcept { return transports_; }
  [[nodiscard]] Numerics numerics() const noexcept { return numerics_; }
  [[nodiscard]] CallReport last_call() const;

 private:
  Result<Choice> choose(const Collective& collective, std::string_view forced);
  /// The choice for a call whose bits must not depend on the placement of the ranks.
  [[nodiscard]] Result<Choice> choose_strictly(const Collective& collective, std::string_view forced) const;
  /// Checks a collective and returns the key of its Plan.
  [[nodiscard]] Result<PlanKey> check(const Request& request, const CallOptions& options) const;
  /// Checks a send or recv.
  [[nodiscard]] Status check_message(const Request& request, const CallOptions& options) const;
  /// The Plan of the last call of this kind if this call equals that one, except perhaps for its buffers; else null. check()
  /// has passed the earlier call, so that only the buffers are checked here.
  [[nodiscard]] Plan* repeated(const Request& request, const CallOptions& options) noexcept;
  /// Checks the call and returns its Plan. `owned` is set where the Plan is not cached.
  Result<Plan*> plan_for(const Request& request, const CallOptions& options, std::unique_ptr<Plan>* owned);
  /// Adds the predicted duration of the call to *options.estimate_us. Errors: those of the call's arguments.
  Status estimate(const Request& request, const CallOptions& options);
  [[nodiscard]] bool averages_integers(const Request& request) const noexcept {
    return request.op == ReduceOp::avg && internal::averages_integers(request, executor_->topology().ranks());
  }
  /// Checks the call and returns an operation for it, ready to be posted or run.
  Result<Operation*> prepare(const Request& request, const CallOptions& options);
  /// The same for an average of integers: the sum of their parts (integer_average.h).
  Result<Operation*> prepare_average(const Request& request, const CallOptions& options);
  /// An operation for a checked call with `plan`.
  Result<Operation*> acquire(const Request& request, const CallOptions& options, Plan* plan, std::unique_ptr<Plan> owned);
  /// Runs an operation of prepare(). Returns its outcome, or ok where it belongs to a call group that has not ended.
  Status run(Operation* operation);
  [[nodiscard]] double estimated_us(const Request& message) const;
  /// The Plan for `key`; `owned` is set where it is not cached.
  Result<Plan*> find_plan(const PlanKey& key, std::unique_ptr<Plan>* owned);

  class Meeting;

  std::shared_ptr<Executor> executor_;
  std::string transports_;
  Numerics numerics_;
  std::optional<TunedShape> tuned_;
  const int most_links_;
  CommunicatorOptions options_;
  std::mutex groups_mutex_;
  std::map<std::vector<int>, std::uint32_t> groups_made_;  // how often, by members: gives each group a number of its own
  std::mutex meetings_mutex_;
  std::vector<Meeting*> meetings_;              // one for each running shrink()
  std::unique_ptr<CallStatistics> statistics_;  // null unless SHOAL_EXPLAIN=1, on rank 0
  std::mutex choices_mutex_;
  std::vector<std::pair<Collective, Choice>> choices_;  // for calls with counts: by the sum of the counts, rounded up
  std::atomic<Plan*> last_plan_{nullptr};
  std::array<std::atomic<Plan*>, kCollectiveKindCount> last_of_kind_{};
  std::array<std::byte, 64> barrier_bytes_{};  // input, then output; always zero, because a bitwise or of zeros is zero
  const Request barrier_;                      // the all_reduce of one of these bytes that a barrier is, under its own name
};

}  // namespace shoal::internal
