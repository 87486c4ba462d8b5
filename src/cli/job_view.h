// What the flight records of a host's ranks say of their jobs, read from outside.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/diagnosis/flight_record.h"

namespace shoal {

/// One communicator of one rank.
struct CommunicatorView {
  std::uint32_t number = 0;  ///< 0: all ranks of the job
  std::uint64_t name = 0;    ///< the same on all its ranks
  int rank = 0;
  int ranks = 0;
  std::vector<int> members;    ///< ranks in the job, as far as they are written down
  std::uint64_t started = 0;   ///< calls
  std::uint64_t ended = 0;     ///< of them, well
  bool messages_open = false;  ///< a send or recv is in flight
  std::string message;         ///< the oldest, once it has waited

  /// The oldest call in flight, or message where no call is; set once it waits.
  struct Wait {
    std::uint64_t sequence = 0;
    bool is_message = false;
    double seconds = 0;
    std::vector<int> absent;  ///< ranks that are not in the call
    std::vector<int> slow;    ///< ranks that are, but whose data is missing
  };
  std::optional<Wait> wait;
  struct Cause {
    StatusCode code = StatusCode::internal;
    std::int64_t at_ns = 0;  ///< system clock
    std::string text;
  };
  std::optional<Cause> cause;        ///< it has failed
  std::vector<CallSignature> calls;  ///< the latest, the one with number started - 1 last

  /// The oldest call in flight, as far as can be seen from outside.
  [[nodiscard]] std::uint64_t current() const noexcept { return wait && !wait->is_message ? wait->sequence : ended; }
  [[nodiscard]] bool in_call() const noexcept { return started > ended && !cause; }
  /// What the rank says of call `sequence`; nothing where it is not remembered.
  [[nodiscard]] std::optional<CallSignature> call(std::uint64_t sequence) const noexcept;
};

/// A rank and its process.
struct RankView {
  int rank = 0;
  pid_t pid = 0;
  std::string host;
  enum class Life { running, stopped, dead, unknown } life = Life::unknown;  ///< unknown: in another container
  char letter = '\0';  ///< of the process's state: R runs, S sleeps, D waits for a disk
  std::vector<CommunicatorView> communicators;
};

/// A job as seen from this host.
struct JobView {
  std::string id;    ///< 16 hexadecimal digits
  std::string name;  ///< what users call it; may be empty
  int ranks = 0;
  std::int64_t started_ns = 0;    ///< system clock
  std::int64_t last_sign_ns = 0;  ///< system clock: when some rank of it has certainly lived, as far as is written down
  std::vector<int> node_of_rank;
  std::vector<RankView> seen;  ///< ranks of this host, ascending

  [[nodiscard]] const RankView* find(int rank) const noexcept;
  /// The processes of all ranks that are seen from this host have ended.
  [[nodiscard]] bool has_ended() const noexcept;
};

/// Jobs in the order of a list: those that run, then those that have ended, the latest of each first.
struct JobList {
  std::vector<const JobView*> running;
  std::vector<const JobView*> ended;
  std::size_t left_out = 0;  ///< that ended more than an hour before `now_ns` (system clock), unless `all` are wanted
};
JobList list_of(const std::vector<JobView>& jobs, std::int64_t now_ns, bool all);

/// A flight record's file. `now_ns`: the steady clock. Errors: invalid_argument for what is none, or one of another version;
/// safe for any bytes.
Result<RankView> read_ledger(std::span<const std::byte> file, std::int64_t now_ns, JobView& job);

/// The jobs in `folder` (see ledger_folder()), the latest first. What cannot be read is left out, and said in `complaints`.
std::vector<JobView> read_jobs(const std::string& folder, std::vector<std::string>& complaints);

}  // namespace shoal
