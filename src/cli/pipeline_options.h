// The options that the pipeline tools share: the shape of the pipeline, the rules of its costs, and where its times come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <shoal/status.h>
#include "src/pipeline/partitioner.h"
#include "src/pipeline/profile.h"

namespace CLI {
class App;
}

namespace shoal {

/// The times of a pipeline's stages, and recomputation_line() of the partition that they are of.
struct PipelineTimes {
  pipeline::StageTimes times;
  std::string recomputation = {};
};

/// The options as the user gave them, and their meaning.
class PipelineOptions {
 public:
  /// --pipeline, --partitions, --microbatches, --chunks, --active-microbatches.
  void add_shape_to(CLI::App& command);
  /// --optimize, --memory-weight, --memory-limit-bytes, --optimizer-states, --link-latency-us, --link-bytes-per-us, --overlap,
  /// --recompute, --recompute-units, --cuts, --assign, --default-partition.
  void add_partition_to(CLI::App& command);
  /// --profile, and --forward-us, --backward-us, --message-us for equal stages without a profile.
  void add_times_to(CLI::App& command);

  [[nodiscard]] Result<pipeline::Shape> shape() const;
  [[nodiscard]] Result<pipeline::PartitionRequest> request() const;
  /// The partition that --cuts or --assign describe, else the best one.
  [[nodiscard]] Result<pipeline::Partition> partition(const pipeline::Profile& profile) const;
  /// Times of the stages: those of the partition of --profile, else of equal stages.
  [[nodiscard]] Result<PipelineTimes> times() const;
  /// 0 if messages take their latency only.
  [[nodiscard]] double link_bytes_per_us() const { return link_bytes_per_us_.value_or(0); }

 private:
  std::string kind_ = "interleaved";
  int partitions_ = 0;
  int microbatches_ = 1;
  int chunks_ = 1;
  std::optional<int> active_microbatches_;
  std::string objective_ = "memory";
  std::optional<double> memory_weight_;
  std::optional<std::int64_t> memory_limit_bytes_;
  int optimizer_states_ = 2;
  double link_latency_us_ = 0;
  std::optional<double> link_bytes_per_us_;
  bool overlaps_ = false;
  std::string recompute_ = "none";
  std::string recompute_units_ = "none";
  std::vector<std::string> cuts_;
  std::vector<std::string> assignments_;
  std::optional<int> default_partition_;
  std::string profile_;
  std::vector<double> forward_us_{1};
  std::vector<double> backward_us_{2};
  double message_us_ = 0;
};

}  // namespace shoal
