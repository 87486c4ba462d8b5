// A whole run as a checkpoint: all replicas, and the settings that must not change.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/train/data/dataset.h"
#include "bench/train/entry.h"
#include "bench/train/epoch_plan.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/options.h"

namespace shoal::train {

/// The settings that must be equal for a bitwise equal continuation of a checkpoint's training.
nlohmann::json run_settings(const Job& job, const models::ModelInfo& model, const data::Dataset& images,
                            const TrainOptions& options);

/// Writes the file on rank 0. Collective: all ranks get the outcome. Errors: system_error if it could not be written; that of
/// code_of() if updates in flight have failed; those of the communicator.
Status save_run(const Job& job, nlohmann::json settings, const EpochPlan& course, const std::vector<Entry>& entries,
                const std::string& path);

/// Brings replicas and `course` to the state of the file's run. Collective. Errors: those of load_checkpoint() and
/// check_settings(); invalid_argument if the file lacks a replica, has the state of something else, or has numbers that no
/// training can have. All ranks read the same bytes, so they get the same error.
Status resume_run(const Job& job, const nlohmann::json& settings, EpochPlan& course, const std::vector<Entry>& entries,
                  const std::string& path);

}  // namespace shoal::train
