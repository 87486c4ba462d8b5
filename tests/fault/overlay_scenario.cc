#include "tests/fault/overlay_scenario.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/hash.h"

namespace shoal::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kWithin = seconds(2);  // of a cause, all survivors know of it: src/diagnosis/failures.md
constexpr auto kSettle = seconds(12);

OverlaySimulation::Options options_of(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  OverlaySimulation::Options options;
  options.seed = seed;
  options.hosts = static_cast<int>(random() % 4 == 0 ? 2 + random() % 5 : 2 + random() % 63);
  options.ranks_per_host = static_cast<int>(1 + random() % 8);
  options.most_delay = random() % 2 == 0 ? microseconds(200) : microseconds(5'000);
  options.board_delay = microseconds(random() % 2 == 0 ? 20 : 2'000);
  options.lost_after = seconds(2);
  return options;
}

}  // namespace

OverlayScenario::OverlayScenario(std::uint64_t seed) : simulation_(options_of(seed)) {
  text_ = fmt::format("seed {}: {} hosts, {} ranks", seed, simulation_.table().hosts(), simulation_.ranks());
}

void OverlayScenario::note(const std::string& kind, int who) {
  happened_.insert(kind);
  const auto since = std::chrono::duration_cast<milliseconds>(simulation_.now().time_since_epoch()) - seconds(1000);
  text_ += fmt::format("; {} ms: {} {}", since.count(), kind, who);
}

void OverlayScenario::complain(const std::string& what) { complaints_.push_back(what); }

int OverlayScenario::any_rank() {
  for (int tries = 0; tries < 1000; ++tries) {
    const auto rank = static_cast<int>(simulation_.random(static_cast<std::uint64_t>(simulation_.ranks())));
    if (simulation_.is_alive(rank) && !simulation_.is_stopped(rank)) return rank;
  }
  return -1;
}

bool OverlayScenario::has_ended(int host) const {
  return std::ranges::none_of(simulation_.table().ranks_of(host), [&](int rank) { return simulation_.is_alive(rank); });
}

std::vector<std::string> OverlayScenario::run() {
  if (simulation_.random(4) != 0) simulation_.run(milliseconds(100));  // else the start is disturbed, too
  const std::uint64_t steps = 1 + simulation_.random(12);
  for (std::uint64_t i = 0; i < steps; ++i) {
    step();
    simulation_.run(microseconds(simulation_.random(simulation_.random(2) == 0 ? 2'000 : 400'000)));
  }
  if (simulation_.random(2) == 0) simulation_.run(seconds(2));
  for (const int rank : stopped_) {
    if (simulation_.is_alive(rank)) simulation_.resume(rank);
  }
  simulation_.run(kSettle);
  for (int host = 0; host < simulation_.table().hosts(); ++host) {
    if (!has_ended(host)) check_keeper(host);
  }
  std::optional<std::pair<int, Learnt>> first;
  for (int rank = 0; rank < simulation_.ranks(); ++rank) {
    if (!simulation_.is_alive(rank)) continue;
    const Learnt learnt = learnt_by(rank);
    check_truth(rank);
    check_completeness(rank, learnt);
    if (!first) first.emplace(rank, learnt);
    check_agreement(rank, learnt, first->first, first->second);
  }
  return complaints_;
}

void OverlayScenario::step() {
  const int rank = any_rank();
  if (rank < 0) return;
  const int host = simulation_.table().host_of(rank);
  switch (simulation_.random(8)) {
    case 0:
      return kill(rank);
    case 1:
      return kill_keeper(host, false);
    case 2:
      return kill_keeper(host, true);
    case 3:
      return stop_keeper(host);
    case 4:
      return lose_host(host, simulation_.random(2) == 0);
    case 5:
      note("three hosts from", host);
      for (int i = 0; i < 3; ++i) lose_host((host + i) % simulation_.table().hosts(), false);
      return;
    case 6: {
      note("leave of", rank);
      left_.insert(rank);
      return simulation_.leave(rank);
    }
    default:
      return say();
  }
}

void OverlayScenario::say() {
  const std::uint64_t group = ++groups_;
  for (std::uint64_t i = 0, count = 1 + simulation_.random(20); i < count; ++i) {
    const int rank = any_rank();
    if (rank < 0) return;
    note("farewell of", rank);
    if (farewells_.emplace(group, rank).second)
      simulation_.farewell(rank, group, simulation_.random(4) == 0 ? "other" : "usual");
  }
  const int rank = any_rank();
  note("notices of", rank);
  for (std::uint64_t i = 0, count = simulation_.random(4); i < count; ++i) notices_[rank].push_back(simulation_.notify(rank));
  note("abort of", rank);
  aborts_[group] = {rank, simulation_.now()};
  simulation_.abort(rank, group);
  // An origin that dies at once leaves all or none informed.
  if (simulation_.random(3) == 0) lose_host(simulation_.table().host_of(rank), false);
}

void OverlayScenario::kill(int rank) {
  if (!simulation_.is_alive(rank)) return;
  note("kill of", rank);
  killed_.emplace(rank, simulation_.now());
  simulation_.kill(rank);
}

void OverlayScenario::lose_host(int host, bool switched_off) {
  note(switched_off ? "power loss of host" : "loss of host", host);
  silent_hosts_ |= switched_off;
  for (const int rank : simulation_.table().ranks_of(host)) {
    if (simulation_.is_alive(rank)) killed_.emplace(rank, simulation_.now());
    if (!switched_off) simulation_.kill(rank);
  }
  if (switched_off) simulation_.switch_off(host);
}

void OverlayScenario::kill_keeper(int host, bool successor_too) {
  const int keeper = simulation_.keeper(host);
  if (keeper < 0) return;
  note(successor_too ? "keeper and successor of host" : "keeper of host", host);
  kill(keeper);
  const auto& ranks = simulation_.table().ranks_of(host);
  const auto next = std::ranges::find_if(ranks, [&](int rank) { return rank > keeper && simulation_.is_alive(rank); });
  if (successor_too && next != ranks.end()) kill(*next);
}

void OverlayScenario::stop_keeper(int host) {
  const int keeper = simulation_.keeper(host);
  if (keeper < 0 || !simulation_.is_alive(keeper)) return;
  note("stop of keeper", keeper);
  simulation_.stop(keeper);
  stopped_.push_back(keeper);
}

void OverlayScenario::check_keeper(int host) {
  const int keeper = simulation_.keeper(host);
  if (!simulation_.is_alive(keeper) || !simulation_.control(keeper).is_keeper())
    return complain(fmt::format("host {} has no keeper, but rank {}", host, keeper));
  // Each end may have asked for the connection: both have it.
  const auto wanted = neighbours(host, simulation_.control(keeper).facts().ended());
  if (const auto connected = simulation_.control(keeper).connected_hosts(); connected != wanted)
    complain(
        fmt::format("host {} is connected with {} instead of {}", host, fmt::join(connected, " "), fmt::join(wanted, " ")));
  for (const int rank : simulation_.table().ranks_of(host)) {
    if (rank != keeper && simulation_.is_alive(rank) && simulation_.connections(rank) != 0)
      complain(fmt::format("rank {} is no keeper and has {} connections", rank, simulation_.connections(rank)));
  }
}

OverlayScenario::Learnt OverlayScenario::learnt_by(int rank) {
  Learnt learnt;
  for (const auto& [at, message] : simulation_.news(rank)) {
    const auto* notice = std::get_if<Notice>(&message);
    if (notice != nullptr && notice->kind != 1) learnt.notices[notice->rank].push_back(notice->number);
    if (notice != nullptr && notice->kind == 1) {
      if (!learnt.aborts.emplace(notice->group.key, at).second)
        complain(fmt::format("rank {} learnt twice of abort {}", rank, notice->group.key));
    }
    if (const auto* facts = std::get_if<RankFacts>(&message)) {
      facts->ranks.each([&, at = at](int other) {
        const bool is_new = facts->kind == RankFacts::Kind::farewell ? learnt.farewells.emplace(facts->group.key, other).second
                                                                     : learnt.ends.emplace(other, at).second;
        if (!is_new) complain(fmt::format("rank {} learnt twice of an end of rank {}", rank, other));
      });
    }
  }
  return learnt;
}

void OverlayScenario::check_truth(int rank) {
  for (const auto& news : simulation_.news(rank)) {
    const auto* facts = std::get_if<RankFacts>(&news.message);
    if (facts == nullptr) continue;
    facts->ranks.each([&](int other) {
      // A goodbye may be lost with the last rank of a host.
      const bool may_die = killed_.contains(other) || (left_.contains(other) && has_ended(simulation_.table().host_of(other)));
      if (facts->kind == RankFacts::Kind::death && !may_die)
        complain(fmt::format("rank {} learnt of a death of rank {}, which has not died", rank, other));
      if (facts->kind == RankFacts::Kind::goodbye && !left_.contains(other))
        complain(fmt::format("rank {} learnt that rank {} has left, which it has not", rank, other));
    });
  }
}

void OverlayScenario::check_completeness(int rank, const Learnt& learnt) {
  const bool was_stopped = std::ranges::find(stopped_, rank) != stopped_.end();
  const auto is_late = [&](Time at, Time cause, auto limit) { return at - cause > limit && !was_stopped && !silent_hosts_; };
  for (const auto& [other, when] : killed_) {
    const auto known = learnt.ends.find(other);
    if (known == learnt.ends.end()) {
      complain(fmt::format("rank {} does not know of the death of rank {}", rank, other));
    } else if (is_late(known->second, when, kWithin) && stopped_.empty()) {
      complain(fmt::format("rank {} learnt of the death of rank {} after {} ms", rank, other,
                           (known->second - when) / milliseconds(1)));
    }
  }
  for (const int other : left_) {
    if (!learnt.ends.contains(other)) complain(fmt::format("rank {} does not know that rank {} has left", rank, other));
  }
  for (const auto& [group, abort] : aborts_) {
    if (has_ended(simulation_.table().host_of(abort.first))) continue;
    const auto known = learnt.aborts.find(group);
    if (known == learnt.aborts.end()) {
      complain(fmt::format("rank {} does not know of abort {} of rank {}", rank, group, abort.first));
    } else if (is_late(known->second, abort.second, kWithin) && stopped_.empty()) {
      complain(
          fmt::format("rank {} learnt of abort {} after {} ms", rank, group, (known->second - abort.second) / milliseconds(1)));
    }
  }
  for (const auto& [other, numbers] : notices_) {
    const auto known = learnt.notices.find(other);
    if (has_ended(simulation_.table().host_of(other)) || numbers.empty()) continue;
    if (known == learnt.notices.end() || known->second != numbers)
      complain(fmt::format("rank {} has not got the notices of rank {}, each once and in order", rank, other));
  }
  for (const auto& [group, other] : farewells_) {
    if (!has_ended(simulation_.table().host_of(other)) && !learnt.farewells.contains({group, other}))
      complain(fmt::format("rank {} does not know of farewell {} of rank {}", rank, group, other));
  }
}

void OverlayScenario::check_agreement(int rank, const Learnt& learnt, int other, const Learnt& others) {
  const auto same_key = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (!std::ranges::equal(learnt.aborts, others.aborts, same_key) || learnt.farewells != others.farewells ||
      learnt.notices != others.notices || !std::ranges::equal(learnt.ends, others.ends, same_key))
    complain(fmt::format("ranks {} and {} have learnt different things: {} and {} aborts, {} and {} farewells, {} and {} ends",
                         rank, other, learnt.aborts.size(), others.aborts.size(), learnt.farewells.size(),
                         others.farewells.size(), learnt.ends.size(), others.ends.size()));
}

std::uint64_t OverlayScenario::hash() const {
  std::uint64_t hash = kHashStart;
  for (int rank = 0; rank < simulation_.ranks(); ++rank) {
    for (const auto& news : simulation_.news(rank)) {
      hash = hash_with(hash, static_cast<std::uint64_t>(news.at.time_since_epoch().count()));
      hash = hash_with(hash, hash_of(to_bytes(news.message)));
    }
  }
  return hash;
}

}  // namespace shoal::testing
