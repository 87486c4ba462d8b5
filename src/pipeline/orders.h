// Orders: in which order each rank computes; pure functions, one for each kind of schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "src/pipeline/action.h"
#include "src/pipeline/stage_times.h"

namespace shoal::pipeline {

/// The compute actions of each rank. `times` matter for `interleaved` only, and may be empty for other kinds.
/// Precondition: a valid shape; for `interleaved` valid times.
std::vector<Actions> compute_orders(const Shape& shape, const StageTimes& times);

/// The order of `interleaved` with a cap for each stage. At each moment a rank that computes nothing begins a backward that is
/// ready, else a forward if it holds fewer microbatches than its cap. Of the ranks that can begin at the same moment the lower
/// one goes first. Precondition: one chunk on each rank, caps of at least 1, valid times.
std::vector<Actions> list_schedule(const Shape& shape, const StageTimes& times, const std::vector<int>& caps);

/// The most microbatches that each stage holds at any moment. A stage that computes no backward holds one.
std::vector<int> most_held_by_stage(const Shape& shape, const std::vector<Actions>& ranks);

/// The most microbatches that each rank holds at any moment, those of all its stages together.
std::vector<int> most_held_by_rank(const Shape& shape, const std::vector<Actions>& ranks);

}  // namespace shoal::pipeline
