// A whole run as a checkpoint: all replicas, and what makes it the same training.
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

/// What must be the same for a checkpoint's training to go on bit for bit.
nlohmann::json run_settings(const Job& job, const models::ModelInfo& model, const data::Dataset& images,
                            const TrainOptions& options);

/// Writes the file on rank 0. Collective: all ranks learn whether that went well. Errors: system_error where it did not; that
/// of code_of() where updates that were under way have failed; the communicator's.
Status save_run(const Job& job, nlohmann::json settings, const EpochPlan& course, const std::vector<Entry>& entries,
                const std::string& path);

/// Brings replicas and course to where the file's run was. Collective. Errors: those of load_checkpoint() and
/// check_settings(); invalid_argument where the file has nothing for a replica, something else's state, or numbers that no
/// training comes to. All ranks read the same bytes, so they come to the same error.
Status resume_run(const Job& job, const nlohmann::json& settings, EpochPlan& course, const std::vector<Entry>& entries,
                  const std::string& path);

}  // namespace shoal::train
