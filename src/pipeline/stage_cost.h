// StageCosts: what a run of units costs as one stage: time and memory, exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/exact.h"
#include "src/pipeline/profile.h"
#include "src/pipeline/recompute.h"
#include "src/pipeline/shape.h"
#include "src/pipeline/stage_times.h"
#include "src/pipeline/unit_memory.h"

namespace shoal::pipeline {

/// A message of n bytes takes latency_us + n / bytes_per_us.
struct Link {
  double latency_us = 0;
  std::optional<double> bytes_per_us;  ///< none = as fast as you like
};

/// Under which rules a stage is priced.
struct CostRules {
  Shape shape;
  Link link;
  bool overlaps = false;  ///< messages travel while the stage computes, both ways at once
  Recompute recompute = Recompute::none;
  int optimizer_states = 2;  ///< k values for each parameter: SGD 0, with momentum 1, RMSprop 1, Adagrad 1, Adam 2, Adadelta 2
  RecomputeUnits recompute_units = {};  ///< not together with `recompute`
};

/// One stage. Times are in the ticks of its StageCosts.
struct StageCost {
  Wide compute = 0;  ///< for one microbatch: forward, backward, and the repeated forward
  Wide time = 0;     ///< compute and messages, as the rules say
  std::int64_t bytes = 0;
  bool recomputes = false;  ///< it keeps the inputs of its microbatches and repeats their forwards
  int recompute_end = 0;    ///< of its units those in front of this one recompute if the rules list them
};

/// The formulas. The units a..b-1 as stage s, which holds H microbatches:
///
///     compute  C = sum(forward + backward), + sum(forward) of the units that recompute: all if the stage recomputes and H > 1
///     time     C + 2 x(left) + 2 x(right), with overlap max(C, x(left), x(right)); x = latency + bytes / rate, none at the
///              ends
///     bytes    (2 + k) parameters + buffers + H received + received + sent + (H - 1) K + W
///     K        sum of stashes; of a run of units that recomputes, its output instead; without that if the stage ends there;
///              0 if the stage recomputes
///     W        max over the units of: K up to its run + stash of its run up to its end + its workspace. A unit that does not
///              recompute is a run by itself. A backward has freed what is behind it.
///
/// Bytes do not count the images and targets of a batch, nor a second message on its way over each cut.
///
/// With the rule where_needed, of `recompute` or of `recompute_units`, a stage recomputes if it needs more than the memory
/// limit otherwise: of units the fewest first ones with which it does not; where there are no such, those with which it needs
/// the fewest bytes. So its cost depends on its units and its number only, in these cases too.
///
/// Thread rule: a value that refers to nothing.
class StageCosts {
 public:
  /// Errors: those of check(rules.shape); invalid_argument for fewer units than stages, which names both numbers, for rules
  /// that are out of range, and for sums that do not fit.
  static Result<StageCosts> create(const Profile& profile, const CostRules& rules,
                                   std::optional<std::int64_t> memory_limit_bytes = std::nullopt);

  /// The units first..end-1 as `stage`. Precondition: first < end.
  [[nodiscard]] StageCost cost(int stage, int first, int end) const;
  /// As if the rules said so of this stage. A stage that holds one microbatch does not recompute. Units are as in the rules,
  /// without where_needed.
  [[nodiscard]] StageCost cost(int stage, int first, int end, bool recomputes) const;

  [[nodiscard]] int units() const { return static_cast<int>(units_.size()) - 1; }
  [[nodiscard]] int stages() const { return static_cast<int>(held_.size()); }
  [[nodiscard]] int held(int stage) const { return held_[static_cast<std::size_t>(stage)]; }
  /// Bytes that cross a cut in front of `unit`; 0 at both ends of the chain.
  [[nodiscard]] std::int64_t bytes_before(int unit) const { return cut_bytes_[static_cast<std::size_t>(unit)]; }
  /// The whole model as one stage that holds one microbatch.
  [[nodiscard]] const StageCost& whole() const { return whole_; }
  [[nodiscard]] double microseconds(Wide ticks) const;

  /// The runs of units that recompute in a stage that begins at `first` and has this cost.
  [[nodiscard]] std::vector<UnitRun> recomputed_units(int first, const StageCost& cost) const;

  /// What a simulation needs of the stages that begin at `firsts` and have these costs.
  [[nodiscard]] StageTimes times(const std::vector<int>& firsts, const std::vector<StageCost>& costs) const;

 private:
  struct Sums {  // of the units in front of one
    std::int64_t forward_ps = 0;
    std::int64_t backward_ps = 0;
    std::int64_t repeated_ps = 0;  // forwards of units that recompute
    std::int64_t parameter_bytes = 0;
    std::int64_t buffer_bytes = 0;
  };

  StageCosts() = default;
  [[nodiscard]] Wide message(std::int64_t bytes) const;
  [[nodiscard]] StageCost cost_where_needed(int stage, int first, int end) const;
  /// Of a stage that recomputes, or in which listed units in front of `recompute_end` do.
  [[nodiscard]] StageCost cost(int stage, int first, int end, bool recomputes, int recompute_end) const;
  [[nodiscard]] std::int64_t repeated_ps(int first, int end, const StageCost& cost) const;

  CostRules rules_;
  std::optional<std::int64_t> memory_limit_bytes_;
  std::vector<Sums> units_;
  UnitMemory memory_;
  std::vector<std::int64_t> cut_bytes_;
  std::vector<int> held_;  // by stage
  StageCost whole_;
  // A tick is 1 / ticks_per_ps_ of a picosecond, such that a byte takes a whole number of them.
  std::int64_t ticks_per_ps_ = 1;
  std::int64_t ticks_per_byte_ = 0;
  std::int64_t latency_ps_ = 0;
};

}  // namespace shoal::pipeline
