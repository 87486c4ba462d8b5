// Measurements of a replica, by turn and by epoch.
#pragma once

#include <chrono>
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

/// One turn: the measurements of this rank, and after average() the means over the ranks.
struct Turn {
  bool measured = true;    ///< false: its steps are not comparable, and only the losses count
  bool knows_comm = true;  ///< false: the times in sums.comm are not valid
  Measured sums = {};
  std::optional<double> gpu_percent = std::nullopt;
  std::vector<double> losses = {};  ///< by step
  double images_per_s = 0;          ///< all ranks together
};

/// The figures of a replica in the current epoch. All are means over the ranks.
struct Figures {
  Measured sums = {};
  std::vector<double> turn_rates = {};    ///< images per second of all ranks, by turn
  std::vector<double> gpu_percents = {};  ///< by turn
  std::vector<double> losses = {};        ///< by step, including turns that are not measured

  void add(const Turn& turn);
};

/// The first steps of a backend are not measured: they open connections and sort the gradients into buckets.
inline constexpr std::int64_t kUnmeasuredSteps = 2;

double seconds_since(std::chrono::steady_clock::time_point start);
/// User and system time of all threads of this process so far, in seconds.
double cpu_seconds();

/// The mean over the ranks of each of `values`. Collective.
Status average(Communicator& control, std::vector<double>& values);

/// Replaces times and losses of this rank's `turn` by the means over the ranks, and gpu_percent by the mean over the ranks
/// that have it. All ranks must have made the same number of steps. Collective.
Status average(Communicator& control, Turn& turn);

/// The figures of a turn in the log and in --json; the turn has at least one step.
nlohmann::json to_json(const Turn& turn);

/// The result of an epoch's figures. The caller fills in the replica and the epoch.
EpochResult to_result(const Figures& epoch);

}  // namespace shoal::train
