// Config: model parallelism as a user asks for it, with the keys of SageMaker's library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/batch_norm.h"
#include "src/pipeline/layout.h"
#include "src/pipeline/partitioner.h"

namespace shoal::pipeline {

/// Each member is the key of its name, unless a comment says otherwise.
struct Config {
  int partitions = 1;  ///< also pipeline_parallel_degree
  int microbatches = 1;
  ScheduleKind pipeline = ScheduleKind::interleaved;
  int chunks = 1;                          ///< stages of each rank, with the schedule virtual; not a key of SageMaker's
  std::optional<int> active_microbatches;  ///< with the schedule interleaved
  Objective optimize = Objective::memory;
  std::optional<double> memory_weight;                               ///< 0 is the objective speed, 1 is memory
  std::optional<std::int64_t> memory_limit_bytes;                    ///< of a rank; not a key of SageMaker's
  Recompute recompute = Recompute::none;                             ///< not a key of SageMaker's
  RecomputeUnits recompute_units = {};                               ///< not a key of SageMaker's; a text or an array of texts
  BatchNormStatistics batch_norm = BatchNormStatistics::microbatch;  ///< not a key of SageMaker's
  bool auto_partition = true;
  std::optional<int> default_partition;  ///< stage of the units that nobody assigned; with auto_partition false only
  Placement placement{Axis::replica, Axis::pipeline, Axis::tensor};  ///< placement_strategy
  bool ddp = false;
  int tensor_parallel_degree = 1;

  [[nodiscard]] Shape shape() const { return {pipeline, partitions, chunks, microbatches, active_microbatches}; }
  /// What the partitioner is asked for. Costs of the link and of the optimizer are those of `rules`.
  [[nodiscard]] PartitionRequest request(CostRules rules) const;
  [[nodiscard]] Result<Layout> layout(int ranks) const {
    return Layout::create(ranks, partitions, tensor_parallel_degree, ddp, placement);
  }
};

/// The configuration in a JSON object, for example {"partitions": 4, "microbatches": 8, "pipeline": "interleaved"}. `origin` is
/// named in messages. Errors: invalid_argument that names the key: an unknown one (with the nearest known ones), a wrong type,
/// a value out of range, a missing partitions, keys that contradict each other; unsupported, with all keys that SageMaker's
/// library knows and this one does not have.
Result<Config> parse_config(std::string_view json, std::string_view origin);

/// The configuration in a file. Errors: as above; system_error for a file that cannot be read.
Result<Config> read_config(const std::string& path);

}  // namespace shoal::pipeline
