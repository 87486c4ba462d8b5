#include "src/pipeline/partitioner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "src/pipeline/error.h"
#include "src/pipeline/manual_partition.h"
#include "src/pipeline/rank_search.h"

namespace shoal::pipeline {
namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kWholeWeight = 1'000'000'000;  // weights are counted in billionths

/// What two partitions are compared by.
enum class Measure : std::uint8_t { time, bytes, weighted };

/// The units of a stage, for messages: "'conv1' to 'conv3'".
std::string name_units(const Profile& profile, int first, int end) {
  const std::string& name = profile.units[static_cast<std::size_t>(first)].name;
  if (end - first == 1) return fmt::format("'{}'", name);
  return fmt::format("'{}' to '{}'", name, profile.units[static_cast<std::size_t>(end - 1)].name);
}

/// The dynamic programmes. Stages are forbidden by bounds, which each pass tightens.
class Search {
 public:
  Search(const StageCosts& costs, double memory_weight, std::optional<std::int64_t> limit)
      : costs_(costs), weight_(std::llround(memory_weight * kWholeWeight)), limit_(limit) {}

  /// The smallest possible largest `measure` of a stage; none if the bounds forbid all partitions.
  std::optional<Exact> smallest_largest(Measure measure) {
    const auto units = static_cast<std::size_t>(costs_.units());
    std::vector<std::optional<Exact>> before(units + 1);  // by end of the previous stage
    before[0] = Exact{};
    for (int stage = 0; stage < costs_.stages(); ++stage) {
      std::vector<std::optional<Exact>> through(units + 1);
      for_each_run(stage, [&](int first, int end) {
        const auto& largest = before[static_cast<std::size_t>(first)];
        if (!largest) return;
        const StageCost cost = evaluate(stage, first, end);
        if (!allowed(cost)) return;
        const Exact value = std::max(*largest, of(cost, measure));
        auto& best = through[static_cast<std::size_t>(end)];
        if (!best || value < *best) best = value;
      });
      before = std::move(through);
    }
    return before[units];
  }

  void bound(Measure measure, const Exact& most) { bounds_.emplace_back(measure, most); }

  /// Under the bounds, of the partitions with the fewest bytes over their cuts the smallest list of cuts.
  std::vector<int> cheapest_cuts() {
    const auto units = static_cast<std::size_t>(costs_.units());
    const auto stages = static_cast<std::size_t>(costs_.stages());
    // By stage and first unit: bytes over the cuts behind it.
    std::vector<std::vector<std::int64_t>> rest(stages + 1, std::vector<std::int64_t>(units + 1, kNone));
    std::vector<std::vector<int>> next(stages, std::vector<int>(units + 1));
    rest[stages][units] = 0;
    for (int stage = costs_.stages() - 1; stage >= 0; --stage) {
      const auto at = static_cast<std::size_t>(stage);
      for_each_run(stage, [&](int first, int end) {
        const std::int64_t behind = rest[at + 1][static_cast<std::size_t>(end)];
        if (behind == kNone || !allowed(evaluate(stage, first, end))) return;
        const std::int64_t bytes = behind + costs_.bytes_before(end);
        std::int64_t& best = rest[at][static_cast<std::size_t>(first)];
        if (bytes >= best) return;  // an equal one with a smaller end came earlier
        best = bytes;
        next[at][static_cast<std::size_t>(first)] = end;
      });
    }
    std::vector<int> cuts;
    int first = 0;
    for (std::size_t stage = 0; stage + 1 < stages; ++stage) {
      first = next[stage][static_cast<std::size_t>(first)];
      cuts.push_back(first);
    }
    return cuts;
  }

  [[nodiscard]] std::int64_t evaluations() const { return evaluations_; }

 private:
  /// Calls `use(first, end)` for each run of units that `stage` can have, with rising first and end.
  template <typename Use>
  void for_each_run(int stage, Use use) {
    const int behind = costs_.stages() - 1 - stage;  // each needs a unit
    for (int first = stage; first <= (stage == 0 ? 0 : costs_.units() - 1 - behind); ++first) {
      for (int end = behind == 0 ? costs_.units() : first + 1; end <= costs_.units() - behind; ++end) use(first, end);
    }
  }

  StageCost evaluate(int stage, int first, int end) {
    ++evaluations_;
    return costs_.cost(stage, first, end);
  }

