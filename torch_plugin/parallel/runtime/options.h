// PipelineOptions: how a pipeline runs its steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/pipeline/batch_norm.h"
#include "src/pipeline/recompute.h"
#include "src/pipeline/shape.h"
#include "src/pipeline/stage_times.h"

namespace shoal::parallel {

using pipeline::BatchNormStatistics;

/// What the loss of a microbatch is over its images; the gradients are those of the same over the whole batch.
enum class LossReduction : std::uint8_t {
  mean,  ///< microbatch i counts b_i / B
  sum,   ///< each microbatch counts 1
};

/// How activations and gradients travel between ranks.
enum class MessageRoute : std::uint8_t {
  host_memory,  ///< from any device
  streams,      ///< in the order of streams of CUDA devices, so that the host does not wait for the device
};

/// Equal on all ranks of the pipeline.
struct PipelineOptions {
  /// Not zb_h1, whose split backward is simulated only, and not forward_only, which evaluate() takes by itself.
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::interleaved;
  int microbatches = 1;                                   ///< the most of a step: a batch of fewer images has one an image
  std::optional<int> active_microbatches = std::nullopt;  ///< with interleaved: the most that a stage holds
  pipeline::StageTimes stage_times = {};                  ///< for the order of interleaved; empty = equal stages
  BatchNormStatistics batch_norm = BatchNormStatistics::microbatch;
  LossReduction loss_reduction = LossReduction::mean;
  /// Which stages keep only the inputs of their microbatches and run forward again in the backward. A stage that holds one
  /// microbatch at a time never does.
  pipeline::Recompute recompute = pipeline::Recompute::none;
  std::vector<bool> recompute_stages = {};  ///< of where_needed: whether each stage does, as Partition::recomputes() says
  /// Set: in training, each unit of a Chain draws its random numbers (dropout) from a seed of its own, made of this one, the
  /// step, the replica, the microbatch and the unit's place in the chain. So they do not depend on partition and schedule, and
  /// the generators of the process are afterwards what they were. A stage that is not of a Chain counts as one unit. Unset:
  /// units draw from the generators of the process.
  std::optional<std::uint64_t> seed = std::nullopt;
  std::int64_t replica = 0;     ///< of this pipeline; for `seed`
  std::int64_t first_step = 0;  ///< number of the first step(), where a training goes on; for `seed`
  MessageRoute messages = MessageRoute::host_memory;
  c10::DeviceType cuda_devices = c10::DeviceType::CUDA;  ///< whose memory and streams are those of CUDA; tests have another
  /// The most that a rank waits for the header of a step, and the longest time from the header to the end of the step.
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

}  // namespace shoal::parallel
