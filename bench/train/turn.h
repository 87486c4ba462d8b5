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

/// The parameters common to all turns of a run.
struct TurnTools {
  CommonStop& common_stop;
  GpuMeter& gpu;
  StepLog* books;                               ///< records every step; null if not needed
  std::function<double(std::int64_t)> rate_of;  ///< the learning rate of a step, from 0
  bool wants_trace;                             ///< record a step of the replica after its first ones
};

/// How a turn ended on this rank.
struct TurnEnd {
  Turn turn = {};         ///< complete if both of the next are ok
  Status status = {};     ///< of the agreement on stopping
  Status broke_off = {};  ///< the failure in a step, with the code of code_of(); ranks may be at different steps
  bool stopped = false;   ///< some rank was asked to stop; there may be fewer steps
};

/// Makes up to `steps` steps and waits for everything that they have begun. Collective.
TurnEnd make_turn(Entry& entry, std::int64_t steps, const TurnTools& tools);

}  // namespace shoal::train