  [[nodiscard]] bool allowed(const StageCost& cost) const {
    if (limit_ && cost.bytes > *limit_) return false;
    return std::ranges::all_of(bounds_, [&](const auto& bound) { return of(cost, bound.first) <= bound.second; });
  }

  /// `weighted`: multiplied by a billion and by bytes and compute of the whole model, which makes it a whole number.
  [[nodiscard]] Exact of(const StageCost& cost, Measure measure) const {
    if (measure == Measure::time) return {0, cost.time};
    const auto bytes = static_cast<Wide>(cost.bytes);
    if (measure == Measure::bytes) return {0, bytes};
    return sum(product(static_cast<Wide>(weight_) * bytes, costs_.whole().compute),
               product(static_cast<Wide>(kWholeWeight - weight_) * static_cast<Wide>(costs_.whole().bytes), cost.time));
  }

  const StageCosts& costs_;
  std::int64_t weight_;
  std::optional<std::int64_t> limit_;
  std::vector<std::pair<Measure, Exact>> bounds_;
  std::int64_t evaluations_ = 0;
};

Measure measure_of(Objective objective) {
  return objective == Objective::speed ? Measure::time : objective == Objective::memory ? Measure::bytes : Measure::weighted;
}

Status check_request(const PartitionRequest& request, const StageCosts& costs) {
  if (!(request.memory_weight >= 0 && request.memory_weight <= 1)) {
    return invalid(fmt::format("a memory weight of {}: not from 0 to 1", request.memory_weight));
  }
  const Objective objective = request.effective_objective();
  const int chunks = request.rules.shape.chunks;
  if (chunks > 1 && objective == Objective::weighted) {
    return invalid(fmt::format("{} chunks on each rank: the objectives are speed and memory, not weighted", chunks));
  }
  if (objective == Objective::weighted && (costs.whole().bytes == 0 || costs.whole().compute == 0)) {
    return invalid("the objective weighted needs a model with bytes and times other than 0");
  }
  const bool units_where_needed = request.rules.recompute_units.rule == Recompute::where_needed;
  if (request.rules.recompute != Recompute::where_needed && !units_where_needed) return {};
  const std::string_view what = units_where_needed ? "recomputation of units" : "recomputation";
  if (chunks > 1) {
    return invalid(
        fmt::format("{} chunks on each rank: {} none or all, not where_needed, which chooses for a stage alone", chunks, what));
  }
  if (!request.memory_limit_bytes) return invalid(fmt::format("{} where_needed needs a memory limit, which says where", what));
  return {};
}

double value_of(const Stage& stage, const PartitionRequest& request, const StageCosts& costs) {
  const Objective objective = request.effective_objective();
  if (objective == Objective::speed) return stage.time_us;
  if (objective == Objective::memory) return static_cast<double>(stage.bytes);
  const double share = static_cast<double>(stage.bytes) / static_cast<double>(costs.whole().bytes);
  return request.memory_weight * share +
         (1 - request.memory_weight) * stage.time_us / costs.microseconds(costs.whole().compute);
}

/// The bytes of each rank. With one stage for each rank these are those of the stages.
std::vector<std::int64_t> rank_bytes(const Partition& partition, int ranks) {
  std::vector<std::int64_t> bytes;
  for (const Stage& stage : partition.stages) bytes.push_back(stage.bytes);
  return bytes_of_ranks(bytes, ranks);
}

/// `recomputes` of each stage; empty: as the costs say.
Partition price(const PartitionRequest& request, const StageCosts& costs, const std::vector<int>& cuts,
                const std::vector<bool>& recomputes) {
  Partition result;
  result.objective = request.effective_objective();
  std::vector<int> firsts{0};
  firsts.insert(firsts.end(), cuts.begin(), cuts.end());
  std::vector<StageCost> of_stages;
  for (int stage = 0; stage < costs.stages(); ++stage) {
    const auto at = static_cast<std::size_t>(stage);
    const int end = at + 1 < firsts.size() ? firsts[at + 1] : costs.units();
    const StageCost cost =
        recomputes.empty() ? costs.cost(stage, firsts[at], end) : costs.cost(stage, firsts[at], end, recomputes[at]);
    result.stages.push_back({firsts[at], end, costs.held(stage), costs.microseconds(cost.compute),
                             costs.microseconds(cost.time), cost.bytes, costs.bytes_before(firsts[at]), costs.bytes_before(end),
                             cost.recomputes, costs.recomputed_units(firsts[at], cost)});
    result.value = std::max(result.value, value_of(result.stages.back(), request, costs));
    of_stages.push_back(cost);
  }
  if (result.objective == Objective::memory)
    result.value = static_cast<double>(std::ranges::max(rank_bytes(result, request.rules.shape.ranks)));
  result.times = costs.times(firsts, of_stages);
  return result;
}

/// The units of a rank: "'conv1' to 'conv3' and 'conv6'".
std::string name_units_of_rank(const Profile& profile, const Partition& partition, int rank, int ranks) {
  std::string text;
  for (std::size_t stage = static_cast<std::size_t>(rank); stage < partition.stages.size();
       stage += static_cast<std::size_t>(ranks)) {
    const Stage& each = partition.stages[stage];
    text += (text.empty() ? "" : " and ") + name_units(profile, each.first, each.end);
  }
  return text;
}

/// Whether bytes count, and those of a rank are of several stages.
bool counts_by_rank(const PartitionRequest& request) {
  return request.rules.shape.chunks > 1 &&
         (request.effective_objective() == Objective::memory || request.memory_limit_bytes.has_value());
}

/// The best cuts where counts_by_rank().
Result<RankAnswer> cut_by_rank(const PartitionRequest& request, const StageCosts& costs) {
  const bool by_bytes = request.effective_objective() == Objective::memory;
  Search by_stage(costs, 0, std::nullopt);
  const Measure measure = by_bytes ? Measure::bytes : Measure::time;
  by_stage.bound(measure, *by_stage.smallest_largest(measure));
  const RankRequest wanted{request.rules.shape.ranks, by_bytes, request.memory_limit_bytes};
  Result<RankAnswer> found = search_ranks(costs, wanted, by_stage.cheapest_cuts());
  if (found.ok()) found->evaluations += by_stage.evaluations();
  return found;
}

/// The best cuts under the request's limit; none if no partition meets it.
Result<RankAnswer> best_cuts(const PartitionRequest& request, const StageCosts& costs) {
  if (counts_by_rank(request)) return cut_by_rank(request, costs);
  const Objective objective = request.effective_objective();
  Search search(costs, request.memory_weight, request.memory_limit_bytes);
  const Measure measure = measure_of(objective);
  const Measure other = objective == Objective::speed ? Measure::bytes : Measure::time;
  const auto value = search.smallest_largest(measure);
  if (!value) return RankAnswer{std::nullopt, search.evaluations()};
  search.bound(measure, *value);
  search.bound(other, *search.smallest_largest(other));
  std::vector<int> cuts = search.cheapest_cuts();
  return RankAnswer{std::move(cuts), search.evaluations()};
}

/// That no partition meets the limit, and which one comes nearest.
Status limit_too_small(const Profile& profile, const PartitionRequest& request) {
  PartitionRequest without = request;
  without.memory_limit_bytes.reset();
  without.objective = Objective::memory;
  // Under a limit of 0 where_needed takes the fewest bytes.
  const auto costs = StageCosts::create(profile, request.rules, 0);
  if (!costs.ok()) return costs.status();
  const Result<RankAnswer> cuts = best_cuts(without, *costs);
  if (!cuts.ok()) return cuts.status();
  const Partition nearest = price(without, *costs, *cuts->cuts, {});
  const int ranks = request.rules.shape.ranks;
  const std::vector<std::int64_t> bytes = rank_bytes(nearest, ranks);
  const auto largest = std::ranges::max_element(bytes);
  return invalid(fmt::format(
      "no partition meets the memory limit of {} bytes{}: the smallest possible largest {} needs {} bytes (units {})",
      *request.memory_limit_bytes,
      request.rules.recompute_units.rule == Recompute::where_needed ? ", whichever first units recompute" : "",
      request.rules.shape.chunks > 1 ? "rank" : "stage", *largest,
      name_units_of_rank(profile, nearest, static_cast<int>(largest - bytes.begin()), ranks)));
}

}  // namespace

