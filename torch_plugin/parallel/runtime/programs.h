// Programs: the actions of one rank, for each number of microbatches that a step has.
#pragma once

#include <map>

#include <shoal/status.h>

#include "src/pipeline/action.h"
#include "torch_plugin/parallel/runtime/options.h"

namespace shoal::parallel {

/// Makes, proves (by pipeline::verify(), for the route of the messages) and keeps the actions of a rank. Thread rule: one
/// thread.
class Programs {
 public:
  /// Precondition: check().
  Programs(const PipelineOptions& options, int ranks, int chunks, int rank);

  /// ok if the pipeline can run; else invalid_argument or unsupported, with what to change.
  static Status check(const PipelineOptions& options, int ranks, int chunks);

  /// A step with that many microbatches. Each stage runs them in ascending order, forwards and backwards alike.
  const pipeline::Actions& training(int microbatches);
  /// Its forwards and their messages.
  const pipeline::Actions& evaluation(int microbatches);

  /// As for the number of microbatches in the options.
  [[nodiscard]] const pipeline::Shape& shape() const { return shape_; }

 private:
  pipeline::Shape shape_;
  pipeline::StageTimes times_;
  int rank_;
  bool pairs_in_order_;  // messages on streams have no tags
  std::map<int, pipeline::Actions> training_;
  std::map<int, pipeline::Actions> evaluation_;
};

}  // namespace shoal::parallel
