// Layout: which stage, replica and slice of layers each rank of a job works on.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal::pipeline {

/// The three ways in which a training is divided over ranks.
enum class Axis : std::uint8_t {
  replica,   ///< D: other images
  pipeline,  ///< P: other layers
  tensor,    ///< T: other parts of each layer
};

/// The axes from the one whose position varies slowest over the ranks to the one that varies fastest.
using Placement = std::array<Axis, 3>;

/// "cluster" is "DPT": neighbouring ranks share a layer, then a pipeline; "spread" is "TPD"; or the letters in another order.
/// Error: invalid_argument that says what exists.
Result<Placement> parse_placement(std::string_view text);

/// Where a rank is on each axis, from 0.
struct Position {
  int replica = 0;
  int stage = 0;
  int slice = 0;

  bool operator==(const Position&) const = default;
};

/// Thread rule: a value.
class Layout {
 public:
  /// `ranks` ranks, of which `pipeline` make a pipeline and `tensor` share a layer; the rest of the factor is replicas, more
  /// than one only if `replicates`. Errors: invalid_argument that names the numbers and the nearest that work.
  static Result<Layout> create(int ranks, int pipeline, int tensor, bool replicates, const Placement& placement);

  [[nodiscard]] int ranks() const { return sizes_[0] * sizes_[1] * sizes_[2]; }
  /// Ranks along an axis.
  [[nodiscard]] int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }

  /// Precondition: a rank of this layout.
  [[nodiscard]] Position position(int rank) const;
  /// Precondition: a position of this layout.
  [[nodiscard]] int rank(const Position& position) const;

  /// The ranks that differ from `rank` along `axis` only, itself included, in the order of that axis.
  [[nodiscard]] std::vector<int> group(int rank, Axis axis) const;
  /// A number that the members of group(rank, axis) share and no other rank has: the color of Communicator::split().
  [[nodiscard]] int color(int rank, Axis axis) const { return group(rank, axis).front(); }

 private:
  Layout() = default;

  std::array<int, 3> sizes_{1, 1, 1};    // by axis
  std::array<int, 3> strides_{1, 1, 1};  // by axis: the distance between the ranks of neighbouring positions
};

}  // namespace shoal::pipeline
