#include "src/progress/overlay/keeper_role.h"

#include <algorithm>
#include <utility>

namespace shoal {

KeeperRole::KeeperRole(std::vector<int> ranks, int own, Time now) : ranks_(std::move(ranks)), own_(own), changed_(now) {}

void KeeperRole::on_end(int rank, Time now) {
  std::erase(ranks_, rank);
  if (rank != claim_.rank || keeper_ended_) return;
  keeper_ended_ = true;
  changed_ = now;
}

std::optional<std::uint64_t> KeeperRole::look(const KeeperClaim& claim, Time now) {
  if (!(claim == claim_)) {
    claim_ = claim;
    keeper_ended_ = !is_present(claim.rank);
    changed_ = now;
  }
  if (is_keeper() || now < claim_at()) return std::nullopt;
  return claim_.term + 1;
}

int KeeperRole::keeper() const noexcept {
  if (!keeper_ended_) return claim_.rank;
  return ranks_.empty() ? -1 : ranks_[static_cast<std::size_t>(first_successor())];
}

bool KeeperRole::is_present(int rank) const noexcept { return std::ranges::binary_search(ranks_, rank); }

std::ptrdiff_t KeeperRole::first_successor() const noexcept {
  const std::ptrdiff_t place = std::ranges::upper_bound(ranks_, claim_.rank) - ranks_.begin();
  return place == static_cast<std::ptrdiff_t>(ranks_.size()) ? 0 : place;
}

KeeperRole::Time KeeperRole::claim_at() const noexcept {
  if (!is_present(own_)) return Time::max();
  const auto count = static_cast<std::ptrdiff_t>(ranks_.size());
  const std::ptrdiff_t own = std::ranges::lower_bound(ranks_, own_) - ranks_.begin();
  const std::ptrdiff_t before = (own - first_successor() + count) % count;  // ranks that are to take over sooner
  return changed_ + kLost * (keeper_ended_ ? before : before + 1);
}

}  // namespace shoal
