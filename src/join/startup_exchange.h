// The exchange between the ranks of a job through a Store at start-up.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>
#include <shoal/store.h>

namespace shoal {

/// A sequence of steps, each a gather() of the Store. Every rank makes the same steps in the same order.
class StartupExchange {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// `store` must outlive the exchange.
  StartupExchange(Store& store, int rank, int size, Deadline deadline)
      : store_(store), rank_(rank), size_(size), deadline_(deadline) {}

  /// Publishes `mine` and returns the contributions of all ranks, by rank. `name`: of the step, for messages. Errors: timeout,
  /// naming ranks that are missing; peer_failed, naming a rank that has died; the error of a rank that aborted, naming that
  /// rank.
  Result<std::vector<std::string>> all_gather(std::string_view name, std::string_view mine) { return step(name, mine, false); }
  /// The last step. Rank 0, which may serve the store, returns when no other rank needs the store. A rank that dies after this
  /// is detected in the first call. Errors: as all_gather(); on rank 0 also timeout, naming ranks that still need the store.
  Result<std::vector<std::string>> last_all_gather(std::string_view name, std::string_view mine) {
    return step(name, mine, true);
  }
  /// The deadline of the whole exchange.
  [[nodiscard]] Deadline deadline() const noexcept { return deadline_; }
  /// Whether to go on waiting, for a rank that waits outside of a step. Errors: peer_failed, naming a rank that has died; the
  /// error of a rank that aborted.
  Status check();
  /// Publishes `why` this rank aborts, so that no other rank waits for it. Returns the cause to report: if this rank fails
  /// because it lost a rank that had aborted before, the error of that rank. Must be called while the connections to other
  /// ranks are open: a rank that loses one then finds the cause in the store. After the last step no rank reads the store.
  Status abort(const Status& why);
  /// To be called after abort(), when this rank has released everything else. A rank that serves the store waits until the
  /// other ranks know the cause, at most a second: the store ends with its process.
  void leave();

 private:
  [[nodiscard]] GatherStep step_named(std::string_view name) const { return {step_, name, rank_, size_, false}; }
  Result<std::vector<std::string>> step(std::string_view name, std::string_view mine, bool last);
  [[nodiscard]] Status error_of(std::string_view name, const Status& of_store);
  [[nodiscard]] Status cause_of(const Status& of_store);
  void wait_for_acknowledgements();

  Store& store_;
  int rank_;
  int size_;
  Deadline deadline_;
  int step_ = 0;
  bool over_ = false;               ///< the last step has ended
  bool contributed_ = false;        ///< this rank has given its value for that step, which it cannot take back
  bool refusal_published_ = false;  ///< this rank's refusal is published
  bool cause_known_ = false;        ///< this rank knows why another rank aborted
};

/// Parses what a rank that aborts publishes, also under Store::kGivenUp: its number, and the error with which it aborted.
/// Nothing for malformed bytes. Safe for any bytes.
std::optional<Status> parse_refusal(std::string_view text);

/// Text that is equal for two processes exactly if they can share memory: same running kernel, same host name, same network
/// namespace, same user. Ranks of two users on one host connect as if they were on two hosts.
std::string node_identity();

/// The name of this process in messages: "process 4711 on host a".
std::string process_name();
/// Messages for ranks that cannot belong to one job.
std::string given_twice(int rank, std::string_view one_process, std::string_view other_process);
struct SizedRank {
  int rank;
  int size;
  std::string_view process;
};
std::string sizes_differ(const SizedRank& one, const SizedRank& other);

}  // namespace shoal
