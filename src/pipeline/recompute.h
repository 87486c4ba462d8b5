// Recompute: which stages keep only their inputs and repeat the forward before the backward (activation checkpointing).
#pragma once

#include <cstdint>
#include <string_view>

#include <shoal/status.h>

namespace shoal::pipeline {

/// A stage that holds one microbatch never recomputes: it would save nothing.
enum class Recompute : std::uint8_t {
  none,
  all,           ///< every stage that holds several microbatches
  where_needed,  ///< the stages that do not meet the memory limit otherwise
};

/// "none", "all", "where_needed".
std::string_view to_string(Recompute recompute) noexcept;
/// Error: invalid_argument that lists the names.
Result<Recompute> parse_recompute(std::string_view name);

}  // namespace shoal::pipeline
