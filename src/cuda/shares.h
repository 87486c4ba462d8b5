// What a rank gives and takes in a collective, and how its message is cut into pieces: the same for every route, so that a
// collective is described once. Arithmetic only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/schedule/program.h"

namespace shoal::cuda {

/// Of the message: a rank's own share, or all shares. A message that is not dealt is one share, which is `all`.
enum class Part : std::uint8_t { nothing, own, all };

/// What `rank` gives and takes in `what`. all_to_all: different shares on each side.
[[nodiscard]] Part given(const Collective& what, int rank) noexcept;
[[nodiscard]] Part taken(const Collective& what, int rank) noexcept;

/// A part of one share in a piece.
struct Run {
  std::size_t begin = 0;  ///< elements from the beginning of the message
  std::size_t count = 0;  ///< elements
  std::size_t row = 0;    ///< bytes from the beginning of a slot in which the runs of a piece lie one behind the other
};

/// The shares of a message, each cut into the same number of pieces; all ranks cut alike. `what` must live as long.
class Shares {
 public:
  Shares(const Collective& what, int ranks) noexcept;

  [[nodiscard]] int size() const noexcept { return shares_; }
  /// Pieces such that a slot of `bytes` takes all runs of a piece, or (`one`) any single one of them. 0 for no elements.
  [[nodiscard]] std::size_t pieces(std::size_t bytes, bool one) const noexcept;
  /// Piece `index` of `pieces`, a run for each share. Runs begin at whole vectors of their share; rows (`aligned`) do, too, or
  /// they lie back to back.
  [[nodiscard]] std::vector<Run> runs(std::size_t index, std::size_t pieces, bool aligned) const;

 private:
  [[nodiscard]] std::size_t elements(int share) const noexcept;
  const Collective& what_;
  std::size_t element_bytes_;
  int shares_;
};

/// Whether a rank that gives data in a collective of `kind` may give its registered buffer in place (zero-copy), until all
/// ranks have read it.
[[nodiscard]] constexpr bool may_lend(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::all_gather || kind == CollectiveKind::gather || kind == CollectiveKind::broadcast;
}

/// Elements [first, second) of the `index`-th of `pieces` parts of `count` elements: as even as whole vectors allow.
[[nodiscard]] std::pair<std::size_t, std::size_t> part_of(std::size_t count, std::size_t element_bytes, std::size_t index,
                                                          std::size_t pieces) noexcept;

}  // namespace shoal::cuda
