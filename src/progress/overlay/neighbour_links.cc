#include "src/progress/overlay/neighbour_links.h"

#include <algorithm>

namespace shoal {

void NeighbourLinks::want(const std::vector<int>& hosts, Time now, OverlayActions& out) {
  for (const int host : hosts) {
    const auto [link, is_new] = links_.try_emplace(host);
    if (!is_new) continue;
    link->second.silent_since = now;
    try_next(host, link->second, -1, now, out);
  }
}

bool NeighbourLinks::on_connected(const Endpoint& peer, OverlayActions& out) {
  if (facts_.ended().contains(peer.host)) {
    out.disconnect.push_back(peer);
    return false;
  }
  Link& link = links_[peer.host];
  if (link.up && link.rank != peer.rank) out.disconnect.push_back({peer.host, link.rank});
  link = {.rank = peer.rank, .up = true, .silent_since = {}, .refused = {}};
  return true;
}

void NeighbourLinks::on_lost(const Endpoint& peer, Time::duration silent_for, Time now, OverlayActions& out) {
  const auto found = links_.find(peer.host);
  if (found == links_.end() || !found->second.up || found->second.rank != peer.rank) return;
  found->second.up = false;
  found->second.silent_since = now - silent_for;
  try_next(peer.host, found->second, peer.rank, now, out);
}

void NeighbourLinks::on_refused(const Endpoint& peer, Time now, OverlayActions& out) {
  Link* const link = tried(peer);
  if (link == nullptr) return;
  link->silent_since = now;
  link->refused.push_back(peer.rank);
  try_next(peer.host, *link, peer.rank, now, out);
}

void NeighbourLinks::on_silent(const Endpoint& peer, Time now, OverlayActions& out) {
  Link* const link = tried(peer);
  if (link == nullptr) return;
  if (now - link->silent_since >= lost_after_) {
    link->dead_at = now;
  } else {
    try_next(peer.host, *link, peer.rank, now, out);
  }
}

void NeighbourLinks::on_unanswered(const Endpoint& peer, Time now, OverlayActions& out) {
  Link* const link = tried(peer);
  if (link == nullptr) return;
  link->silent_since = now;
  try_next(peer.host, *link, peer.rank, now, out);
}

void NeighbourLinks::on_redirected(const Endpoint& peer, int keeper, Time now, OverlayActions& out) {
  Link* const link = tried(peer);
  if (link == nullptr) return;
  if (std::ranges::find(link->refused, keeper) != link->refused.end()) {
    link->retry_at = now + kRetry;  // its ranks have not noticed the keeper's end yet
    return;
  }
  link->rank = keeper;
  out.connect.push_back({peer.host, keeper});
}

std::vector<int> NeighbourLinks::on_time(Time now, OverlayActions& out) {
  std::vector<int> dead;
  for (auto& [host, link] : links_) {
    if (now >= link.dead_at) dead.push_back(host);
    if (now < link.retry_at) continue;
    link.retry_at = Time::max();
    out.connect.push_back({host, link.rank});
  }
  return dead;
}

NeighbourLinks::Time NeighbourLinks::next_time() const noexcept {
  Time next = Time::max();
  for (const auto& [host, link] : links_) next = std::min({next, link.retry_at, link.dead_at});
  return next;
}

void NeighbourLinks::drop_ended(OverlayActions& out) {
  std::erase_if(links_, [&](const auto& each) {
    const auto& [host, link] = each;
    if (!facts_.ended().contains(host)) return false;
    if (link.up) out.disconnect.push_back({host, link.rank});
    return true;
  });
}

void NeighbourLinks::close(OverlayActions& out) {
  for (const auto& [host, link] : links_) {
    if (link.up) out.disconnect.push_back({host, link.rank});
  }
  links_.clear();
}

bool NeighbourLinks::is_up(int host) const {
  const auto found = links_.find(host);
  return found != links_.end() && found->second.up;
}

std::vector<int> NeighbourLinks::up() const {
  std::vector<int> hosts;
  for (const auto& [host, link] : links_) {
    if (link.up) hosts.push_back(host);
  }
  return hosts;
}

NeighbourLinks::Link* NeighbourLinks::tried(const Endpoint& peer) {
  const auto found = links_.find(peer.host);
  return found == links_.end() || found->second.up || found->second.rank != peer.rank ? nullptr : &found->second;
}

void NeighbourLinks::try_next(int host, Link& link, int after, Time now, OverlayActions& out) {
  std::vector<int> ranks = facts_.present_ranks(host);
  const auto next = std::ranges::upper_bound(ranks, after);
  std::rotate(ranks.begin(), next, ranks.end());
  const auto refused = [&](int rank) { return std::ranges::find(link.refused, rank) != link.refused.end(); };
  const auto open = std::ranges::find_if_not(ranks, refused);
  if (open == ranks.end()) {
    link.dead_at = now + kGrace;
    return;
  }
  link.rank = *open;
  out.connect.push_back({host, *open});
}

}  // namespace shoal
