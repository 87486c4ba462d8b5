#include "src/pipeline/stage_times.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/pipeline/error.h"
#include "src/pipeline/exact.h"

namespace shoal::pipeline {

StageTimes equal_stages(int stages, double forward_us, double backward_us, double message_us) {
  const std::int64_t backward_ps = millionths(backward_us);
  const StageTime stage{millionths(forward_us), backward_ps - backward_ps / 2, backward_ps / 2, 0};
  const auto count = static_cast<std::size_t>(std::max(stages, 1));
  return {std::vector<StageTime>(count, stage), std::vector<CutTime>(count - 1, {millionths(message_us), 0, 0})};
}

Status check(const StageTimes& times, const Shape& shape) {
  const auto stages = static_cast<std::size_t>(shape.stages());
  if (times.stages.size() != stages || times.cuts.size() + 1 != stages) {
    return invalid(fmt::format("times of {} stages and {} cuts for a pipeline of {} stages", times.stages.size(),
                               times.cuts.size(), stages));
  }
  Wide total = 0;
  bool negative = false;
  const auto add = [&](std::int64_t each_ps) {
    negative = negative || each_ps < 0;
    total += static_cast<Wide>(each_ps);
  };
  for (const StageTime& stage : times.stages) {
    for (const std::int64_t each_ps : {stage.forward_ps, stage.input_ps, stage.weight_ps, stage.reduce_ps}) add(each_ps);
  }
  for (const CutTime& cut : times.cuts) {
    for (const std::int64_t each_ps : {cut.latency_ps, cut.wire_ps, cut.latency_ps, cut.wire_ps}) add(each_ps);
  }
  if (negative) return invalid("a stage or a message takes a negative time");
  if (total * static_cast<Wide>(shape.microbatches) >= Wide{1} << 62) {
    return invalid(fmt::format("a step with {} microbatches of these stages would take more than a month", shape.microbatches));
  }
  return {};
}

}  // namespace shoal::pipeline
