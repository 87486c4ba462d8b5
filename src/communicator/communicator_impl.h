// CommunicatorImpl: what stands behind a Communicator.
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
#include "src/runtime/executor.h"
#include "src/selector/selector.h"

namespace shoal::internal {

/// The error of `call`, which would wait in a callback of Work::on_completion.
Status waits_in_callback(std::string_view call);
/// What a call is told that must wait for other ranks, between group_begin() and group_end().
Status waits_in_group(std::string_view call);

/// Checks calls, finds or makes their Plans, hands them to the Executor. Thread rule: any thread.
class CommunicatorImpl {
 public:
  CommunicatorImpl(ConnectedJob wired, CommunicatorOptions options);
  ~CommunicatorImpl();
  CommunicatorImpl(const CommunicatorImpl&) = delete;
  CommunicatorImpl& operator=(const CommunicatorImpl&) = delete;

  /// One call as the public functions describe it. `barrier`: an all_reduce of one byte under another name.
  struct Call {
    Collective collective;
    const void* input = nullptr;
    void* output = nullptr;
    bool barrier = false;
  };
  /// What stands behind `communicator`, for tools that look inside.
  static CommunicatorImpl& of(Communicator& communicator) noexcept { return *communicator.impl_; }

  Status run(const Call& call, const CallOptions& options);
  Result<Work> start(const Call& call, const CallOptions& options);

  /// A send or recv of `count` elements.
  Status run_message(const Message& message, std::size_t count, const CallOptions& options);
  Result<Work> start_message(const Message& message, std::size_t count, const CallOptions& options);

  /// What a communicator of `ranks` of this one is made of. Errors: as Communicator::group().
  Result<ConnectedJob> make_group(std::span<const int> ranks);
  /// As Communicator::shrink().
  Result<std::unique_ptr<CommunicatorImpl>> shrink(std::span<const int> without, std::chrono::milliseconds timeout);
  /// As Communicator::abort().
  void abort(const std::string& reason);
  [[nodiscard]] const CommunicatorOptions& options() const noexcept { return options_; }

  [[nodiscard]] Call barrier_call() noexcept;
  /// ok, and whether the call is in place; or what is wrong with its arguments.
  Status check(const Call& call, const CallOptions& options, bool& in_place) const;
  [[nodiscard]] Executor& executor() noexcept { return *executor_; }
  [[nodiscard]] const Executor& executor() const noexcept { return *executor_; }
  [[nodiscard]] const std::string& transports() const noexcept { return transports_; }
  [[nodiscard]] Numerics numerics() const noexcept { return numerics_; }
  [[nodiscard]] CallReport last_call() const;

 private:
  Result<Choice> choose(const Collective& collective, std::string_view forced);
  /// For a call whose bits may not depend on where the ranks are.
  [[nodiscard]] Result<Choice> choose_strictly(const Collective& collective, std::string_view forced) const;
  Status check_message(const Message& message, std::size_t count, const CallOptions& options) const;
  /// The Plan of the last call of its kind where this call is the same, in buffers that may be others; else null. What check()
  /// would say of the call has been said of that one, but for the buffers.
  [[nodiscard]] Plan* repeated(const Call& call, const CallOptions& options) noexcept;
  /// Checks the call; its Plan. `owned` is set where that is not cached.
  Result<Plan*> plan_for(const Call& call, const CallOptions& options, std::unique_ptr<Plan>* owned);
  /// Adds to *options.estimate_us what the call is predicted to take. Errors: as the call's own arguments.
  Status estimate(const Call& call, const CallOptions& options);
  [[nodiscard]] bool averages_integers(const Call& call) const noexcept {
    return call.collective.op == ReduceOp::avg && internal::averages_integers(call.collective, executor_->topology().ranks());
  }
  /// An average of integers, ready to be posted or run: the sum of their parts (integer_average.h).
  Result<Operation*> prepare_average(const Call& call, const CallOptions& options);
  /// Runs what acquire() has given; its outcome, or ok where it is in a group that has not ended.
  Status run(Operation* operation);
  [[nodiscard]] double estimated_us(const Message& message) const;
  /// The Plan for `key`; `owned` is set where it is not cached.
  Result<Plan*> find_plan(const PlanKey& key, std::unique_ptr<Plan>* owned);

  class Meeting;

  std::shared_ptr<Executor> executor_;
  std::string transports_;
  Numerics numerics_;
  std::optional<TunedShape> tuned_;
  CommunicatorOptions options_;
  std::mutex groups_mutex_;
  std::map<std::vector<int>, std::uint32_t> groups_made_;  // how often, by members: so that each gets a number of its own
  std::mutex meetings_mutex_;
  std::vector<Meeting*> meetings_;              // one for each shrink() under way
  std::unique_ptr<CallStatistics> statistics_;  // null unless they are to be printed
  std::mutex choices_mutex_;
  std::vector<std::pair<Collective, Choice>> choices_;  // for calls with counts: by the sum of those, as if shares were equal
  std::atomic<Plan*> last_plan_{nullptr};
  std::array<std::atomic<Plan*>, kCollectiveKindCount> last_of_kind_{};
  std::array<std::byte, 64> barrier_bytes_{};  // input in front, output behind; all zero, whatever is folded
};

}  // namespace shoal::internal
