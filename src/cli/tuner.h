// Tuner: measures every sensible algorithm between the ranks of a job.
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

/// One collective of one size, about to be measured or done.
struct TuneStep {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t bytes = 0;
  std::size_t number = 0;  ///< from 1
  std::size_t total = 0;
  double elapsed_s = 0;              ///< since the start of it all
  bool skipped = false;              ///< for lack of time
  std::vector<Measurement> results;  ///< fastest first; empty before it is done
};

/// Measures float32 sums in place (all_to_all: not), in buffers of ordinary memory; what has a root with rank 0. Algorithms
/// take turns round by round, so that a disturbance hits all of them; a time is the slowest rank's; the result is the median
/// with the 10th and 90th percentiles. An algorithm that the model puts far behind the best is left out, one that a first look
/// finds far behind is measured a few times only. Small calls are timed in batches, except for those with a root, who would run
/// ahead or behind.
///
/// Collective over the ranks of `communicator`; options must be equal on all, rank 0 decides the rest. `progress` is called on
/// rank 0, before and after each step. Every rank gets the same measurements.
/// Errors: invalid_argument for one rank, or for more sizes than plans can be kept; else what the calls return.
Result<TunedShape> tune(Communicator& communicator, const TuneOptions& options,
                        const std::function<void(const TuneStep&)>& progress);

}  // namespace shoal
