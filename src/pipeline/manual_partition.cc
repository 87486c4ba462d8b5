#include "src/pipeline/manual_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "src/pipeline/error.h"
#include "src/pipeline/names.h"

namespace shoal::pipeline {
namespace {

/// `text` as a whole number; none for any other text.
std::optional<int> parse_position(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// The unit that `text` names, or whose position it is.
Result<int> find_place(const std::vector<std::string>& units, std::string_view text) {
  const auto unit = find_unit(units, text);
  const auto position = unit.ok() ? std::optional<int>(*unit) : parse_position(text);
  if (!position) return unit.status();
  const auto last = static_cast<int>(units.size()) - 1;
  if (*position >= 0 && *position <= last) return *position;
  return invalid(fmt::format("unit {} is outside of the model, which has the units 0 to {}", *position, last));
}

/// What an entry of a list names: a unit, or a run of neighbours.
Result<UnitRun> find_run(const std::vector<std::string>& units, std::string_view text) {
  constexpr std::string_view kTo = "..";
  const auto unit = find_place(units, text);
  const std::size_t to = text.find(kTo);
  if (unit.ok()) return UnitRun{*unit, *unit + 1};
  if (to == std::string_view::npos) return unit.status();
  const auto first = find_place(units, text.substr(0, to));
  if (!first.ok()) return first.status();
  const auto last = find_place(units, text.substr(to + kTo.size()));
  if (!last.ok()) return last.status();
  if (*last >= *first) return UnitRun{*first, *last + 1};
  return invalid(fmt::format("the run '{}' ends before it begins: its units are number {} and {}", text, *first, *last));
}

}  // namespace

Result<int> find_unit(const std::vector<std::string>& units, std::string_view name) {
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (units[i] == name) return static_cast<int>(i);
  }
  for (const std::string& unit : units) {
    if (name.starts_with(unit + ".")) {
      return invalid(
          fmt::format("'{}' is inside of the unit '{}': several tensors may cross there, so a stage begins with a "
                      "whole unit",
                      name, unit));
    }
  }
  return invalid(fmt::format("no unit is called '{}'; the nearest: {}", name, nearest_names(name, units)));
}

Result<std::vector<int>> find_cuts(const std::vector<std::string>& units, const std::vector<std::string>& names) {
  std::vector<int> cuts;
  for (const std::string& name : names) {
    const auto unit = find_unit(units, name);
    const auto position = unit.ok() ? std::optional<int>(*unit) : parse_position(name);
    if (!position) return unit.status();
    cuts.push_back(*position);
  }
  return cuts;
}

Result<std::vector<UnitRun>> find_runs(const std::vector<std::string>& units, const std::vector<std::string>& list) {
  std::vector<UnitRun> runs;
  for (const std::string& text : list) {
    const auto run = find_run(units, text);
    if (!run.ok()) return run.status();
    runs.push_back(*run);
  }
  std::ranges::sort(runs, {}, &UnitRun::first);
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].first >= runs[i - 1].end) continue;
    return invalid(fmt::format("unit '{}' is listed twice", units[static_cast<std::size_t>(runs[i].first)]));
  }
  return runs;
}

std::string to_text(const std::vector<std::string>& units, const UnitRun& run) {
  const std::string& first = units[static_cast<std::size_t>(run.first)];
  return run.end - run.first == 1 ? first : first + ".." + units[static_cast<std::size_t>(run.end - 1)];
}

Result<std::vector<int>> assign_units(const std::vector<std::string>& units,
                                      const std::vector<std::pair<std::string, int>>& assignments, int stages,
                                      std::optional<int> default_stage) {
  const auto check_stage = [&](int stage, const std::string& of) {
    if (stage >= 0 && stage < stages) return Status();
    return invalid(fmt::format("stage {} of {}: there are the stages 0 to {}", stage, of, stages - 1));
  };
  if (default_stage) {
    if (Status status = check_stage(*default_stage, "default_partition"); !status.ok()) return status;
  }
  std::vector<std::optional<int>> stage_of(units.size(), default_stage);
  for (const auto& [name, stage] : assignments) {
    const auto unit = find_unit(units, name);
    if (!unit.ok()) return unit.status();
    if (Status status = check_stage(stage, fmt::format("unit '{}'", name)); !status.ok()) return status;
    stage_of[static_cast<std::size_t>(*unit)] = stage;
  }
  std::vector<int> cuts;
  int stage = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (!stage_of[i]) return invalid(fmt::format("unit '{}' has no stage, and there is no default_partition", units[i]));
    const int here = *stage_of[i];
    if (here < stage) {
      return invalid(fmt::format("unit '{}' returns to stage {} behind unit '{}' of stage {}: stages never go back", units[i],
                                 here, units[i - 1], stage));
    }
    const int skipped = i == 0 ? 0 : stage + 1;
    if (here > skipped) return invalid(fmt::format("stage {} is empty: unit '{}' is in stage {}", skipped, units[i], here));
    if (here > stage) cuts.push_back(static_cast<int>(i));
    stage = here;
  }
  if (stage != stages - 1) {
    return invalid(fmt::format("stage {} is empty: the last unit '{}' is in stage {}", stage + 1,
                               units.empty() ? "" : units.back(), stage));
  }
  return cuts;
}

}  // namespace shoal::pipeline
