// What the user of shoal_train asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shoal::train {

/// What carries the gradients, and beside what.
struct ContestantOptions {
  std::string backend;  ///< "shoal" or "gloo"
  std::string overlap;  ///< "backward" or "next_forward", see ddp/data_parallel.h

  bool operator==(const ContestantOptions&) const = default;
  [[nodiscard]] std::string name() const { return backend + "+" + overlap; }
};

/// The command line of shoal_train. Sizes are per rank unless they say otherwise.
struct TrainOptions {
  std::vector<ContestantOptions> contestants{{"shoal", "next_forward"}};
  std::string model = "resnet18";
  std::string dataset = "cifar10";
  std::optional<std::string> data_folder;
  int epochs = 1;
  std::int64_t steps = 0;  ///< optimizer steps of each backend; 0: as many as the epochs have
  int batch = 32;
  std::string optimizer = "sgd";
  double learning_rate = 0.01;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  std::uint64_t seed = 1;
  int threads = 0;                   ///< for arithmetic; 0: the cores this process may use, divided by the ranks on the machine
  std::optional<double> bucket_mib;  ///< unset: what suits the overlap
  double first_bucket_mib = 1;
  int block = 10;  ///< steps that a backend makes before the next one has its turn
  double timeout_s = 120;
  bool augment = true;
  bool evaluate = false;
  std::string json;     ///< file for the results; empty: none
  std::string command;  ///< the command line, for the results
};

/// What parse_options decided.
struct ParsedOptions {
  std::optional<int> exit_code;  ///< set: stop with it, everything has been said
  bool list_models = false;
  TrainOptions options;
};

/// Reads the command line; prints help and complaints itself. A bad command line is exit code 1.
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace shoal::train
