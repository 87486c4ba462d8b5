// The learning rate of each step.
#pragma once

#include <cstdint>
#include <string>

#include "bench/train/options.h"

namespace shoal::train {

/// The decrease of the learning rate.
struct Schedule {
  std::string kind = "constant";  ///< "constant", "cosine" or "step"
  double start = 0.01;
  double step_factor = 0.1;      ///< of "step"
  int step_epochs = 0;           ///< of "step": epochs between two reductions; 0: a third of the run
  std::int64_t epoch_steps = 1;  ///< optimizer steps in an epoch
  int epochs = 1;                ///< of the whole run, even if it ends early
};

/// The schedule of `options`, with epochs of `epoch_steps` steps.
Schedule schedule_of(const TrainOptions& options, std::int64_t epoch_steps);

/// The learning rate of optimizer step `step` (from 0). "cosine" goes to 0 over the whole run, step by step: Loshchilov,
/// Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, without the restarts. "step" multiplies by
/// step_factor after every step_epochs epochs.
double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace shoal::train
