#include "transports/tcp/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "transports/tcp/reactor.h"

namespace shoal::tcp {
namespace {

constexpr std::array<std::byte, kFrameAlignment> kZeros{};
// A link whose first socket has ended waits this long for bytes on the others.
constexpr std::chrono::milliseconds kClosingPatience{300};
// A host has vanished that leaves so many retransmissions or probes unanswered and acknowledges nothing for so long.
constexpr std::uint8_t kVanishedTries = 3;
constexpr std::uint32_t kVanishedMs = 10'000;

}  // namespace

TcpLink::TcpLink(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address, std::size_t tile_bytes)
    : reactor_(std::move(reactor)),
      peer_(peer),
      peer_address_(std::move(peer_address)),
      tile_bytes_(tile_bytes),
      queue_(kQueueTiles) {}

Result<std::unique_ptr<TcpLink>> TcpLink::make(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address,
                                               std::vector<Descriptor> sockets, std::size_t tile_bytes,
                                               std::size_t tiles_per_socket) {
  std::unique_ptr<TcpLink> link(new TcpLink(std::move(reactor), peer, std::move(peer_address), tile_bytes));
  link->flows_.reserve(sockets.size());
  for (Descriptor& socket : sockets) {
    auto ring = MirrorRing::make(tiles_per_socket * frame_bytes(tile_bytes));
    if (!ring.ok()) return ring.status();
    Flow& flow = link->flows_.emplace_back();
    flow.link = link.get();
    flow.socket = std::move(socket);
    flow.ring = std::move(*ring);
  }
  const auto added = link->reactor_->add(*link);
  if (!added.ok()) return added.status();
  return link;
}

TcpLink::~TcpLink() {
  close(Status(StatusCode::aborted, "the link was closed on this side"));
  reactor_->remove(*this);
}

bool TcpLink::try_send(const TileHeader& header, std::span<const std::byte> data) {
  assert(header.size_bytes == data.size() && data.size() <= tile_bytes_);
  if (closing_ || taken_ - sent_ == kQueueTiles) return false;
  Outgoing& tile = outgoing(taken_);
  encode(FrameHeader{taken_, header}, data, std::span(tile.bytes).first<kFrameHeaderBytes>());
  tile.size_bytes = data.size();
  tile.done = false;
  if (data.size() <= kInlineBytes) {
    tile.data = nullptr;
    if (data.size() > kTinyBytes) {
      std::memcpy(tile.bytes.data() + kFrameHeaderBytes, data.data(), data.size());
      const std::size_t end = kFrameHeaderBytes + data.size();
      std::memset(tile.bytes.data() + end, 0, frame_bytes(data.size()) - end);
    }
  } else {
    tile.data = data.data();
  }
  ++taken_;
  // A small tile waits for what follows it in the same pass of its sender: together they cost one system call and one packet.
  if (tile.data == nullptr && taken_ - pulled_ < kPullTiles) {
    reactor_->hold(*this);
  } else {
    pull_tiles();
  }
  return true;
}

void TcpLink::keep_copies() {
  std::erase_if(kept_, [&](const Kept& kept) { return kept.tile < sent_; });
  for (std::uint64_t i = sent_; i < taken_; ++i) {
    Outgoing& tile = outgoing(i);
    const bool kept = std::any_of(kept_.begin(), kept_.end(), [&](const Kept& k) { return k.tile == i; });
    if (tile.data == nullptr || tile.done || kept) continue;
    auto copy = std::make_unique_for_overwrite<std::byte[]>(tile.size_bytes);
    std::memcpy(copy.get(), tile.data, tile.size_bytes);
    tile.data = copy.get();
    kept_.push_back({i, std::move(copy)});
  }
}

bool TcpLink::send_held() {
  const std::uint64_t sent = sent_;
  held = false;
  pull_tiles();
  return sent_ != sent || closing_;
}

Flow* TcpLink::choose_idle_flow() noexcept {
  // Small tiles stay on the first socket while it keeps up: one warm path gives the best latency. Large ones go round.
  const bool small = outgoing(pulled_).data == nullptr;
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    const std::size_t index = small ? i : (next_flow_ + i) % flows_.size();
    if (!flows_[index].idle()) continue;
    if (!small) next_flow_ = (index + 1) % flows_.size();
    return &flows_[index];
  }
  return nullptr;
}

void TcpLink::pull_tiles() {
  while (pulled_ < taken_ && !closing_) {
    Flow* flow = choose_idle_flow();
    if (flow == nullptr) return;
    flow->first = pulled_;
    std::size_t bytes = frame_bytes(outgoing(pulled_++).size_bytes);
    while (pulled_ < taken_ && pulled_ - flow->first < kPullTiles) {
      bytes += frame_bytes(outgoing(pulled_).size_bytes);
      if (bytes > kPullBytes) break;
      ++pulled_;
    }
    flow->last = pulled_;
    write(*flow);
  }
}

