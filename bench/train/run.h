// The program shoal_train without its command line.
#pragma once

#include <atomic>
#include <string>

#include "bench/train/options.h"

namespace shoal::train {

/// Joins the job, finds the images, trains, reports. Returns the exit status: 0, 1 after one message on standard error, or
/// 130 when `stop` became true.
int run(const TrainOptions& options, const std::atomic<bool>& stop);

/// The output of `shoal_train models`.
std::string list_models();

}  // namespace shoal::train
