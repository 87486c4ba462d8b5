#include "src/communicator/overlay/overlay_control.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "src/base/event.h"
#include "src/base/printable.h"

namespace shoal {
namespace {

using Kind = ControlMessage::Kind;

// Of a set of receivers in a payload. A set that takes more is left out: then all ranks of the job keep the message.
constexpr std::size_t kMostSetBytes = 1024;

std::string text_of(std::span<const std::byte> bytes) {
  return printable({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

HostTable control_hosts(const Topology& topology, bool shares_memory, const std::vector<bool>& sees_end) {
  std::vector<int> host_of_rank(sees_end.size(), -1);
  int hosts = 0;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    if (host_of_rank[rank] >= 0) continue;
    const auto ranks = topology.ranks_of_node(topology.node_of_rank[rank]);
    const bool joined =
        shares_memory && std::ranges::all_of(ranks, [&](int each) { return sees_end[static_cast<std::size_t>(each)]; });
    host_of_rank[rank] = hosts++;
    for (std::size_t i = 0; joined && i < ranks.size(); ++i)
      host_of_rank[static_cast<std::size_t>(ranks[i])] = host_of_rank[rank];
  }
  return HostTable(host_of_rank);
}

OverlayControl::OverlayControl(const HostTable& table, int rank)
    : table_(table), rank_(rank), host_(table.host_of(rank)), event_(make_event()) {}

Result<std::unique_ptr<OverlayControl>> OverlayControl::start(const HostTable& table, int rank,
                                                              std::chrono::milliseconds lost_after,
                                                              std::unique_ptr<tcp::KeeperSockets> sockets,
                                                              std::vector<std::string> addresses,
                                                              std::unique_ptr<shm::HostMemory> memory) {
  std::unique_ptr<OverlayControl> control(new OverlayControl(table, rank));
  if (!control->event_.valid()) return system_error("start-up: an eventfd for control messages", errno);
  HostKeeper::Parts parts;
  parts.table = &control->table_;
  parts.rank = rank;
  parts.options.lost_after = lost_after;
  parts.options.abort_kind = static_cast<std::uint32_t>(Kind::abort);
  parts.sockets = std::move(sockets);
  parts.addresses = std::move(addresses);
  if (memory != nullptr) parts.board = std::make_unique<HostBoard>(std::move(memory), control->table_, rank);
  if (parts.board != nullptr && !parts.board->usable())
    return Status(StatusCode::internal, "start-up: the shared memory has too little room for messages between hosts");
  parts.deliver = [target = control.get()](const OverlayMessage& message) { target->deliver(message); };
  auto keeper = HostKeeper::start(std::move(parts));
  if (!keeper.ok()) return keeper.status();
  control->keeper_ = std::move(keeper).value();
  return control;
}

bool OverlayControl::poll(std::vector<ControlMessage>& messages) {
  if (!due_.load(std::memory_order_acquire)) return false;
  const std::scoped_lock lock(inbox_mutex_);
  due_.store(false, std::memory_order_relaxed);
  std::ranges::move(inbox_, std::back_inserter(messages));
  inbox_.clear();
  return true;
}

bool OverlayControl::prepare_wait() {
  // seq_cst: either this thread sees the message, or the one that delivers it sees that this one sleeps.
  sleeps_.store(true, std::memory_order_seq_cst);
  return !due_.load(std::memory_order_seq_cst);
}

void OverlayControl::finish_wait(bool readable) {
  sleeps_.store(false, std::memory_order_relaxed);
  if (readable) drain_event(event_.get());
}

void OverlayControl::send(const std::span<const int>* ranks, const OutgoingControl& message) {
  if (left_to_parent_) return;
  if (ranks == nullptr) {  // the exit notice
    return keeper_->leave(RankFacts{RankFacts::Kind::goodbye, {}, {}, RankRuns::from_to(rank_, rank_)});
  }
  if (std::ranges::none_of(*ranks, [this](int rank) { return is_far(rank); })) return;
  const std::span<const std::byte> payload = message.bytes(kMostControlBytes);
  const bool whole = std::ranges::find(*ranks, rank_) != ranks->end();
  if (!whole || (message.kind == Kind::waits && ranks->size() <= kFewReceivers)) {
    for (const int rank : *ranks) {
      if (!is_far(rank)) continue;
      keeper_->write(RoutedMessage{
          rank, rank_, message.group, static_cast<std::uint32_t>(message.kind), {payload.begin(), payload.end()}});
    }
    return;
  }
  std::vector<std::byte> bytes = with_receivers(RankRuns::of(*ranks), payload);
  if (message.kind == Kind::farewell) {
    keeper_->write(RankFacts{RankFacts::Kind::farewell, message.group, std::move(bytes), RankRuns::from_to(rank_, rank_)});
  } else {
    keeper_->write(Notice{rank_, ++notices_, message.group, static_cast<std::uint32_t>(message.kind), std::move(bytes)});
  }
}

std::vector<std::byte> OverlayControl::with_receivers(const RankRuns& receivers, std::span<const std::byte> payload) const {
  ByteWriter set;
  receivers.append_to(set);
  ByteWriter bytes;
  if (receivers.count() == static_cast<std::size_t>(table_.ranks()) || set.size() > kMostSetBytes) {
    RankRuns().append_to(bytes);
  } else {
    bytes.put(std::span<const std::byte>(set.take()));
  }
  bytes.put(payload);
  return bytes.take();
}

std::optional<std::vector<std::byte>> OverlayControl::own_payload(std::span<const std::byte> payload) const {
  ByteReader reader(payload);
  const auto receivers = RankRuns::read_from(reader, table_.ranks());
  if (!receivers || (!receivers->empty() && !receivers->contains(rank_))) return std::nullopt;
  const auto rest = payload.last(reader.left());
  return std::vector<std::byte>(rest.begin(), rest.end());
}

void OverlayControl::deliver(const OverlayMessage& message) {
  std::vector<ControlMessage> found;
  const auto add = [&](int from, std::uint32_t kind, const GroupName& group, const std::vector<std::byte>& payload) {
    if (auto parsed = ControlMessage::parse(from, kind, group, payload)) found.push_back(*std::move(parsed));
  };
  if (const auto* notice = std::get_if<Notice>(&message)) {
    const auto payload = is_far(notice->rank) ? own_payload(notice->payload) : std::nullopt;
    if (payload) add(notice->rank, notice->kind, notice->group, *payload);
  } else if (const auto* facts = std::get_if<RankFacts>(&message)) {
    deliver(*facts, found);
  } else if (const auto* routed = std::get_if<RoutedMessage>(&message); routed != nullptr && routed->to == rank_) {
    add(routed->from, routed->kind, routed->group, routed->payload);
  }
  if (found.empty()) return;
  {
    const std::scoped_lock lock(inbox_mutex_);
    if (inbox_.size() + found.size() <= kMostUnread) {
      std::ranges::move(found, std::back_inserter(inbox_));
    } else if (!std::exchange(overfull_, true)) {
      add_deaths(fmt::format("rank {} has left {} control messages unread", rank_, inbox_.size()), inbox_);
    }
    due_.store(true, std::memory_order_seq_cst);
  }
  if (sleeps_.exchange(false, std::memory_order_seq_cst)) ring_event(event_.get());
}

void OverlayControl::deliver(const RankFacts& facts, std::vector<ControlMessage>& out) const {
  if (facts.kind == RankFacts::Kind::farewell) {
    const auto payload = own_payload(facts.payload);
    if (!payload) return;
    facts.ranks.each([&](int rank) {
      if (is_far(rank)) out.push_back({Kind::farewell, facts.group, rank, {}, *payload});
    });
    return;
  }
  const bool dead = facts.kind == RankFacts::Kind::death;
  if (dead && facts.ranks.contains(rank_)) {
    // No message of this rank reaches the other hosts any more.
    return add_deaths(fmt::format("the other hosts could not reach this one and take rank {} for dead", rank_), out);
  }
  const Status how = dead ? Status(StatusCode::peer_failed, text_of(facts.payload)) : Status();
  facts.ranks.each([&](int rank) {
    if (is_far(rank)) out.push_back({dead ? Kind::death : Kind::goodbye, {}, rank, how, {}});
  });
}

void OverlayControl::add_deaths(const std::string& why, std::vector<ControlMessage>& out) const {
  for (int rank = 0; rank < table_.ranks(); ++rank) {
    if (is_far(rank)) out.push_back({Kind::death, {}, rank, Status(StatusCode::peer_failed, why), {}});
  }
}

}  // namespace shoal
