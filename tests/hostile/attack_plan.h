// The attack plan: which hostile connections each listener gets in which stage, and what must hold for the job meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/hostile/attacker.h"
#include "tests/hostile/listeners.h"
#include "tests/hostile/shared_state.h"

namespace shoal::hostile {

/// In every stage, all active listeners get their share of connections, equally many of each kind. A round has at most one
/// listener of each process: the library counts the refusals of a process, so the difference over a round is the count of that
/// listener, and must equal the connections made to it.
class AttackPlan {
 public:
  AttackPlan(SharedState& state, std::vector<Listener> listeners, int inputs, std::uint64_t seed);

  /// Runs all stages. Returns the error, or "".
  std::string run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Bounds {
    std::uint64_t least = 0;
    std::uint64_t most = 0;
  };

  std::string check_listeners();
  std::string stage(int stage);
  std::string await_stage(int stage);
  std::string round(const std::vector<std::size_t>& targets, bool warms_up);
  std::string rounds(int stage, bool warms_up);
  std::string await_timeouts(int stage);
  std::string attack_transition(int stage);
  std::string finish();
  std::string check_refusals();
  std::string attack(std::size_t at, Kind kind);
  void count(std::size_t at, Kind kind);
  void await_quiet();
  [[nodiscard]] std::uint64_t refused(int rank) const { return state_.ranks[static_cast<std::size_t>(rank)].refused; }
  [[nodiscard]] pid_t pid(int rank) const { return state_.ranks[static_cast<std::size_t>(rank)].pid; }
  void print() const;

  SharedState& state_;
  std::vector<Listener> listeners_;
  Attacker attacker_;
  std::uint64_t share_ = 0;                                   // inputs for each listener
  std::vector<std::array<std::uint64_t, kKinds>> delivered_;  // by listener
  std::vector<std::uint64_t> counted_;                        // refused in rounds, by listener
  std::array<std::uint64_t, kRanks> expected_{};              // expected refusals since the last await_quiet()
  std::array<Bounds, kRanks> total_{};                        // expected refusals in total
  std::size_t connections_before_transitions_ = 0;            // connections of the job
  std::array<std::uint64_t, kRanks> sums_{};                  // made during the attack
};

}  // namespace shoal::hostile
