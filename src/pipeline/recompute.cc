#include "src/pipeline/recompute.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/pipeline/error.h"

namespace shoal::pipeline {

std::string_view to_string(Recompute recompute) noexcept {
  return recompute == Recompute::none ? "none" : recompute == Recompute::all ? "all" : "where_needed";
}

Result<Recompute> parse_recompute(std::string_view name) {
  for (const Recompute recompute : {Recompute::none, Recompute::all, Recompute::where_needed}) {
    if (name == to_string(recompute)) return recompute;
  }
  return invalid(fmt::format("no recomputation '{}'; there is none, all, where_needed", name));
}

std::string to_string(const RecomputeUnits& units) {
  if (units.list.empty()) return std::string(to_string(units.rule));
  return fmt::format("{}", fmt::join(units.list, ","));
}

Result<RecomputeUnits> parse_recompute_units(std::string_view text) {
  if (const auto rule = parse_recompute(text); rule.ok()) return RecomputeUnits{.rule = *rule};
  RecomputeUnits units;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) {
      return invalid(fmt::format("'{}' is no list of units such as stem,block2..block4, nor none, all, where_needed", text));
    }
    units.list.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return units;
}

Status check_together(Recompute stages, const RecomputeUnits& units) {
  if (stages == Recompute::none || !units.any()) return {};
  return invalid(
      fmt::format("recompute is {} and recompute_units is {}: whole stages or units inside of them; give one of both",
                  to_string(stages), to_string(units)));
}

}  // namespace shoal::pipeline
