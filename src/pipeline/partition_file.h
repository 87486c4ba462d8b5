// The partition file: which units each stage has, for which pipeline it was made, and what it predicts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/partitioner.h"

namespace shoal::pipeline {

/// What a partition file holds of a partition: enough to build it again from the model's units.
struct PartitionFile {
  std::string model;
  Shape shape;
  std::vector<std::string> units;
  std::vector<int> cuts;
  Recompute recompute = Recompute::none;
  std::vector<bool> recomputes;    ///< of each stage; empty: the file does not say
  RecomputeUnits recompute_units;  ///< those that where_needed has chosen are a list
};

inline constexpr std::int64_t kPartitionVersion = 1;

/// The file's text: PartitionFile with cuts by unit name, and the prediction for each stage. The same input gives the same
/// bytes.
std::string to_json(const Profile& profile, const PartitionRequest& request, const Partition& partition);

/// Errors: invalid_argument that names `origin` and the field: broken JSON, missing or wrong values, another version, cuts and
/// recomputed units that the chain has not, cuts that do not rise, cuts or stages of another number than the shape has.
Result<PartitionFile> parse_partition(std::string_view json, std::string_view origin);

/// As parse_partition(), from a file. Error: also system_error for a file that cannot be read.
Result<PartitionFile> read_partition(const std::string& path);

}  // namespace shoal::pipeline