void TcpLink::write(Flow& flow) {
  while (!flow.idle()) {
    std::array<iovec, 3 * kPullTiles> pieces;
    std::size_t count = 0;
    std::size_t offered = 0;
    std::size_t skip = flow.sent_of_first;
    const auto add = [&](const std::byte* data, std::size_t bytes) {
      if (skip >= bytes) {
        skip -= bytes;
        return;
      }
      pieces[count++] = {const_cast<std::byte*>(data + skip), bytes - skip};
      offered += bytes - skip;
      skip = 0;
    };
    for (std::uint64_t i = flow.first; i < flow.last; ++i) {
      const Outgoing& tile = outgoing(i);
      const std::size_t whole = frame_bytes(tile.size_bytes);
      if (tile.data == nullptr) {
        add(tile.bytes.data(), whole);
      } else {
        add(tile.bytes.data(), kFrameHeaderBytes);
        add(tile.data, tile.size_bytes);
        add(kZeros.data(), whole - kFrameHeaderBytes - tile.size_bytes);
      }
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t taken = ::sendmsg(flow.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0) {
      if (errno == EINTR) continue;
      // Where the kernel is out of memory rather than out of room no event may follow: watch() tries again.
      flow.blocked = true;
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) return;
      // Tiles may have arrived before the connection broke: the end counts when reading comes to it.
      if (closing_error_ == 0) closing_error_ = errno;
      return hang_up(flow);
    }
    count_sent(flow, static_cast<std::size_t>(taken));
    if (static_cast<std::size_t>(taken) < offered) {
      flow.blocked = true;
      return;
    }
  }
}

void TcpLink::count_sent(Flow& flow, std::size_t bytes) noexcept {
  while (bytes > 0) {
    const std::size_t left = frame_bytes(outgoing(flow.first).size_bytes) - flow.sent_of_first;
    if (bytes < left) {
      flow.sent_of_first += bytes;
      break;
    }
    bytes -= left;
    flow.sent_of_first = 0;
    outgoing(flow.first++).done = true;
  }
  while (sent_ < pulled_ && outgoing(sent_).done) ++sent_;
}

bool TcpLink::send_more(Flow& flow) {
  if (closing_) return false;
  const std::uint64_t first = flow.first;
  const std::size_t sent_of_first = flow.sent_of_first;
  flow.blocked = false;
  write(flow);
  if (flow.idle()) pull_tiles();
  return flow.first != first || flow.sent_of_first != sent_of_first || closing_;
}

bool TcpLink::has_room(const Flow& flow) const noexcept {
  if (flow.ended) return false;
  // The front frame always fits. Behind it, small reads into the last free bytes would cost more than they bring.
  return !flow.front_whole || flow.ring.size() - (flow.tail - flow.head) >= flow.ring.size() / 4;
}

bool TcpLink::receive(Flow& flow) {
  if (flow.ended || !has_room(flow)) return false;
  const std::size_t room = flow.ring.size() - (flow.tail - flow.head);
  // About a tile at a time: what was just copied is still in the cache when it is used.
  const std::size_t missing =
      flow.front && !flow.front_whole ? frame_bytes(flow.front->tile.size_bytes) - (flow.tail - flow.head) : 0;
  const std::size_t want = std::min(room, std::max(missing, kReadBytes) + (std::size_t{16} << 10));
  ssize_t got = 0;
  do {
    got = ::recv(flow.socket.get(), flow.ring.data() + flow.tail % flow.ring.size(), want, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    flow.tail += static_cast<std::size_t>(got);
    flow.readable = static_cast<std::size_t>(got) == want || flow.hung_up;
    received_bytes_ += static_cast<std::size_t>(got);
    const bool was_whole = flow.front_whole;
    examine(flow);
    return flow.front_whole != was_whole || !status_.ok();
  }
  flow.readable = false;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got < 0 && (errno == ENOBUFS || errno == ENOMEM)) {
    flow.readable = true;
    return false;
  }
  end_flow(flow, got == 0 ? 0 : errno);
  return true;
}

// Looks at the frame at the head of the flow: is its header sound, has it arrived whole, is it the one to deliver next?
void TcpLink::examine(Flow& flow) {
  if (flow.front_whole) return;
  const std::uint64_t arrived = flow.tail - flow.head;
  const std::byte* at = flow.ring.data() + flow.head % flow.ring.size();
  if (!flow.front) {
    if (arrived < kFrameHeaderBytes) return;
    const std::span<const std::byte, kFrameHeaderBytes> bytes(at, kFrameHeaderBytes);
    flow.front = decode_frame(bytes, tile_bytes_);
    if (!flow.front) {
      return fail("sent a corrupt tile header: " + describe_bad_frame(bytes, tile_bytes_));
    }
    if (flow.front->position < next_) {
      return fail(fmt::format("sent tile {} again, {} is due", flow.front->position, next_));
    }
  }
  flow.front_whole = arrived >= frame_bytes(flow.front->tile.size_bytes);
  if (flow.front_whole) set_low_water(flow, 1);  // what follows may be small
  if (next_from_ == nullptr) find_next();
}

void TcpLink::await_front(Flow& flow) noexcept {
  if (flow.ended || flow.front_whole || !flow.front) return;
  const std::size_t missing = frame_bytes(flow.front->tile.size_bytes) - (flow.tail - flow.head);
  // Not only where it rises: what was set for a rest that has come in part since then would let what is left wait.
  set_low_water(flow, missing >= kWorthwhileLowWater ? std::min(missing, kMaxLowWater) : 1);
}

