// BatchNormStatistics: how often batch normalisations of a pipeline update their running statistics.
#pragma once

#include <cstdint>
#include <string_view>

#include <shoal/status.h>

namespace shoal::pipeline {

/// Batch normalisation normalizes by microbatch in any case.
enum class BatchNormStatistics : std::uint8_t {
  microbatch,  ///< an update for each microbatch, in their order
  deferred,    ///< one update for each step, as for the whole batch
};

/// "microbatch", "deferred".
std::string_view to_string(BatchNormStatistics statistics) noexcept;
/// Error: invalid_argument that lists the names.
Result<BatchNormStatistics> parse_batch_norm(std::string_view name);

}  // namespace shoal::pipeline
