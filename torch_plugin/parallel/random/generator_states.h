// GeneratorStates: the states of the random generators that a unit may draw from.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

namespace shoal::parallel {

/// Of torch's default generators: the CPU's, and that of a device where there is one. Thread rule: a value; calls lock the
/// generators.
class GeneratorStates {
 public:
  /// The states now.
  explicit GeneratorStates(at::Device device);
  /// Sets the generators to these states.
  void restore() const;
  /// Seeds the generators; the states are kept.
  void seed(std::uint64_t seed) const;

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

/// Puts the generators back at its end to where they were when it was made.
class GeneratorGuard {
 public:
  explicit GeneratorGuard(at::Device device) : states_(device) {}
  ~GeneratorGuard() { states_.restore(); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  const GeneratorStates states_;
};

}  // namespace shoal::parallel