void TcpLink::set_low_water(Flow& flow, std::size_t bytes) noexcept {
  const int low_water = static_cast<int>(bytes);
  if (flow.low_water == low_water) return;
  flow.low_water = low_water;
  // A refusal costs speed only.
  ::setsockopt(flow.socket.get(), SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water);
}

void TcpLink::find_next() {
  bool passed = true;
  for (Flow& flow : flows_) {
    if (!flow.front || flow.front->position == next_) passed = false;
    if (!flow.front_whole || flow.front->position != next_) continue;
    next_from_ = &flow;
    arrival_ = {flow.front->tile,
                {flow.ring.data() + flow.head % flow.ring.size() + payload_offset(flow.front->tile.size_bytes),
                 flow.front->tile.size_bytes}};
    news_ = true;
    return;
  }
  // Each socket brings its tiles in ascending order, so a tile that all of them have passed will never come.
  if (passed && status_.ok()) fail(fmt::format("left out tile {}", next_));
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
  flow.head += frame_bytes(flow.front->tile.size_bytes);
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

void TcpLink::hang_up(Flow& flow) {
  flow.hung_up = true;
  flow.readable = true;
  if (has_room(flow)) reactor_->enqueue(flow);
  if (closing_) return;
  closing_ = true;
  watched_since_ = std::chrono::steady_clock::now();
  watched_bytes_ = received_bytes_;
  reactor_->note_closing();
}

void TcpLink::end_flow(Flow& flow, int error) {
  if (closing_error_ == 0) closing_error_ = error;
  stop_flow(flow);
  hang_up(flow);
  if (std::all_of(flows_.begin(), flows_.end(), [](const Flow& f) { return f.ended; })) set_broken();
}

void TcpLink::set_broken() {
  if (!status_.ok()) return;
  const std::string why = closing_error_ == 0 ? "" : ": " + std::generic_category().message(closing_error_);
  status_ = Status(StatusCode::peer_failed, fmt::format("rank {} closed the connection ({}){}", peer_, peer_address_, why));
  reactor_->note_closing();
}

void TcpLink::stop_flow(Flow& flow) noexcept {
  if (flow.ended) return;
  flow.ended = true;
  flow.readable = false;
  reactor_->forget(flow);
  if (!reactor_->in_owner()) return;
  // Bytes left unread would turn the orderly end into a reset, which could overtake what this side has sent last. Not by
  // MSG_TRUNC into nowhere: ThreadSanitizer takes that for a write to address 0 by every thread that does it.
  std::array<char, 16 << 10> unread;
  while (::recv(flow.socket.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
  }
  ::shutdown(flow.socket.get(), SHUT_RDWR);
}

void TcpLink::close(Status reason) {
  closing_ = true;
  for (Flow& flow : flows_) stop_flow(flow);
  if (!status_.ok()) return;
  status_ = std::move(reason);
  reactor_->note_closing();
}

void TcpLink::fail(const std::string& what) {
  close(Status(StatusCode::peer_failed, fmt::format("rank {} ({}) {}", peer_, peer_address_, what)));
}

bool TcpLink::watch() {
  if (!status_.ok()) return false;
  if (closing_) {
    const auto now = std::chrono::steady_clock::now();
    if (received_bytes_ != watched_bytes_) {
      watched_bytes_ = received_bytes_;
      watched_since_ = now;
      return false;
    }
    if (now - watched_since_ < kClosingPatience) return false;
    set_broken();
    // What the kernel holds already can still be read; after it each socket shows its end.
    for (Flow& flow : flows_) {
      if (flow.ended) continue;
      ::shutdown(flow.socket.get(), SHUT_RDWR);
      hang_up(flow);
    }
    return true;
  }
  bool moved = false;
  for (Flow& flow : flows_) {
    // May find what an event is about to report. That event will then find nothing, so who is about to sleep must hear of it
    // now.
    if (flow.blocked) moved |= send_more(flow);
    // Unlike TCP_USER_TIMEOUT this spares a peer that is only slow: it answers each probe of its closed window.
    tcp_info info{};
    socklen_t bytes = sizeof info;
    if (flow.ended || ::getsockopt(flow.socket.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) continue;
    if (std::max(info.tcpi_retransmits, info.tcpi_probes) >= kVanishedTries && info.tcpi_last_ack_recv >= kVanishedMs) {
      fail(fmt::format("has not answered for {:.1f} s: its host or the network is down", info.tcpi_last_ack_recv / 1e3));
      return true;
    }
  }
  return moved;
}

bool TcpLink::blocked() const noexcept {
  return std::any_of(flows_.begin(), flows_.end(), [](const Flow& flow) { return flow.blocked; });
}

std::size_t TcpLink::memory_bytes() const noexcept {
  std::size_t bytes = queue_.size() * sizeof(Outgoing);
  for (const Flow& flow : flows_) bytes += flow.ring.size();
  return bytes;
}

}  // namespace shoal::tcp
