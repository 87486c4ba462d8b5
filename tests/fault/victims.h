// Jobs whose ranks something happens to from outside: killed or stopped at any moment.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include <shoal/communicator.h>

#include "tests/fault/place.h"

namespace shoal::testing {

inline constexpr int kMostVictims = 8;

/// What the ranks of a job tell the process that watches them; shared memory.
struct Board {
  std::atomic<int> joined{0};            ///< ranks that have a communicator
  std::atomic<std::uint64_t> calls{0};   ///< that rank 0 has made
  std::atomic<int> told{0};              ///< ranks whose body has been told what it waited for
  std::atomic<std::int64_t> mark_ns{0};  ///< steady clock: a moment that the body tells
  std::atomic<bool> enough{false};       ///< set by the watcher: rank 0 ends the job
  struct Rank {
    std::atomic<bool> entered{false};  ///< the store: from then on the others hear of its end
    std::atomic<bool> ended{false};
    StatusCode code = StatusCode::internal;  ///< until the rank has told
    std::int64_t began_ns = 0;               ///< steady clock, when it began to join
    std::int64_t at_ns = 0;                  ///< steady clock, when the body returned
    std::int64_t told_ns = 0;                ///< steady clock: when the body was told what it waited for, as it says itself
    std::int64_t held_up_ns = 0;             ///< how long the machine had no time for this rank, as the body says
    std::array<char, 1024> text{};
  };
  std::array<Rank, kMostVictims> ranks;
};

/// What a job lives in.
struct Surroundings {
  bool flight_records = true;  ///< without them ranks know of each other what they say, as those of several hosts
  std::map<std::string, std::string> environment{};
  const OwnPlace* place = nullptr;  ///< null: where the test itself is
  int store_port = 0;               ///< of this host's 127.0.0.1: rank 0 serves the store there; 0: a folder
  int dies = -1;                    ///< this rank dies so long after its fork(), as by die_after()
  std::chrono::microseconds dies_after{0};
};

/// A job of `size` processes in a process group of their own, with files in a folder that goes with the object.
///
/// `wire`: "shm", "tcp", or "mixed": ranks of two hosts by name, odd and even ones. A rank makes a communicator, counts as
/// joined, runs `body`, tells its Status, and destroys the communicator. Standard error goes to a file of each rank.
class Victims {
 public:
  using Body = std::function<Status(Communicator&, Board&)>;
  Victims(int size, const std::string& wire, std::chrono::milliseconds timeout, const Body& body,
          const Surroundings& surroundings = {});
  /// Kills what is left.
  ~Victims();
  Victims(const Victims&) = delete;
  Victims& operator=(const Victims&) = delete;

  [[nodiscard]] Board& board() const { return *board_; }
  [[nodiscard]] int size() const { return static_cast<int>(pids_.size()); }
  [[nodiscard]] pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] std::string flight_records() const { return folder_ + "/ledgers"; }
  [[nodiscard]] std::string heard(int rank) const;  ///< what it has said on standard error so far
  /// Waits until all have joined. False: `seconds` have passed, or a rank has ended before.
  [[nodiscard]] bool all_joined(double seconds = 30) const;
  /// Waits for the ends of all processes; kills those that last longer. Says what is wrong with how they ended: "rank 1 hung",
  /// "rank 0 ended with status 66", as after a sanitizer's report. Empty: all but `killed` have ended well, and those by
  /// SIGKILL.
  std::string wait(double seconds, std::initializer_list<int> killed = {});
  /// No process of the job is there any more, children of its ranks included.
  [[nodiscard]] bool nothing_runs() const;

 private:
  std::string folder_;
  Board* board_;
  std::vector<pid_t> pids_;
  std::vector<bool> reaped_;
  std::vector<int> ends_;  ///< as waitpid() has it
};

/// SIGKILL for this process at that time from now, from the kernel: at any point, with nobody else who has to get a turn on the
/// machine first. Tells the moment as the board's mark. A rank that has come to its end before waits for it.
void die_after(std::chrono::microseconds delay, Board& board);

/// Whether this process may give itself another host name, which "mixed" needs.
bool may_rename_host();

}  // namespace shoal::testing
