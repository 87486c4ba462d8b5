// EvaluationMode: units in evaluation mode for a scope.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "torch_plugin/parallel/unit.h"

namespace shoal::parallel {

/// Sets the units and their submodules to evaluation mode, and each of them back to its own mode at the end: a part that the
/// user has frozen in evaluation mode stays so.
class EvaluationMode {
 public:
  explicit EvaluationMode(const std::vector<std::shared_ptr<Unit>>& units);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<::torch::nn::Module>, bool>> before_;  // parents before their children
};

}  // namespace shoal::parallel
