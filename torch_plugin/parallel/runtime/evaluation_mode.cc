#include "torch_plugin/parallel/runtime/evaluation_mode.h"

namespace shoal::parallel {

EvaluationMode::EvaluationMode(const std::vector<std::shared_ptr<Unit>>& units) {
  for (const std::shared_ptr<Unit>& unit : units) {
    for (const std::shared_ptr<::torch::nn::Module>& module : unit->modules())
      before_.emplace_back(module, module->is_training());
  }
  for (const std::shared_ptr<Unit>& unit : units) unit->eval();
}

EvaluationMode::~EvaluationMode() {
  // train() sets the children, too, whose own turn comes later.
  for (const auto& [module, training] : before_) module->train(training);
}

}  // namespace shoal::parallel
