// What the command line says about model parallelism.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <shoal/status.h>

namespace CLI {
class App;
}  // namespace CLI

namespace shoal::train {

/// Options that nobody gave are empty; their defaults are those of pipeline::Config. Names are the keys of SageMaker's library.
struct PipelineChoices {
  std::optional<std::string> pipeline;  ///< the schedule
  std::optional<std::int64_t> partitions;
  std::optional<std::int64_t> microbatches;
  std::optional<std::int64_t> chunks;
  std::optional<std::int64_t> active_microbatches;
  std::optional<std::int64_t> tensor_parallel_degree;
  std::optional<std::string> optimize;
  std::optional<double> memory_weight;
  std::optional<std::int64_t> memory_limit_bytes;
  std::optional<std::string> recompute;
  std::optional<std::string> recompute_units;
  std::optional<std::string> batch_norm;
  std::optional<std::string> placement_strategy;
  bool ddp = false;
  std::string parallel;                     ///< file with these keys; empty: none
  std::string partition;                    ///< partition file; empty: the partitioner decides
  std::string profile;                      ///< profile of the network; empty: it is measured
  std::optional<double> link_latency_us;    ///< of a message between stages; unset: measured
  std::optional<double> link_bytes_per_us;  ///< likewise
  std::optional<double> clip_norm;          ///< the most that the norm of the gradient may be; unset: any
  bool full_checkpoint = false;             ///< --checkpoint also writes one file of the whole network

  /// Whether the network is trained in a pipeline.
  [[nodiscard]] bool wanted() const {
    return pipeline.has_value() || partitions.has_value() || tensor_parallel_degree.has_value() || !parallel.empty() ||
           !partition.empty();
  }
  /// Without a pipeline the options that need one are refused. Error: invalid_argument that names the first.
  [[nodiscard]] Status check() const;
};

/// Adds the options to shoal_train's command line. Their values are checked later, with those in files.
void add_pipeline_options(CLI::App& app, PipelineChoices& choices);

}  // namespace shoal::train
