// TcpLink: sending tiles, over the sockets that pull them.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "transports/common/checksum.h"
#include "transports/tcp/link_sockets.h"
#include "transports/tcp/packing.h"
#include "transports/tcp/reactor.h"

namespace shoal::tcp {

// Packs `data` into `target`. Returns the packed size; 0 where the tile is to be sent unpacked.
std::size_t TcpLink::try_to_pack(std::span<const std::byte> data, std::byte* target) noexcept {
  if (!packs_ || data.size() < kLeastPackable) return 0;
  if (unpackable_ >= kUnpackableTiles && ++unpackable_ % kUnpackableTiles != 0) return 0;
  const std::size_t packed = pack(data, {target, data.size()});
  if (packed > 0) {
    unpackable_ = 0;
  } else if (unpackable_ < kUnpackableTiles) {
    ++unpackable_;
  }
  return packed;
}

bool TcpLink::take(const TileHeader& header, std::span<const std::byte> data, bool lend) {
  assert(header.size_bytes == data.size() && data.size() <= shape_.tile_bytes);
  if (closing_) return false;
  std::size_t whole = frame_bytes(data.size());
  if (taken_ - forgotten_ == kQueueTiles || memory_end_ - memory_begin_ + whole > memory_.size()) {
    refused_ = true;
    return false;
  }
  // As in the rings: a link that keeps up stays within a few warm pages.
  if (forgotten_ == taken_) memory_begin_ = memory_end_ = 0;
  std::byte* frame = memory_.data() + memory_end_ % memory_.size();
  std::byte* payload = frame + kFrameHeaderBytes;
  FrameHeader front{taken_, header, {}, static_cast<std::uint32_t>(try_to_pack(data, payload))};
  // A checksum, encryption and packing touch every byte anyway.
  if (lend) {
    lend = data.size() >= shape_.lend_from_bytes && whole == kFrameHeaderBytes + data.size() && !sums_ &&
           flows_.front().cipher == nullptr && front.packed_bytes == 0;
  }
  if (data.size() > kTinyBytes) {
    if (front.packed_bytes != 0) {
      whole = frame_bytes(front);
      if (sums_) front.payload_sum = crc32c({payload, front.packed_bytes});
    } else if (sums_) {
      front.payload_sum = copy_with_crc32c(payload, data);
    } else if (!lend) {
      copy(payload, data);
    }
    const std::size_t end = kFrameHeaderBytes + front.wire_bytes();
    std::memset(frame + end, 0, whole - end);
  }
  encode(front, data, std::span<std::byte, kFrameHeaderBytes>(frame, kFrameHeaderBytes));
  const bool small = data.size() <= kSmallBytes;
  outgoing(taken_) = {memory_end_, static_cast<std::uint32_t>(whole), 0, small, false, false, nullptr};
  if (lend) {
    outgoing(taken_).lent = data.data();
    ++lent_tiles_;
    reactor_->note_lent(*this);
  }
  memory_end_ += whole;
  ++taken_;
  // A small tile waits for further tiles of the same pass of the caller: together they cost one system call and one packet.
  if (small && taken_ - pulled_ < kPullTiles) {
    reactor_->hold(*this);
  } else {
    pull_tiles();
  }
  return true;
}

bool TcpLink::send_held() {
  const std::uint64_t sent = sent_;
  held = false;
  pull_tiles();
  return sent_ != sent || closing_;
}

// Small tiles stay on the first socket while it keeps up: one warm path gives the best latency.
Flow* TcpLink::first_idle_flow() noexcept {
  for (Flow& flow : tile_flows()) {
    if (flow.idle() && flow.again == flow.again_end) return &flow;
  }
  return nullptr;
}

// A large tile goes to the socket on which it should arrive first, by the bytes in flight there and the measured rate. Where
// that socket takes nothing now, the tile waits for it: on another one it would arrive later still.
Flow* TcpLink::soonest_flow() noexcept {
  const std::span<Flow> flows = tile_flows();
  const auto now = DrainRate::Clock::now();
  const Outgoing& tile = outgoing(pulled_);
  std::array<std::uint64_t, kMostSockets> waiting{};
  double fastest = 0;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    Flow& flow = flows[i];
    int under_way = 0;
    if (flow.down || ::ioctl(flow.socket.get(), SIOCOUTQ, &under_way) != 0) continue;
    waiting[i] = static_cast<std::uint64_t>(under_way);
    flow.rate.look(now, flow.taken_bytes - std::min(flow.taken_bytes, waiting[i]), waiting[i]);
    if (flow.first != flow.last) waiting[i] += due(flow).size();
    fastest = std::max(fastest, flow.rate.bytes_per_us());
  }
  Flow* chosen = nullptr;
  double soonest = 0;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    Flow& flow = flows[i];
    const bool takes = flow.idle() && flow.again == flow.again_end;
    // A socket that only takes nothing now counts: the kernel will report when it takes bytes again.
    if (!takes && (flow.down || flow.hung_up || !flow.blocked)) continue;
    // A socket that is not measured, or whose measurement is too old, counts as being as fast as the best one.
    const bool unknown = flow.rate.bytes_per_us() == 0 || (waiting[i] == 0 && flow.rate.trial_is_due());
    const double known = unknown ? fastest : flow.rate.bytes_per_us();
    const double time = static_cast<double>(waiting[i] + tile.bytes) / (known > 0 ? known : 1);
    if (chosen != nullptr && time >= soonest) continue;
    chosen = &flow;
    soonest = time;
  }
  if (chosen == nullptr || !chosen->idle() || chosen->again != chosen->again_end) return nullptr;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    if (waiting[i] != 0) continue;
    if (&flows[i] == chosen)
      chosen->rate.given(now, chosen->taken_bytes);
    else
      flows[i].rate.passed_over(tile.bytes);
  }
  return chosen;
}

