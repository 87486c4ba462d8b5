#include "transports/tcp/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "transports/tcp/reactor.h"
#include "transports/tcp/tune.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

// A link whose first socket has ended waits this long for bytes on the others.
constexpr milliseconds kClosingPatience{300};
// A host is silent that leaves so many retransmissions or probes unanswered.
constexpr std::uint8_t kSilentTries = 3;
// Where another network may answer, a socket is given up earlier.
constexpr std::uint32_t kSilentRailMs = 1500;
// How often a goodbye is offered to a kernel that is out of memory.
constexpr int kGoodbyeTries = 8;

// Touched when the first packed tile comes.
std::size_t unpacked_lines(const LinkShape& shape) { return (shape.tile_bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine); }

// How often in a row the other side has answered nothing, and for how long; all zero where the system does not say.
tcp_info silence_of(const Flow& flow) noexcept {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(flow.socket.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return info;
}

}  // namespace

TcpLink::TcpLink(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address, const LinkShape& shape)
    : reactor_(std::move(reactor)),
      peer_(peer),
      peer_address_(std::move(peer_address)),
      shape_(shape),
      sums_(shape.integrity),
      packs_(shape.packing),
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
    flow.unpacked = std::make_unique_for_overwrite<CacheLine[]>(unpacked_lines(shape));
  }
  const auto added = link->reactor_->add(*link);
  if (!added.ok()) return added.status();
  return link;
}

void TcpLink::adopt(Flow& flow, Connection connection) {
  flow.socket = std::move(connection.socket);
  tune(flow.socket.get(), shape_.lost_after, shape_.sockets > 1);
  flow.taken_bytes = 0;
  flow.rate = {};
  // A record is what a flow pulls at once, so that the other side's ring has room for it whatever lies there.
  if (connection.keys) flow.sealing = std::make_unique<Sealing>(*connection.keys, frame_bytes(shape_.tile_bytes));
}

TcpLink::~TcpLink() {
  close(Status(StatusCode::aborted, "the link was closed on this side"));
  reactor_->remove(*this);
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

Status TcpLink::silent_for(milliseconds time) const {
  return {StatusCode::peer_failed, fmt::format("rank {} ({}) has not answered for {:.1f} s: its host or the network is down",
                                               peer_, peer_address_, static_cast<double>(time.count()) / 1e3)};
}

void TcpLink::end_flow(Flow& flow, int error) {
  if (closing_error_ == 0) closing_error_ = error;
  if (may_resume()) {
    // A host that has not answered for so long will not answer now. The system may lose its patience before (tcp_retries2): a
    // quarter of an hour, which TCP_USER_TIMEOUT would prolong only at the cost of a peer that is merely slow.
    const milliseconds silent(error == ETIMEDOUT && !shape_.rails ? silence_of(flow).tcpi_last_ack_recv : 0);
    return silent >= shape_.lost_after ? close(silent_for(silent)) : drop(flow);
  }
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
  flow.tail = flow.head + (flow.front_whole ? frame_bytes(*flow.front) : 0);
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
    if (flow.ended || flow.down) continue;
    const tcp_info info = silence_of(flow);
    const bool silent = std::max(info.tcpi_retransmits, info.tcpi_probes) >= kSilentTries;
    if (shape_.rails && silent && info.tcpi_last_ack_recv >= kSilentRailMs && may_resume()) {
      fmt::print(stderr, "shoal: tcp: rank {} has not answered on socket {} for {:.1f} s; going on without its network\n",
                 peer_, index_of(flow), info.tcpi_last_ack_recv / 1e3);
      drop(flow);
      moved = true;
      continue;
    }
    if (silent && milliseconds(info.tcpi_last_ack_recv) >= shape_.lost_after) {
      close(silent_for(milliseconds(info.tcpi_last_ack_recv)));
      return true;
    }
  }
  return moved;
}

std::size_t TcpLink::memory_bytes() const noexcept {
  std::size_t bytes = queue_.size() * sizeof(Outgoing) + memory_.size();
  for (const Flow& flow : flows_) {
    bytes += flow.ring.size() + (flow.sealing == nullptr ? 0 : flow.sealing->memory_bytes());
    if (flow.unpacked != nullptr) bytes += unpacked_lines(shape_) * sizeof(CacheLine);
  }
  return bytes;
}

}  // namespace shoal::tcp
