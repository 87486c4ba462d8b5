// StageTimes: how long the actions of each stage and the messages over each cut take.
#pragma once

#include <cstdint>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/shape.h"

namespace shoal::pipeline {

/// One stage, for one microbatch; in picoseconds, so that equal times compare equal.
struct StageTime {
  std::int64_t forward_ps = 0;
  std::int64_t input_ps = 0;   ///< of the backward: gradient of the input, and a recomputed forward
  std::int64_t weight_ps = 0;  ///< of the backward: gradients of the weights
  std::int64_t reduce_ps = 0;  ///< reduce_gradients, once in a step

  [[nodiscard]] std::int64_t backward_ps() const { return input_ps + weight_ps; }
};

/// A message of one microbatch over a cut, either way: it occupies its link for `wire_ps` and arrives `latency_ps` later.
struct CutTime {
  std::int64_t latency_ps = 0;
  std::int64_t wire_ps = 0;
  std::int64_t bytes = 0;
};

struct StageTimes {
  std::vector<StageTime> stages;
  std::vector<CutTime> cuts;  ///< one fewer than stages; cut c is between the stages c and c + 1
};

/// Picoseconds as microseconds, for messages and tables.
inline double microseconds(std::int64_t ps) { return static_cast<double>(ps) / 1e6; }

/// `stages` equal stages, for examples and closed forms. The two halves of a backward take equally long. `message_us` is
/// latency. Precondition: times from 0 to 1e9.
StageTimes equal_stages(int stages, double forward_us, double backward_us, double message_us);

/// ok if there are times for each stage and cut of `shape` and their sum over a step is below 2^62 ps (53 days); else
/// invalid_argument.
Status check(const StageTimes& times, const Shape& shape);

}  // namespace shoal::pipeline
