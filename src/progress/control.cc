#include "src/progress/control.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <poll.h>

#include <fmt/format.h>

#include "src/base/printable.h"

namespace shoal {
namespace {

using Kind = ControlPlane::Message::Kind;

constexpr auto kFinishPatience = std::chrono::milliseconds(100);

/// A later message of the kind replaces an earlier one of the same communicator.
bool replaces(Kind kind) { return kind == Kind::waits || kind == Kind::calls; }

}  // namespace

Status parse_abort(int from, std::span<const std::byte> data) {
  if (data.empty()) return {StatusCode::aborted, fmt::format("rank {} closed the communicator", from)};
  const auto raw = std::to_integer<int>(data[0]);
  const bool known = raw > static_cast<int>(StatusCode::ok) && raw <= static_cast<int>(StatusCode::internal);
  return {known ? static_cast<StatusCode>(raw) : StatusCode::aborted,
          printable({reinterpret_cast<const char*>(data.data()) + 1, data.size() - 1})};
}

ControlPlane::ControlPlane(std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links)
    : transport_(std::move(transport)) {
  active_.reserve(links.size());
  peers_.reserve(links.size());
  for (auto& link : links) {
    const auto rank = static_cast<std::size_t>(link->peer());
    if (rank >= peer_of_rank_.size()) peer_of_rank_.resize(rank + 1, -1);
    peer_of_rank_[rank] = static_cast<int>(peers_.size());
    peers_.emplace_back().link = std::move(link);
  }
}

ControlPlane::~ControlPlane() {
  for (Peer& peer : peers_) {
    if (!peer.in_link.empty()) peer.link->keep_copies();
  }
}

bool ControlPlane::poll(std::vector<Message>& messages) {
  if (transport_ == nullptr) return false;
  due_ = false;
  bool moved = false;
  // A transport may read its sockets only now and then; these calls make it do so.
  transport_->prepare_wait();
  transport_->finish_wait(true);
  while (transport_->progress()) moved = true;
  arrivals_.clear();
  if (transport_->take_active(arrivals_)) {
    for (const Link* link : arrivals_) set_active(*peer_to(link->peer()));
  } else {
    for (Peer& peer : peers_) set_active(peer);
  }
  std::erase_if(active_, [&](Peer* peer) {
    moved |= visit(*peer, messages);
    peer->active = !peer->queue.empty() || !peer->in_link.empty();
    return !peer->active;
  });
  return moved;
}

bool ControlPlane::visit(Peer& peer, std::vector<Message>& messages) {
  if (peer.failed) return false;
  bool moved = flush(peer);
  const int rank = peer.link->peer();
  while (const Arrival* arrival = peer.link->peek()) {
    moved = true;
    const auto kind = static_cast<Kind>(arrival->header.edge);
    const GroupName group{arrival->header.offset_bytes, arrival->header.sequence};
    if (kind == Kind::abort) {
      messages.push_back({kind, group, rank, parse_abort(rank, arrival->data), {}});
    } else if (kind == Kind::waits || kind == Kind::calls || kind == Kind::farewell || kind == Kind::goodbye) {
      messages.push_back({kind, group, rank, {}, {arrival->data.begin(), arrival->data.end()}});
      peer.gone |= kind == Kind::goodbye;
    }
    peer.link->release();
  }
  if (peer.link->status().ok() && !peer.overfull) return moved;
  peer.failed = true;
  drop_queue(peer);
  if (peer.gone) return true;
  const Status unread{StatusCode::peer_failed,
                      fmt::format("rank {} has left {} control messages unread; is its process stopped?", rank, kMostQueued)};
  messages.push_back({Kind::death, {}, rank, peer.link->status().ok() ? unread : peer.link->status(), {}});
  return true;
}

void ControlPlane::set_active(Peer& peer) {
  if (!std::exchange(peer.active, true)) active_.push_back(&peer);
}

ControlPlane::Peer* ControlPlane::peer_to(int rank) noexcept {
  const auto at = static_cast<std::size_t>(rank);
  const int index = at < peer_of_rank_.size() ? peer_of_rank_[at] : -1;
  return index < 0 ? nullptr : &peers_[static_cast<std::size_t>(index)];
}

void ControlPlane::send(Kind kind, const GroupName& group, const std::span<const int>* ranks,
                        std::span<const std::byte> payload) {
  if (transport_ == nullptr) return;
  due_ = true;
  const auto bytes = std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end());
  if (ranks == nullptr) {
    for (Peer& peer : peers_) send_to(peer, {kind, group, bytes});
  } else {
    for (const int rank : *ranks) {
      if (Peer* const peer = peer_to(rank); peer != nullptr) send_to(*peer, {kind, group, bytes});
    }
  }
  transport_->progress();  // a link may hold tiles that it has taken until then
}

