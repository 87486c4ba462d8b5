// UnitMemory: what the microbatches of a stage keep, where some of its units recompute.
#pragma once

#include <cstdint>
#include <vector>

#include "src/pipeline/profile.h"
#include "src/pipeline/range_maximum.h"
#include "src/pipeline/recompute.h"

namespace shoal::pipeline {

/// The bytes of any run of a chain's units as a stage, in constant time; the stage's input is not counted. A unit keeps its
/// stash, which has its output. A run that recomputes keeps no more than its output, for the unit behind it; none at the end of
/// a stage, which sends it. Thread rule: a value that refers to nothing.
class UnitMemory {
 public:
  UnitMemory() = default;
  /// `runs`: those that recompute, rising and apart. A stage that begins or ends inside of one has a part of it.
  UnitMemory(const std::vector<Unit>& units, const std::vector<UnitRun>& runs);

  struct Bytes {
    std::int64_t kept = 0;  ///< of a microbatch, from its forward to its backward
    std::int64_t working =
        0;  ///< the most of the one that is computed: kept so far, the stash of a run, the workspace of a unit
  };
  /// Of the units first..end-1, of which only those in front of `recompute_end` recompute. Precondition: first < end, and
  /// recompute_end is from first to end.
  [[nodiscard]] Bytes of(int first, int recompute_end, int end) const;
  /// As one run that recomputes.
  [[nodiscard]] Bytes of_run(int first, int end) const;

  /// The runs, or their parts, in first..end-1.
  [[nodiscard]] std::vector<UnitRun> runs(int first, int end) const;
  [[nodiscard]] bool recomputes(int unit) const { return run_ends_[static_cast<std::size_t>(unit)] > unit; }

 private:
  std::vector<UnitRun> runs_;
  std::vector<int> run_ends_;        // of the run that a unit is in; its own number if it is in none
  std::vector<std::int64_t> stash_;  // of the units in front of one
  std::vector<std::int64_t> kept_;   // likewise, where runs recompute
  RangeMaximum alone_;               // of each unit: its workspace, with the stash up to its end
  RangeMaximum in_runs_;             // likewise, where runs in front of its own recompute
};

}  // namespace shoal::pipeline
