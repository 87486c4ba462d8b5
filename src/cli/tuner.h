// Tuner: measures all promising algorithms between the ranks of a job.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/status.h>

#include "src/selector/tuning.h"

namespace shoal {

/// What to measure.
struct TuneOptions {
  std::vector<CollectiveKind> collectives{CollectiveKind::all_reduce, CollectiveKind::broadcast, CollectiveKind::all_gather};
  std::size_t min_bytes = 4;  ///< of the message, or of each rank's share; a multiple of 4
  /// The largest buffer, all shares together where there are shares. At least min_bytes.
  std::size_t max_bytes = std::size_t{64} << 20;
  int factor = 4;         ///< from one size to the next: 2 or 4
  double budget_s = 120;  ///< after which no further size is begun
};

/// One collective of one size, before or after its measurement.
struct TuneStep {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t bytes = 0;
  std::size_t number = 0;  ///< from 1
  std::size_t total = 0;
  double elapsed_s = 0;              ///< since the start of tune()
  bool skipped = false;              ///< for lack of time
  std::vector<Measurement> results;  ///< fastest first; empty before the measurement
};

/// Measures float32 sums in place (except all_to_all), in buffers of ordinary memory; calls with a root use rank 0.
/// Algorithms take turns round by round, so that a disturbance affects all of them. A time is that of the slowest rank; the
/// result is the median with the 10th and 90th percentiles. An algorithm that the model predicts to be far behind the best is
/// left out; one that is far behind in a first measurement is measured a few times only. Small calls are timed in batches,
/// except calls with a root, in which some ranks would run ahead of the others.
///
/// Collective over the ranks of `communicator`. Options must be equal on all ranks; rank 0 decides the rest. `progress` is
/// called on rank 0, before and after each step. Every rank gets the same measurements. Errors: invalid_argument for one
/// rank, or for more sizes than plans can be kept; else what the calls return.
Result<TunedShape> tune(Communicator& communicator, const TuneOptions& options,
                        const std::function<void(const TuneStep&)>& progress);

}  // namespace shoal
