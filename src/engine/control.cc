#include "src/engine/control.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <poll.h>

#include <fmt/format.h>

#include "src/status/printable.h"

namespace shoal {
namespace {

using Kind = ControlPlane::Message::Kind;

constexpr auto kMessagePatience = std::chrono::milliseconds(100);

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
  for (auto& link : links) peers_.push_back({std::move(link), 0, false, false, false});
}

bool ControlPlane::poll(std::vector<Message>& messages) {
  if (transport_ == nullptr) return false;
  due_ = false;
  bool moved = false;
  // A transport may look at its sockets now and then only; after this it has.
  transport_->prepare_wait();
  transport_->finish_wait(true);
  while (transport_->progress()) moved = true;
  for (Peer& peer : peers_) {
    if (peer.failed) continue;
    const int rank = peer.link->peer();
    while (const Arrival* arrival = peer.link->peek()) {
      moved = true;
      const auto kind = static_cast<Kind>(arrival->header.edge);
      if (kind == Kind::abort) {
        messages.push_back({kind, arrival->header.communicator, rank, parse_abort(rank, arrival->data), {}});
      } else if (kind == Kind::waits || kind == Kind::calls || kind == Kind::farewell || kind == Kind::goodbye) {
        messages.push_back({kind, arrival->header.communicator, rank, {}, {arrival->data.begin(), arrival->data.end()}});
        peer.gone |= kind == Kind::goodbye;
      }
      peer.link->release();
    }
    if (!peer.link->status().ok()) {
      peer.failed = true;
      moved = true;
      if (!peer.gone) messages.push_back({Kind::death, 0, rank, peer.link->status(), {}});
    }
  }
  return moved;
}

void ControlPlane::send(Kind kind, std::uint32_t communicator, const std::span<const int>* ranks,
                        std::span<const std::byte> payload) {
  if (transport_ == nullptr) return;
  due_ = true;
  const auto deadline = std::chrono::steady_clock::now() + kMessagePatience;
  for (Peer& peer : peers_) {
    peer.pending = ranks == nullptr || std::find(ranks->begin(), ranks->end(), peer.link->peer()) != ranks->end();
  }
  // A control link is all but idle, so the first round nearly always does it.
  std::vector<bool> taken(peers_.size());
  for (bool open = true; open;) {
    open = false;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      if (!peer.pending || peer.failed || !peer.link->status().ok()) continue;
      const auto bytes = payload.first(std::min(payload.size(), peer.link->max_tile_bytes()));
      if (!taken[i]) {
        const auto edge = static_cast<std::uint32_t>(kind);
        taken[i] = peer.link->try_send({communicator, 0, edge, static_cast<std::uint32_t>(bytes.size()), 0}, bytes);
        if (taken[i]) ++peer.taken;
      }
      peer.pending = !taken[i] || peer.link->sent_tiles() < peer.taken;
      open |= peer.pending;
    }
    if (!open || std::chrono::steady_clock::now() >= deadline) break;
    if (transport_->progress()) continue;
    if (!transport_->prepare_wait()) {
      transport_->finish_wait(true);
      continue;
    }
    pollfd descriptor{transport_->wait_fd(), POLLIN, 0};
    transport_->finish_wait(::poll(&descriptor, 1, 10) != 0);
  }
  for (Peer& peer : peers_) {
    if (std::exchange(peer.pending, false)) peer.link->keep_copies();
  }
}

void ControlPlane::send_abort(std::uint32_t communicator, std::span<const int> ranks, const Status& cause) {
  const std::string payload = std::string(1, static_cast<char>(cause.code())) + cause.message();
  send(Kind::abort, communicator, &ranks, std::as_bytes(std::span(payload)));
}

void ControlPlane::send_farewell(std::uint32_t communicator, std::span<const int> ranks, std::span<const std::byte> history) {
  send(Kind::farewell, communicator, &ranks, history);
}

void ControlPlane::send_wait(std::uint32_t communicator, std::span<const int> ranks, std::span<const std::byte> what) {
  send(Kind::waits, communicator, &ranks, what);
}

void ControlPlane::send_calls(std::uint32_t communicator, int rank, std::span<const std::byte> history) {
  const std::span<const int> ranks(&rank, 1);
  send(Kind::calls, communicator, &ranks, history);
}

void ControlPlane::send_goodbye() { send(Kind::goodbye, 0, nullptr, {}); }

}  // namespace shoal
