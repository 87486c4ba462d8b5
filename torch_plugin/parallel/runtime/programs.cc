#include "torch_plugin/parallel/runtime/programs.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/pipeline/schedule.h"
#include "src/pipeline/verifier.h"

namespace shoal::parallel {
namespace {

using pipeline::Action;
using pipeline::ActionOp;
using pipeline::Actions;
using pipeline::ScheduleKind;

pipeline::Shape shape_of(const PipelineOptions& options, int ranks, int chunks) {
  return {options.schedule, ranks, chunks, options.microbatches, options.active_microbatches};
}

pipeline::StageTimes times_or_equal(const PipelineOptions& options, int stages) {
  constexpr double kForwardUs = 1;
  constexpr double kBackwardUs = 2;
  return options.stage_times.stages.empty() ? pipeline::equal_stages(stages, kForwardUs, kBackwardUs, 0) : options.stage_times;
}

}  // namespace

Status Programs::check(const PipelineOptions& options, int ranks, int chunks) {
  if (options.schedule == ScheduleKind::zb_h1) {
    return {StatusCode::unsupported, "the schedule zb_h1 is simulated only: its backward in two halves does not run; use 1f1b"};
  }
  if (options.schedule == ScheduleKind::forward_only) {
    return {StatusCode::invalid_argument, "the schedule forward_only cannot train; evaluate() takes it by itself"};
  }
  const pipeline::Shape shape = shape_of(options, ranks, chunks);
  if (Status status = pipeline::check(shape); !status.ok()) return status;
  if (shape.kind != ScheduleKind::interleaved) return {};
  return pipeline::check(times_or_equal(options, shape.stages()), shape);
}

Programs::Programs(const PipelineOptions& options, int ranks, int chunks, int rank)
    : shape_(shape_of(options, ranks, chunks)),
      times_(times_or_equal(options, shape_.stages())),
      rank_(rank),
      pairs_in_order_(options.messages == MessageRoute::streams) {}

const Actions& Programs::training(int microbatches) {
  if (const auto known = training_.find(microbatches); known != training_.end()) return known->second;
  // `virtual` needs a multiple of the ranks. What remains without the last microbatches is still in a possible order, because
  // no action of one microbatch needs another microbatch.
  pipeline::Shape shape = shape_;
  const int step = shape.kind == ScheduleKind::virtual_stages ? shape.ranks : 1;
  shape.microbatches = (microbatches + step - 1) / step * step;
  const Result<pipeline::PipelineSchedule> schedule = pipeline::make_schedule(shape, times_);
  pipeline::VerifyOptions proof;
  proof.pairs_in_order = pairs_in_order_;
  const Status status = schedule.ok() ? pipeline::to_status(pipeline::verify(*schedule, proof)) : schedule.status();
  if (!status.ok())
    throw std::logic_error("schedule of " + std::to_string(microbatches) + " microbatches: " + status.message());
  Actions actions = schedule->ranks[static_cast<std::size_t>(rank_)];
  std::erase_if(actions, [&](const Action& action) { return action.microbatch >= microbatches; });
  return training_.emplace(microbatches, std::move(actions)).first->second;
}

const Actions& Programs::evaluation(int microbatches) {
  if (const auto known = evaluation_.find(microbatches); known != evaluation_.end()) return known->second;
  Actions actions = training(microbatches);
  std::erase_if(actions, [](const Action& action) {
    return action.op != ActionOp::forward && action.op != ActionOp::recv_activation && action.op != ActionOp::send_activation;
  });
  return evaluation_.emplace(microbatches, std::move(actions)).first->second;
}

}  // namespace shoal::parallel