// Lets the flow pull the next tile that it has to retransmit; false where there is none.
bool TcpLink::pull_again(Flow& flow) noexcept {
  const std::size_t own = index_of(flow);
  for (flow.again = std::max(flow.again, forgotten_); flow.again < flow.again_end; ++flow.again) {
    const Outgoing& tile = outgoing(flow.again);
    if (tile.flow != own || tile.acknowledged) continue;
    flow.first = flow.again++;
    flow.last = flow.again;
    return true;
  }
  flow.again = flow.again_end = 0;
  return false;
}

void TcpLink::pull_tiles() {
  if (again_ && !closing_) {
    again_ = false;
    for (Flow& flow : tile_flows()) {
      while (flow.idle() && pull_again(flow)) write(flow);
      again_ |= flow.again != flow.again_end;
    }
  }
  while (pulled_ < taken_ && !closing_) {
    Flow* flow = shape_.sockets > 1 && !outgoing(pulled_).small ? soonest_flow() : first_idle_flow();
    if (flow == nullptr) return;
    const auto own = static_cast<std::uint16_t>(index_of(*flow));
    const std::size_t most = flow->cipher == nullptr ? kPullBytes : std::min(kPullBytes, flow->cipher->most_bytes());
    flow->first = pulled_;
    std::size_t bytes = outgoing(pulled_).bytes;
    outgoing(pulled_++).flow = own;
    while (pulled_ < taken_ && pulled_ - flow->first < kPullTiles) {
      Outgoing& next = outgoing(pulled_);
      if (bytes + next.bytes > most) break;
      bytes += next.bytes;
      next.flow = own;
      ++pulled_;
    }
    flow->last = pulled_;
    write(*flow);
  }
}

void TcpLink::write(Flow& flow) {
  if (flow.cipher != nullptr) return write_sealed(flow);
  while (flow.first != flow.last) {
    std::size_t taken = 0;
    const bool all = lent_tiles_ == 0 ? send_some(flow, due(flow), taken) : send_lent(flow, taken);
    count_sent(flow, taken);
    if (!all) return;
  }
}

