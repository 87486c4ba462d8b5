// Abstract execution of a PipelineSchedule: finds ranks that wait for each other.
#pragma once

#include "src/pipeline/faults.h"

namespace shoal::pipeline {

/// Adds a fault for each rank that never ends. Precondition: actions are valid, and every message is sent and received once.
void find_deadlock(const PipelineSchedule& schedule, SendRule sends, Faults& faults);

}  // namespace shoal::pipeline
