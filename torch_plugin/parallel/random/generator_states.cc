#include "torch_plugin/parallel/random/generator_states.h"

#include <mutex>

namespace shoal::parallel {

GeneratorStates::GeneratorStates(at::Device device) {
  generators_.push_back(at::globalContext().defaultGenerator(at::Device(at::kCPU)));
  if (!device.is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(device));
  for (at::Generator& generator : generators_) {
    const std::lock_guard lock(generator.mutex());
    states_.push_back(generator.get_state());
  }
}

void GeneratorStates::restore() const {
  for (std::size_t i = 0; i < generators_.size(); ++i) {
    at::Generator generator = generators_[i];  // a handle
    const std::lock_guard lock(generator.mutex());
    generator.set_state(states_[i]);
  }
}

void GeneratorStates::seed(std::uint64_t seed) const {
  for (at::Generator generator : generators_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

}  // namespace shoal::parallel
