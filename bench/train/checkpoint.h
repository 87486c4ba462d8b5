// Saves training and resumes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include <shoal/communicator.h>

#include "bench/train/optimizers.h"

namespace shoal::train {

/// Everything that training needs to continue.
struct Checkpoint {
  nlohmann::json settings;  ///< an object: the settings that must be equal for the continuation to be the same training
  /// For each replica, by its name: see Replica::state.
  std::map<std::string, Tensors> replicas;
};

/// Writes it as one file, which Python converts to a dictionary of tensors with dict(torch.load(file)). An older file at
/// `path` is replaced when the new one is complete. Errors: system_error.
Status save_checkpoint(const Checkpoint& checkpoint, const std::string& path);

/// Reads it on rank 0 and distributes it to all ranks. Collective. Errors, on every rank: not_found, system_error,
/// invalid_argument for a file that is not a checkpoint.
Result<Checkpoint> load_checkpoint(const std::string& path, Communicator& control);

/// ok if `now` equals the settings of the checkpoint, else invalid_argument with the first setting that differs.
Status check_settings(const Checkpoint& checkpoint, const nlohmann::json& now);

}  // namespace shoal::train
