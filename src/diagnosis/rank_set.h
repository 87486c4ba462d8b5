// RankSet: a set of the ranks of one communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal {

/// Takes a bit for each rank up to the highest one. Thread rule: a value.
class RankSet {
 public:
  static constexpr std::size_t kPartRanks = 64;

  void insert(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (at / kPartRanks >= parts_.size()) parts_.resize(at / kPartRanks + 1);
    parts_[at / kPartRanks] |= std::uint64_t{1} << (at % kPartRanks);
  }
  /// Ranks from 64 * `part` on: a bit for each.
  void insert_part(std::size_t part, std::uint64_t bits) {
    if (bits == 0) return;
    if (part >= parts_.size()) parts_.resize(part + 1);
    parts_[part] |= bits;
  }
  [[nodiscard]] bool contains(int rank) const noexcept {
    const auto at = static_cast<std::size_t>(rank);
    return at / kPartRanks < parts_.size() && (parts_[at / kPartRanks] >> (at % kPartRanks) & 1) != 0;
  }
  /// Up to that of the highest rank.
  [[nodiscard]] const std::vector<std::uint64_t>& parts() const noexcept { return parts_; }
  bool operator==(const RankSet&) const = default;

 private:
  std::vector<std::uint64_t> parts_;
};

inline RankSet set_of(const std::vector<int>& ranks) {
  RankSet set;
  for (const int rank : ranks) set.insert(rank);
  return set;
}

}  // namespace shoal
