#include "src/selector/selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "src/selector/predict.h"

namespace shoal {
namespace {

// Neither the model nor a measurement is more precise than this. Within it, the algorithm that comes first in algorithms()
// wins.
constexpr double kAboutEqual = 1.02;
// Between nodes, up to this size: the cost of a message for the cores varies more than the model predicts. Among the
// algorithms within this factor, the one whose busiest rank is busy for the least time wins.
constexpr std::size_t kSendsCountBytes = 1 << 20;
constexpr double kLessBusy = 1.05;
// What the model does not cover in an all_reduce inside a node. From this size up: only direct folds buffers that all lie in
// shared memory in place, without a copy in or out. Whether they do is known only when the ranks start the call, after the
// choice. So direct must be chosen while it is about as fast as the other algorithms are with copies; without copies it takes
// a half to a fifth. Below this size: one_shot uses peer memory that every rank writes and reads once, without the steps,
// tiles and links that the model counts.
constexpr std::size_t kFoldsPayBytes = 32 << 10;
constexpr double kMayFoldInPlace = 1.25;
constexpr double kGoesThroughWindows = 1.5;
// Nor does it cover what a wait costs where ranks share cores (2 cores, 3 to 256 ranks, 8 bytes to 16 KiB: other algorithms
// took 1.2 to 8 times as long as one_shot). Beyond this many bytes of all ranks, reading them takes longer than a few steps.
constexpr std::size_t kReadsCountBytes = 2 << 20;
// Neither does the model cover this effect on the wire, from kSendsCountBytes up: in recursive_halving a rank waits for
// another partner at each step. It took 12 % longer than a ring, whose neighbours stay and are a tile ahead or behind (4
// nodes, 8 MiB, 200 Mbit/s, predicted equal).
constexpr std::string_view kPartnerSwitchPenalty = "recursive_halving";
constexpr double kKeepsItsNeighbours = 1.1;

// For so few ranks a prediction costs hardly more than its lower bound.
constexpr int kFewRanks = 16;

bool sends_count(const Topology& topology, const Collective& collective) {
  const bool from_each_to_all = !has_root(collective.kind) && collective.kind != CollectiveKind::barrier;
  return from_each_to_all && topology.nodes() > 1 && collective.input_bytes() < kSendsCountBytes;
}

/// An algorithm that is faster than the model predicts, by which factor, and why.
struct ModelCorrection {
  std::string_view algorithm;
  double factor = 1;
  std::string_view why;
};

/// `chosen`: the choice without correction.
ModelCorrection favourite(const Topology& topology, const Collective& collective, std::string_view chosen) {
  if (collective.kind != CollectiveKind::all_reduce) return {};
  if (topology.nodes() > 1) {
    if (collective.input_bytes() < kSendsCountBytes || chosen.find(kPartnerSwitchPenalty) == chosen.npos) return {};
    return {topology.ranks() == topology.nodes() ? "ring" : "hierarchical(ring)", kKeepsItsNeighbours,
            "close in the model; preferred because each rank keeps the same neighbours on the wire"};
  }
  if (waits_decide(topology, collective))
    return {"one_shot", std::numeric_limits<double>::infinity(), "preferred because ranks share cores, and each waits once"};
  if (collective.input_bytes() >= kFoldsPayBytes)
    return {kFoldsInPlace, kMayFoldInPlace, "close in the model; preferred because it folds buffers from mem_alloc in place"};
  return {"one_shot", kGoesThroughWindows, "close in the model; preferred because it uses the shared-memory fast path"};
}

/// The predictions of all algorithms for one call. The Programs of an algorithm are built once for all of them.
class Predictions {
 public:
  Predictions(const Topology& topology, const Collective& collective)
      : collective_(collective), nodes_(topology), costs_(topology) {}

  [[nodiscard]] const CallCosts& costs() const noexcept { return costs_; }
  [[nodiscard]] Prediction& of(const Algorithm& algorithm) { return of(algorithm, true); }
  /// The busy time of a rank depends on how shares differ.
  [[nodiscard]] double busy_us(const Algorithm& algorithm) {
    return of(algorithm, collective_.counts.empty()).busy_us(costs_.steady());
  }
  [[nodiscard]] double work_us(const Algorithm& algorithm) {
    const auto known = work_us_.find(&algorithm);
    if (known != work_us_.end()) return known->second;
    return work_us_[&algorithm] = of(algorithm, collective_.counts.empty()).work_us(costs_);
  }

