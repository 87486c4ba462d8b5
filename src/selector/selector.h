// Selector: which algorithm a call runs, and why.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/algorithms/algorithm.h"

namespace shoal {

/// The algorithm for a call. `algorithm` points into algorithms() and lives for ever.
struct Choice {
  const Algorithm* algorithm = nullptr;
  double predicted_us = 0;
};

/// Chooses the algorithm that the cost model predicts to be the fastest; of those within 2 % of it, the first in algorithms().
/// A non-empty `forced_algorithm` is taken whatever it costs.
///
/// Pure and deterministic: every rank decides by itself, and all decide the same when their Topologies, costs included, are
/// equal bit for bit. A few milliseconds at most; meant to be asked once for each call signature.
/// Errors: not_found for an unknown forced algorithm (lists the known ones), unsupported where it does not serve the collective
/// or nothing does, invalid_argument for a collective that makes no sense.
Result<Choice> select(const Topology& topology, const Collective& collective, std::string_view forced_algorithm = {});

/// One algorithm's chances.
struct Candidate {
  const Algorithm* algorithm = nullptr;
  Status status;            ///< ok, or why it cannot serve
  double predicted_us = 0;  ///< where it can
};

/// The choice with everything that it rests on.
struct Explanation {
  std::vector<Candidate>
      candidates;  ///< those that can serve, fastest first; then those that cannot, in the order of algorithms()
  Choice choice;
  std::string reason;  ///< one sentence
};

/// As select(), with reasons.
Result<Explanation> explain(const Topology& topology, const Collective& collective, std::string_view forced_algorithm = {});

}  // namespace shoal
