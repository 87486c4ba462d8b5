// A contestant's place in a run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/train/contestant.h"
#include "bench/train/figures.h"
#include "bench/train/step_trace.h"

namespace shoal::train {

/// A contestant and its figures.
struct Entry {
  std::unique_ptr<Contestant> contestant;
  bool warm = false;                   ///< it has made its first steps in this process
  bool traced = false;                 ///< one of its steps has been recorded
  std::vector<TraceEvent> trace = {};  ///< of that step, when the turn has ended
  Figures epoch = {};

  [[nodiscard]] std::int64_t step() const { return contestant->step(); }
};

/// Of the contestant that has made the fewest; there must be one.
std::int64_t fewest_steps(const std::vector<Entry>& entries);
/// Of all contestants together.
std::int64_t steps_made(const std::vector<Entry>& entries);

}  // namespace shoal::train
