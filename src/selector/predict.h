// Predicted time of an algorithm, cheap enough to compute for every algorithm before a call.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "src/algorithms/algorithm.h"
#include "src/selector/node_estimate.h"
#include "src/simulate/simulator.h"
#include "src/topology/ranks_by_node.h"

namespace shoal {

/// The costs of a topology as predictions use them: made once for all algorithms of a choice. Cannot move, because the models
/// refer to the topologies beside them.
class CallCosts {
 public:
  explicit CallCosts(const Topology& topology);
  CallCosts(const CallCosts&) = delete;
  CallCosts& operator=(const CallCosts&) = delete;

  /// If a token bucket shapes the links between nodes: messages after a pause pass sooner, and back-to-back calls wait for
  /// the tokens of all their bytes. 4 nodes of 1 Gbit/s, 16 KiB by recursive halving: 209 us, 24 KiB a node at the rate of
  /// the bucket; with a wire of that rate 310.
  struct Bursts {
    explicit Bursts(const Topology& topology);

    Topology short_messages;  ///< with the costs of short messages
    CostModel model;
    Topology free_messages;  ///< a message costs nothing but its bytes
    CostModel tokens;
    double most_us = 0;  ///< time for the tokens of the bytes that a bucket was observed to let pass at once
  };

  [[nodiscard]] const CostModel& steady() const noexcept { return steady_; }
  /// None if no bucket was observed.
  [[nodiscard]] const std::optional<Bursts>& bursts() const noexcept { return bursts_; }
  /// The lower costs of the two: for lower bounds.
  [[nodiscard]] const CostModel& least() const noexcept;

 private:
  Topology topology_;
  CostModel steady_;
  std::optional<Bursts> bursts_;
};

/// The predictions for one call by one algorithm. The Programs that represent all are built when a prediction first needs
/// them, and serve predictions with other costs too. Precondition: algorithm.supports() is ok.
class Prediction {
 public:
  /// `nodes` and what `collective` refers to must outlive the Prediction. Unequal shares are treated as equal if
  /// `equal_shares`.
  Prediction(const Algorithm& algorithm, const RanksByNode& nodes, const Collective& collective, bool equal_shares);

  /// See predict_us() below.
  [[nodiscard]] double us(const CallCosts& costs);
  /// us(), or nothing if it is more than `limit_us`: an estimate ends as soon as a part of the ranks shows that.
  [[nodiscard]] std::optional<double> us_up_to(double limit_us, const CallCosts& costs);
  /// See least_us(), estimate_us(), busy_us() and work_us() below.
  [[nodiscard]] double least_us(const CallCosts& costs);
  [[nodiscard]] double estimate_us(const CostModel& costs);
  [[nodiscard]] double busy_us(const CostModel& costs);
  [[nodiscard]] double work_us(const CallCosts& costs);
  /// Frees the Programs; later predictions build them again.
  void forget_programs() { programs_.clear(); }

 private:
  class Rating;

  [[nodiscard]] const SizedProgram& program(int rank);
  [[nodiscard]] std::vector<EqualRanks> roles_of(std::span<const int> node);
  [[nodiscard]] bool has_role_of(int rank, int other);
  [[nodiscard]] bool has_long_program(int rank);
  [[nodiscard]] bool repeats_earlier(std::size_t i);
  [[nodiscard]] bool is_symmetric() const noexcept;
  [[nodiscard]] bool may_burst(const CallCosts& costs) const noexcept;
  [[nodiscard]] bool is_simulated();
  [[nodiscard]] double added_us(const CostModel& costs);
  [[nodiscard]] double path_us(const CostModel& costs);
  [[nodiscard]] double simulated_us(const CostModel& costs);
  [[nodiscard]] std::optional<double> tokens_us(const CallCosts& costs);
  [[nodiscard]] std::optional<double> estimate_up_to(double limit_us, const CallCosts& costs);

  const Algorithm& algorithm_;
  const RanksByNode& nodes_;
  Collective collective_;
  std::vector<std::span<const int>> sample_;  // nodes whose ranks represent all; the smallest first
  std::map<int, SizedProgram> programs_;      // by rank
  std::optional<int> acknowledgements_;
};

/// Predicted microseconds of `collective` by `algorithm`. Small schedules are simulated (simulator.h); larger ones are
/// estimated from the Programs of a few ranks, in time proportional to the length of a Program. Unequal shares are treated as
/// equal. Pure: every rank gets the same number from the same arguments. Precondition: algorithm.supports() is ok.
double predict_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// A lower bound of predict_us() from the Program of one rank and, with a root, of those on the path to a distant rank: at
/// a small part of its cost. Precondition as there.
double least_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// Only the estimate: latency along the longest chain of hops plus the busy time of the busiest port or core. Assumes that a
/// peer sends when this rank does its corresponding send, which holds only for symmetric collectives; for other collectives it
/// is a lower bound.
double estimate_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// Busy time of the busiest rank or wire in one call. It is the additional time per call if calls follow each other and ranks
/// run ahead, as is possible when data flows one way, from a root or to one. Precondition as above.
double busy_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// busy_us() without the time in which a rank only waits for a token bucket, if one shapes the links.
double work_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// The parts of a prediction. They overlap in time, so they need not add up to the whole.
struct PredictedTerms {
  double latency_us = 0;     ///< remains if bytes and arithmetic cost nothing
  double bytes_us = 0;       ///< added by moving the bytes
  double arithmetic_us = 0;  ///< added by folding them
};

/// Splits predict_us() into its parts, for display; it calls predict_us() three times. Precondition as there.
PredictedTerms predict_terms(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

}  // namespace shoal
