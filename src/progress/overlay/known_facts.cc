#include "src/progress/overlay/known_facts.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shoal {

bool KnownFacts::add(const Notice& notice, bool is_abort) {
  const auto [known, is_first] = highest_.try_emplace(notice.rank, notice.number);
  if (!is_first && notice.number <= known->second) return false;
  known->second = notice.number;
  if (is_first) origins_.push_back(notice.rank);
  if (origins_.size() > kMostOrigins) {
    highest_.erase(origins_.front());
    origins_.pop_front();
  }
  if (is_abort && !add_aborted(notice.group)) return false;
  notices_.push_back(notice);
  notice_bytes_ += notice.payload.size();
  while (notices_.size() > kMostNotices || notice_bytes_ > kMostNoticeBytes) {
    notice_bytes_ -= notices_.front().payload.size();
    notices_.pop_front();
  }
  return true;
}

bool KnownFacts::add_aborted(const GroupName& group) {
  if (std::ranges::find(aborted_, group) != aborted_.end()) return false;
  aborted_.push_back(group);
  if (aborted_.size() > kMostGroups) aborted_.pop_front();
  return true;
}

RankRuns KnownFacts::add(const RankFacts& facts) {
  return facts.kind == RankFacts::Kind::farewell ? add_farewells(facts) : add_ends(facts);
}

RankRuns KnownFacts::add_ends(const RankFacts& facts) {
  RankRuns fresh = facts.ranks.without(gone_);
  if (fresh.empty()) return fresh;
  gone_.insert(fresh);
  const auto same = std::ranges::find_if(ends_, [&](const RankFacts& each) { return each.says_the_same(facts); });
  if (same != ends_.end()) {
    same->ranks.insert(fresh);
  } else {
    ends_.push_back({facts.kind, facts.group, facts.payload, fresh});
  }
  int last_host = -1;
  fresh.each([&](int rank) {
    const int host = table_.host_of(rank);
    if (host != std::exchange(last_host, host) && present_ranks(host).empty()) ended_.insert(host);
  });
  return fresh;
}

RankRuns KnownFacts::add_farewells(const RankFacts& facts) {
  RankRuns fresh = facts.ranks;
  RankFacts* same = nullptr;
  for (RankFacts& each : farewells_) {
    if (!(each.group == facts.group)) continue;
    fresh = fresh.without(each.ranks);
    if (each.says_the_same(facts)) same = &each;
  }
  if (fresh.empty()) return fresh;
  if (same != nullptr) {
    same->ranks.insert(fresh);
    return fresh;
  }
  farewells_.push_back({facts.kind, facts.group, facts.payload, fresh});
  if (farewells_.size() > kMostGroups) farewells_.pop_front();
  return fresh;
}

std::vector<OverlayMessage> KnownFacts::all() const {
  std::vector<OverlayMessage> all(notices_.begin(), notices_.end());
  all.insert(all.end(), farewells_.begin(), farewells_.end());
  for (const auto kind : {RankFacts::Kind::goodbye, RankFacts::Kind::death}) {
    std::ranges::copy_if(ends_, std::back_inserter(all), [&](const RankFacts& each) { return each.kind == kind; });
  }
  return all;
}

std::vector<int> KnownFacts::present_ranks(int host) const {
  std::vector<int> present;
  std::ranges::copy_if(table_.ranks_of(host), std::back_inserter(present), [&](int rank) { return is_present(rank); });
  return present;
}

}  // namespace shoal
