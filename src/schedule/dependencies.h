// Dependencies: which steps of a Program must wait for which.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/schedule/program.h"

namespace shoal {

/// For every step, the earlier steps of the Program that it conflicts with, without those that these already wait for: the
/// last writer of each chunk that it touches and, for a write, the readers since then. Input and output count as separate
/// memory. Precondition: slices are in range and steps of different lanes do not conflict (see verify()).
class Dependencies {
 public:
  explicit Dependencies(const Program& program);

  /// Step numbers, in no particular order; may repeat.
  [[nodiscard]] std::span<const std::uint32_t> of(std::size_t step) const {
    return std::span(steps_).subspan(first_[step], first_[step + 1] - first_[step]);
  }

 private:
  std::vector<std::uint32_t> steps_;
  std::vector<std::size_t> first_;
};

}  // namespace shoal
