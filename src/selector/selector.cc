#include "src/selector/selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
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
  if (collective.input_bytes() >= kFoldsPayBytes)
    return {kFoldsInPlace, kMayFoldInPlace, "close in the model; preferred because it folds buffers from mem_alloc in place"};
  return {"one_shot", kGoesThroughWindows, "close in the model; preferred because it uses the shared-memory fast path"};
}

/// ok, or why `algorithm` cannot serve. Building one Program checks the arguments as well as supports().
Status can_serve(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  return build_program(algorithm, topology, collective, 0).status();
}

// If data flows one way, from a root or to one, ranks run ahead, and consecutive calls follow each other at the rate of the
// busiest rank. Between nodes this many calls are rated together, because gradients come in buckets.
constexpr int kCallsInARow = 3;

/// The deciding time: that of one call or, if consecutive calls overlap, that of several.
double rated_us(const Candidate& candidate, const Topology& topology, const Collective& collective) {
  if (!has_root(collective.kind) || topology.nodes() == 1 || candidate.measured_us) return candidate.time_us();
  return candidate.time_us() + (kCallsInARow - 1) * busy_us(*candidate.algorithm, topology, collective);
}

/// Predicts the candidates that can be chosen. Removes the others: their lower bound alone is further behind the fastest than
/// any correction makes up for.
void predict_promising(std::vector<Candidate>& candidates, const Topology& topology, const Collective& collective) {
  const bool bounds_pay = topology.ranks() > kFewRanks;
  std::vector<std::pair<double, Candidate*>> bounds;
  for (Candidate& candidate : candidates) {
    if (!candidate.status.ok()) continue;
    bounds.emplace_back(bounds_pay ? least_us(*candidate.algorithm, topology, collective) : 0, &candidate);
  }
  std::ranges::sort(bounds, {}, [](const auto& bound) { return bound.first; });
  const bool calls_overlap = has_root(collective.kind) && topology.nodes() > 1;
  const double factor = kGoesThroughWindows * (calls_overlap ? kCallsInARow : 1);
  double fastest_us = std::numeric_limits<double>::infinity();
  std::set<const Algorithm*> hopeless;
  for (const auto& [least, candidate] : bounds) {
    if (least > factor * fastest_us) {
      hopeless.insert(candidate->algorithm);
      continue;
    }
    candidate->predicted_us = predict_us(*candidate->algorithm, topology, collective);
    fastest_us = std::min(fastest_us, candidate->predicted_us);
  }
  std::erase_if(candidates, [&](const Candidate& candidate) { return hopeless.contains(candidate.algorithm); });
}

/// Every algorithm with its time in the table and in the model if `model_always`. Otherwise the algorithms that can be chosen:
/// with their times in the table or, if it has none, in the model.
std::vector<Candidate> rate_all(const Topology& topology, const Collective& collective, const TunedShape* tuned,
                                bool model_always) {
  std::vector<Candidate> candidates;
  bool measured = false;
  for (const Algorithm& algorithm : algorithms()) {
    if (repeats_another(algorithm, topology)) continue;
    Candidate candidate{&algorithm, can_serve(algorithm, topology, collective), {}, 0};
    if (candidate.status.ok() && tuned != nullptr) candidate.measured_us = measured_us(*tuned, algorithm, collective);
    measured |= candidate.measured_us.has_value();
    candidates.push_back(std::move(candidate));
  }
  if (!model_always && !measured) predict_promising(candidates, topology, collective);
  for (Candidate& candidate : candidates) {
    if (candidate.status.ok() && model_always) candidate.predicted_us = predict_us(*candidate.algorithm, topology, collective);
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
  if (Status status = can_serve(**algorithm, topology, collective); !status.ok()) return status;
  const auto measured = tuned == nullptr ? std::nullopt : measured_us(*tuned, **algorithm, collective);
  return Choice{*algorithm, measured ? *measured : predict_us(**algorithm, topology, collective), ChoiceBasis::forced};
}

/// Compares candidates that are about equal. Back-to-back calls, and ranks that share cores, wait for the busiest rank, which
/// hardly affects a single call. Otherwise the simpler algorithm is better.
bool is_better(const Candidate& a, const Candidate& b, const Topology& topology, const Collective& collective) {
  if (has_root(collective.kind) || sends_count(topology, collective)) {
    const double of_a = work_us(*a.algorithm, topology, collective);
    const double of_b = work_us(*b.algorithm, topology, collective);
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
Result<Ranking> best(const std::vector<Candidate>& candidates, const Topology& topology, const Collective& collective) {
  const Candidate& first = candidates.front();
  if (!first.status.ok()) return first.status;
  const bool measured = first.measured_us.has_value();
  std::vector<std::pair<double, const Candidate*>> rated;
  for (const Candidate& candidate : candidates) {
    if (candidate.status.ok() && candidate.measured_us.has_value() == measured)
      rated.emplace_back(rated_us(candidate, topology, collective), &candidate);
  }
  const auto [least_us, least] = std::ranges::min(rated, {}, [](const auto& r) { return r.first; });
  const Candidate* best = least;
  const double limit_us = least_us * (!measured && sends_count(topology, collective) ? kLessBusy : kAboutEqual);
  for (const auto& [us, candidate] : rated) {
    if (us <= limit_us && is_better(*candidate, *best, topology, collective)) best = candidate;
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
                      const TunedShape* tuned, ChoiceCosts costs) {
  if (!forced_algorithm.empty()) return force(topology, collective, forced_algorithm, tuned);
  if (costs == ChoiceCosts::exact || !order_shows(collective)) {
    const auto election = best(rate_all(topology, collective, tuned, false), topology, collective);
    if (!election.ok()) return election.status();
    return election->choice;
  }
  auto choice = select(by_class(topology), collective, {}, tuned, ChoiceCosts::exact);
  if (choice.ok() && choice->basis == ChoiceBasis::model)
    choice->predicted_us = predict_us(*choice->algorithm, topology, collective);
  return choice;
}

Result<Explanation> explain(const Topology& topology, const Collective& collective, std::string_view forced_algorithm,
                            const TunedShape* tuned, ChoiceCosts costs) {
  Explanation explanation{rate_all(topology, collective, tuned, true), {}, {}};
  std::string_view why;
  if (!forced_algorithm.empty()) {
    const auto choice = force(topology, collective, forced_algorithm, tuned);
    if (!choice.ok()) return choice.status();
    explanation.choice = *choice;
  } else {
    const auto election = best(explanation.candidates, topology, collective);
    if (!election.ok()) return election.status();
    const bool by_classes = costs == ChoiceCosts::classes && order_shows(collective);
    const auto choice = by_classes ? select(topology, collective, {}, tuned, costs) : Result<Choice>(election->choice);
    if (!choice.ok()) return choice.status();
    explanation.choice = *choice;
    why = choice->algorithm == election->choice.algorithm
              ? election->why
              : "chosen for all machines of this class, so that the result has the same bits in every run";
  }
  explanation.reason = reason_for(explanation.candidates, explanation.choice, why);
  return explanation;
}

}  // namespace shoal
