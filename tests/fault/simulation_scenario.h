// Scenario: everything that a seed of the engine's simulation decides.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/algorithms/algorithm.h"
#include "src/topology/topology.h"
#include "tests/multiprocess/call_model.h"
#include "transports/loopback/loopback.h"

namespace shoal::testing {

/// The fault of a scenario, at most one, beside those of the wires.
enum class Fault {
  none,
  late,      ///< a rank makes a call late, but before its peers' deadline
  absent,    ///< a rank does not make a call until its peers have failed or are done
  pause,     ///< a rank pauses at some step, and continues before its peers' deadline
  stop,      ///< a rank pauses at some step until its peers have failed or are done
  kill,      ///< a rank dies at some step
  abort,     ///< a rank aborts at some step
  mismatch,  ///< a rank makes another call than its peers
};
inline constexpr std::array<std::string_view, 8> kFaultNames{"none", "late", "absent", "pause",
                                                             "stop", "kill", "abort",  "mismatch"};

/// The reason that abort() gets.
inline constexpr std::string_view kAbortReason = "as simulated";

struct SimulatedCall {
  ModelCall model;
  const Algorithm* algorithm = nullptr;
};

struct Scenario {
  std::uint64_t seed = 0;
  Topology topology;
  LoopbackOptions wire;
  LoopbackOptions control;
  bool board = false;          ///< control messages inside a node go through shared memory, not over `control`
  std::size_t tile_bytes = 0;  ///< inside a node; between nodes tiles may be larger
  std::vector<SimulatedCall> calls;
  std::chrono::nanoseconds timeout{};  ///< of each call
  bool leaves = false;                 ///< a rank that is done destroys its communicator at once
  std::uint64_t step_ns = 0;           ///< a step takes between half of this and one and a half times this
  std::uint64_t burst = 0;             ///< chance in 16 that the rank of the last step makes the next one too
  std::uint64_t think_ns = 0;          ///< longest time between two calls of a rank

  Fault fault = Fault::none;
  int culprit = 0;
  std::uint64_t at_step = 0;              ///< step of the culprit at which it pauses, dies or aborts
  std::size_t at_call = 0;                ///< call that it makes late or differently
  SimulatedCall odd_call;                 ///< for Fault::mismatch: what it calls instead
  std::chrono::nanoseconds fault_time{};  ///< how long it is late or pauses

  [[nodiscard]] int ranks() const { return topology.ranks(); }
  /// The call `index` of `rank`.
  [[nodiscard]] const SimulatedCall& call(int rank, std::size_t index) const {
    return fault == Fault::mismatch && rank == culprit && index == at_call ? odd_call : calls[index];
  }
  [[nodiscard]] std::string text() const;
};

Scenario make_scenario(std::uint64_t seed);

}  // namespace shoal::testing
