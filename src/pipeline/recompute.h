// Which stages or units keep only their inputs and repeat the forward before the backward (activation checkpointing).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal::pipeline {

/// Of stages. A stage that holds one microbatch never recomputes: it would save nothing.
enum class Recompute : std::uint8_t {
  none,
  all,           ///< every stage that holds several microbatches
  where_needed,  ///< the stages that do not meet the memory limit otherwise
};

/// "none", "all", "where_needed".
std::string_view to_string(Recompute recompute) noexcept;
/// Error: invalid_argument that lists the names.
Result<Recompute> parse_recompute(std::string_view name);

/// The units first..end-1 of a chain, which recompute together: they keep the input of the first one only.
struct UnitRun {
  int first = 0;
  int end = 0;

  bool operator==(const UnitRun&) const = default;
};

/// Of units inside of stages. They recompute in stages that hold one microbatch, too, which saves what a backward needs.
struct RecomputeUnits {
  /// all: each unit by itself; where_needed: in a stage that does not meet the memory limit its first units, each by itself, as
  /// many as it needs.
  Recompute rule = Recompute::none;
  /// With the rule none: units by name or position, and runs of neighbours "first..last".
  std::vector<std::string> list = {};

  [[nodiscard]] bool any() const { return rule != Recompute::none || !list.empty(); }
  bool operator==(const RecomputeUnits&) const = default;
};

/// The names of the rules, or the list: "stem,block2..block4".
std::string to_string(const RecomputeUnits& units);
/// As to_string() writes it. Error: invalid_argument for an empty text or entry.
Result<RecomputeUnits> parse_recompute_units(std::string_view text);

/// ok unless both want something. Error: invalid_argument that names both.
Status check_together(Recompute stages, const RecomputeUnits& units);

}  // namespace shoal::pipeline
