#include "transports/tcp/link.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "transports/tcp/checksum.h"
#include "transports/tcp/reactor.h"
#include "transports/tcp/repairs.h"

namespace shoal::tcp {
namespace {

// A link whose first socket has ended waits this long for bytes on the others.
constexpr std::chrono::milliseconds kClosingPatience{300};
// A host has vanished that leaves so many retransmissions or probes unanswered and acknowledges nothing for so long.
constexpr std::uint8_t kVanishedTries = 3;
constexpr std::uint32_t kVanishedMs = 10'000;
// Where another network may answer, a socket is given up earlier.
constexpr std::uint32_t kSilentRailMs = 1500;
// How often a goodbye is offered to a kernel that is out of memory.
constexpr int kGoodbyeTries = 8;

}  // namespace

TcpLink::TcpLink(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address, const LinkShape& shape)
    : reactor_(std::move(reactor)),
      peer_(peer),
      peer_address_(std::move(peer_address)),
      shape_(shape),
      sums_(shape.integrity),
      queue_(kQueueTiles) {}

Result<std::unique_ptr<TcpLink>> TcpLink::make(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address,
                                               std::vector<Connection> connections, const LinkShape& shape) {
  std::unique_ptr<TcpLink> link(new TcpLink(std::move(reactor), peer, std::move(peer_address), shape));
  const std::size_t frame = frame_bytes(shape.tile_bytes);
  const std::size_t tile_flows = connections.size() - 1;
  auto memory = MirrorRing::make(tile_flows * std::max(kOpenBytes, kOpenTiles * frame));
  if (!memory.ok()) return memory.status();
  link->memory_ = std::move(*memory);
  link->flows_.reserve(connections.size());
  for (Connection& connection : connections) {
    Flow& flow = link->flows_.emplace_back();
    flow.link = link.get();
    link->adopt(flow, std::move(connection));
    flow.words = link->flows_.size() > tile_flows;
    if (flow.words) continue;
    auto ring = MirrorRing::make(shape.tiles_per_socket * frame);
    if (!ring.ok()) return ring.status();
    flow.ring = std::move(*ring);
  }
  const auto added = link->reactor_->add(*link);
  if (!added.ok()) return added.status();
  return link;
}

void TcpLink::adopt(Flow& flow, Connection connection) {
  flow.socket = std::move(connection.socket);
  flow.taken_bytes = 0;
  flow.rate = {};
  // A record is what a flow pulls at once, so that the other side's ring has room for it whatever lies there.
  if (connection.keys) flow.sealing = std::make_unique<Sealing>(*connection.keys, frame_bytes(shape_.tile_bytes));
}

TcpLink::~TcpLink() {
  close(Status(StatusCode::aborted, "the link was closed on this side"));
  reactor_->remove(*this);
}

// Sending
// -----------------------------------------------------------------------------------------------------------------------

bool TcpLink::try_send(const TileHeader& header, std::span<const std::byte> data) {
  assert(header.size_bytes == data.size() && data.size() <= shape_.tile_bytes);
  if (closing_) return false;
  const std::size_t whole = frame_bytes(data.size());
  if (taken_ - forgotten_ == kQueueTiles || memory_end_ - memory_begin_ + whole > memory_.size()) {
    refused_ = true;
    return false;
  }
  // As in the rings: a link that keeps up stays within a few warm pages.
  if (forgotten_ == taken_) memory_begin_ = memory_end_ = 0;
  std::byte* frame = memory_.data() + memory_end_ % memory_.size();
  FrameHeader front{taken_, header, {}};
  if (data.size() > kTinyBytes) {
    if (sums_) {
      front.payload_sum = copy_with_crc32c(frame + kFrameHeaderBytes, data);
    } else {
      copy(frame + kFrameHeaderBytes, data);
    }
    const std::size_t end = kFrameHeaderBytes + data.size();
    std::memset(frame + end, 0, whole - end);
  }
  encode(front, data, std::span<std::byte, kFrameHeaderBytes>(frame, kFrameHeaderBytes));
  const bool small = data.size() <= kSmallBytes;
  outgoing(taken_) = {memory_end_, static_cast<std::uint32_t>(whole), 0, small, false, false};
  memory_end_ += whole;
  ++taken_;
  // A small tile waits for what follows it in the same pass of its sender: together they cost one system call and one packet.
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

Flow* TcpLink::choose_idle_flow() noexcept {
  // Small tiles stay on the first socket while it keeps up: one warm path gives the best latency. Large ones go to the socket
  // that has least on its way: what a slow one has pulled is late, and all tiles behind it wait.
  const std::span<Flow> flows = tile_flows();
  if (flows.size() == 1) return flows[0].idle() && flows[0].again == flows[0].again_end ? flows.data() : nullptr;
  const bool small = outgoing(pulled_).small;
  Flow* chosen = nullptr;
  int least = 0;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    Flow& flow = flows[small ? i : (next_flow_ + i) % flows.size()];
    if (!flow.idle() || flow.again != flow.again_end) continue;
    if (small) return &flow;
    int under_way = 0;
    if (::ioctl(flow.socket.get(), SIOCOUTQ, &under_way) != 0) under_way = 0;
    if (chosen != nullptr && under_way >= least) continue;
    chosen = &flow;
    least = under_way;
  }
  if (chosen != nullptr) next_flow_ = (index_of(*chosen) + 1) % flows.size();
  return chosen;
}

// Large tiles go where they should have come first, by what is on its way there and how fast it goes; where that socket takes
// nothing for now they wait for it, since by another one they would come later still.
Flow* TcpLink::choose_rail() noexcept {
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
    // Of one that only takes nothing for now the kernel will tell when it does.
    if (!takes && (tile.small || flow.down || flow.hung_up || !flow.blocked)) continue;
    if (tile.small) return &flow;
    // One that is not measured counts as being as fast as the best.
    const double known = flow.rate.bytes_per_us() > 0 ? flow.rate.bytes_per_us() : fastest;
    const double time = static_cast<double>(waiting[i] + tile.bytes) / (known > 0 ? known : 1);
    if (chosen != nullptr && time >= soonest) continue;
    chosen = &flow;
    soonest = time;
  }
  return chosen != nullptr && chosen->idle() && chosen->again == chosen->again_end ? chosen : nullptr;
}