// Sends the due bytes up to the end of the first lent tile. True where the kernel has taken all of them.
bool TcpLink::send_lent(Flow& flow, std::size_t& taken) {
  std::uint64_t at = flow.first;
  while (at != flow.last && outgoing(at).lent == nullptr) ++at;
  if (at == flow.last) return send_some(flow, due(flow), taken);
  const Outgoing& tile = outgoing(at);
  const std::uint64_t begin = outgoing(flow.first).begin + flow.sent_of_first;
  const std::uint64_t payload = tile.begin + kFrameHeaderBytes;
  const std::uint64_t from = std::max(begin, payload);
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  if (begin < payload) parts[count++] = {memory_.data() + begin % memory_.size(), payload - begin};
  parts[count++] = {const_cast<std::byte*>(tile.lent + (from - payload)), tile.begin + tile.bytes - from};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(flow.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return note_taken(flow, sent, tile.begin + tile.bytes - begin, taken);
}

void TcpLink::write_sealed(Flow& flow) {
  while (flow.first != flow.last) {
    RecordCipher& cipher = *flow.cipher;
    if (cipher.outgoing().empty()) cipher.seal(due(flow));
    std::size_t taken = 0;
    const bool all = send_some(flow, cipher.outgoing(), taken);
    cipher.sent(taken);
    if (!all) return;
    count_sent(flow, due(flow).size());
  }
}

void TcpLink::count_sent(Flow& flow, std::size_t bytes) noexcept {
  while (bytes > 0) {
    const std::size_t left = outgoing(flow.first).bytes - flow.sent_of_first;
    if (bytes < left) {
      flow.sent_of_first += bytes;
      break;
    }
    bytes -= left;
    flow.sent_of_first = 0;
    outgoing(flow.first++).in_kernel = true;
  }
  advance_sent();
}

void TcpLink::advance_sent() noexcept {
  while (sent_ < pulled_ && outgoing(sent_).in_kernel && outgoing(sent_).lent == nullptr) ++sent_;
}

// Copies a lent payload into the link's memory, from which it can be retransmitted.
void TcpLink::keep(Outgoing& tile) noexcept {
  if (tile.lent == nullptr) return;
  copy(memory_.data() + (tile.begin + kFrameHeaderBytes) % memory_.size(), {tile.lent, tile.bytes - kFrameHeaderBytes});
  tile.lent = nullptr;
  --lent_tiles_;
}

bool TcpLink::keep_sent() noexcept {
  const std::uint64_t sent = sent_;
  for (std::uint64_t i = sent_; i < pulled_; ++i) {
    if (outgoing(i).in_kernel) keep(outgoing(i));
  }
  advance_sent();
  return sent_ != sent;
}

void TcpLink::keep_copies() {
  for (std::uint64_t i = sent_; i < taken_; ++i) keep(outgoing(i));
  advance_sent();
  given_up_ = taken_;
}

bool TcpLink::send_more(Flow& flow) {
  if (closing_ || flow.down) return false;
  flow.blocked = false;
  if (flow.words) {
    flush_words();
    tell_received();
    return false;
  }
  const std::uint64_t first = flow.first;
  const std::size_t sent_of_first = flow.sent_of_first;
  write(flow);
  if (flow.idle()) pull_tiles();
  return flow.first != first || flow.sent_of_first != sent_of_first || closing_;
}

// The peer has the tiles of this flow below `received`: their memory is free. Acknowledgements of tiles that have not left
// this process are ignored.
void TcpLink::acknowledge(std::size_t flow, std::uint64_t received) noexcept {
  for (std::uint64_t i = forgotten_; i < std::min(received, pulled_); ++i) {
    Outgoing& tile = outgoing(i);
    if (tile.flow != flow || !tile.in_kernel || tile.acknowledged) continue;
    tile.acknowledged = true;
    if (tile.lent == nullptr) continue;
    tile.lent = nullptr;
    --lent_tiles_;
  }
  advance_sent();
  while (forgotten_ < sent_ && outgoing(forgotten_).acknowledged) {
    memory_begin_ = outgoing(forgotten_).begin + outgoing(forgotten_).bytes;
    ++forgotten_;
  }
}

}  // namespace shoal::tcp
