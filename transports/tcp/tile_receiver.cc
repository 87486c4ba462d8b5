#include "transports/tcp/tile_receiver.h"

#include <algorithm>
#include <cassert>
#include <cerrno>

#include <fmt/format.h>

#include "transports/tcp/reactor.h"
#include "transports/tcp/repairs.h"

namespace shoal::tcp {

bool TileReceiver::receive(LinkSocket& socket) {
  if (!socket.has_room()) return false;
  ReceiveRing& ring = socket.ring;
  const std::span<std::byte> free = ring.free_space();
  // About a tile at a time: what was just copied is still in the cache when it is used.
  const std::size_t want = std::min(free.size(), std::max(ring.missing_bytes(), kReadBytes) + (std::size_t{16} << 10));
  const ssize_t got = socket.read(free.data(), want, free.size());
  if (got > 0) {
    const auto bytes = static_cast<std::size_t>(got);
    ring.add(bytes);
    socket.readable = bytes == want || socket.hung_up || socket.cipher != nullptr;
    socket.read_bytes += bytes;
    const bool was_whole = ring.front_is_whole();
    examine(socket);
    return ring.front_is_whole() != was_whole || sockets_.status().has_ended();
  }
  if (got < 0 && errno == EBADMSG) {
    count_repaired_tile();
    sockets_.on_damage(socket, "sent bytes that were damaged in transit");
    return true;
  }
  // An encrypted record that waits for room is read when there is room.
  socket.readable = !socket.has_room();
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got < 0 && (errno == ENOBUFS || errno == ENOMEM)) {
    socket.readable = true;
    return false;
  }
  sockets_.on_end(socket, got == 0 ? 0 : errno);
  return true;
}

// Checks the frame at the head of the socket's ring: is it valid, has it arrived whole, is it the one to deliver next?
void TileReceiver::examine(LinkSocket& socket) {
  if (socket.ring.front_is_whole()) return;
  const ReceiveRing::Front front = socket.ring.examine(next_);
  if (front == ReceiveRing::Front::none) return;
  if (front == ReceiveRing::Front::whole) {
    socket.damaged_in_a_row = 0;
    acknowledger_.on_tile(frame_bytes(*socket.ring.front()));
    socket.set_low_water(1);  // what follows may be small
  } else if (front == ReceiveRing::Front::partial) {
    sockets_.reactor().note_partial(socket);
  } else {
    return on_bad_front(socket, front);
  }
  if (next_from_ == nullptr) find_next();
}

void TileReceiver::on_bad_front(LinkSocket& socket, ReceiveRing::Front front) {
  using Front = ReceiveRing::Front;
  const ReceiveRing& ring = socket.ring;
  if (front == Front::bad_header)
    return sockets_.on_damage(socket, "sent a corrupt tile header: " + ring.describe_bad_header());
  const std::uint64_t position = ring.front()->position;
  if (front == Front::repeated)
    return sockets_.on_damage(socket, fmt::format("sent tile {} again, tile {} is due", position, next_));
  count_repaired_tile();
  sockets_.on_damage(socket, front == Front::bad_checksum
                                 ? fmt::format("sent tile {} with a wrong checksum", position)
                                 : fmt::format("sent tile {} in a form that cannot be unpacked", position));
}

void TileReceiver::find_next() {
  bool passed = true;
  for (LinkSocket& socket : sockets_.for_tiles()) {
    const ReceiveRing& ring = socket.ring;
    if (!ring.front() || ring.front()->position == next_) passed = false;
    if (!ring.front_is_whole() || ring.front()->position != next_) continue;
    next_from_ = &socket;
    arrival_ = {ring.front()->tile, ring.payload()};
    set_unseen(true);
    sockets_.reactor().note_active(*socket.link);
    return;
  }
  // Each socket brings its tiles in ascending order, so a tile that all of them have passed will never arrive.
  if (passed && !sockets_.status().has_ended())
    sockets_.on_damage(sockets_.all().front(), fmt::format("left out tile {}", next_));
}

void TileReceiver::set_unseen(bool unseen) noexcept {
  if (unseen_ == unseen) return;
  unseen_ = unseen;
  sockets_.reactor().count_unseen(unseen ? 1 : -1);
}

const Arrival* TileReceiver::peek() noexcept {
  set_unseen(false);
  if (next_from_ != nullptr) return &arrival_;
  sockets_.reactor().await_tile(*this);
  return nullptr;
}

void TileReceiver::release() noexcept {
  assert(next_from_ != nullptr);
  LinkSocket& socket = *next_from_;
  socket.ring.release();
  next_from_ = nullptr;
  ++next_;
  examine(socket);
  if (next_from_ == nullptr) find_next();
  if (socket.readable && socket.has_room()) sockets_.reactor().enqueue(socket);
}

}  // namespace shoal::tcp
