#include "src/pipeline/stage_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "src/pipeline/error.h"
#include "src/pipeline/manual_partition.h"

namespace shoal::pipeline {
namespace {

constexpr double kMaxLatencyUs = 1e9;
constexpr double kMaxBytesPerUs = 1e9;  // a petabyte a second
constexpr int kMaxOptimizerStates = 16;
constexpr std::int64_t kPicosecondsPerUs = kMillion;

/// Whether `value` is a number from 0 to `most`; false for NaN.
bool in_range(double value, double most) { return value >= 0 && value <= most; }

Status check_rules(const Profile& profile, const CostRules& rules) {
  if (Status status = check(rules.shape); !status.ok()) return status;
  if (profile.units.empty()) return invalid("a profile without units");
  const auto units = static_cast<std::int64_t>(profile.units.size());
  if (rules.shape.stages() > units) {
    if (rules.shape.chunks == 1) {
      return invalid(
          fmt::format("{} partitions of {} units: at most {} partitions are possible", rules.shape.ranks, units, units));
    }
    return invalid(fmt::format("{} partitions with {} chunks each of {} units: at most {} chunks are possible",
                               rules.shape.ranks, rules.shape.chunks, units, units / rules.shape.ranks));
  }
  if (!in_range(rules.link.latency_us, kMaxLatencyUs)) {
    return invalid(fmt::format("a link latency of {} us: not from 0 to {:g}", rules.link.latency_us, kMaxLatencyUs));
  }
  const double rate = rules.link.bytes_per_us.value_or(1);
  if (!in_range(rate, kMaxBytesPerUs) || millionths(rate) == 0) {
    return invalid(fmt::format("a link rate of {} bytes per us: not more than 0 and at most {:g}", rate, kMaxBytesPerUs));
  }
  if (rules.optimizer_states < 0 || rules.optimizer_states > kMaxOptimizerStates) {
    return invalid(fmt::format("{} optimizer states: not from 0 to {}", rules.optimizer_states, kMaxOptimizerStates));
  }
  return check_together(rules.recompute, rules.recompute_units);
}

/// A bound for every sum that a partition can have, so that nothing overflows later.
Status check_sums(const Profile& profile, const CostRules& rules) {
  long double bytes = 0;
  long double us = 0;
  for (const Unit& unit : profile.units) {
    bytes += static_cast<long double>(unit.parameter_bytes) * (2 + rules.optimizer_states) +
             static_cast<long double>(unit.buffer_bytes) + static_cast<long double>(unit.workspace_bytes) +
             static_cast<long double>(rules.shape.microbatches) * static_cast<long double>(unit.stash_bytes) +
             2 * static_cast<long double>(rules.shape.microbatches + 1) * static_cast<long double>(unit.output_bytes);
    us += 2 * static_cast<long double>(unit.forward_us) + static_cast<long double>(unit.backward_us);
  }
  if (bytes < 0x1p62L && us < 1e12L) return {};
  return invalid(fmt::format("the units of the profile need up to {:g} bytes and {:g} us together: too much",
                             static_cast<double>(bytes), static_cast<double>(us)));
}

/// The runs of units that may recompute by the rules.
Result<std::vector<UnitRun>> runs_of(const Profile& profile, const RecomputeUnits& units) {
  if (units.rule != Recompute::none) {
    std::vector<UnitRun> runs;
    for (int unit = 0; unit < static_cast<int>(profile.units.size()); ++unit) runs.push_back({unit, unit + 1});
    return runs;
  }
  auto runs = find_runs(profile.unit_names(), units.list);
  if (!runs.ok()) return invalid("recompute_units: " + runs.status().message());
  return runs;
}

}  // namespace

Result<StageCosts> StageCosts::create(const Profile& profile, const CostRules& rules,
                                      std::optional<std::int64_t> memory_limit_bytes) {
  if (Status status = check_rules(profile, rules); !status.ok()) return status;
  if (Status status = check_sums(profile, rules); !status.ok()) return status;
  const auto runs = runs_of(profile, rules.recompute_units);
  if (!runs.ok()) return runs.status();
  StageCosts costs;
  costs.rules_ = rules;
  costs.memory_limit_bytes_ = memory_limit_bytes;
  costs.held_ = held_microbatches(rules.shape);
  costs.latency_ps_ = millionths(rules.link.latency_us);
  if (rules.link.bytes_per_us) {
    // n bytes take n / rate us = n * 1e6 * 1e6 / (1e6 rate) ps.
    const std::int64_t rate = millionths(*rules.link.bytes_per_us);
    const std::int64_t common = std::gcd(kPicosecondsPerUs * kMillion, rate);
    costs.ticks_per_ps_ = rate / common;
    costs.ticks_per_byte_ = kPicosecondsPerUs * kMillion / common;
  }
  costs.memory_ = UnitMemory(profile.units, *runs);
  Sums sums;
  costs.units_.push_back(sums);
  costs.cut_bytes_.push_back(0);
  for (const Unit& unit : profile.units) {
    const auto position = static_cast<int>(costs.units_.size()) - 1;
    sums.forward_ps += millionths(unit.forward_us);
    sums.backward_ps += millionths(unit.backward_us);
    if (costs.memory_.recomputes(position)) sums.repeated_ps += millionths(unit.forward_us);
    sums.parameter_bytes += unit.parameter_bytes;
    sums.buffer_bytes += unit.buffer_bytes;
    costs.units_.push_back(sums);
    costs.cut_bytes_.push_back(unit.output_bytes);
  }
  costs.cut_bytes_.back() = 0;
  costs.whole_.compute = static_cast<Wide>(sums.forward_ps + sums.backward_ps) * static_cast<Wide>(costs.ticks_per_ps_);
  costs.whole_.time = costs.whole_.compute;
  costs.whole_.bytes =
      (2 + rules.optimizer_states) * sums.parameter_bytes + sums.buffer_bytes + costs.memory_.of(0, 0, costs.units()).working;
  return costs;
}

Wide StageCosts::message(std::int64_t bytes) const {
  return static_cast<Wide>(latency_ps_) * static_cast<Wide>(ticks_per_ps_) +
         static_cast<Wide>(bytes) * static_cast<Wide>(ticks_per_byte_);
}

StageCost StageCosts::cost(int stage, int first, int end) const {
  if (rules_.recompute_units.rule == Recompute::where_needed) return cost_where_needed(stage, first, end);
  if (rules_.recompute != Recompute::where_needed) return cost(stage, first, end, rules_.recompute == Recompute::all);
  const StageCost keeps = cost(stage, first, end, false);
  const bool fits = !memory_limit_bytes_ || keeps.bytes <= *memory_limit_bytes_;
  return fits ? keeps : cost(stage, first, end, true);
}

StageCost StageCosts::cost_where_needed(int stage, int first, int end) const {
  StageCost least = cost(stage, first, end, false, first);
  for (int recompute_end = first; recompute_end <= end; ++recompute_end) {
    const StageCost each = cost(stage, first, end, false, recompute_end);
    if (!memory_limit_bytes_ || each.bytes <= *memory_limit_bytes_) return each;
    if (each.bytes < least.bytes) least = each;
  }
  return least;
}

StageCost StageCosts::cost(int stage, int first, int end, bool recomputes) const {
  recomputes = recomputes && held(stage) > 1;
  const bool chooses = rules_.recompute_units.rule == Recompute::where_needed;
  return cost(stage, first, end, recomputes, recomputes || chooses ? first : end);
}

StageCost StageCosts::cost(int stage, int first, int end, bool recomputes, int recompute_end) const {
  const Sums& before = units_[static_cast<std::size_t>(first)];
  const Sums& through = units_[static_cast<std::size_t>(end)];
  const std::int64_t received = bytes_before(first);
  const std::int64_t sent = bytes_before(end);
  const Wide left = first > 0 ? message(received) : 0;
  const Wide right = end < units() ? message(sent) : 0;
  const std::int64_t microbatches = held(stage);
  const UnitMemory::Bytes memory = recomputes ? memory_.of_run(first, end) : memory_.of(first, recompute_end, end);

  StageCost cost;
  cost.recomputes = recomputes;
  cost.recompute_end = recompute_end;
  const std::int64_t compute_ps =
      through.forward_ps - before.forward_ps + through.backward_ps - before.backward_ps + repeated_ps(first, end, cost);
  cost.compute = static_cast<Wide>(compute_ps) * static_cast<Wide>(ticks_per_ps_);
  cost.time = rules_.overlaps ? std::max({cost.compute, left, right}) : cost.compute + 2 * left + 2 * right;
  cost.bytes = (2 + rules_.optimizer_states) * (through.parameter_bytes - before.parameter_bytes) + through.buffer_bytes -
               before.buffer_bytes + received + sent + microbatches * received + (microbatches - 1) * memory.kept +
               memory.working;
  return cost;
}

std::int64_t StageCosts::repeated_ps(int first, int end, const StageCost& cost) const {
  const Sums& before = units_[static_cast<std::size_t>(first)];
  if (cost.recomputes) return units_[static_cast<std::size_t>(end)].forward_ps - before.forward_ps;
  return units_[static_cast<std::size_t>(cost.recompute_end)].repeated_ps - before.repeated_ps;
}

std::vector<UnitRun> StageCosts::recomputed_units(int first, const StageCost& cost) const {
  return memory_.runs(first, cost.recompute_end);
}

double StageCosts::microseconds(Wide ticks) const {
  const auto per_us = static_cast<Wide>(ticks_per_ps_) * static_cast<Wide>(kPicosecondsPerUs);
  const Wide whole = ticks / per_us;
  return static_cast<double>(whole) + static_cast<double>(ticks % per_us) / static_cast<double>(per_us);
}

StageTimes StageCosts::times(const std::vector<int>& firsts, const std::vector<StageCost>& costs) const {
  StageTimes times;
  for (std::size_t stage = 0; stage < firsts.size(); ++stage) {
    const int end = stage + 1 < firsts.size() ? firsts[stage + 1] : units();
    const Sums& before = units_[static_cast<std::size_t>(firsts[stage])];
    const Sums& through = units_[static_cast<std::size_t>(end)];
    const std::int64_t forward_ps = through.forward_ps - before.forward_ps;
    const std::int64_t backward_ps = through.backward_ps - before.backward_ps;
    const std::int64_t input_ps = repeated_ps(firsts[stage], end, costs[stage]) + backward_ps - backward_ps / 2;
    times.stages.push_back({forward_ps, input_ps, backward_ps / 2, 0});
    if (end == units()) continue;
    const std::int64_t bytes = bytes_before(end);
    const double wire_us = rules_.link.bytes_per_us ? static_cast<double>(bytes) / *rules_.link.bytes_per_us : 0;
    times.cuts.push_back({latency_ps_, millionths(wire_us), bytes});
  }
  return times;
}

}  // namespace shoal::pipeline
