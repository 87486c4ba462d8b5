// The results of a training run, as JSON and as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <shoal/status.h>

#include "torch_plugin/parallel/runtime/step_durations.h"

namespace shoal::train {

/// A rank of a pipeline. Times are for a step; busy, waiting and idle make the step of the rank that takes longest.
struct RankResult {
  int rank = 0;
  int stage = 0;  ///< its place in its pipeline
  int replica = 0;
  int slice = 0;                                         ///< of the layers of its stage
  std::vector<std::string> first_units = {};             ///< of its stages
  double busy_ms = 0;                                    ///< in forwards and backwards
  double waiting_ms = 0;                                 ///< for messages, between its first and its last action
  double idle_ms = 0;                                    ///< before its first action and after its last one
  std::int64_t peak_bytes = 0;                           ///< of tensors
  std::int64_t peak_bytes_predicted = 0;                 ///< by the profile
  std::uint64_t fingerprint = 0;                         ///< of its parameters: equal for replicas of a stage or slice
  std::vector<parallel::ComputedAction> last_step = {};  ///< what it did in the last step, in its order
};

/// What the results of a network in a pipeline have beside those of other trainings.
struct PipelineResult {
  std::string schedule;
  int partitions = 1;
  int chunks = 1;
  int microbatches = 1;
  int replicas = 1;
  int tensor_parallel = 1;  ///< slices of a stage
  std::string recompute = {};
  std::string recompute_units = {};
  std::string batch_norm = {};
  std::optional<double> bubble = std::nullopt;  ///< the part of all ranks' time in which they do not compute; of measured steps
  double bubble_predicted = 0;                  ///< by replay() of the profile
  double link_latency_us = 0;                   ///< which the partition counts for a message between stages
  std::optional<double> link_bytes_per_us = std::nullopt;  ///< nothing: as fast as you like
  std::int64_t peak_bytes = 0;                             ///< of the rank with the most
  std::int64_t peak_bytes_predicted = 0;
  std::vector<RankResult> ranks = {};
};

/// One backend in one epoch. Times and bytes are means over the ranks, of the measured steps only (not the first ones, see
/// trainer.h).
struct EpochResult {
  std::string backend;
  std::string overlap;  ///< "backward" or "next_forward"; "pipeline"
  std::string model;
  std::string dataset;
  int ranks = 1;
  int nodes = 1;
  std::optional<std::string> rate;  ///< of the links between nodes, if an emulated cluster set one
  std::string device = "cpu";       ///< or "cuda"
  int threads = 1;                  ///< for arithmetic, of a rank
  int batch_per_rank = 0;           ///< in a pipeline: images of a step of the pipeline
  int epoch = 0;                    ///< from 1
  std::int64_t epoch_steps = 0;     ///< optimizer steps of a whole epoch
  std::int64_t steps = 0;           ///< measured
  double seconds = 0;
  std::optional<double> images_per_s;  ///< all ranks together, median of the blocks
  bool knows_comm = true;              ///< false: the next two, and the bandwidth, are unknown
  double comm_exposed_s = 0;           ///< training waited for communication
  double comm_busy_s = 0;              ///< communication was in flight
  double bytes = 0;                    ///< of gradients that a rank passed to all_reduce
  std::optional<double> cpu_percent;   ///< of one core, per rank
  std::optional<double> gpu_percent;   ///< median of the turns, mean over the ranks that have it
  double loss = 0;                     ///< mean over ranks and the epoch's steps
  std::optional<double> accuracy;      ///< on the test images, 0..1
  std::vector<double> step_loss;       ///< mean over the ranks, of every step
  std::optional<PipelineResult> pipeline = std::nullopt;
  std::optional<double> speedup_vs_1;  ///< images_per_s divided by that of one rank, if such a result was given
};

/// The object of --json.
nlohmann::json to_json(const nlohmann::json& machine, const std::string& command, const std::vector<EpochResult>& results);

/// The results in a file of --json. Errors: not_found; system_error; invalid_argument with the row and the field of the wrong
/// type.
Result<nlohmann::json> read_results(const std::string& path);

/// images/s of one rank with the same network, images, batch, device and threads as `result`: from the last such row, of the
/// same backend if there is one. nullopt if there is none.
std::optional<double> images_per_s_alone(const nlohmann::json& alone, const EpochResult& result);

/// Writes `text` to `path`. Errors: system_error with the file's name.
Status write_text(const std::string& text, const std::string& path);

/// Writes `object` to `path`. Errors: system_error with the file's name.
Status write_json(const nlohmann::json& object, const std::string& path);

/// A table with a line for each backend (its last epoch), and their comparison with the first of them.
std::string to_table(const std::vector<EpochResult>& results);

/// The value; null if there is none.
template <typename T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value.has_value() ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

/// The middle value; the mean of the two middle ones for an even number; nothing for none.
std::optional<double> median(std::vector<double> values);

}  // namespace shoal::train
