// The options of shoal_train.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/train/pipeline/choices.h"

namespace shoal::train {

/// A backend that averages the gradients, and what it overlaps with.
struct ReplicaOptions {
  std::string backend;  ///< "shoal", "gloo", "mpi" or "nccl"
  std::string overlap;  ///< "backward" or "next_forward", see ddp/data_parallel.h

  bool operator==(const ReplicaOptions&) const = default;
  [[nodiscard]] std::string name() const { return backend + "+" + overlap; }
};

/// The command line of shoal_train. Sizes are per rank unless stated otherwise.
struct TrainOptions {
  std::vector<ReplicaOptions> replicas{{"shoal", "next_forward"}};
  std::string model = "resnet18";
  std::string dataset = "cifar10";
  std::optional<std::string> data_folder;
  int epochs = 1;
  std::int64_t steps = 0;  ///< optimizer steps of each backend; 0: the steps of the epochs
  double seconds = 0;      ///< end after the round of turns in which this many have passed; 0: never
  int batch = 32;
  int accumulate = 1;  ///< batches whose gradients each rank sums before the sums are averaged over the ranks
  std::string precision = "fp32";
  std::string optimizer = "sgd";
  std::optional<double> learning_rate;  ///< unset: 0.01 for sgd, 0.1 for adadelta, 0.001 for adam
  double momentum = 0.9;
  std::optional<double> weight_decay;  ///< unset: 5e-4 for sgd, 0 for others
  std::string schedule = "constant";   ///< see schedule.h
  int schedule_epochs = 0;
  double schedule_factor = 0.1;
  std::uint64_t seed = 1;
  std::string device = "auto";       ///< "auto", "cpu" or "cuda", see device.h
  int workers = 2;                   ///< threads that prepare batches, per rank
  int threads = 0;                   ///< for arithmetic; 0: the cores this process may use, divided by the ranks on the machine
  std::optional<double> bucket_mib;  ///< unset: the default for the overlap
  double first_bucket_mib = 1;
  int block = 10;  ///< steps of a backend before the next backend takes its turn
  double timeout_s = 120;
  std::string on_failure = "stop";  ///< when a rank is lost: "stop" or "shrink"
  bool augment = true;
  bool evaluate = false;
  std::string json;          ///< file for the results; empty: none
  std::string log;           ///< file for a line of JSON about every turn and epoch; empty: none
  std::string checkpoint;    ///< file to save to after every epoch and at the end; empty: none
  std::string resume;        ///< checkpoint to continue from; empty: from the start
  std::string trace;         ///< file for a trace of one step; empty: none
  std::string plot;          ///< file for a picture of the results; empty: none
  std::string profile_out;   ///< file for the costs of the network's units, instead of training; empty: train
  std::string alone;         ///< results of one rank, the base of speed-ups; empty: none
  PipelineChoices parallel;  ///< a network in a pipeline over the ranks
  std::string command;       ///< the command line, for the results

  /// Whether training continues without lost ranks.
  [[nodiscard]] bool survives() const { return on_failure == "shrink"; }
  [[nodiscard]] double start_learning_rate() const {
    return learning_rate.value_or(optimizer == "sgd" ? 0.01 : optimizer == "adam" ? 0.001 : 0.1);
  }
  [[nodiscard]] double weight_decay_or_default() const { return weight_decay.value_or(optimizer == "sgd" ? 5e-4 : 0.0); }
};

/// The result of parse_options.
struct ParsedOptions {
  std::optional<int> exit_code;  ///< set: exit with it; messages have been printed
  bool list_models = false;
  std::optional<std::vector<std::string>> page;  ///< arguments of `shoal_train report`
  TrainOptions options;
};

/// Parses the command line; prints help and error messages itself. A bad command line gives exit code 1.
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace shoal::train