void ControlPlane::send_to(Peer& peer, Queued message) {
  if (peer.failed || peer.overfull || !peer.link->status().ok()) return;
  enqueue(peer, std::move(message));
  flush(peer);
  set_active(peer);
}

void ControlPlane::enqueue(Peer& peer, Queued message) {
  if (replaces(message.kind)) {
    const auto earlier = std::ranges::find_if(
        peer.queue, [&](const Queued& each) { return each.kind == message.kind && each.group == message.group; });
    if (earlier != peer.queue.end()) {
      earlier->payload = std::move(message.payload);
      return;
    }
  }
  if (peer.queue.size() == kMostQueued) {
    peer.overfull = true;
    return drop_queue(peer);
  }
  peer.queue.push_back(std::move(message));
  ++queued_;
}

/// Hands queued messages to the link; true where it took any.
bool ControlPlane::flush(Peer& peer) {
  while (!peer.in_link.empty() && peer.in_link.front().ticket <= peer.link->sent_tiles()) peer.in_link.pop_front();
  bool any = false;
  while (!peer.queue.empty()) {
    Queued& message = peer.queue.front();
    const std::span<const std::byte> bytes(message.payload->data(),
                                           std::min(message.payload->size(), peer.link->max_tile_bytes()));
    const TileHeader header{message.group.short_form(), message.group.check, static_cast<std::uint32_t>(message.kind),
                            static_cast<std::uint32_t>(bytes.size()), message.group.key};
    if (!peer.link->try_send(header, bytes)) break;
    if (peer.link->sent_tiles() < ++peer.taken && !bytes.empty())
      peer.in_link.push_back({std::move(message.payload), peer.taken});
    peer.queue.pop_front();
    --queued_;
    any = true;
  }
  return any;
}

void ControlPlane::drop_queue(Peer& peer) {
  queued_ -= peer.queue.size();
  peer.queue.clear();
}

bool ControlPlane::is_unfinished() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    return !peer.failed && peer.link->status().ok() && (!peer.queue.empty() || peer.link->sent_tiles() < peer.taken);
  });
}

void ControlPlane::finish() {
  if (transport_ == nullptr) return;
  const auto deadline = std::chrono::steady_clock::now() + kFinishPatience;
  while (is_unfinished() && std::chrono::steady_clock::now() < deadline) {
    bool moved = transport_->progress();
    for (Peer& peer : peers_) moved |= !peer.failed && flush(peer);
    if (moved) continue;
    if (!transport_->prepare_wait()) {
      transport_->finish_wait(true);
      continue;
    }
    pollfd descriptor{transport_->wait_fd(), POLLIN, 0};
    transport_->finish_wait(::poll(&descriptor, 1, 10) != 0);
  }
  for (Peer& peer : peers_) drop_queue(peer);
}

void ControlPlane::send_abort(const GroupName& group, std::span<const int> ranks, const Status& cause) {
  const std::string payload = std::string(1, static_cast<char>(cause.code())) + cause.message();
  send(Kind::abort, group, &ranks, std::as_bytes(std::span(payload)));
}

void ControlPlane::send_farewell(const GroupName& group, std::span<const int> ranks, std::span<const std::byte> history) {
  send(Kind::farewell, group, &ranks, history);
}

void ControlPlane::send_wait(const GroupName& group, std::span<const int> ranks, std::span<const std::byte> what) {
  send(Kind::waits, group, &ranks, what);
}

void ControlPlane::send_calls(const GroupName& group, int rank, std::span<const std::byte> history) {
  const std::span<const int> ranks(&rank, 1);
  send(Kind::calls, group, &ranks, history);
}

void ControlPlane::send_goodbye() { send(Kind::goodbye, {}, nullptr, {}); }

}  // namespace shoal
