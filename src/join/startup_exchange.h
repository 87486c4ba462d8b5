// What ranks do with a Store at start-up.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>
#include <shoal/store.h>

namespace shoal {

/// Steps in which every rank contributes something and hears what all have contributed. The same steps in the same order on
/// every rank; a rank that gives up says so in place of its next one, so that nobody waits for it.
class StartupExchange {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// `store` outlives this.
  StartupExchange(Store& store, int rank, int size, Deadline deadline)
      : store_(store), rank_(rank), size_(size), deadline_(deadline) {}

  /// All contributions, by rank. `name`: of the step, for messages. Errors: timeout, naming the first rank that is missing;
  /// peer_failed, naming one that has died; whatever made a rank give up, naming it.
  Result<std::vector<std::string>> step(std::string_view name, std::string_view mine);
  /// Outside of the steps: something that one rank says and others hear. Errors of hear() as above.
  Status say(std::string_view key, std::string_view value) { return store_.set(key, value); }
  Result<std::string> hear(std::string_view name, int rank, std::string_view key);
  /// When all of this must have come to its end.
  [[nodiscard]] Deadline deadline() const noexcept { return deadline_; }
  /// Whether to wait any longer, for who waits otherwise than in a step. Errors: peer_failed, naming a rank that has died; what
  /// made one give up.
  Status look();
  /// The end of all steps: rank 0, which may serve the store, stays until the others need it no longer. Who dies now is noticed
  /// in the first call. Errors: timeout, naming who still needs it.
  Status part();
  /// Tells the others `why` they need not wait for this rank. Returns what is to be reported: where it has lost a rank that had
  /// told before, that one's reason. To be called while the connections to others still are there: so who loses them finds
  /// out why.
  Status give_up(const Status& why);
  /// After that, when nothing else of this rank is there. Where it serves the store it stays until the others know, a second at
  /// most: with its process goes the store.
  void leave();
  /// To be said by who has heard from rank 0, otherwise than by step(), that it gives up.
  void hear_refusal();
  /// Rank 0 stays until the others have heard its refusal.
  void wait_until_heard();

 private:
  [[nodiscard]] std::string key(int rank) const;
  [[nodiscard]] Status cause_of(const Status& of_store);

  Store& store_;
  int rank_;
  int size_;
  Deadline deadline_;
  int step_ = 0;
  bool said_ = false;   ///< in that step
  bool heard_ = false;  ///< and told rank 0 so
  bool told_ = false;   ///< the others that this rank gives up
  bool hears_ = false;  ///< why another has given up
};

/// What step() finds in place of a contribution of `rank`, as the reason why that one has given up. Safe for any bytes.
Status parse_refusal(int rank, std::string_view text);
/// What give_up() finds as the first reason of all: a rank and its refusal. Nothing where these are no such bytes.
std::optional<Status> parse_cause(std::string_view text);

/// Text that is equal for two processes exactly where they can share memory: same running kernel, same host name, same network
/// namespace, same user. Ranks of two users on one host meet as two hosts do.
std::string node_identity();

/// How messages name this process: "process 4711 on host a".
std::string process_name();
/// Messages for ranks that cannot be of one job.
std::string given_twice(int rank, std::string_view one_process, std::string_view other_process);
struct SizedRank {
  int rank;
  int size;
  std::string_view process;
};
std::string sizes_differ(const SizedRank& one, const SizedRank& other);

}  // namespace shoal
