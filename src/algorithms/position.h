// Shared by the stages: a member's position among the members, and runs of chunks that travel as one message.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "src/algorithms/stages.h"

namespace shoal {

/// A member's position among the members; distances wrap around.
class Position {
 public:
  Position(const ProgramBuilder& program, std::span<const int> members)
      : size_(members.size()), index_(static_cast<std::size_t>(std::ranges::find(members, program.rank()) - members.begin())) {}

  [[nodiscard]] bool is_member() const noexcept { return index_ < size_; }
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// In a binomial tree: how many positions the subtree of this member spans, counted from itself; equal to the distance to
  /// its parent. It is the lowest set bit of the position; the children are at the distances of all smaller powers of two.
  [[nodiscard]] std::size_t reach() const noexcept { return index_ == 0 ? std::bit_ceil(size_) : index_ & (~index_ + 1); }
  /// Precondition: distance <= number of members. Without a division, which would be most of the cost of a step.
  [[nodiscard]] std::size_t after(std::size_t distance) const noexcept { return wrapped(index_ + distance); }
  [[nodiscard]] std::size_t before(std::size_t distance) const noexcept { return wrapped(index_ + size_ - distance); }

 private:
  [[nodiscard]] std::size_t wrapped(std::size_t index) const noexcept { return index < size_ ? index : index - size_; }

  std::size_t size_;
  std::size_t index_;
};

/// For pairwise exchanges among a number of members that is not a power of two: the excess members take part through a
/// neighbour. Members 0 and 1, 2 and 3, ... form pairs until a power of two is left. In a pair the odd member plays, the even
/// one is idle.
class Players {
 public:
  explicit Players(std::size_t members) : count_(std::bit_floor(members)), pairs_(members - count_) {}

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] bool is_paired(std::size_t member) const noexcept { return member < 2 * pairs_; }
  [[nodiscard]] bool is_idle(std::size_t member) const noexcept { return is_paired(member) && member % 2 == 0; }
  /// The player that acts for `member`: itself or its neighbour.
  [[nodiscard]] std::size_t player(std::size_t member) const noexcept {
    return is_paired(member) ? member / 2 : member - pairs_;
  }
  [[nodiscard]] std::size_t member(std::size_t player) const noexcept {
    return player < pairs_ ? 2 * player + 1 : player + pairs_;
  }

 private:
  std::size_t count_;
  std::size_t pairs_;
};

/// Appends `shard` to `run`. If `join`, a shard that continues the last one in the same lane is merged with it.
inline void append(std::vector<Shard>& run, const Shard& shard, bool join) {
  if (join && !run.empty() && run.back().lane == shard.lane && run.back().first + run.back().count == shard.first) {
    run.back().count += shard.count;
  } else {
    run.push_back(shard);
  }
}

inline void append(std::vector<Shard>& run, std::span<const Shard> shards, bool join) {
  for (const Shard& shard : shards) append(run, shard, join);
}

}  // namespace shoal
