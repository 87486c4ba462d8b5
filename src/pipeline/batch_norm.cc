#include "src/pipeline/batch_norm.h"

#include <fmt/format.h>

#include "src/pipeline/error.h"

namespace shoal::pipeline {

std::string_view to_string(BatchNormStatistics statistics) noexcept {
  return statistics == BatchNormStatistics::microbatch ? "microbatch" : "deferred";
}

Result<BatchNormStatistics> parse_batch_norm(std::string_view name) {
  for (const BatchNormStatistics statistics : {BatchNormStatistics::microbatch, BatchNormStatistics::deferred}) {
    if (name == to_string(statistics)) return statistics;
  }
  return invalid(fmt::format("no statistics of batch normalisation '{}'; there is microbatch, deferred", name));
}

}  // namespace shoal::pipeline