std::string_view to_string(Objective objective) noexcept {
  return objective == Objective::speed ? "speed" : objective == Objective::memory ? "memory" : "weighted";
}

Result<Objective> parse_objective(std::string_view name) {
  for (const Objective objective : {Objective::speed, Objective::memory, Objective::weighted}) {
    if (to_string(objective) == name) return objective;
  }
  return invalid(fmt::format("unknown objective '{}'; there are: speed memory weighted", name));
}

Objective PartitionRequest::effective_objective() const {
  if (objective != Objective::weighted) return objective;
  return memory_weight == 0 ? Objective::speed : memory_weight == 1 ? Objective::memory : Objective::weighted;
}

std::vector<int> Partition::cuts() const {
  std::vector<int> found;
  for (std::size_t stage = 1; stage < stages.size(); ++stage) found.push_back(stages[stage].first);
  return found;
}

std::vector<bool> Partition::recomputes() const {
  std::vector<bool> found;
  for (const Stage& stage : stages) found.push_back(stage.recomputes);
  return found;
}

std::vector<std::vector<std::string>> Partition::recomputed_units(const std::vector<std::string>& units) const {
  std::vector<std::vector<std::string>> found;
  for (const Stage& stage : stages) {
    std::vector<std::string>& of_stage = found.emplace_back();
    for (const UnitRun& run : stage.recomputed_units) of_stage.push_back(to_text(units, run));
  }
  return found;
}

