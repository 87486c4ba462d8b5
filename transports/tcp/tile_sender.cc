#include "transports/tcp/tile_sender.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "transports/tcp/reactor.h"
#include "transports/tcp/socket_choice.h"

namespace shoal::tcp {

Result<std::size_t> TileSender::open() {
  const std::size_t frame = frame_bytes(sockets_.shape().tile_bytes);
  auto window = SendWindow::make(sockets_.for_tiles().size() * std::max(kSocketBytes, kSocketTiles * frame), &sockets_.rings());
  if (!window.ok()) return window.status();
  window_ = std::move(*window);
  return window_.frame_memory_bytes();
}

bool TileSender::take(const TileHeader& header, std::span<const std::byte> data, bool lend) {
  assert(header.size_bytes == data.size() && data.size() <= sockets_.shape().tile_bytes);
  if (sockets_.status().closing()) return false;
  if (!window_.has_room(frame_bytes(data.size()))) {
    refused_ = true;
    return false;
  }
  // Encryption touches every byte anyway.
  const bool may_lend = lend && sockets_.all().front().cipher == nullptr;
  const auto [bytes, lent] = encoder_.encode(window_.next_frame(), window_.taken(), header, data, may_lend);
  const bool small = data.size() <= kSmallBytes;
  window_.add(bytes, small, lent ? data.data() : nullptr);
  if (lent) sockets_.reactor().note_lent(*this);
  // A small tile waits for further tiles of the same pass of the caller: together they cost one system call and one packet.
  if (small && window_.unpulled() < SendWindow::kPullTiles) {
    sockets_.reactor().defer(*this);
  } else {
    pull_tiles();
  }
  return true;
}

bool TileSender::send_deferred() {
  const std::uint64_t sent = window_.sent();
  deferred = false;
  pull_tiles();
  return window_.sent() != sent || sockets_.status().closing();
}

bool TileSender::send_more(LinkSocket& socket) {
  const std::uint64_t first = socket.outgoing.first;
  const std::size_t sent_of_first = socket.outgoing.sent_of_first;
  write(socket);
  if (socket.is_idle()) pull_tiles();
  return socket.outgoing.first != first || socket.outgoing.sent_of_first != sent_of_first || sockets_.status().closing();
}

void TileSender::on_acknowledged(std::size_t socket, std::uint64_t received) {
  window_.acknowledge(socket, received);
  if (!sockets_.status().closing() && window_.unpulled() > 0) pull_tiles();
}

void TileSender::resume(LinkSocket& socket, std::uint64_t received) {
  window_.acknowledge(socket.index, received);
  window_.start_resending(socket.outgoing);
  resends_ = true;
  pull_tiles();
}

void TileSender::pull_tiles() {
  const LinkStatus& status = sockets_.status();
  if (resends_ && !status.closing()) resend_tiles();
  while (window_.unpulled() > 0 && !status.closing()) {
    const bool balanced = sockets_.shape().sockets > 1 && !window_.next_is_small();
    LinkSocket* socket = balanced ? soonest(sockets_.for_tiles(), window_) : first_idle(sockets_.for_tiles());
    if (socket == nullptr) return;
    const std::size_t most =
        socket->cipher == nullptr ? SendWindow::kPullBytes : std::min(SendWindow::kPullBytes, socket->cipher->most_bytes());
    window_.pull(socket->outgoing, socket->index, most);
    write(*socket);
  }
}

void TileSender::resend_tiles() {
  resends_ = false;
  for (LinkSocket& socket : sockets_.for_tiles()) {
    while (socket.is_idle() && window_.pull_resend(socket.outgoing, socket.index)) write(socket);
    resends_ |= socket.outgoing.resends();
  }
}

void TileSender::write(LinkSocket& socket) {
  if (socket.cipher != nullptr) return write_encrypted(socket);
  while (!socket.outgoing.empty()) {
    std::size_t taken = 0;
    const bool all =
        window_.has_lent() ? write_lent(socket, taken) : sockets_.send(socket, window_.due(socket.outgoing), taken);
    window_.count_sent(socket.outgoing, taken);
    if (!all) return;
  }
}

// Sends the due bytes up to the end of the first lent tile.
bool TileSender::write_lent(LinkSocket& socket, std::size_t& taken) {
  std::array<iovec, 2> parts;
  const std::size_t count = window_.gather_due(socket.outgoing, parts);
  return sockets_.send(socket, std::span(parts).first(count), taken);
}

void TileSender::write_encrypted(LinkSocket& socket) {
  RecordCipher& cipher = *socket.cipher;
  while (!socket.outgoing.empty()) {
    if (cipher.outgoing().empty()) cipher.seal(window_.due(socket.outgoing));
    std::size_t taken = 0;
    const bool all = sockets_.send(socket, cipher.outgoing(), taken);
    cipher.sent(taken);
    if (!all) return;
    window_.count_sent(socket.outgoing, window_.due(socket.outgoing).size());
  }
}

}  // namespace shoal::tcp
