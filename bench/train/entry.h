// A replica's place in a run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/train/figures.h"
#include "bench/train/replica.h"
#include "bench/train/step_trace.h"

namespace shoal::train {

/// A replica and its figures.
struct Entry {
  std::unique_ptr<Replica> replica;
  bool warm = false;                   ///< it has made its unmeasured first steps in this process
  bool traced = false;                 ///< one of its steps has been recorded
  std::vector<TraceEvent> trace = {};  ///< of that step, after the end of the turn
  Figures epoch = {};

  [[nodiscard]] std::int64_t step() const { return replica->step(); }
};

/// The steps of the replica with the fewest steps; there must be at least one replica.
std::int64_t fewest_steps(const std::vector<Entry>& entries);
/// The steps of all replicas together.
std::int64_t steps_made(const std::vector<Entry>& entries);

}  // namespace shoal::train
