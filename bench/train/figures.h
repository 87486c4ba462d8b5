// What is measured of a replica, by turn and by epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <shoal/communicator.h>

#include "bench/train/comm_clock.h"
#include "bench/train/report.h"

namespace shoal::train {

/// Sums over the steps of one turn or one epoch.
struct Measured {
  std::int64_t steps = 0;
  double seconds = 0;
  double cpu_s = 0;  ///< of all threads of a rank
  CommTimes comm = {};

  void add(const CommTimes& more);
  void add(const Measured& more);
};

/// One turn: what this rank has measured, and after average() the means over the ranks.
struct Turn {
  bool measured = true;    ///< else it has steps that are not like the others, and only the losses count
  bool knows_comm = true;  ///< else the times in sums.comm mean nothing
  Measured sums = {};
  std::optional<double> gpu_percent = std::nullopt;
  std::vector<double> losses = {};  ///< by step
  double images_per_s = 0;          ///< all ranks together
};

/// What is known of a replica in the epoch in progress. All of it means over the ranks.
struct Figures {
  Measured sums = {};
  std::vector<double> turn_rates = {};    ///< images per second of all ranks, by turn
  std::vector<double> gpu_percents = {};  ///< by turn
  std::vector<double> losses = {};        ///< by step, of turns that are not measured too

  void add(const Turn& turn);
};

/// User and system time of all threads of this process so far, in seconds.
double cpu_seconds();

/// The mean over the ranks of each of `values`. Collective.
Status average(Communicator& control, std::vector<double>& values);

/// Makes times and losses of this rank's `turn` the means over the ranks, and gpu_percent that over the ranks that know it. All
/// must have made as many steps. Collective.
Status average(Communicator& control, Turn& turn);

/// What the log and --json tell of the figures of a turn, which has at least one step.
nlohmann::json to_json(const Turn& turn);

/// What the figures of an epoch tell. Of whom and of which epoch they are is left open.
EpochResult to_result(const Figures& epoch);

}  // namespace shoal::train
