// Selector: which algorithm a call runs, and why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/algorithms/algorithm.h"
#include "src/selector/tuning.h"

namespace shoal {

/// What a choice rests on.
enum class ChoiceBasis : std::uint8_t { model, table, forced };
/// "model", "table", "forced".
std::string_view to_string(ChoiceBasis basis) noexcept;

/// The algorithm for a call. `algorithm` points into algorithms() and lives for ever.
struct Choice {
  const Algorithm* algorithm = nullptr;
  double predicted_us = 0;  ///< by the table where it knows this call, else by the model
  ChoiceBasis basis = ChoiceBasis::model;
};

/// What the model goes by.
enum class ChoiceCosts : std::uint8_t {
  classes,  ///< of a floating-point reduction, whose bits depend on the algorithm: by_class(); of all else as `exact`
  exact,    ///< the costs of the topology, to the last digit
};

/// `topology` with the costs that all of its class are taken to have. The class is that of the network's bandwidth (up to 1.6
/// Gbit/s less headers, then as if a token bucket shaped it, up to 70, up to 700, above) and that of the bandwidth in a node
/// (up to 25 GB/s, above). The borders lie in gaps between what cards, memory and NVLink have, so what start-up measures hardly
/// ever falls into another class from one run to the next. Everything else is as Topology's defaults are.
Topology by_class(const Topology& topology);

/// Chooses the algorithm that `tuned` says is the fastest; where it is null or was not measured around this size, the one that
/// the cost model predicts to be. Of those within 2 % of the fastest, the first in algorithms(); what has a root between nodes
/// by three calls in a row; inside a node, without a table, direct up to 25 % behind, because it may fold in place, and
/// below 32 KiB one_shot up to 50 %. A non-empty `forced_algorithm` is taken whatever it costs. Precondition: `tuned`, where
/// there is one, matches `topology`.
///
/// Pure and deterministic: every rank decides by itself, and all decide the same when their Topologies, costs included, and
/// tables are equal bit for bit. With ChoiceCosts::classes a floating-point reduction gets the same algorithm, and its result
/// the same bits, on all machines of one class; that costs some 1 to 10 % of the time (SelectorByClass.CostsLittle). A few
/// milliseconds at most; meant to be asked once for each call signature. Errors: not_found for an unknown forced algorithm
/// (lists the known ones), unsupported where it does not serve the collective or nothing does, invalid_argument for a
/// collective that makes no sense.
Result<Choice> select(const Topology& topology, const Collective& collective, std::string_view forced_algorithm = {},
                      const TunedShape* tuned = nullptr, ChoiceCosts costs = ChoiceCosts::classes);

/// One algorithm's chances.
struct Candidate {
  const Algorithm* algorithm = nullptr;
  Status status;                      ///< ok, or why it cannot serve
  std::optional<double> measured_us;  ///< by the table, where it knows
  double predicted_us = 0;            ///< by the model, where it can serve

  /// What counts.
  [[nodiscard]] double time_us() const noexcept { return measured_us.value_or(predicted_us); }
};

/// The choice with everything that it rests on.
struct Explanation {
  /// Those that can serve, fastest first by the costs of the topology, measured ones before others; then those that cannot, in
  /// the order of algorithms().
  std::vector<Candidate> candidates;
  Choice choice;
  std::string reason;  ///< one sentence
};

/// As select(), with reasons.
Result<Explanation> explain(const Topology& topology, const Collective& collective, std::string_view forced_algorithm = {},
                            const TunedShape* tuned = nullptr, ChoiceCosts costs = ChoiceCosts::classes);

}  // namespace shoal
