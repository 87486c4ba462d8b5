// Which ranks of a group connect to each other in its rendezvous, by their positions in the sorted list of ranks.
#pragma once

#include <algorithm>
#include <cstddef>

namespace shoal::shm {

/// A complete tree with the root at position 0.
struct RendezvousTree {
  std::size_t ranks = 1;
  std::size_t fan_out = 1;  ///< children of a rank, at most

  struct Range {
    std::size_t first = 0;
    std::size_t end = 0;
    [[nodiscard]] std::size_t size() const noexcept { return end - first; }
    [[nodiscard]] bool contains(std::size_t position) const noexcept { return first <= position && position < end; }
  };
  [[nodiscard]] Range children(std::size_t position) const noexcept {
    const std::size_t first = position * fan_out + 1;
    return {std::min(first, ranks), std::min(first + fan_out, ranks)};
  }
  /// Precondition: not the root.
  [[nodiscard]] std::size_t parent(std::size_t position) const noexcept { return (position - 1) / fan_out; }
  [[nodiscard]] std::size_t depth(std::size_t position) const noexcept {
    std::size_t steps = 0;
    for (; position != 0; position = parent(position)) ++steps;
    return steps;
  }
  /// Steps to the deepest rank below `position`.
  [[nodiscard]] std::size_t height(std::size_t position) const noexcept {
    std::size_t steps = 0;
    for (Range below = children(position); below.size() > 0; below = children(below.first)) ++steps;
    return steps;
  }
};

}  // namespace shoal::shm
