// RankRuns: a set of ranks, in memory and on the wire.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "src/progress/overlay/wire_bytes.h"

namespace shoal {

/// Takes memory by the number of runs of consecutive ranks. Thread rule: a value.
class RankRuns {
 public:
  struct Run {
    int first = 0;
    int last = 0;

    bool operator==(const Run&) const = default;
  };

  RankRuns() = default;
  static RankRuns of(std::span<const int> ranks);
  /// `first` to `last`, both included.
  static RankRuns from_to(int first, int last);

  void insert(int rank) { insert(Run{rank, rank}); }
  void insert(const Run& run);
  void insert(const RankRuns& other);
  /// The ranks of this set that are not in `other`.
  [[nodiscard]] RankRuns without(const RankRuns& other) const;
  [[nodiscard]] bool contains(int rank) const noexcept;
  [[nodiscard]] bool empty() const noexcept { return runs_.empty(); }
  [[nodiscard]] std::size_t count() const noexcept;
  /// Ascending; between two runs at least one rank is missing.
  [[nodiscard]] const std::vector<Run>& runs() const noexcept { return runs_; }
  template <typename Visit>
  void each(Visit visit) const {
    for (const Run& run : runs_) {
      for (int rank = run.first; rank <= run.last; ++rank) visit(rank);
    }
  }
  bool operator==(const RankRuns&) const = default;

  /// As runs of equal length and distance, so that the ranks of a data-parallel group take as few bytes as those of a whole
  /// job; as a bit map where that is shorter.
  void append_to(ByteWriter& bytes) const;
  /// Nothing where the bytes hold no set of ranks below `ranks`.
  static std::optional<RankRuns> read_from(ByteReader& bytes, int ranks);

 private:
  std::vector<Run> runs_;
};

}  // namespace shoal
