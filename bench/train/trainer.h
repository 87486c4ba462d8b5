// The training run.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "bench/train/data/locate.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/options.h"
#include "bench/train/report.h"
#include "bench/train/survival.h"

namespace shoal::train {

/// How a run ended.
struct TrainOutcome {
  std::vector<EpochResult> results;                ///< what is known, also where the run ended early
  nlohmann::json turns = nlohmann::json::array();  ///< an object for each turn, as in the log
  std::vector<Loss> losses;                        ///< ranks that were lost while the others went on
  std::vector<std::uint64_t> fingerprints;         ///< of the ranks' parameters at the end, where options.survives()
  std::string gpu_why_not;                         ///< why the use of GPUs is not measured; empty where it is
  bool interrupted = false;
  bool misses_files = false;  ///< the log or the trace could not be written, as has been said; training went on
  Status status;
};

/// Trains one replica of the model for each backend of `options`, in turns of options.block steps, all from the same start on
/// the same images in the same order. The first two steps of each backend are not measured: they make connections and sort
/// gradients into buckets. Between turns the ranks wait for each other, so that no backend pays for another's delay.
/// Collective. Ends early, with what there is, when `stop` becomes true.
///
/// Where options.survives() and ranks are lost after the first turn has begun, the others shrink `job` and go on from the last
/// step that all of them have complete; what was measured since their last turn began is forgotten.
TrainOutcome train(Job& job, const models::ModelInfo& model, const data::Located& images, const TrainOptions& options,
                   const std::atomic<bool>& stop);

}  // namespace shoal::train
