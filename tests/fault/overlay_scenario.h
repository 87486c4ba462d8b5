// A random history of one job: what its ranks say, what happens to them, and what every survivor has to know in the end.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fault/overlay_simulation.h"

namespace shoal::testing {

/// Made by a seed. Small delays and large ones, few hosts and up to 64, one rank a host and up to eight.
class OverlayScenario {
 public:
  explicit OverlayScenario(std::uint64_t seed);

  /// Returns what is wrong; empty where nothing is.
  std::vector<std::string> run();
  /// "seed 3: 17 x 4; abort of 5 at 12 ms, kill ...".
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  /// Depends on all that the ranks have learnt, and when.
  [[nodiscard]] std::uint64_t hash() const;
  /// Kinds of what has happened.
  [[nodiscard]] const std::set<std::string>& happened() const noexcept { return happened_; }

 private:
  using Time = OverlaySimulation::Time;

  void step();
  void say();
  void kill(int rank);
  void lose_host(int host, bool switched_off);
  void kill_keeper(int host, bool successor_too);
  void stop_keeper(int host);
  /// What a rank has learnt.
  struct Learnt {
    std::map<int, Time> ends;
    std::map<std::uint64_t, Time> aborts;
    std::set<std::pair<std::uint64_t, int>> farewells;
    std::map<int, std::vector<std::uint64_t>> notices;  // numbers by rank, as they came
  };
  /// Complains of what it has learnt twice.
  Learnt learnt_by(int rank);
  /// Nothing of it is wrong.
  void check_truth(int rank);
  /// Nothing is missing in it, or late.
  void check_completeness(int rank, const Learnt& learnt);
  /// All survivors have learnt the same, also of what only ranks of ended hosts have said.
  void check_agreement(int rank, const Learnt& learnt, int other, const Learnt& others);
  void check_keeper(int host);
  void note(const std::string& kind, int who);
  void complain(const std::string& what);
  /// A rank that lives and runs; -1: there is none.
  int any_rank();
  /// All ranks of the host have ended.
  [[nodiscard]] bool has_ended(int host) const;

  std::string text_;
  OverlaySimulation simulation_;
  std::set<std::string> happened_;
  std::map<int, Time> killed_;                            // ranks that have to be named as dead
  std::set<int> left_;                                    // ranks that have left in order
  std::map<std::uint64_t, std::pair<int, Time>> aborts_;  // by communicator: rank
  std::map<int, std::vector<std::uint64_t>> notices_;     // numbers by rank
  std::set<std::pair<std::uint64_t, int>> farewells_;     // communicator, rank
  std::vector<int> stopped_;
  std::uint64_t groups_ = 0;
  bool silent_hosts_ = false;  // some deaths are found only by silence
  std::vector<std::string> complaints_;
};

}  // namespace shoal::testing
