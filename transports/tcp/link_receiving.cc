// TcpLink: bytes that arrive, and the tiles that they make up.
#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include <fmt/format.h>

#include "transports/common/checksum.h"
#include "transports/tcp/link_sockets.h"
#include "transports/tcp/packing.h"
#include "transports/tcp/reactor.h"
#include "transports/tcp/repairs.h"

namespace shoal::tcp {

ssize_t TcpLink::read_sealed(Flow& flow, std::byte* target, std::size_t room) {
  RecordCipher& cipher = *flow.cipher;
  while (cipher.waiting_bytes() == 0) {
    const std::span<std::byte> in = cipher.room();
    const ssize_t got = ::recv(flow.socket.get(), in.data(), in.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got;
    cipher.arrived(static_cast<std::size_t>(got));
  }
  const std::size_t bytes = cipher.waiting_bytes();
  errno = EBADMSG;
  if (bytes > cipher.most_bytes()) return -1;
  errno = EAGAIN;
  if (bytes > room) return -1;
  if (cipher.open(target)) return static_cast<ssize_t>(bytes);
  errno = EBADMSG;
  return -1;
}

bool TcpLink::has_room(const Flow& flow) const noexcept {
  if (flow.ended || flow.down) return false;
  // The front frame always fits.
  if (flow.cipher == nullptr && !flow.front_whole) return true;
  if (flow.words) return true;
  const std::size_t free = flow.ring.size() - (flow.tail - flow.head);
  if (flow.cipher != nullptr) {
    const std::size_t waiting = flow.cipher->waiting_bytes();
    return waiting == 0 || waiting > flow.cipher->most_bytes() || waiting <= free;
  }
  // Behind it, small reads into the last free bytes would cost more than they bring.
  return free >= flow.ring.size() / 4;
}

bool TcpLink::receive(Flow& flow) {
  if (flow.words) return receive_words(flow);
  if (!has_room(flow)) return false;
  const std::size_t room = flow.ring.size() - (flow.tail - flow.head);
  // About a tile at a time: what was just copied is still in the cache when it is used.
  const std::size_t missing = flow.front && !flow.front_whole ? frame_bytes(*flow.front) - (flow.tail - flow.head) : 0;
  const std::size_t want = std::min(room, std::max(missing, kReadBytes) + (std::size_t{16} << 10));
  const ssize_t got = read(flow, flow.ring.data() + flow.tail % flow.ring.size(), want, room);
  if (got > 0) {
    flow.tail += static_cast<std::size_t>(got);
    flow.readable = static_cast<std::size_t>(got) == want || flow.hung_up || flow.cipher != nullptr;
    received_bytes_ += static_cast<std::size_t>(got);
    const bool was_whole = flow.front_whole;
    examine(flow);
    return flow.front_whole != was_whole || !status_.ok();
  }
  if (got < 0 && errno == EBADMSG) {
    count_repaired_tile();
    distrust(flow, "sent bytes that were damaged in transit");
    return true;
  }
  // An encrypted record that waits for room is read when there is room.
  flow.readable = !has_room(flow);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got < 0 && (errno == ENOBUFS || errno == ENOMEM)) {
    flow.readable = true;
    return false;
  }
  end_flow(flow, got == 0 ? 0 : errno);
  return true;
}

// Checks the frame at the head of the flow: is its header valid, has it arrived whole, is it the one to deliver next?
void TcpLink::examine(Flow& flow) {
  if (flow.front_whole) return;
  const std::uint64_t arrived = flow.tail - flow.head;
  const std::byte* at = flow.ring.data() + flow.head % flow.ring.size();
  if (!flow.front) {
    if (arrived < kFrameHeaderBytes) return;
    const std::span<const std::byte, kFrameHeaderBytes> bytes(at, kFrameHeaderBytes);
    flow.front = decode_frame(bytes, shape_.tile_bytes);
    if (!flow.front) {
      return distrust(flow, "sent a corrupt tile header: " + describe_bad_frame(bytes, shape_.tile_bytes));
    }
    if (flow.front->position < std::max(next_, flow.received)) {
      return distrust(flow, fmt::format("sent tile {} again, tile {} is due", flow.front->position, next_));
    }
  }
  const std::size_t whole = frame_bytes(*flow.front);
  if (arrived >= whole) {
    if (flow.front->payload_sum && !is_sound(flow)) return;
    if (flow.front->packed_bytes != 0 && !unpack_front(flow)) return;
    flow.front_whole = true;
    flow.distrusted = 0;
    flow.received = flow.front->position + 1;
    untold_bytes_ += whole;
    if (untold_bytes_ >= tell_after_bytes() || ++untold_tiles_ >= kQueueTiles / 2) tell_received();
    set_low_water(flow, 1);  // what follows may be small
  }
  if (next_from_ == nullptr) find_next();
}

// A damaged payload is retransmitted, over a new connection.
bool TcpLink::is_sound(Flow& flow) {
  const std::byte* payload = flow.ring.data() + flow.head % flow.ring.size() + kFrameHeaderBytes;
  if (crc32c({payload, flow.front->wire_bytes()}) == flow.front->payload_sum) return true;
  count_repaired_tile();
  distrust(flow, fmt::format("sent tile {} with a wrong checksum", flow.front->position));
  return false;
}

// Unpacks at once, not when the tile is shown: a tile that cannot be unpacked counts as not arrived.
bool TcpLink::unpack_front(Flow& flow) {
  const std::byte* payload = flow.ring.data() + flow.head % flow.ring.size() + kFrameHeaderBytes;
  auto* unpacked = reinterpret_cast<std::byte*>(flow.unpacked.get());
  if (unpack({payload, flow.front->packed_bytes}, {unpacked, flow.front->tile.size_bytes})) return true;
  count_repaired_tile();
  distrust(flow, fmt::format("sent tile {} in a form that cannot be unpacked", flow.front->position));
  return false;
}

void TcpLink::await_front(Flow& flow) noexcept {
  if (flow.ended || flow.down || flow.cipher != nullptr || flow.front_whole || !flow.front) return;
  const std::size_t missing = frame_bytes(*flow.front) - (flow.tail - flow.head);
  // Also lowers the value: one that was set for a rest which has arrived in part since then would delay what is left.
  set_low_water(flow, missing >= kWorthwhileLowWater ? std::min(missing, kMaxLowWater) : 1);
}

void TcpLink::set_low_water(Flow& flow, std::size_t bytes) noexcept {
  const int low_water = static_cast<int>(bytes);
  if (flow.low_water == low_water) return;
  flow.low_water = low_water;
  // A failure costs only speed.
  ::setsockopt(flow.socket.get(), SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water);
}

void TcpLink::find_next() {
  bool passed = true;
  for (Flow& flow : tile_flows()) {
    if (!flow.front || flow.front->position == next_) passed = false;
    if (!flow.front_whole || flow.front->position != next_) continue;
    next_from_ = &flow;
    const std::size_t size = flow.front->tile.size_bytes;
    const std::byte* payload = flow.front->packed_bytes != 0
                                   ? reinterpret_cast<const std::byte*>(flow.unpacked.get())
                                   : flow.ring.data() + flow.head % flow.ring.size() + payload_offset(size);
    arrival_ = {flow.front->tile, {payload, size}};
    news_ = true;
    return;
  }
  // Each socket brings its tiles in ascending order, so a tile that all of them have passed will never arrive.
  if (passed && status_.ok()) distrust(flows_.front(), fmt::format("left out tile {}", next_));
}

const Arrival* TcpLink::peek() noexcept {
  news_ = false;
  if (next_from_ != nullptr) return &arrival_;
  reactor_->want(*this);
  return nullptr;
}

void TcpLink::release() noexcept {
  assert(next_from_ != nullptr);
  Flow& flow = *next_from_;
  flow.head += frame_bytes(*flow.front);
  flow.front.reset();
  flow.front_whole = false;
  // An empty ring starts anew at its first bytes: a link that keeps up stays within a few warm pages.
  if (flow.head == flow.tail) flow.head = flow.tail = 0;
  next_from_ = nullptr;
  ++next_;
  examine(flow);
  if (next_from_ == nullptr) find_next();
  if (flow.readable && has_room(flow)) reactor_->enqueue(flow);
}

}  // namespace shoal::tcp
