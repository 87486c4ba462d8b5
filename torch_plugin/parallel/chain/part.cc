#include "torch_plugin/parallel/chain/part.h"

namespace shoal::parallel {

std::vector<NamedTensor> Part::parameters() const {
  std::vector<NamedTensor> all;
  for (const auto& [name, module] : modules) {
    for (const auto& item : module->named_parameters()) all.emplace_back(name + "." + item.key(), item.value());
  }
  return all;
}

std::vector<NamedTensor> Part::buffers() const {
  std::vector<NamedTensor> all;
  for (const auto& [name, module] : modules) {
    for (const auto& item : module->named_buffers()) all.emplace_back(name + "." + item.key(), item.value());
  }
  return all;
}

}  // namespace shoal::parallel
