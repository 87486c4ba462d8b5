// Random numbers that do not depend on the order of use: one short stream for each consumer.
#pragma once

#include <cstdint>

namespace shoal::data {

/// SplitMix64: a full-period mixer whose streams may be started anywhere.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  /// The stream of one sample of one epoch, the same on any rank or thread.
  SplitMix(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample) : state_(seed) {
    state_ = next() ^ epoch;
    state_ = next() ^ sample;
  }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// Uniform in 0..bound-1 for small bounds.
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32); }
  /// Uniform in [0, 1).
  float unit() { return static_cast<float>(next() >> 40) * 0x1p-24F; }

 private:
  std::uint64_t state_;
};

}  // namespace shoal::data
