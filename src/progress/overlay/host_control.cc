#include "src/progress/overlay/host_control.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

namespace shoal {
namespace {

constexpr std::string_view kUnreachable = "no process of its host can be reached";

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void join(std::vector<RankFacts>& all, RankFacts facts) {
  const auto same = std::ranges::find_if(all, [&](const RankFacts& each) { return each.says_the_same(facts); });
  if (same != all.end()) {
    same->ranks.insert(facts.ranks);
  } else {
    all.push_back(std::move(facts));
  }
}

}  // namespace

HostControl::HostControl(const HostTable& table, int rank, const Options& options, Time now)
    : table_(table),
      rank_(rank),
      host_(table.host_of(rank)),
      options_(options),
      facts_(table),
      role_(table.ranks_of(host_), rank, now),
      links_(facts_, options.lost_after) {}

HostControl::Time HostControl::next_time() const noexcept {
  return std::min({role_.next_look(), beat_at_, collected_until_, links_.next_time()});
}

void HostControl::look(const KeeperClaim& claim, Time now) {
  actions_.claim = role_.look(claim, now);
  if (role_.is_keeper() != std::exchange(was_keeper_, role_.is_keeper())) {
    if (was_keeper_) {
      become_keeper(now);
    } else {
      // What this rank has taken from other hosts reaches its own host by it alone.
      flush();
      links_.close(actions_);
      beat_at_ = Time::max();
    }
  }
  if (now >= beat_at_) {
    actions_.beat = true;
    beat_at_ = now + KeeperRole::kBeat;
  }
  if (now >= collected_until_) flush();
  on_dead_hosts(links_.on_time(now, actions_), now);
}

void HostControl::become_keeper(Time now) {
  if (table_.ranks_of(host_).size() > 1) beat_at_ = now;  // else no rank looks at the beat
  links_.want(neighbours(host_, facts_.ended()), now, actions_);
}

void HostControl::on_dead_hosts(const std::vector<int>& hosts, Time now) {
  RankFacts deaths{RankFacts::Kind::death, {}, bytes_of(kUnreachable), {}};
  for (const int host : hosts) deaths.ranks.insert(RankRuns::of(facts_.present_ranks(host)));
  if (hosts.empty()) return;
  actions_.publish.emplace_back(deaths);
  take(kBoard, deaths, now);
}

std::optional<OverlayMessage> HostControl::on_board(const OverlayMessage& message, Time now) {
  if (const auto* facts = std::get_if<RankFacts>(&message)) {
    RankFacts fresh{facts->kind, facts->group, facts->payload, facts_.add(*facts)};
    if (fresh.ranks.empty()) return std::nullopt;
    pass_on(kBoard, fresh, now);
    return fresh;
  }
  if (const auto* notice = std::get_if<Notice>(&message)) {
    if (!facts_.add(*notice, notice->kind == options_.abort_kind)) return std::nullopt;
    flood(kBoard, *notice);
    return message;
  }
  if (const auto* routed = std::get_if<RoutedMessage>(&message)) {
    if (routed->to == rank_) return message;
    if (is_keeper() && table_.host_of(routed->to) != host_) take(kBoard, *routed, now);
    return std::nullopt;
  }
  return std::nullopt;
}

void HostControl::on_process_ended(int rank, std::span<const std::byte> how, Time now) {
  if (!facts_.is_present(rank)) return;
  RankFacts death{RankFacts::Kind::death, {}, {how.begin(), how.end()}, {}};
  death.ranks.insert(rank);
  actions_.publish.emplace_back(death);
  take(kBoard, death, now);
}

void HostControl::flush() {
  collected_until_ = Time::max();
  for (RankFacts& each : std::exchange(for_board_, {})) actions_.publish.emplace_back(std::move(each));
  for (RankFacts& each : std::exchange(for_hosts_, {})) flood(kBoard, std::move(each));
}

std::optional<int> HostControl::redirect() const noexcept {
  const int keeper = role_.keeper();
  return keeper < 0 || keeper == rank_ ? std::nullopt : std::optional(keeper);
}

void HostControl::on_connected(const Endpoint& peer) {
  if (redirect()) {  // another rank has become the keeper since this connection was asked for
    actions_.disconnect.push_back(peer);
    return;
  }
  if (!links_.on_connected(peer, actions_)) return;
  for (const OverlayMessage& each : facts_.all()) send(peer.host, each);
}

void HostControl::on_lost(const Endpoint& peer, Time::duration silent_for, Time now) {
  links_.on_lost(peer, silent_for, now, actions_);
}

bool HostControl::on_message(int from, std::span<const std::byte> bytes, Time now) {
  const auto message = parse_overlay(bytes, table_.ranks());
  if (!message) return false;
  if (!links_.is_up(from)) return true;  // sent before this rank closed the connection; the keeper has it from others
  std::visit([&](const auto& each) { take(from, each, now); }, *message);
  return true;
}

void HostControl::take(int from, const Notice& notice, Time) {
  if (!facts_.add(notice, notice.kind == options_.abort_kind)) return;
  actions_.publish.emplace_back(notice);
  flood(from, notice);
}

void HostControl::take(int from, const RankFacts& facts, Time now) {
  RankFacts fresh{facts.kind, facts.group, facts.payload, facts_.add(facts)};
  if (!fresh.ranks.empty()) pass_on(from, std::move(fresh), now);
}

void HostControl::pass_on(int from, RankFacts facts, Time now) {
  const RankRuns ended = facts.kind == RankFacts::Kind::farewell ? RankRuns() : facts.ranks;
  if (facts.kind == RankFacts::Kind::death) {
    flood(from, facts);
    if (from != kBoard) actions_.publish.emplace_back(std::move(facts));
  } else if (!links_.up().empty()) {  // without connections: each new one begins with it
    collected_until_ = std::min(collected_until_, now + kCollect);
    if (from != kBoard) join(for_board_, facts);
    join(for_hosts_, std::move(facts));
  }
  on_ends(ended, now);
}

void HostControl::on_ends(const RankRuns& ranks, Time now) {
  bool host_ended = false;
  ranks.each([&](int rank) {
    if (table_.host_of(rank) == host_) role_.on_end(rank, now);
    host_ended |= facts_.ended().contains(table_.host_of(rank));
  });
  if (!host_ended) return;
  links_.drop_ended(actions_);
  if (is_keeper()) links_.want(neighbours(host_, facts_.ended()), now, actions_);
}

void HostControl::take(int, const RoutedMessage& message, Time) {
  const int host = table_.host_of(message.to);
  if (host == host_) {
    actions_.publish.emplace_back(message);
    return;
  }
  const int hop = next_hop(host_, host, table_.hosts(), links_.up());
  if (hop >= 0) send(hop, message);
}

void HostControl::flood(int from, const OverlayMessage& message) {
  Bytes bytes;
  for (const int host : links_.up()) {
    if (host == from) continue;
    if (bytes == nullptr) bytes = std::make_shared<const std::vector<std::byte>>(to_bytes(message));
    actions_.send.push_back({host, bytes});
  }
}

void HostControl::send(int host, const OverlayMessage& message) {
  actions_.send.push_back({host, std::make_shared<const std::vector<std::byte>>(to_bytes(message))});
}

}  // namespace shoal
