// UnitSeeds: each unit draws its random numbers (dropout) from a seed of its own, so that they do not depend on where it runs.
#pragma once

#include <cstdint>
#include <optional>

#include <torch/torch.h>

#include "torch_plugin/parallel/random/generator_states.h"

namespace shoal::parallel {

/// What the random numbers of a unit depend on, apart from the unit.
struct MicrobatchSeed {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t replica = 0;
  std::int64_t microbatch = 0;
};

/// The seed of unit number `unit` of a chain: a hash of all these numbers.
std::uint64_t unit_seed(const MicrobatchSeed& of, std::int64_t unit);

/// While it exists, begin_unit() on this thread seeds torch's default generators (of the CPU and of `device`); its end puts
/// them back to where they were. May be nested; the innermost counts. Thread rule: the thread that made it.
class UnitSeeds {
 public:
  UnitSeeds(const MicrobatchSeed& of, at::Device device);
  ~UnitSeeds();
  UnitSeeds(const UnitSeeds&) = delete;
  UnitSeeds& operator=(const UnitSeeds&) = delete;

  /// To be called before unit number `unit` runs. Does nothing where this thread has no UnitSeeds.
  static void begin_unit(std::int64_t unit);
  /// Of this thread; none where it has no UnitSeeds.
  static std::optional<MicrobatchSeed> current();

 private:
  const MicrobatchSeed of_;
  const GeneratorStates before_;
  UnitSeeds* const outer_;
};

}  // namespace shoal::parallel
