// The state of a host's jobs, read from the flight records of their ranks.
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
  std::vector<int> members;    ///< ranks in the job, as far as they are recorded
  std::uint64_t started = 0;   ///< calls
  std::uint64_t ended = 0;     ///< calls that ended without an error
  bool messages_open = false;  ///< a send or recv is in flight
  std::string message;         ///< the oldest send or recv, once it has waited

  /// The oldest call in flight, or the oldest message if there is no call; set once it waits.
  struct Wait {
    std::uint64_t sequence = 0;
    bool is_message = false;
    double seconds = 0;
    std::vector<int> absent;  ///< ranks that are not in the call
    std::vector<int> slow;    ///< ranks in the call whose data is missing
  };
  std::optional<Wait> wait;
  struct Cause {
    StatusCode code = StatusCode::internal;
    std::int64_t at_ns = 0;  ///< system clock
    std::string text;
  };
  std::optional<Cause> cause;        ///< set once the communicator has failed
  std::vector<CallSignature> calls;  ///< the latest, the one with number started - 1 last

  /// The oldest call in flight, as far as can be seen from outside.
  [[nodiscard]] std::uint64_t current() const noexcept { return wait && !wait->is_message ? wait->sequence : ended; }
  [[nodiscard]] bool in_call() const noexcept { return started > ended && !cause; }
  /// The signature that the rank has recorded for call `sequence`; nothing if it is not recorded any more.
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
  std::string name;  ///< the user's name of the job; may be empty
  int ranks = 0;
  std::int64_t started_ns = 0;    ///< system clock
  std::int64_t last_sign_ns = 0;  ///< system clock: the last recorded time at which a rank was certainly alive
  std::vector<int> node_of_rank;
  std::vector<RankView> seen;  ///< ranks of this host, ascending

  [[nodiscard]] const RankView* find(int rank) const noexcept;
  /// Whether the processes of all ranks that are seen from this host have ended.
  [[nodiscard]] bool has_ended() const noexcept;
};

/// Jobs in the order of a list: those that run, then those that have ended, the latest of each first.
struct JobList {
  std::vector<const JobView*> running;
  std::vector<const JobView*> ended;
  std::size_t left_out = 0;  ///< jobs that ended more than an hour before `now_ns` (system clock); 0 with `all`
};
JobList list_of(const std::vector<JobView>& jobs, std::int64_t now_ns, bool all);

/// Reads the file of a flight record. `now_ns`: the steady clock. Errors: invalid_argument for another file, or another
/// version; safe for any bytes.
Result<RankView> read_flight_record(std::span<const std::byte> file, std::int64_t now_ns, JobView& job);

/// The jobs in `folder` (see flight_record_folder()), the latest first. Files that cannot be read are reported in `complaints`.
std::vector<JobView> read_jobs(const std::string& folder, std::vector<std::string>& complaints);

}  // namespace shoal
