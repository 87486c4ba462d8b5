// Partitioner: cuts the chain of units into stages, with the least cost of the worst stage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/stage_cost.h"

namespace shoal::pipeline {

enum class Objective : std::uint8_t {
  speed,     ///< the largest time of a stage
  memory,    ///< the largest bytes of a rank
  weighted,  ///< the largest of w bytes / (bytes of the whole model) + (1 - w) time / (compute of the whole model)
};
std::string_view to_string(Objective objective) noexcept;
/// Error: invalid_argument that lists the names.
Result<Objective> parse_objective(std::string_view name);

struct PartitionRequest {
  CostRules rules;
  Objective objective = Objective::memory;
  double memory_weight = 0;                        ///< w of `weighted`; 0 is the objective speed, 1 is memory
  std::optional<std::int64_t> memory_limit_bytes;  ///< ranks whose stages need more together are forbidden

  /// The objective with the weights 0 and 1 replaced.
  [[nodiscard]] Objective effective_objective() const;
};

/// A stage: the units first..end-1.
struct Stage {
  int first = 0;
  int end = 0;
  int held = 0;           ///< microbatches, at most
  double compute_us = 0;  ///< for one microbatch
  double time_us = 0;     ///< compute and messages
  std::int64_t bytes = 0;
  std::int64_t received_bytes = 0;             ///< at its left cut, for one microbatch
  std::int64_t sent_bytes = 0;                 ///< at its right cut
  bool recomputes = false;                     ///< keeps the inputs of its microbatches and repeats their forwards
  std::vector<UnitRun> recomputed_units = {};  ///< runs of its units that do so by themselves; then `recomputes` is false
};

struct Partition {
  Objective objective = Objective::speed;
  double value = 0;  ///< of the objective: us, bytes, or a share
  std::vector<Stage> stages;
  StageTimes times;              ///< for simulation
  std::int64_t evaluations = 0;  ///< of the cost of a stage

  /// The first units of all stages but the first.
  [[nodiscard]] std::vector<int> cuts() const;
  /// Of each stage, whether it recomputes.
  [[nodiscard]] std::vector<bool> recomputes() const;
  /// Of each stage, the runs of units that recompute, as in the list of RecomputeUnits. `units`: the names of the chain's
  /// units.
  [[nodiscard]] std::vector<std::vector<std::string>> recomputed_units(const std::vector<std::string>& units) const;
};

/// The best partition into exactly as many stages as the shape has, each with a unit at least. Exact, in O(stages units^2)
/// evaluations of a stage's cost. With virtual stages and the objective memory or a limit it is a search through all partitions
/// that may be better, because a rank has several stages: see search_ranks(). Of equally good ones it is the one with the
/// smallest largest other measure (bytes for speed, time for memory and weighted); of those the one with the fewest bytes over
/// its cuts; of those the smallest list of cuts.
///
/// Errors: those of StageCosts::create(); invalid_argument for a weight outside of 0..1, for the objective weighted and
/// recomputation where needed (of stages or of units) with virtual stages, for recomputation where needed without a limit, and
/// for a limit that no partition meets: that names the smallest possible largest stage, or rank, and its units; those of
/// search_ranks().
Result<Partition> partition(const Profile& profile, const PartitionRequest& request);

/// The partition whose stages begin at unit 0 and at `cuts`, priced in the same way. `recomputes`, if not empty, says of each
/// stage whether it recomputes, instead of the request. Errors: as partition(); invalid_argument for cuts that are not rising
/// or out of range, or of another number than the shape has.
Result<Partition> partition_at(const Profile& profile, const PartitionRequest& request, const std::vector<int>& cuts,
                               const std::vector<bool>& recomputes = {});

}  // namespace shoal::pipeline
