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

/// The source of a choice.
enum class ChoiceBasis : std::uint8_t { model, table, forced };
/// "model", "table", "forced".
std::string_view to_string(ChoiceBasis basis) noexcept;

/// The algorithm for a call. `algorithm` points into algorithms() and lives until the process ends.
struct Choice {
  const Algorithm* algorithm = nullptr;
  double predicted_us = 0;  ///< from the table if it has this call, else from the model
  ChoiceBasis basis = ChoiceBasis::model;
};

/// The costs that the model uses.
enum class ChoiceCosts : std::uint8_t {
  classes,  ///< by_class() for a floating-point reduction, whose bits depend on the algorithm; `exact` for all other calls
  exact,    ///< the measured costs of the topology, unrounded
};

/// `topology` with the costs that all topologies of its class are assumed to have. The class is that of the network's
/// bandwidth (up to 1.6 Gbit/s less headers, then as if a token bucket shaped it, up to 70, up to 700, above) and that of the
/// bandwidth in a node (up to 25 GB/s, above). The borders lie in gaps between the rates of cards, memory and NVLink, so the
/// measurements at start-up hardly ever fall into another class from one run to the next. Everything else is as in Topology's
/// defaults.
Topology by_class(const Topology& topology);

/// Whether the ranks of one node outnumber its cores, and one_shot is the all_reduce for that: it goes through shared windows,
/// and a rank waits once. A wait costs a change of process, so algorithms of several steps take a multiple of the time. Where
/// there are no windows, one_shot sends its messages one by one and is slower; but then the bits would depend on the transport.
bool waits_decide(const Topology& topology, const Collective& collective);

/// Chooses the algorithm that is the fastest in `tuned`; if `tuned` is null or was not measured around this size, the fastest
/// in the cost model. Among those within 2 % of the fastest, the first in algorithms() wins. Rooted collectives between nodes
/// are compared by three consecutive calls. Inside a node, without a table, direct may be up to 25 % behind, because it may
/// fold in place, and below 32 KiB one_shot up to 50 %, or any more where waits_decide(). A non-empty `forced_algorithm` is
/// used regardless of its cost. Precondition: `tuned`, if not null, matches `topology`.
///
/// Pure and deterministic: every rank chooses by itself, and all choose the same if their Topologies, costs included, and
/// tables are bitwise equal. With ChoiceCosts::classes a floating-point reduction gets the same algorithm, and its result the
/// same bits, on all machines of one class; that costs some 1 to 10 % of the time (SelectorByClass.CostsLittle). Takes
/// milliseconds of a core for a hundred ranks and up to 20 ms for 4,096; meant to be called once for each call signature.
/// `most_links`: with how many ranks of other nodes a rank can have connections; 0: with all. Algorithms that need more are not
/// chosen, unless forced.
/// Errors: not_found for an unknown forced algorithm (lists the known ones), unsupported if it does not serve the collective or
/// no algorithm does, system_error if all that do need more links, invalid_argument for an invalid collective.
Result<Choice> select(const Topology& topology, const Collective& collective, std::string_view forced_algorithm = {},
                      const TunedShape* tuned = nullptr, ChoiceCosts costs = ChoiceCosts::classes, int most_links = 0);

/// One algorithm with its times.
struct Candidate {
  const Algorithm* algorithm = nullptr;
  Status status;                      ///< ok, or why it cannot serve
  std::optional<double> measured_us;  ///< from the table, if it has this call
  double predicted_us = 0;            ///< from the model, if the algorithm can serve

  /// The time that decides.
  [[nodiscard]] double time_us() const noexcept { return measured_us.value_or(predicted_us); }
};

/// The choice with everything that it is based on.
struct Explanation {
  /// First the algorithms that can serve, fastest first by the costs of the topology, measured ones before others; then those
  /// that cannot, in the order of algorithms().
  std::vector<Candidate> candidates;
  Choice choice;
  std::string reason;  ///< one sentence
};

/// As select(), with the reason.
Result<Explanation> explain(const Topology& topology, const Collective& collective, std::string_view forced_algorithm = {},
                            const TunedShape* tuned = nullptr, ChoiceCosts costs = ChoiceCosts::classes);

}  // namespace shoal
