// Part: one step of a model, with the modules that it runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace shoal::parallel {

/// A tensor under its name in the whole model: "blocks.3.conv1.conv.weight".
using NamedTensor = std::pair<std::string, at::Tensor>;
/// A module under its name in the whole model: "blocks.3".
using NamedModule = std::pair<std::string, std::shared_ptr<::torch::nn::Module>>;

/// A step of a model from one tensor to one tensor. Parts that follow each other make a Chain; those of its parts that have
/// parameters are its units. Thread rule: a value; copies share their modules.
struct Part {
  std::string name;
  std::vector<NamedModule> modules;  ///< all that `forward` runs, none of them inside another one; empty for a mere function
  std::function<at::Tensor(at::Tensor)> forward;  ///< under the rules of Unit::forward()

  [[nodiscard]] std::vector<NamedTensor> parameters() const;
  [[nodiscard]] std::vector<NamedTensor> buffers() const;
};

/// The part that runs `module`, a Unit or any other module whose forward() takes and returns one tensor. `name` is the module's
/// name in the whole model, with dots where it lies inside others: "blocks.3".
template <typename Module>
Part make_part(std::string name, std::shared_ptr<Module> module) {
  return {name, {{name, module}}, [module](at::Tensor x) { return module->forward(std::move(x)); }};
}
template <typename Module>
Part make_part(std::string name, const ::torch::nn::ModuleHolder<Module>& holder) {
  return make_part(std::move(name), holder.ptr());
}

}  // namespace shoal::parallel
