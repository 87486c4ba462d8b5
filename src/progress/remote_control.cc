#include "src/progress/remote_control.h"

#include <algorithm>
#include <utility>

#include <poll.h>

namespace shoal {

using Kind = ControlMessage::Kind;

RemoteControl::RemoteControl(std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links)
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

RemoteControl::~RemoteControl() {
  for (Peer& peer : peers_) {
    if (!peer.in_link.empty()) peer.link->keep_copies();
  }
}

bool RemoteControl::poll(std::vector<ControlMessage>& messages) {
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

bool RemoteControl::visit(Peer& peer, std::vector<ControlMessage>& messages) {
  if (peer.failed) return false;
  bool moved = flush(peer);
  const int rank = peer.link->peer();
  while (const Arrival* arrival = peer.link->peek()) {
    moved = true;
    const TileHeader& header = arrival->header;
    if (auto message = ControlMessage::parse(rank, header.edge, {header.offset_bytes, header.sequence}, arrival->data)) {
      peer.gone |= message->kind == Kind::goodbye;
      messages.push_back(*std::move(message));
    }
    peer.link->release();
  }
  if (peer.link->status().ok() && !peer.overfull) return moved;
  peer.failed = true;
  drop_queue(peer);
  if (peer.gone) return true;
  messages.push_back({Kind::death, {}, rank, peer.link->status().ok() ? ControlQueue::unread(rank) : peer.link->status(), {}});
  return true;
}

void RemoteControl::set_active(Peer& peer) {
  if (!std::exchange(peer.active, true)) active_.push_back(&peer);
}

RemoteControl::Peer* RemoteControl::peer_to(int rank) noexcept {
  const auto at = static_cast<std::size_t>(rank);
  const int index = at < peer_of_rank_.size() ? peer_of_rank_[at] : -1;
  return index < 0 ? nullptr : &peers_[static_cast<std::size_t>(index)];
}

void RemoteControl::send(const std::span<const int>* ranks, const OutgoingControl& message) {
  due_ = true;
  if (ranks == nullptr) {
    for (Peer& peer : peers_) send_to(peer, message);
  } else {
    for (const int rank : *ranks) {
      if (Peer* const peer = peer_to(rank); peer != nullptr) send_to(*peer, message);
    }
  }
  transport_->progress();  // a link may hold tiles that it has taken until then
}

void RemoteControl::send_to(Peer& peer, const OutgoingControl& message) {
  if (peer.failed || peer.overfull || !peer.link->status().ok()) return;
  queued_ -= peer.queue.size();
  peer.overfull = !peer.queue.push(message);
  queued_ += peer.queue.size();
  if (peer.overfull) drop_queue(peer);
  flush(peer);
  set_active(peer);
}

/// Hands queued messages to the link; true where it took any.
bool RemoteControl::flush(Peer& peer) {
  while (!peer.in_link.empty() && peer.in_link.front().ticket <= peer.link->sent_tiles()) peer.in_link.pop_front();
  bool any = false;
  while (!peer.queue.empty()) {
    OutgoingControl& message = peer.queue.front();
    const std::span<const std::byte> bytes = message.bytes(peer.link->max_tile_bytes());
    const TileHeader header{message.group.short_form(), message.group.check, static_cast<std::uint32_t>(message.kind),
                            static_cast<std::uint32_t>(bytes.size()), message.group.key};
    if (!peer.link->try_send(header, bytes)) break;
    if (peer.link->sent_tiles() < ++peer.taken && !bytes.empty())
      peer.in_link.push_back({std::move(message.payload), peer.taken});
    peer.queue.pop();
    --queued_;
    any = true;
  }
  return any;
}

void RemoteControl::drop_queue(Peer& peer) {
  queued_ -= peer.queue.size();
  peer.queue.clear();
}

bool RemoteControl::is_unfinished() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    return !peer.failed && peer.link->status().ok() && (!peer.queue.empty() || peer.link->sent_tiles() < peer.taken);
  });
}

void RemoteControl::finish(std::chrono::steady_clock::time_point deadline) {
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

}  // namespace shoal
