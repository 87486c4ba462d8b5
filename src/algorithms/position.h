// What the stages share: a member's place among the others, and runs of chunks that travel as one message.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "src/algorithms/stages.h"

namespace shoal {

/// A member's place among the others; distances wrap around.
class Position {
 public:
  Position(const ProgramBuilder& program, std::span<const int> members)
      : size_(members.size()), index_(static_cast<std::size_t>(std::ranges::find(members, program.rank()) - members.begin())) {}

  [[nodiscard]] bool is_member() const noexcept { return index_ < size_; }
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// In a binomial tree: how many positions from the own one on its subtree spans, which is the distance to the parent. The
  /// lowest set bit of the position; children are at all smaller powers of two.
  [[nodiscard]] std::size_t reach() const noexcept { return index_ == 0 ? std::bit_ceil(size_) : index_ & (~index_ + 1); }
  [[nodiscard]] std::size_t after(std::size_t distance) const noexcept { return (index_ + distance) % size_; }
  [[nodiscard]] std::size_t before(std::size_t distance) const noexcept { return (index_ + size_ - distance % size_) % size_; }

 private:
  std::size_t size_;
  std::size_t index_;
};

/// Where an exchange in pairs needs a power of two, the excess members take part through a neighbour: members 0 and 1, 2 and 3,
/// ... make a pair until no more than a power of two are left. The odd one of a pair plays, the even one is idle.
class Players {
 public:
  explicit Players(std::size_t members) : count_(std::bit_floor(members)), pairs_(members - count_) {}

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] bool is_paired(std::size_t member) const noexcept { return member < 2 * pairs_; }
  [[nodiscard]] bool is_idle(std::size_t member) const noexcept { return is_paired(member) && member % 2 == 0; }
  /// The player that stands for `member`, itself or its neighbour.
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

/// Appends `shards` to `run`, joining each, if `join`, to the one before it where it goes on there in the same lane.
inline void append(std::vector<Shard>& run, const std::vector<Shard>& shards, bool join) {
  for (const Shard& shard : shards) {
    if (join && !run.empty() && run.back().lane == shard.lane && run.back().first + run.back().count == shard.first) {
      run.back().count += shard.count;
    } else {
      run.push_back(shard);
    }
  }
}

}  // namespace shoal
