// One turn of one replica.
#pragma once

#include <cstdint>
#include <functional>

#include <shoal/status.h>

#include "bench/train/common_stop.h"
#include "bench/train/entry.h"
#include "bench/train/figures.h"
#include "bench/train/gpu_meter.h"
#include "bench/train/step_log.h"

namespace shoal::train {

/// What all turns of a run have in common.
struct TurnTools {
  CommonStop& common_stop;
  GpuMeter& gpu;
  StepLog* books;                               ///< learns of every step; null where nobody needs it
  std::function<double(std::int64_t)> rate_of;  ///< the learning rate of a step, from 0
  bool wants_trace;                             ///< a step of the replica is to be recorded, when it has made its first ones
};

/// How a turn ended on this rank.
struct TurnEnd {
  Turn turn = {};         ///< complete where both of the next are ok
  Status status = {};     ///< of asking whether to stop
  Status broke_off = {};  ///< what went wrong in a step: the ranks may be at different ones. As code_of()
  bool stopped = false;   ///< some rank was asked to stop: there may be fewer steps
};

/// Makes up to `steps` steps and waits for all that they have begun. Collective.
TurnEnd make_turn(Entry& entry, std::int64_t steps, const TurnTools& tools);

}  // namespace shoal::train
