#include "src/pipeline/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "src/pipeline/rank_search.h"
#include "src/pipeline/schedule.h"

namespace shoal::pipeline {
namespace {

std::string describe_decider(const Partition& partition, const std::vector<std::string>& names, int ranks) {
  const bool by_time = partition.objective == Objective::speed;
  const auto decider = by_time ? std::ranges::max_element(partition.stages, {}, &Stage::time_us)
                               : std::ranges::max_element(partition.stages, {}, &Stage::bytes);
  const auto slowest = std::ranges::max_element(partition.stages, {}, &Stage::time_us);
  const auto number = [&](auto stage) { return stage - partition.stages.begin(); };
  const auto first_name = [&](auto stage) { return names[static_cast<std::size_t>(stage->first)]; };
  if (by_time) {
    return fmt::format("stage {} (from '{}') decides: {:.1f} us for a microbatch, {:.1f} of them messages", number(slowest),
                       first_name(slowest), slowest->time_us, slowest->time_us - slowest->compute_us);
  }
  if (partition.objective == Objective::memory && ranks < static_cast<int>(partition.stages.size())) {
    std::vector<std::int64_t> bytes;
    for (const Stage& stage : partition.stages) bytes.push_back(stage.bytes);
    const std::vector<std::int64_t> of_ranks = bytes_of_ranks(bytes, ranks);
    const auto largest = std::ranges::max_element(of_ranks);
    return fmt::format("rank {} decides: {} bytes in its {} stages", largest - of_ranks.begin(), *largest,
                       static_cast<int>(partition.stages.size()) / ranks);
  }
  if (partition.objective == Objective::memory) {
    return fmt::format("stage {} (from '{}') decides: {} bytes with {} microbatches", number(decider), first_name(decider),
                       decider->bytes, decider->held);
  }
  return fmt::format("the weighted share of the largest stage is {:.5f}; most bytes: stage {}, most time: stage {}",
                     partition.value, number(decider), number(slowest));
}

/// What the times of stages count for a message over a cut.
std::string describe_link(const CostRules& rules) {
  const Link& link = rules.link;
  if (link.latency_us == 0 && !link.bytes_per_us) return "messages between stages take no time";
  std::string text = fmt::format("a message between stages takes {:.1f} us", link.latency_us);
  if (link.bytes_per_us) text += fmt::format(" and 1 us for each {:.1f} bytes", *link.bytes_per_us);
  return text + (rules.overlaps ? ", while the stages compute" : "");
}

struct Row {
  std::string name;
  Prediction prediction;
};

}  // namespace

Result<Prediction> predict(const Shape& shape, const StageTimes& times) {
  auto schedule = make_schedule(shape, times);
  if (!schedule.ok()) return schedule.status();
  auto played = replay(*schedule, times);
  if (!played.ok()) return played.status();
  return Prediction{*std::move(schedule), *std::move(played)};
}

std::string partition_table(const Profile& profile, const PartitionRequest& request, const Partition& partition,
                            const Prediction& prediction) {
  const Shape& shape = request.rules.shape;
  const auto names = profile.unit_names();
  double compute_us = 0;
  std::size_t width = 10;
  for (const Stage& stage : partition.stages) {
    compute_us += stage.compute_us;
    width = std::max(width, names[static_cast<std::size_t>(stage.first)].size());
  }
  std::string text =
      fmt::format("{} units in {} stages for {} with {} microbatches, optimized for {}\n", names.size(),
                  partition.stages.size(), to_string(shape.kind), shape.microbatches, to_string(partition.objective));
  const auto out = std::back_inserter(text);
  if (partition.stages.size() > 1) fmt::format_to(out, "{}\n", describe_link(request.rules));
  fmt::format_to(out, "{:>5} {:<{}} {:>5} {:>12} {:>7} {:>14} {:>5} {:>14}\n", "stage", "first unit", width, "units", "time us",
                 "share", "bytes", "held", "bytes at cut");
  for (std::size_t i = 0; i < partition.stages.size(); ++i) {
    const Stage& stage = partition.stages[i];
    fmt::format_to(out, "{:>5} {:<{}} {:>5} {:>12.1f} {:>6.1f}% {:>14} {:>5} {:>14}\n", i,
                   names[static_cast<std::size_t>(stage.first)], width, stage.end - stage.first, stage.time_us,
                   compute_us > 0 ? 100 * stage.compute_us / compute_us : 0, stage.bytes, stage.held, stage.sent_bytes);
  }
  text += recomputation_line(partition, names);
  fmt::format_to(out, "predicted step: {:.1f} us, bubble {:.1f} %\n{}\n", microseconds(prediction.replay.step_ps),
                 100 * prediction.replay.bubble(), describe_decider(partition, names, shape.ranks));
  return text;
}

std::string recomputation_line(const Partition& partition, const std::vector<std::string>& units) {
  std::string stages;
  std::string in_stages;
  const auto runs = partition.recomputed_units(units);
  for (std::size_t i = 0; i < partition.stages.size(); ++i) {
    if (partition.stages[i].recomputes) stages += fmt::format("{}{}", stages.empty() ? "" : ", ", i);
    if (runs[i].empty()) continue;
    in_stages += fmt::format("{}stage {}: {}", in_stages.empty() ? "" : "; ", i, to_string(RecomputeUnits{.list = runs[i]}));
  }
  if (!stages.empty()) return fmt::format("stages that recompute: {}\n", stages);
  return in_stages.empty() ? "" : fmt::format("units that recompute: {}\n", in_stages);
}

std::string rank_table(const Prediction& prediction) {
  std::string text = fmt::format("{:>4} {:>12} {:>12} {:>7} {:>5} {:>9} {:>14}\n", "rank", "busy us", "idle us", "idle", "held",
                                 "messages", "bytes sent");
  const Replay& replay = prediction.replay;
  for (std::size_t rank = 0; rank < replay.ranks.size(); ++rank) {
    const RankReplay& each = replay.ranks[rank];
    const std::int64_t idle_ps = replay.step_ps - each.busy_ps;
    const double share = replay.step_ps > 0 ? 100 * static_cast<double>(idle_ps) / static_cast<double>(replay.step_ps) : 0;
    fmt::format_to(std::back_inserter(text), "{:>4} {:>12.1f} {:>12.1f} {:>6.1f}% {:>5} {:>9} {:>14}\n", rank,
                   microseconds(each.busy_ps), microseconds(idle_ps), share, each.most_held, each.messages, each.sent_bytes);
  }
  return text;
}

std::string comparison_table(const Shape& shape, const StageTimes& times) {
  std::vector<Row> rows;
  for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b,
                                  ScheduleKind::interleaved, ScheduleKind::virtual_stages, ScheduleKind::zb_h1}) {
    if ((kind == ScheduleKind::virtual_stages) != (shape.chunks > 1)) continue;
    Shape each = shape;
    each.kind = kind;
    if (kind != ScheduleKind::interleaved) each.active_microbatches.reset();
    auto prediction = predict(each, times);
    if (prediction.ok()) rows.push_back({std::string(to_string(kind)), *std::move(prediction)});
  }
  std::ranges::stable_sort(rows, {}, [](const Row& row) { return row.prediction.replay.step_ps; });
  std::string text = fmt::format("   {:<12} {:>12} {:>8}   {}\n", "schedule", "step us", "bubble", "held by rank");
  for (const Row& row : rows) {
    std::string held;
    for (const RankReplay& rank : row.prediction.replay.ranks) held += fmt::format(" {}", rank.most_held);
    fmt::format_to(std::back_inserter(text), "{} {:<12} {:>12.1f} {:>7.1f}%  {}\n",
                   row.name == to_string(shape.kind) ? "->" : "  ", row.name, microseconds(row.prediction.replay.step_ps),
                   100 * row.prediction.replay.bubble(), held);
  }
  return text;
}

}  // namespace shoal::pipeline
