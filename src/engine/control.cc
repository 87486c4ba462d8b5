#include "src/engine/control.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <poll.h>

#include <fmt/format.h>

namespace shoal {
namespace {

// The kinds of message, in TileHeader::edge.
constexpr std::uint32_t kAbort = 1;     // payload: one byte StatusCode, then the words
constexpr std::uint32_t kFarewell = 2;  // no payload
constexpr auto kPatience = std::chrono::milliseconds(100);

Status parse_abort(int from, std::span<const std::byte> data) {
  if (data.empty()) return {StatusCode::aborted, fmt::format("rank {} closed the communicator", from)};
  const auto raw = std::to_integer<int>(data[0]);
  const bool known = raw > static_cast<int>(StatusCode::ok) && raw <= static_cast<int>(StatusCode::internal);
  std::string words(reinterpret_cast<const char*>(data.data()) + 1, data.size() - 1);
  for (char& c : words) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';  // a peer's words end up on a terminal
  }
  return {known ? static_cast<StatusCode>(raw) : StatusCode::aborted, std::move(words)};
}

}  // namespace

ControlPlane::ControlPlane(int rank, std::unique_ptr<Transport> transport, std::vector<std::unique_ptr<Link>> links)
    : rank_(rank), transport_(std::move(transport)), left_(links.size() + 1) {
  for (auto& link : links) peers_.push_back({std::move(link), false});
}

Status ControlPlane::poll(bool* moved) {
  if (transport_ == nullptr) return {};
  while (transport_->progress()) *moved = true;
  Status cause;
  for (Peer& peer : peers_) {
    if (peer.failed) continue;
    const int rank = peer.link->peer();
    while (const Arrival* arrival = peer.link->peek()) {
      *moved = true;
      if (arrival->header.edge == kFarewell) left_[static_cast<std::size_t>(rank)] = true;
      if (arrival->header.edge == kAbort && cause.ok()) cause = parse_abort(rank, arrival->data);
      peer.link->release();
    }
    if (!peer.link->status().ok()) {
      peer.failed = true;
      *moved = true;
      if (!has_left(rank) && cause.ok()) {
        cause = {StatusCode::peer_failed,
                 fmt::format("rank {} died or lost its connection ({})", rank, peer.link->status().message())};
      }
    }
  }
  return cause;
}

void ControlPlane::send_to_all(std::uint32_t kind, const std::string& payload) {
  if (transport_ == nullptr || said_last_word_) return;
  said_last_word_ = true;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::vector<bool> sent(peers_.size());
  // A control link is all but idle, so the first round nearly always does it.
  for (bool open = true; open && std::chrono::steady_clock::now() < deadline;) {
    open = false;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      Link& link = *peers_[i].link;
      if (peers_[i].failed || !link.status().ok()) continue;
      const auto bytes = std::as_bytes(std::span(payload)).first(std::min(payload.size(), link.max_tile_bytes()));
      if (!sent[i]) sent[i] = link.try_send({0, 0, kind, static_cast<std::uint32_t>(bytes.size()), 0}, bytes);
      if (!sent[i] || link.sent_tiles() < 1) open = true;
    }
    if (!open) break;
    if (transport_->progress()) continue;
    if (!transport_->prepare_wait()) {
      transport_->finish_wait();
      continue;
    }
    pollfd descriptor{transport_->wait_fd(), POLLIN, 0};
    ::poll(&descriptor, 1, 10);
    transport_->finish_wait();
  }
}

void ControlPlane::send_abort(const Status& cause) {
  send_to_all(kAbort, std::string(1, static_cast<char>(cause.code())) + cause.message());
}

void ControlPlane::send_farewell() { send_to_all(kFarewell, {}); }

}  // namespace shoal