 private:
  [[nodiscard]] Prediction& of(const Algorithm& algorithm, bool equal_shares) {
    return predictions_.try_emplace({&algorithm, equal_shares}, algorithm, nodes_, collective_, equal_shares).first->second;
  }

  const Collective& collective_;
  RanksByNode nodes_;
  CallCosts costs_;
  std::map<std::pair<const Algorithm*, bool>, Prediction> predictions_;
  std::map<const Algorithm*, double> work_us_;
};

// If data flows one way, from a root or to one, ranks run ahead, and consecutive calls follow each other at the rate of the
// busiest rank. Between nodes this many calls are rated together, because gradients come in buckets.
constexpr int kCallsInARow = 3;

/// The deciding time: that of one call or, if consecutive calls overlap, that of several.
double rated_us(const Candidate& candidate, Predictions& predictions, const Topology& topology, const Collective& collective) {
  if (!has_root(collective.kind) || topology.nodes() == 1 || candidate.measured_us) return candidate.time_us();
  return candidate.time_us() + (kCallsInARow - 1) * predictions.busy_us(*candidate.algorithm);
}

/// How far behind the fastest an algorithm can be and still be chosen.
double most_behind(const Topology& topology, const Collective& collective) {
  if (topology.nodes() == 1) return kGoesThroughWindows;
  return has_root(collective.kind) ? kGoesThroughWindows * kCallsInARow : kKeepsItsNeighbours;
}

/// Predicts the candidates that can be chosen. Removes the others: a part of their time alone is further behind the fastest
/// than any correction makes up for. Those with the lowest bound come first, because the fastest is probably among them.
void predict_promising(std::vector<Candidate>& candidates, Predictions& predictions, const Topology& topology,
                       const Collective& collective) {
  if (waits_decide(topology, collective))
    std::erase_if(candidates, [](const Candidate& c) { return c.algorithm->name != "one_shot"; });
  const bool bounds_pay = topology.ranks() > kFewRanks;
  std::vector<std::pair<double, Candidate*>> bounds;
  for (Candidate& candidate : candidates) {
    if (!candidate.status.ok()) continue;
    bounds.emplace_back(bounds_pay ? predictions.of(*candidate.algorithm).least_us(predictions.costs()) : 0, &candidate);
  }
  std::ranges::stable_sort(bounds, {}, [](const auto& bound) { return bound.first; });
  const double factor = most_behind(topology, collective);
  double fastest_us = std::numeric_limits<double>::infinity();
  std::set<const Algorithm*> hopeless;
  for (const auto& [least, candidate] : bounds) {
    const double limit_us = factor * fastest_us;
    Prediction& prediction = predictions.of(*candidate->algorithm);
    const auto us = least > limit_us ? std::nullopt : prediction.us_up_to(limit_us, predictions.costs());
    if (us) {
      candidate->predicted_us = *us;
      fastest_us = std::min(fastest_us, *us);
    } else {
      hopeless.insert(candidate->algorithm);
      prediction.forget_programs();
    }
  }
  std::erase_if(candidates, [&](const Candidate& candidate) { return hopeless.contains(candidate.algorithm); });
}

/// With how many ranks of other nodes a rank exchanges data. Of equal nodes the first rank and the last one have the most.
int links_needed(const Algorithm& algorithm, const RanksByNode& nodes, const Topology& topology, Collective collective) {
  collective.counts = {};  // which peers have a share may differ between ranks, the choice must not
  std::size_t most = 0;
  for (const int rank : {0, topology.ranks() - 1}) {
    std::set<int> peers;
    for (const Step& step : algorithm.build(nodes, collective, rank).steps) {
      if (step.peer >= 0 && topology.link_class(rank, step.peer) == LinkClass::network) peers.insert(step.peer);
    }
    most = std::max(most, peers.size());
  }
  return static_cast<int>(most);
}

/// The error of an algorithm that needs more connections than a process has descriptors for. 0 `most_links`: no limit.
Status check_links(const Algorithm& algorithm, const Topology& topology, const Collective& collective, int most_links) {
  if (most_links == 0) return {};
  const int needed = links_needed(algorithm, RanksByNode(topology), topology, collective);
  if (needed <= most_links) return {};
  return {StatusCode::system_error,
          fmt::format("{} by algorithm {} needs connections with {} ranks of other hosts, but a rank has descriptors for {}; "
                      "raise the limit of open files (ulimit -n) on all hosts",
                      to_string(collective.kind), algorithm.name, needed, most_links)};
}

/// Algorithms that were chosen and cannot serve the call for want of descriptors, and why.
using LackLinks = std::map<const Algorithm*, Status>;

/// Every algorithm with its time in the table and in the model if `model_always`. Otherwise the algorithms that can be chosen:
/// with their times in the table or, if it has none, in the model.
std::vector<Candidate> rate_all(const Topology& topology, const Collective& collective, const TunedShape* tuned,
                                Predictions& predictions, bool model_always, const LackLinks& lack_links = {}) {
  std::vector<Candidate> candidates;
  for (const Algorithm& algorithm : algorithms()) {
    if (repeats_another(algorithm, topology)) continue;
    const auto lacks = lack_links.find(&algorithm);
    const Status status = lacks == lack_links.end() ? check_support(algorithm, topology, collective) : lacks->second;
    candidates.push_back({&algorithm, status, {}, 0});
  }
  bool measured = false;
  for (Candidate& candidate : candidates) {
    if (candidate.status.ok() && tuned != nullptr)
      candidate.measured_us = measured_us(*tuned, *candidate.algorithm, collective);
    measured |= candidate.measured_us.has_value();
  }
  if (!model_always && !measured) predict_promising(candidates, predictions, topology, collective);
  for (Candidate& candidate : candidates) {
    if (!candidate.status.ok() || !model_always) continue;
    Prediction& prediction = predictions.of(*candidate.algorithm);
    candidate.predicted_us = prediction.us(predictions.costs());
    prediction.forget_programs();  // those of all algorithms would fill memory
  }
  // Stable: among equals the first in algorithms() stays first.
  std::ranges::stable_sort(candidates, [](const Candidate& a, const Candidate& b) {
    if (a.status.ok() != b.status.ok()) return a.status.ok();
    if (a.measured_us.has_value() != b.measured_us.has_value()) return a.measured_us.has_value();
    return a.status.ok() && a.time_us() < b.time_us();
  });
  return candidates;
}

Result<Choice> force(const Topology& topology, const Collective& collective, std::string_view name, const TunedShape* tuned) {
  const auto algorithm = find_algorithm(name);
  if (!algorithm.ok()) return algorithm.status();
  if (Status status = check_call(topology, collective); !status.ok()) return status;
  if (Status status = check_support(**algorithm, topology, collective); !status.ok()) return status;
  const auto measured = tuned == nullptr ? std::nullopt : measured_us(*tuned, **algorithm, collective);
  return Choice{*algorithm, measured ? *measured : predict_us(**algorithm, topology, collective), ChoiceBasis::forced};
}

/// Compares candidates that are about equal. Back-to-back calls, and ranks that share cores, wait for the busiest rank, which
/// hardly affects a single call. Otherwise the simpler algorithm is better.
bool is_better(const Candidate& a, const Candidate& b, Predictions& predictions, const Topology& topology,
               const Collective& collective) {
  if (has_root(collective.kind) || sends_count(topology, collective)) {
    const double of_a = predictions.work_us(*a.algorithm);
    const double of_b = predictions.work_us(*b.algorithm);
    if (of_a != of_b) return of_a < of_b;
  }
  return a.algorithm < b.algorithm;
}

struct Ranking {
  Choice choice;
  std::string_view why;  ///< reason, if it is not the fastest
};

/// The best of the candidates that are about as fast as the fastest; or the error of the first if none can serve. If some
/// were measured, only those are compared: a prediction does not compete with a measurement.
Result<Ranking> best(const std::vector<Candidate>& candidates, Predictions& predictions, const Topology& topology,
                     const Collective& collective) {
  const Candidate& first = candidates.front();
  if (!first.status.ok()) {
    // Rather what the user can change than what the algorithms cannot do.
    const auto lacks =
        std::ranges::find(candidates, StatusCode::system_error, [](const Candidate& c) { return c.status.code(); });
    return lacks == candidates.end() ? first.status : lacks->status;
  }
  const bool measured = first.measured_us.has_value();
  std::vector<std::pair<double, const Candidate*>> rated;
  for (const Candidate& candidate : candidates) {
    if (candidate.status.ok() && candidate.measured_us.has_value() == measured)
      rated.emplace_back(rated_us(candidate, predictions, topology, collective), &candidate);
  }
  const auto [least_us, least] = std::ranges::min(rated, {}, [](const auto& r) { return r.first; });
  const Candidate* best = least;
  const double limit_us = least_us * (!measured && sends_count(topology, collective) ? kLessBusy : kAboutEqual);
  for (const auto& [us, candidate] : rated) {
    if (us <= limit_us && is_better(*candidate, *best, predictions, topology, collective)) best = candidate;
  }
  std::string_view why = best->time_us() > first.time_us() * kLessBusy ? "consecutive calls take less time"
                                                                       : "about as fast, but less busy or simpler";
  const ModelCorrection liked = measured ? ModelCorrection{} : favourite(topology, collective, best->algorithm->name);
  for (const auto& [us, candidate] : rated) {
    if (candidate->algorithm->name != liked.algorithm || candidate == best || us > least_us * liked.factor) continue;
    best = candidate;
    why = liked.why;
    break;
  }
  return Ranking{{best->algorithm, best->time_us(), measured ? ChoiceBasis::table : ChoiceBasis::model}, why};
}

std::string reason_for(const std::vector<Candidate>& candidates, const Choice& choice, std::string_view why) {
  const std::string_view name = choice.algorithm->name;
  const Candidate& fastest = candidates.front();
  const std::string_view verb = fastest.measured_us ? "was measured" : "is predicted";
  if (choice.basis == ChoiceBasis::forced && fastest.algorithm != choice.algorithm) {
    return fmt::format("{} was requested; {} {} to take {:.1f} us instead of {:.1f} us", name, fastest.algorithm->name, verb,
                       fastest.time_us(), choice.predicted_us);
  }
  if (choice.basis == ChoiceBasis::forced) return fmt::format("{} was requested, and {} to be the fastest", name, verb);
  if (candidates.size() < 2 || !candidates[1].status.ok())
    return fmt::format("{} is the only algorithm that serves this call", name);
  if (fastest.algorithm != choice.algorithm) {
    return fmt::format("{} {} to take {:.1f} us, {} {:.1f} us: {}", name, verb, choice.predicted_us, fastest.algorithm->name,
                       fastest.time_us(), why);
  }
  const Candidate& second = candidates[1];
  if (fastest.measured_us && !second.measured_us)
    return fmt::format("{} is the only algorithm that was measured at this size", name);
  return fmt::format("{} {} to take {:.1f} us, the next best, {}, {:.1f} us", name, verb, choice.predicted_us,
                     second.algorithm->name, second.time_us());
}

/// Whether the bits of the result depend on the order of additions, and so on the algorithm.
bool order_shows(const Collective& collective) {
  const bool folds = collective.op == ReduceOp::sum || collective.op == ReduceOp::prod || collective.op == ReduceOp::avg;
  return folds && reduces(collective.kind) && is_floating(collective.type);
}

// Bandwidth classes: the upper border of each and the value used for it. Network cards have 1, 2.5, 5, 10, 25, 40, 50, 100,
// 200 or 400 Gbit/s, EC2 instances of many cards 400 to 3200, a virtual network of one machine 10 to 40; two ranks of a node
// move 2 to 15 GB/s through memory, GPUs 50 to 900 over NVLink. The borders lie in gaps.
struct BandwidthClass {
  double up_to;
  double taken_for;
};
constexpr double kAnyMore = std::numeric_limits<double>::infinity();
constexpr std::array kNetworkGbit{BandwidthClass{1.6, 1}, BandwidthClass{70, 8}, BandwidthClass{700, 200},
                                  BandwidthClass{kAnyMore, 1600}};
constexpr std::array kNodeGbyte{BandwidthClass{25, 5}, BandwidthClass{kAnyMore, 200}};
constexpr double kBytesPerUsOfAGigabit = 118;  // less headers, as in Topology's default
constexpr double kBytesPerUsOfAGigabyte = 1000;
constexpr double kBusyPart = 0.4;  // of a network's latency: the part of a send through the kernel
// The slowest networks are assumed to be shaped by a token bucket, as in clouds, which passes messages after a pause this
// much faster; other networks are not. Whether a bucket is detected depends on what else the machine does at start-up.
constexpr double kBurstsFaster = 10;

/// `usual` with the bandwidth of the class of `cost`.
LinkCost of_class(std::span<const BandwidthClass> classes, double unit, const LinkCost& cost, LinkCost usual) {
  const double bandwidth = 1 / cost.us_per_byte / unit;
  const auto found = std::ranges::find_if(classes, [&](const BandwidthClass& c) { return bandwidth <= c.up_to; });
  usual.us_per_byte = 1 / (unit * (found == classes.end() ? classes.front() : *found).taken_for);
  return usual;
}

}  // namespace

bool waits_decide(const Topology& topology, const Collective& collective) {
  const std::size_t bytes = collective.input_bytes();
  return collective.kind == CollectiveKind::all_reduce && topology.nodes() == 1 && topology.cores_per_node > 0 &&
         topology.ranks() > topology.cores_per_node && bytes < kFoldsPayBytes &&
         static_cast<std::size_t>(topology.ranks()) * bytes <= kReadsCountBytes;
}

Topology by_class(const Topology& topology) {
  constexpr auto kNetwork = static_cast<std::size_t>(LinkClass::network);
  constexpr auto kNode = static_cast<std::size_t>(LinkClass::shared_memory);
  const Topology usual;
  Topology same = topology;
  same.cost[kNode] = of_class(kNodeGbyte, kBytesPerUsOfAGigabyte, topology.cost[kNode], usual.cost[kNode]);
  LinkCost& network = same.cost[kNetwork];
  network = of_class(kNetworkGbit, kBytesPerUsOfAGigabit, topology.cost[kNetwork], usual.cost[kNetwork]);
  network.overhead_us = kBusyPart * network.latency_us;
  const bool slow = topology.cost[kNetwork].us_per_byte >= 1 / (kBytesPerUsOfAGigabit * kNetworkGbit.front().up_to);
  if (slow) network.burst_us_per_byte = network.us_per_byte / kBurstsFaster;
  same.reduce_us_per_byte = usual.reduce_us_per_byte;
  return same;
}

std::string_view to_string(ChoiceBasis basis) noexcept {
  switch (basis) {
    case ChoiceBasis::model:
      return "model";
    case ChoiceBasis::table:
      return "table";
    case ChoiceBasis::forced:
      return "forced";
  }
  return "?";
}

Result<Choice> select(const Topology& topology, const Collective& collective, std::string_view forced_algorithm,
                      const TunedShape* tuned, ChoiceCosts costs, int most_links) {
  if (!forced_algorithm.empty()) return force(topology, collective, forced_algorithm, tuned);
  if (Status status = check_call(topology, collective); !status.ok()) return status;
  const bool by_classes = costs == ChoiceCosts::classes && order_shows(collective);
  const Topology rated = by_classes ? by_class(topology) : topology;
  Predictions predictions(rated, collective);
  // Only of an algorithm that would be chosen: to find the links of all takes as long as to rate them.
  for (LackLinks lack_links;;) {
    const auto ranking =
        best(rate_all(rated, collective, tuned, predictions, false, lack_links), predictions, rated, collective);
    if (!ranking.ok()) return ranking.status();
    Choice choice = ranking->choice;
    if (Status status = check_links(*choice.algorithm, topology, collective, most_links); !status.ok()) {
      lack_links.emplace(choice.algorithm, std::move(status));
      continue;
    }
    if (by_classes && choice.basis == ChoiceBasis::model)
      choice.predicted_us = predictions.of(*choice.algorithm).us(CallCosts(topology));
    return choice;
  }
}

Result<Explanation> explain(const Topology& topology, const Collective& collective, std::string_view forced_algorithm,
                            const TunedShape* tuned, ChoiceCosts costs) {
  if (Status status = check_call(topology, collective); !status.ok()) return status;
  Predictions predictions(topology, collective);
  Explanation explanation{rate_all(topology, collective, tuned, predictions, true), {}, {}};
  std::string_view why;
  if (!forced_algorithm.empty()) {
    const auto choice = force(topology, collective, forced_algorithm, tuned);
    if (!choice.ok()) return choice.status();
    explanation.choice = *choice;
  } else {
    const auto ranking = best(explanation.candidates, predictions, topology, collective);
    if (!ranking.ok()) return ranking.status();
    const bool by_classes = costs == ChoiceCosts::classes && order_shows(collective);
    const auto choice = by_classes ? select(topology, collective, {}, tuned, costs) : Result<Choice>(ranking->choice);
    if (!choice.ok()) return choice.status();
    explanation.choice = *choice;
    why = choice->algorithm == ranking->choice.algorithm
              ? ranking->why
              : "chosen for all machines of this class, so that the result has the same bits in every run";
  }
  explanation.reason = reason_for(explanation.candidates, explanation.choice, why);
  return explanation;
}

}  // namespace shoal
