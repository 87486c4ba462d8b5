// One rank of the engine's simulation: its ProgressEngine and Executor, their driver, and the program that makes the calls.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "src/progress/driver_lock.h"
#include "src/runtime/executor.h"
#include "tests/fault/simulation_scenario.h"
#include "tests/fault/simulation_system.h"

namespace shoal::testing {

/// The transports of one hub and their addresses, by rank.
struct HubEnds {
  HubEnds(LoopbackHub& hub, int ranks);

  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::string> addresses;
};

/// One ProgressEngine with one Executor for each rank.
std::vector<std::shared_ptr<Executor>> make_executors(const Scenario& scenario, LoopbackHub& data, LoopbackHub& control);

/// A call of one rank, and its outcome.
struct MadeCall {
  internal::Operation* operation = nullptr;  ///< null: not made yet
  std::unique_ptr<ModelBuffers> buffers;
  SimulatedClock::time_point made_at{};
  std::optional<SimulatedClock::time_point> ended_at;
  Status outcome;     ///< once it has ended
  std::string wrong;  ///< what is wrong with the result of a call that returned ok
};

/// Does what drive() does with one engine (drive.h), and what its caller does, in steps that alternate with those of other
/// ranks. Holds the driver lock, so that no thread of the library drives the engine.
class SimulatedRank {
 public:
  SimulatedRank(const Scenario& scenario, std::shared_ptr<Executor> executor);
  ~SimulatedRank();
  SimulatedRank(const SimulatedRank&) = delete;
  SimulatedRank& operator=(const SimulatedRank&) = delete;

  /// Whether a step would do anything now.
  [[nodiscard]] bool is_ready() const;
  /// When is_ready() becomes true if no other rank acts. time_point::max(): never.
  [[nodiscard]] SimulatedClock::time_point next_event() const;
  /// Makes one step. Returns a letter for the kind of step.
  char step();

  /// All calls have ended.
  [[nodiscard]] bool is_done() const noexcept { return ended_ == calls_.size(); }
  /// Lets a rank with the fault `absent` make the call that it withheld.
  void end_absence() noexcept { absent_ = false; }
  void abort(const std::string& reason);
  /// The rank has been killed: ends its calls without a step. Nobody checks them.
  void bury();
  /// Destroys the communicator. To be called once, when all calls have ended.
  void leave();
  [[nodiscard]] bool has_left() const noexcept { return executor_ == nullptr; }

  [[nodiscard]] const std::vector<MadeCall>& calls() const noexcept { return calls_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  enum class Phase { idle, look, check, announce, look_once_more, asleep };

  [[nodiscard]] bool calls_now() const;
  [[nodiscard]] bool needs_driver() const;
  [[nodiscard]] bool is_awaited(std::size_t index) const;
  void make_call(std::size_t index);
  void post(std::size_t index);
  void make_calls();
  void think(std::size_t next);
  char drive();
  void stay_awake();
  void note_ends();

  const Scenario& scenario_;
  int rank_;
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<ProgressEngine> engine_;
  DriverLock lock_;
  std::mt19937_64 random_;
  Phase phase_ = Phase::idle;
  std::vector<pollfd> descriptors_;        // while asleep: the descriptors that wake it
  SimulatedClock::time_point wakes_at_{};  // while asleep: the latest time to wake
  std::vector<MadeCall> calls_;
  std::size_t made_ = 0;
  std::size_t ended_ = 0;
  SimulatedClock::time_point makes_next_at_{};
  SimulatedClock::time_point busy_until_{};  // end of its last step
  bool absent_ = false;
};

}  // namespace shoal::testing
