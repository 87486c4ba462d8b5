// What a seed of the engine's simulation decides, before anything runs.
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

/// What goes wrong beside the wires, at most one thing a seed.
enum class Fault {
  none,
  late,      ///< a rank makes a call late, but before the others' deadline
  absent,    ///< a rank does not make a call until the others have given up or need nothing of it
  pause,     ///< a rank stands still at some step, and goes on before the others' deadline
  stop,      ///< a rank stands still at some step until the others have given up or need nothing of it
  kill,      ///< a rank dies at some step
  abort,     ///< a rank aborts at some step
  mismatch,  ///< a rank makes another call than the others
};
inline constexpr std::array<std::string_view, 8> kFaultNames{"none", "late", "absent", "pause",
                                                             "stop", "kill", "abort",  "mismatch"};

/// That abort() is given.
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
  std::size_t tile_bytes = 0;  ///< of what does not go over the network, whose tiles may be larger
  std::vector<SimulatedCall> calls;
  std::chrono::nanoseconds timeout{};  ///< of each call
  bool leaves = false;                 ///< who is done destroys its communicator at once
  std::uint64_t step_ns = 0;           ///< a step takes between half of this and as much again
  std::uint64_t burst = 0;             ///< a rank that is at it stays at it with this chance in 16
  std::uint64_t think_ns = 0;          ///< a rank waits up to so long before it makes its next call

  Fault fault = Fault::none;
  int culprit = 0;
  std::uint64_t at_step = 0;              ///< of the culprit's: when it stands still, dies or aborts
  std::size_t at_call = 0;                ///< that it makes late, or in its own way
  SimulatedCall odd_call;                 ///< instead of that one
  std::chrono::nanoseconds fault_time{};  ///< how long it is late or stands still

  [[nodiscard]] int ranks() const { return topology.ranks(); }
  /// What `rank` makes as its call `index`.
  [[nodiscard]] const SimulatedCall& call(int rank, std::size_t index) const {
    return fault == Fault::mismatch && rank == culprit && index == at_call ? odd_call : calls[index];
  }
  [[nodiscard]] std::string text() const;
};

Scenario make_scenario(std::uint64_t seed);

}  // namespace shoal::testing
