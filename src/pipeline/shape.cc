#include "src/pipeline/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "src/pipeline/error.h"
#include "src/pipeline/orders.h"

namespace shoal::pipeline {
namespace {

constexpr std::array<std::pair<ScheduleKind, std::string_view>, 7> kKinds{{
    {ScheduleKind::simple, "simple"},
    {ScheduleKind::one_f_one_b, "1f1b"},
    {ScheduleKind::eager_1f1b, "eager_1f1b"},
    {ScheduleKind::interleaved, "interleaved"},
    {ScheduleKind::virtual_stages, "virtual"},
    {ScheduleKind::zb_h1, "zb_h1"},
    {ScheduleKind::forward_only, "forward_only"},
}};

/// The multiples of `step` next to `value`, for a message: "4 or 8".
std::string nearest_multiples(int value, int step) {
  const int below = value / step * step;
  return below == 0 ? fmt::format("{}", step) : fmt::format("{} or {}", below, below + step);
}

}  // namespace

std::string_view to_string(ScheduleKind kind) noexcept {
  for (const auto& [known, name] : kKinds) {
    if (known == kind) return name;
  }
  return "?";
}

std::string schedule_kind_names() {
  std::string names;
  for (const auto& [kind, name] : kKinds) names += fmt::format("{}{}", names.empty() ? "" : " ", name);
  return names;
}

Result<ScheduleKind> parse_schedule_kind(std::string_view name) {
  for (const auto& [kind, known] : kKinds) {
    if (known == name) return kind;
  }
  return invalid(fmt::format("unknown pipeline schedule '{}'; there are: {}", name, schedule_kind_names()));
}

int Shape::active() const { return std::min(microbatches, active_microbatches.value_or(ranks + 2)); }

Status check(const Shape& shape) {
  if (shape.ranks < 1) return invalid(fmt::format("{} partitions: at least 1 is necessary", shape.ranks));
  if (shape.microbatches < 1) return invalid(fmt::format("{} microbatches: at least 1 is necessary", shape.microbatches));
  if (shape.chunks < 1) return invalid(fmt::format("{} chunks on each rank: at least 1 is necessary", shape.chunks));
  if (shape.chunks > 1 && shape.kind != ScheduleKind::virtual_stages) {
    return invalid(fmt::format("{} chunks on each rank: the schedule {} has 1, only virtual has more", shape.chunks,
                               to_string(shape.kind)));
  }
  if (shape.kind == ScheduleKind::virtual_stages && shape.microbatches % shape.ranks != 0) {
    return invalid(fmt::format("{} microbatches with the schedule virtual on {} ranks: not a multiple; use {}",
                               shape.microbatches, shape.ranks, nearest_multiples(shape.microbatches, shape.ranks)));
  }
  if (shape.active_microbatches) {
    if (shape.kind != ScheduleKind::interleaved) {
      return invalid(fmt::format("active_microbatches {} with the schedule {}: only interleaved has it",
                                 *shape.active_microbatches, to_string(shape.kind)));
    }
    if (*shape.active_microbatches < 1) {
      return invalid(
          fmt::format("active_microbatches {}: from 1 to the {} microbatches", *shape.active_microbatches, shape.microbatches));
    }
  }
  if (std::int64_t{shape.ranks} * shape.chunks > kMaxActions / shape.microbatches) {
    return invalid(fmt::format("{} ranks with {} chunks and {} microbatches: more than {} actions", shape.ranks, shape.chunks,
                               shape.microbatches, kMaxActions));
  }
  return {};
}

std::vector<std::string> notes(const Shape& shape) {
  std::vector<std::string> found;
  if (shape.active_microbatches.value_or(0) > shape.microbatches) {
    found.push_back(fmt::format("active_microbatches {} is larger than the {} microbatches, which limit it",
                                *shape.active_microbatches, shape.microbatches));
  }
  if (shape.microbatches < shape.ranks) {
    found.push_back(
        fmt::format("microbatches {} on {} ranks: fewer microbatches than ranks leave at least {:.0f} % of the time idle",
                    shape.microbatches, shape.ranks, 100.0 * (shape.ranks - 1) / (shape.microbatches + shape.ranks - 1)));
  }
  return found;
}

std::vector<int> held_microbatches(const Shape& shape) {
  std::vector<int> held;
  const int m = shape.microbatches;
  for (int stage = 0; stage < shape.stages(); ++stage) {
    const int following = shape.ranks - stage;  // stages from this one on
    switch (shape.kind) {
      case ScheduleKind::simple:
        held.push_back(m);
        break;
      case ScheduleKind::one_f_one_b:
        held.push_back(std::min(m, following));
        break;
      case ScheduleKind::eager_1f1b:
        held.push_back(std::min(m, 2 * following - 1));
        break;
      case ScheduleKind::interleaved:
        held.push_back(shape.active());
        break;
      case ScheduleKind::zb_h1:
        held.push_back(std::min(m, shape.ranks));
        break;
      case ScheduleKind::forward_only:
        held.push_back(1);
        break;
      case ScheduleKind::virtual_stages:
        return most_held_by_stage(shape, compute_orders(shape, {}));
    }
  }
  return held;
}

}  // namespace shoal::pipeline
