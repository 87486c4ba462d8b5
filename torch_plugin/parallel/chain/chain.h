// Chain: a model as a sequence of units, from which stages are made.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include <shoal/status.h>

#include "src/pipeline/recompute.h"
#include "torch_plugin/parallel/chain/part.h"
#include "torch_plugin/parallel/unit.h"

namespace shoal::parallel {

/// The units of a model, in the order in which they run, with one tensor between neighbours. A unit is the smallest piece that
/// can be a stage: it has parameters, and takes the parts without parameters behind it with it (activations, poolings, means).
/// So no stage is without parameters, and none begins with an in-place activation. Parts without parameters at the start
/// belong to the first unit. Thread rule: a value; copies share their modules.
class Chain {
 public:
  /// The chain of `parts`, which run in this order. A unit has the name of its part with parameters. Errors: invalid_argument
  /// that names the part, module, parameter or buffer: no part has parameters; a missing name, module or function; the same
  /// name twice, or a module inside another one; a parameter or buffer of two units.
  static Result<Chain> of(std::vector<Part> parts);
  /// The chain of the modules in `model`, each of which takes and returns one tensor. Names are those in `model`. Errors: as
  /// above.
  template <std::same_as<::torch::nn::Sequential> Model>  // else a list of parts in braces might be taken for one
  static Result<Chain> of(const Model& model) {
    return of_modules(model);
  }

  [[nodiscard]] int size() const { return static_cast<int>(units_.size()); }
  [[nodiscard]] const std::vector<Part>& units() const { return units_; }
  [[nodiscard]] const std::vector<std::string>& unit_names() const { return names_; }
  /// The position of the unit called `name`. Error: invalid_argument that names the nearest units.
  [[nodiscard]] Result<int> find(std::string_view name) const;

  /// Units begin..end-1 as one Unit, which shares their modules and nothing else of the model: what no stage holds is freed
  /// with the model and the chain. Its parameters and buffers have the names that they have in the whole model. Each of the
  /// runs `recomputed` keeps the input of its first unit only and runs again in the backward, as recompute() does; they rise,
  /// and a partition has them for its stages. Errors: invalid_argument for positions outside of the chain, or without a unit
  /// between them, and for runs outside of the stage, empty, or not rising.
  [[nodiscard]] Result<std::shared_ptr<Unit>> stage(int begin, int end,
                                                    const std::vector<pipeline::UnitRun>& recomputed = {}) const;

 private:
  explicit Chain(std::vector<Part> units);
  static Result<Chain> of_modules(const ::torch::nn::Sequential& model);

  std::vector<Part> units_;
  std::vector<std::string> names_;
};

}  // namespace shoal::parallel