Result<Partition> partition(const Profile& profile, const PartitionRequest& request) {
  const auto costs = StageCosts::create(profile, request.rules, request.memory_limit_bytes);
  if (!costs.ok()) return costs.status();
  if (Status status = check_request(request, *costs); !status.ok()) return status;
  const Result<RankAnswer> found = best_cuts(request, *costs);
  if (!found.ok()) return found.status();
  if (!found->cuts) return limit_too_small(profile, request);
  Partition result = price(request, *costs, *found->cuts, {});
  result.evaluations = found->evaluations;
  return result;
}

Result<Partition> partition_at(const Profile& profile, const PartitionRequest& request, const std::vector<int>& cuts,
                               const std::vector<bool>& recomputes) {
  PartitionRequest checked = request;
  if (!recomputes.empty()) checked.rules.recompute = Recompute::none;  // nothing is left to choose
  const auto costs = StageCosts::create(profile, checked.rules, request.memory_limit_bytes);
  if (!costs.ok()) return costs.status();
  if (Status status = check_request(checked, *costs); !status.ok()) return status;
  if (!recomputes.empty() && recomputes.size() != static_cast<std::size_t>(costs->stages())) {
    return invalid(fmt::format("recomputation of {} stages, the pipeline has {}", recomputes.size(), costs->stages()));
  }
  if (cuts.size() + 1 != static_cast<std::size_t>(costs->stages())) {
    return invalid(fmt::format("{} cuts make {} stages, the pipeline has {}", cuts.size(), cuts.size() + 1, costs->stages()));
  }
  const auto named = [&](int unit) {
    return fmt::format("unit {} ('{}')", unit, profile.units[static_cast<std::size_t>(unit)].name);
  };
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i] < 1 || cuts[i] >= costs->units()) {
      return invalid(fmt::format("a cut in front of unit {}: stages after the first begin at unit 1 ('{}') to {}", cuts[i],
                                 costs->units() > 1 ? profile.units[1].name : "", named(costs->units() - 1)));
    }
    if (i > 0 && cuts[i] <= cuts[i - 1]) {
      return invalid(fmt::format("cuts must rise: {} does not come after {}, so stage {} would be empty", named(cuts[i]),
                                 named(cuts[i - 1]), i));
    }
  }
  Partition result = price(request, *costs, cuts, recomputes);
  const int ranks = request.rules.shape.ranks;
  const std::vector<std::int64_t> bytes = rank_bytes(result, ranks);
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    if (!request.memory_limit_bytes || bytes[rank] <= *request.memory_limit_bytes) continue;
    return invalid(fmt::format(
        "{} {} (units {}) needs {} bytes, the memory limit is {}", request.rules.shape.chunks > 1 ? "rank" : "stage", rank,
        name_units_of_rank(profile, result, static_cast<int>(rank), ranks), bytes[rank], *request.memory_limit_bytes));
  }
  return result;
}

}  // namespace shoal::pipeline
