// The attacker's plan: what is said to which listener and when, and what the job must be like meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/hostile/attacker.h"
#include "tests/hostile/board.h"
#include "tests/hostile/listeners.h"

namespace shoal::hostile {

/// In every stage of the job all listeners that are at work then get their share, equally many of each kind. They are taken in
/// rounds, at most one listener of each process in a round: the library counts what a process refuses, so a round's
/// difference is the listener's own count, and must be what was said to it.
class Siege {
 public:
  Siege(Board& board, std::vector<Listener> listeners, int inputs, std::uint64_t seed);

  /// All stages. Returns what was wrong.
  std::string run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Bounds {
    std::uint64_t least = 0;
    std::uint64_t most = 0;
  };

  std::string check_listeners();
  std::string stage(int stage);
  std::string meet(int stage);
  std::string round(const std::vector<std::size_t>& targets, bool warms_up);
  std::string rounds(int stage, bool warms_up);
  std::string outlast(int stage);
  std::string rush(int stage);
  std::string finish();
  std::string settle();
  std::string say_to(std::size_t at, Kind kind);
  void count(std::size_t at, Kind kind);
  void rest();
  [[nodiscard]] std::uint64_t refused(int rank) const { return board_.ranks[static_cast<std::size_t>(rank)].refused; }
  [[nodiscard]] pid_t pid(int rank) const { return board_.ranks[static_cast<std::size_t>(rank)].pid; }
  void print() const;

  Board& board_;
  std::vector<Listener> listeners_;
  Attacker attacker_;
  std::uint64_t share_ = 0;                                   // inputs for each listener
  std::vector<std::array<std::uint64_t, kKinds>> delivered_;  // by listener
  std::vector<std::uint64_t> counted_;                        // refused in rounds, by listener
  std::array<std::uint64_t, kRanks> expected_{};              // refused, by what was said since the last rest()
  std::array<Bounds, kRanks> total_{};                        // refused, over everything
  std::size_t takes_before_rushes_ = 0;                       // connections of the job
  std::array<std::uint64_t, kRanks> sums_{};                  // made among strangers
};

}  // namespace shoal::hostile
