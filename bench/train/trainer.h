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

/// The outcome of a run.
struct TrainOutcome {
  std::vector<EpochResult> results;                ///< the available results, also if the run ended early
  nlohmann::json turns = nlohmann::json::array();  ///< an object for each turn, as in the log
  std::vector<Loss> losses;                        ///< ranks that were lost while the survivors continued
  std::vector<std::uint64_t> fingerprints;         ///< of the ranks' parameters at the end, if options.survives()
  std::string gpu_why_not;                         ///< why GPU use is not measured; empty if it is
  bool interrupted = false;
  bool misses_files = false;  ///< the log or the trace could not be written, which has been reported; training continued
  Status status;
};

/// Trains one replica of the model for each backend of `options`, in turns of options.block steps, all from the same start on
/// the same images in the same order. The first two steps of each backend are not measured: they open connections and sort
/// gradients into buckets. Between turns the ranks wait for each other, so that no backend is charged for another's delay.
/// Collective. Ends early, with the results so far, when `stop` becomes true.
///
/// If options.survives() and ranks are lost after the first turn has begun, the survivors shrink `job` and continue from the
/// last step that all of them have completed; measurements since the start of their last turn are discarded.
TrainOutcome train(Job& job, const models::ModelInfo& model, const data::Located& images, const TrainOptions& options,
                   const std::atomic<bool>& stop);

}  // namespace shoal::train
