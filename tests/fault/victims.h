// Victims: a job of real processes that a test can kill or stop at any moment.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <shoal/communicator.h>

#include "tests/fault/sandbox.h"
#include "tests/slack.h"

namespace shoal::testing {

inline constexpr int kMostVictims = 8;

/// Shared memory in which the ranks of a job report to the test, the watcher.
struct Board {
  std::atomic<int> joined{0};            ///< ranks that have a communicator
  std::atomic<std::uint64_t> calls{0};   ///< made by rank 0
  std::atomic<int> returned{0};          ///< ranks whose tested wait has returned
  std::atomic<std::int64_t> mark_ns{0};  ///< steady clock: a moment that the body reports
  std::atomic<bool> enough{false};       ///< set by the watcher to end the job
  struct Rank {
    std::atomic<bool> entered{false};  ///< the rank is known to the store, which reports its death from then on
    std::atomic<bool> ended{false};
    StatusCode code = StatusCode::internal;  ///< of the body; valid once `ended` is set
    std::int64_t began_ns = 0;               ///< steady clock, when the rank began to join
    std::int64_t at_ns = 0;                  ///< steady clock, when the body returned or the communicator was refused
    std::int64_t returned_ns = 0;            ///< steady clock, when the tested wait returned; set by the body
    std::int64_t waited_ns = 0;              ///< for a core, since it joined or, if it did not, began: its longest thread
    std::array<char, 1024> text{};
  };
  std::array<Rank, kMostVictims> ranks;
};

/// The environment of a job.
struct Surroundings {
  bool flight_records = true;  ///< without them ranks only know what peers send, as between hosts
  std::map<std::string, std::string> environment{};
  const Sandbox* sandbox = nullptr;  ///< null: the namespaces of the test
  int store_port = 0;                ///< rank 0 serves the store on this port of 127.0.0.1; 0: a file store
  bool keepers = false;              ///< where rank 0 serves the store: the ranks of a host meet at their keeper
  int dies = -1;                     ///< this rank calls die_after(dies_after) after its fork(); -1: none
  std::chrono::microseconds dies_after{0};
};

/// A job of `size` processes in a process group of its own, with files in a folder that the destructor removes.
///
/// `wire`: "shm", "tcp", or "mixed": odd and even ranks have different host names. Each rank makes a communicator, runs `body`,
/// reports its Status and destroys the communicator. Its standard error goes to a file.
class Victims {
 public:
  using Body = std::function<Status(Communicator&, Board&)>;
  Victims(int size, const std::string& wire, std::chrono::milliseconds timeout, const Body& body,
          const Surroundings& surroundings = {});
  /// Kills processes that still run.
  ~Victims();
  Victims(const Victims&) = delete;
  Victims& operator=(const Victims&) = delete;

  [[nodiscard]] Board& board() const { return *board_; }
  [[nodiscard]] int size() const { return static_cast<int>(pids_.size()); }
  [[nodiscard]] pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] std::string flight_records() const { return folder_ + "/flight_records"; }
  [[nodiscard]] std::string stderr_of(int rank) const;  ///< its standard error so far
  /// Waits until all ranks have a communicator. False if `seconds` passed or a rank ended before.
  [[nodiscard]] bool all_joined(double seconds = 30) const;
  /// Waits until all processes have ended; kills those that run longer than `seconds`. Returns what is wrong with the way they
  /// ended: "rank 1 hung", "rank 0 ended with status 66" (a sanitizer's report). Empty: the ranks `killed` ended by SIGKILL,
  /// all other ranks with status 0.
  std::string wait(double seconds, std::initializer_list<int> killed = {});
  /// By how much a time limit of this job may be exceeded, since its threads had to wait for a core; see CoreDelay. To be
  /// called when all ranks have ended: before, it knows less of them.
  [[nodiscard]] double allowance_s() const;
  /// Whether no process of the job runs, children of its ranks included.
  [[nodiscard]] bool nothing_runs() const;

 private:
  std::string folder_;
  Board* board_;
  std::vector<pid_t> pids_;
  std::vector<bool> reaped_;
  std::vector<int> ends_;           ///< as waitpid() has it
  std::optional<CoreDelay> delay_;  ///< since the first wait()
};

/// Lets the kernel kill this process after `delay`, by a timer: at any instruction, and without another process that would have
/// to be scheduled first. Sets the board's mark to that moment. A rank that ends earlier waits for it.
void die_after(std::chrono::microseconds delay, Board& board);

/// Whether this process may give itself another host name, which "mixed" needs.
bool may_rename_host();

}  // namespace shoal::testing
