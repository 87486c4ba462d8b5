#include "torch_plugin/parallel/random/unit_seeds.h"

namespace shoal::parallel {
namespace {

thread_local UnitSeeds* innermost = nullptr;

/// The end of SplitMix64: a bijection in which every bit depends on every other.
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t unit_seed(const MicrobatchSeed& of, std::int64_t unit) {
  std::uint64_t hash = of.seed;
  for (const std::int64_t number : {of.step, of.replica, of.microbatch, unit}) {
    hash = mix(hash + 0x9e3779b97f4a7c15ULL) ^ static_cast<std::uint64_t>(number);
  }
  return mix(hash);
}

UnitSeeds::UnitSeeds(const MicrobatchSeed& of, at::Device device) : of_(of), before_(device), outer_(innermost) {
  innermost = this;
}

UnitSeeds::~UnitSeeds() {
  innermost = outer_;
  before_.restore();
}

void UnitSeeds::begin_unit(std::int64_t unit) {
  if (innermost != nullptr) innermost->before_.seed(unit_seed(innermost->of_, unit));
}

std::optional<MicrobatchSeed> UnitSeeds::current() {
  if (innermost == nullptr) return std::nullopt;
  return innermost->of_;
}

}  // namespace shoal::parallel