// Lets the flow pull the next tile that it has to send once more; false where there is none.
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
    Flow* flow = shape_.rails ? choose_rail() : choose_idle_flow();
    if (flow == nullptr) return;
    const auto own = static_cast<std::uint16_t>(index_of(*flow));
    const std::size_t most = flow->sealing == nullptr ? kPullBytes : std::min(kPullBytes, flow->sealing->most_bytes());
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

// The bytes of the tiles that the flow has pulled and that are not in the kernel. Tiles that were taken one after the other lie
// so in memory.
inline std::span<const std::byte> TcpLink::due(const Flow& flow) noexcept {
  const std::uint64_t begin = outgoing(flow.first).begin + flow.sent_of_first;
  const Outgoing& end = outgoing(flow.last - 1);
  return {memory_.data() + begin % memory_.size(), end.begin + end.bytes - begin};
}

// False where the kernel has not taken all; `taken` says how much.
inline bool TcpLink::send_some(Flow& flow, std::span<const std::byte> bytes, std::size_t& taken) {
  ssize_t count = 0;
  do {
    count = ::send(flow.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  taken = count < 0 ? 0 : static_cast<std::size_t>(count);
  flow.taken_bytes += taken;
  if (taken == bytes.size()) return true;
  // Where the kernel is out of memory rather than out of room no event may follow: watch() tries again.
  flow.blocked = true;
  if (count >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) return false;
  if (errno == ENOBUFS || errno == ENOMEM) {
    reactor_->watch_soon();
    return false;
  }
  // Tiles may have arrived before the connection broke: the end counts when reading comes to it.
  if (closing_error_ == 0) closing_error_ = errno;
  hang_up(flow);
  return false;
}

void TcpLink::write(Flow& flow) {
  if (flow.sealing != nullptr) return write_sealed(flow);
  while (flow.first != flow.last) {
    std::size_t taken = 0;
    const bool all = send_some(flow, due(flow), taken);
    count_sent(flow, taken);
    if (!all) return;
  }
}

void TcpLink::write_sealed(Flow& flow) {
  while (flow.first != flow.last) {
    Sealing& sealing = *flow.sealing;
    if (sealing.outgoing().empty()) sealing.seal(due(flow));
    std::size_t taken = 0;
    const bool all = send_some(flow, sealing.outgoing(), taken);
    sealing.sent(taken);
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
  while (sent_ < pulled_ && outgoing(sent_).in_kernel) ++sent_;
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

// The peer has the tiles of this flow that are below `received`: their memory is free. A peer that claims what has not left
// this process is not believed.
void TcpLink::acknowledge(std::size_t flow, std::uint64_t received) noexcept {
  for (std::uint64_t i = forgotten_; i < std::min(received, pulled_); ++i) {
    Outgoing& tile = outgoing(i);
    if (tile.flow != flow || !tile.in_kernel || tile.acknowledged) continue;
    tile.acknowledged = true;
  }
  while (forgotten_ < sent_ && outgoing(forgotten_).acknowledged) {
    memory_begin_ = outgoing(forgotten_).begin + outgoing(forgotten_).bytes;
    ++forgotten_;
  }
}

// Words
// -------------------------------------------------------------------------------------------------------------------------

// As recv(): at most `want` bytes, or, of an encrypted connection, one record of at most `room`. EBADMSG: it was changed.
inline ssize_t TcpLink::read(Flow& flow, std::byte* target, std::size_t want, std::size_t room) {
  if (flow.sealing != nullptr) return read_sealed(flow, target, room);
  ssize_t got = 0;
  do {
    got = ::recv(flow.socket.get(), target, want, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

ssize_t TcpLink::read_sealed(Flow& flow, std::byte* target, std::size_t room) {
  Sealing& sealing = *flow.sealing;
  while (sealing.waiting_bytes() == 0) {
    const std::span<std::byte> in = sealing.room();
    const ssize_t got = ::recv(flow.socket.get(), in.data(), in.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got;
    sealing.arrived(static_cast<std::size_t>(got));
  }
  const std::size_t bytes = sealing.waiting_bytes();
  errno = EBADMSG;
  if (bytes > sealing.most_bytes()) return -1;
  errno = EAGAIN;
  if (bytes > room) return -1;
  if (sealing.open(target)) return static_cast<ssize_t>(bytes);
  errno = EBADMSG;
  return -1;
}

bool TcpLink::receive_words(Flow& flow) {
  bool moved = false;
  while (!flow.ended && !flow.down) {
    const std::size_t room = words_in_.size() - words_got_;
    const ssize_t got = read(flow, words_in_.data() + words_got_, room, room);
    flow.readable = false;
    if (got < 0 && errno == EBADMSG) {
      distrust(flow, "sent words that were changed on the way");
      return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got < 0 && (errno == ENOBUFS || errno == ENOMEM)) {
      flow.readable = true;  // nothing new will be reported
      break;
    }
    if (got <= 0) {
      end_flow(flow, got == 0 ? 0 : errno);
      return true;
    }
    words_got_ += static_cast<std::size_t>(got);
    std::size_t read = 0;
    for (; words_got_ - read >= kWordBytes; read += kWordBytes) {
      const auto word = decode_word(std::span<const std::byte, kWordBytes>(words_in_.data() + read, kWordBytes));
      if (!word) {
        distrust(flow, "sent a corrupt word");
        return true;
      }
      hear(*word);
    }
    flow.distrusted = 0;
    words_got_ -= read;
    std::memmove(words_in_.data(), words_in_.data() + read, words_got_);
    moved |= std::exchange(refused_, false) || closing_;
  }
  return moved;
}

void TcpLink::hear(const Word& word) {
  if (word.kind == Word::Kind::goodbye) {
    left_ = true;
    const bool ending =
        std::any_of(tile_flows().begin(), tile_flows().end(), [](const Flow& f) { return f.hung_up || f.down; });
    if (ending) start_closing();
  } else if (word.socket < tile_flows().size()) {
    acknowledge(word.socket, word.position);
    if (!closing_ && pulled_ < taken_) pull_tiles();
  }
}

// Tells the peer what it may forget.
void TcpLink::tell_received() {
  for (std::size_t i = 0; i < tile_flows().size(); ++i) {
    Flow& flow = flows_[i];
    if (flow.told == flow.received) continue;
    if (word_flow().down || word_flow().ended || words_due_ + kWordBytes > words_out_.size()) return;
    flow.told = flow.received;
    say({Word::Kind::received, static_cast<std::uint32_t>(i), flow.received});
  }
  untold_bytes_ = untold_tiles_ = 0;
  flush_words();
}

void TcpLink::say(const Word& word) {
  encode(word, std::span<std::byte, kWordBytes>(words_out_.data() + words_due_, kWordBytes));
  words_due_ += kWordBytes;
}

void TcpLink::flush_words() {
  Flow& flow = word_flow();
  std::size_t taken = 0;
  if (flow.down || flow.ended) return;
  flow.blocked = false;
  if (flow.sealing != nullptr) {
    Sealing& sealing = *flow.sealing;
    for (bool all = true; all && (words_due_ > 0 || !sealing.outgoing().empty());) {
      if (sealing.outgoing().empty()) {
        const std::size_t bytes = std::min(words_due_, sealing.most_bytes() / kWordBytes * kWordBytes);
        sealing.seal(std::span(words_out_).first(bytes));
        forget_words(bytes);
      }
      all = send_some(flow, sealing.outgoing(), taken);
      sealing.sent(taken);
    }
  } else if (words_due_ > 0) {
    send_some(flow, std::span(words_out_).first(words_due_), taken);
    forget_words(taken);
  }
}

void TcpLink::forget_words(std::size_t bytes) noexcept {
  words_due_ -= bytes;
  std::memmove(words_out_.data(), words_out_.data() + bytes, words_due_);
}

// Receiving
// ---------------------------------------------------------------------------------------------------------------------

bool TcpLink::has_room(const Flow& flow) const noexcept {
  if (flow.ended || flow.down) return false;
  // The front frame always fits.
  if (flow.sealing == nullptr && !flow.front_whole) return true;
  if (flow.words) return true;
  const std::size_t free = flow.ring.size() - (flow.tail - flow.head);
  if (flow.sealing != nullptr) {
    const std::size_t waiting = flow.sealing->waiting_bytes();
    return waiting == 0 || waiting > flow.sealing->most_bytes() || waiting <= free;
  }
  // Behind it, small reads into the last free bytes would cost more than they bring.
  return free >= flow.ring.size() / 4;
}

bool TcpLink::receive(Flow& flow) {
  if (flow.words) return receive_words(flow);
  if (!has_room(flow)) return false;
  const std::size_t room = flow.ring.size() - (flow.tail - flow.head);
  // About a tile at a time: what was just copied is still in the cache when it is used.
  const std::size_t missing =
      flow.front && !flow.front_whole ? frame_bytes(flow.front->tile.size_bytes) - (flow.tail - flow.head) : 0;
  const std::size_t want = std::min(room, std::max(missing, kReadBytes) + (std::size_t{16} << 10));
  const ssize_t got = read(flow, flow.ring.data() + flow.tail % flow.ring.size(), want, room);
  if (got > 0) {
    flow.tail += static_cast<std::size_t>(got);
    flow.readable = static_cast<std::size_t>(got) == want || flow.hung_up || flow.sealing != nullptr;
    received_bytes_ += static_cast<std::size_t>(got);
    const bool was_whole = flow.front_whole;
    examine(flow);
    return flow.front_whole != was_whole || !status_.ok();
  }
  if (got < 0 && errno == EBADMSG) {
    count_repaired_tile();
    distrust(flow, "sent bytes that were changed on the way");
    return true;
  }
  // A record that waits for room is read on when there is.
  flow.readable = !has_room(flow);
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
    flow.front = decode_frame(bytes, shape_.tile_bytes);
    if (!flow.front) {
      return distrust(flow, "sent a corrupt tile header: " + describe_bad_frame(bytes, shape_.tile_bytes));
    }
    if (flow.front->position < std::max(next_, flow.received)) {
      return distrust(flow, fmt::format("sent tile {} again, {} is due", flow.front->position, next_));
    }
  }
  const std::size_t whole = frame_bytes(flow.front->tile.size_bytes);
  if (arrived >= whole) {
    if (flow.front->payload_sum && !is_sound(flow)) return;
    flow.front_whole = true;
    flow.distrusted = 0;
    flow.received = flow.front->position + 1;
    untold_bytes_ += whole;
    if (untold_bytes_ >= tell_after_bytes() || ++untold_tiles_ >= kQueueTiles / 2) tell_received();
    set_low_water(flow, 1);  // what follows may be small
  }
  if (next_from_ == nullptr) find_next();
}

// A payload that was changed on its way is asked for again, by a new connection.
bool TcpLink::is_sound(Flow& flow) {
  const std::size_t size = flow.front->tile.size_bytes;
  const std::byte* payload = flow.ring.data() + flow.head % flow.ring.size() + kFrameHeaderBytes;
  if (crc32c({payload, size}) == flow.front->payload_sum) return true;
  count_repaired_tile();
  distrust(flow, fmt::format("sent tile {} with a wrong check sum", flow.front->position));
  return false;
}

void TcpLink::await_front(Flow& flow) noexcept {
  if (flow.ended || flow.down || flow.sealing != nullptr || flow.front_whole || !flow.front) return;
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
  for (Flow& flow : tile_flows()) {
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

// The end of a socket, and of the link
// --------------------------------------------------------------------------------------------

bool TcpLink::may_resume() const noexcept { return !closing_ && !left_ && !gone_ && reactor_->reconnects(); }

void TcpLink::hang_up(Flow& flow) {
  flow.hung_up = true;
  flow.readable = true;
  if (has_room(flow)) reactor_->enqueue(flow);
  if (closing_) return;
  // While it is read to its end, a new one is looked for; where the peer is gone that is known before.
  if (may_resume()) {
    reactor_->lost(*this, index_of(flow));
  } else if (!flow.words) {
    start_closing();
  }
}

// Nothing is sent any more, what has arrived is still delivered.
void TcpLink::start_closing() {
  if (closing_) return;
  closing_ = true;
  watched_since_ = std::chrono::steady_clock::now();
  watched_bytes_ = received_bytes_;
  for (Flow& flow : flows_) flow.ended |= flow.down;
  reactor_->forget_lost(*this);
  if (std::all_of(tile_flows().begin(), tile_flows().end(), [](const Flow& f) { return f.ended; })) set_broken();
  reactor_->note_closing();
}

void TcpLink::end_flow(Flow& flow, int error) {
  if (closing_error_ == 0) closing_error_ = error;
  // A host that has not answered for so long will not answer now.
  if (may_resume() && error != ETIMEDOUT) return drop(flow);
  stop_flow(flow);
  hang_up(flow);
  if (std::all_of(tile_flows().begin(), tile_flows().end(), [](const Flow& f) { return f.ended; })) set_broken();
}

// Gives the socket up and has another one looked for. What has arrived stays: should the peer be gone, it is the last of it.
void TcpLink::drop(Flow& flow) {
  if (!flow.down) {
    reactor_->forget(flow);
    flow.socket.reset();
    flow.down = true;
    flow.blocked = flow.readable = flow.hung_up = false;
    flow.first = flow.last = 0;
    flow.sent_of_first = 0;
    if (flow.words) words_got_ = words_due_ = 0;
    if (pulled_ < taken_) reactor_->hold(*this);  // another socket may take what has waited for this one
  }
  reactor_->lost(*this, index_of(flow));
}

// What has arrived beyond the front tile will come again, or cannot be used.
void TcpLink::cut_short(Flow& flow) noexcept {
  if (!flow.front_whole) flow.front.reset();
  flow.tail = flow.head + (flow.front_whole ? frame_bytes(flow.front->tile.size_bytes) : 0);
}

void TcpLink::distrust(Flow& flow, const std::string& what) {
  if (may_resume() && ++flow.distrusted < kMostDistrust) {
    trouble_ = what;
    cut_short(flow);
    return drop(flow);
  }
  close(Status(StatusCode::peer_failed, fmt::format("rank {} ({}) {}", peer_, peer_address_, what)));
}

std::optional<std::uint64_t> TcpLink::give_up(std::size_t flow) {
  if (!may_resume() || flow >= flows_.size()) return {};
  drop(flows_[flow]);
  cut_short(flows_[flow]);
  return flows_[flow].received;
}

void TcpLink::resume(std::size_t index, Connection connection, std::uint64_t received) {
  if (!may_resume()) return;
  Flow& flow = flows_[index];
  adopt(flow, std::move(connection));
  flow.down = false;
  flow.low_water = 1;
  closing_error_ = 0;
  trouble_.clear();
  if (!reactor_->watch(flow)) return drop(flow);
  reactor_->enqueue(flow);
  flow.readable = true;
  if (flow.words) {
    for (Flow& each : tile_flows()) each.told = 0;
    return tell_received();
  }
  acknowledge(index, received);
  flow.again = forgotten_;
  flow.again_end = pulled_;
  again_ = true;
  pull_tiles();
}

void TcpLink::lose_peer(const std::string& why) {
  if (closing_) return;
  gone_ = true;
  if (!trouble_.empty()) trouble_ = fmt::format("{}, and cannot be reached again: {}", trouble_, why);
  const bool ending = std::any_of(tile_flows().begin(), tile_flows().end(), [](const Flow& f) { return f.hung_up || f.down; });
  if (ending) start_closing();
}

void TcpLink::set_broken() {
  if (!status_.ok()) return;
  if (trouble_.empty()) {
    const std::string why = closing_error_ == 0 ? "" : ": " + std::generic_category().message(closing_error_);
    status_ = Status(StatusCode::peer_failed, fmt::format("rank {} closed the connection ({}){}", peer_, peer_address_, why));
  } else {
    status_ = Status(StatusCode::peer_failed, fmt::format("rank {} ({}) {}", peer_, peer_address_, trouble_));
  }
  reactor_->note_closing();
}

void TcpLink::stop_flow(Flow& flow) noexcept {
  if (flow.ended) return;
  flow.ended = true;
  flow.readable = false;
  if (flow.down) return;
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
  if (!closing_ && reactor_->in_owner() && words_due_ + kWordBytes <= words_out_.size()) {
    say({Word::Kind::goodbye, 0, 0});
    // The last chance: without it the peer takes the end for a cut. The kernel may be out of memory for a moment.
    for (int i = 0; i < kGoodbyeTries && words_due_ > 0; ++i) flush_words();
  }
  closing_ = true;
  for (Flow& flow : flows_) stop_flow(flow);
  reactor_->forget_lost(*this);
  if (!status_.ok()) return;
  status_ = std::move(reason);
  reactor_->note_closing();
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
    if (flow.ended || flow.down || ::getsockopt(flow.socket.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) continue;
    const bool silent = std::max(info.tcpi_retransmits, info.tcpi_probes) >= kVanishedTries;
    if (shape_.rails && silent && info.tcpi_last_ack_recv >= kSilentRailMs && may_resume()) {
      fmt::print(stderr, "shoal: tcp: rank {} has not answered on socket {} for {:.1f} s; going on without its network\n",
                 peer_, index_of(flow), info.tcpi_last_ack_recv / 1e3);
      drop(flow);
      moved = true;
      continue;
    }
    if (silent && info.tcpi_last_ack_recv >= kVanishedMs) {
      close(Status(StatusCode::peer_failed,
                   fmt::format("rank {} ({}) has not answered for {:.1f} s: its host or the network is down", peer_,
                               peer_address_, info.tcpi_last_ack_recv / 1e3)));
      return true;
    }
  }
  return moved;
}

bool TcpLink::blocked() const noexcept {
  const std::size_t tile_flows = flows_.size() - 1;
  for (std::size_t i = 0; i < tile_flows; ++i) {
    if (flows_[i].blocked) return true;
  }
  return false;
}

std::size_t TcpLink::memory_bytes() const noexcept {
  std::size_t bytes = queue_.size() * sizeof(Outgoing) + memory_.size();
  for (const Flow& flow : flows_) bytes += flow.ring.size() + (flow.sealing == nullptr ? 0 : flow.sealing->memory_bytes());
  return bytes;
}

}  // namespace shoal::tcp
