#include "transports/tcp/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "src/base/tcp_options.h"
#include "transports/tcp/reactor.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A host counts as silent when it leaves this many retransmissions or probes unanswered.
constexpr std::uint8_t kSilentTries = 3;
// After this time the link gives a silent socket up, and tries new connections at each address of the peer. The kernel would
// retransmit on the old socket less and less often, so that a network that was down for long would seem down for as long
// again.
constexpr milliseconds kSilentPath{3000};
constexpr milliseconds kSilentRail{1500};  // where another network may answer

// Touched when the first packed tile arrives.
std::size_t unpacked_lines(const LinkShape& shape) { return (shape.tile_bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine); }

// Unanswered retransmissions and probes in a row, and the time since the last answer; all zero where the system reports none.
tcp_info look_at(const Flow& flow) noexcept {
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
  link->closing_ = true;  // until the link is complete: it must not send a close notice before
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
  link->closing_ = false;
  const auto added = link->reactor_->add(*link);
  if (!added.ok()) return added.status();
  return link;
}

void TcpLink::adopt(Flow& flow, Connection connection) {
  flow.socket = std::move(connection.socket);
  tune(flow.socket.get(), shape_.lost_after, shape_.sockets > 1);
  flow.taken_bytes = 0;
  flow.rate = {};
  // An encrypted record holds what a flow pulls at once, at most the largest frame: the peer's ring has room for it in any
  // case.
  if (connection.keys) flow.cipher = std::make_unique<RecordCipher>(*connection.keys, frame_bytes(shape_.tile_bytes));
}

TcpLink::~TcpLink() {
  reactor_->await_answers();
  close(Status(StatusCode::aborted, "this rank closed the link"));
  reactor_->remove(*this);
}

// Lost sockets, and their replacement
// --------------------------------------------------------------------------------------------

bool TcpLink::may_resume() const noexcept { return !closing_ && !left_ && !gone_ && reactor_->reconnects(); }

void TcpLink::hang_up(Flow& flow) {
  flow.hung_up = true;
  flow.readable = true;
  if (has_room(flow)) reactor_->enqueue(flow);
  if (closing_) return;
  // While the old socket is read to its end, a new one is made. If the peer is gone, connecting shows that earlier.
  if (may_resume()) {
    reactor_->lost(*this, index_of(flow));
  } else if (!flow.words || !left_) {
    start_closing();
  }
}

void TcpLink::end_flow(Flow& flow, int error) {
  if (closing_error_ == 0) closing_error_ = error;
  if (may_resume()) {
    // A host that has not answered for `lost_after` counts as lost. The kernel may end the connection before that time: after
    // a quarter of an hour (tcp_retries2). TCP_USER_TIMEOUT would prolong that, but would also end connections to a peer that
    // is only slow.
    const milliseconds silent(error == ETIMEDOUT && !shape_.rails ? look_at(flow).tcpi_last_ack_recv : 0);
    return silent >= shape_.lost_after ? close(silent_for(silent)) : drop(flow);
  }
  stop_flow(flow);
  hang_up(flow);
  if (std::all_of(tile_flows().begin(), tile_flows().end(), [](const Flow& f) { return f.ended; })) set_broken();
}

// Gives the socket up and requests a new one. What has arrived stays: if the peer is gone, nothing more arrives. `silent`:
// how long the peer's host has been silent.
void TcpLink::drop(Flow& flow, milliseconds silent) {
  if (!flow.down) {
    reactor_->forget(flow);
    flow.socket.reset();
    flow.down = true;
    flow.blocked = flow.readable = flow.hung_up = false;
    flow.first = flow.last = 0;
    flow.sent_of_first = 0;
    if (flow.words) words_got_ = words_due_ = 0;
    if (pulled_ < taken_) reactor_->hold(*this);  // another socket may take the tiles that waited for this one
  }
  // Where nothing was in flight, the host may have been reachable until the first probe.
  const auto since = silent.count() == 0 ? Clock::time_point{} : Clock::now() - silent + std::chrono::seconds(kProbeAfterS);
  if (silent_since_ == Clock::time_point{}) silent_since_ = since;
  reactor_->lost(*this, index_of(flow), since);
}

// Discards what has arrived behind the front tile: it is retransmitted, or cannot be used.
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
  silent_since_ = {};
  if (!reactor_->watch(flow)) return drop(flow);
  reactor_->enqueue(flow);
  flow.readable = true;
  if (flow.words) {
    for (Flow& each : tile_flows()) each.told = 0;
    if (asking_) say({ControlRecord::Kind::asks, 0, 0});
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
  if (silent_since_ != Clock::time_point{}) {
    const std::chrono::duration<double> silent = Clock::now() - silent_since_;
    trouble_ = fmt::format("has not answered for {:.1f} s", silent.count());
  }
  if (!trouble_.empty()) trouble_ = fmt::format("{}, and cannot be reached again: {}", trouble_, why);
  if (is_ending()) start_closing();
}

Status TcpLink::silent_for(milliseconds time) const {
  return {StatusCode::peer_failed, fmt::format("rank {} ({}) has not answered for {:.1f} s: its host or the network is down",
                                               peer_, peer_address_, static_cast<double>(time.count()) / 1e3)};
}

milliseconds TcpLink::silence_of(const Flow& flow) const noexcept {
  const tcp_info info = look_at(flow);
  // Unlike TCP_USER_TIMEOUT, this does not affect a peer that is only slow: it answers each probe of its closed window.
  const bool silent = std::max(info.tcpi_retransmits, info.tcpi_probes) >= kSilentTries;
  return milliseconds(silent ? info.tcpi_last_ack_recv : 0);
}

bool TcpLink::watch() {
  if (!status_.ok()) return false;
  if (closing_) return watch_closing();
  bool moved = false;
  for (Flow& flow : flows_) {
    // This may send what an event is about to report. That event will then find nothing to do, so the return value must show
    // the move now, before the caller sleeps.
    if (flow.blocked) moved |= send_more(flow);
    if (flow.ended || flow.down) continue;
    const milliseconds silent = silence_of(flow);
    if (silent < (shape_.rails ? kSilentRail : kSilentPath)) continue;
    if (may_resume()) {
      if (shape_.rails) {
        fmt::print(stderr, "shoal: tcp: rank {} has not answered on socket {} for {:.1f} s; continuing without that network\n",
                   peer_, index_of(flow), static_cast<double>(silent.count()) / 1e3);
      }
      drop(flow, silent);
      moved = true;
    } else if (silent >= shape_.lost_after) {
      close(silent_for(silent));
      return true;
    }
  }
  return moved;
}

std::size_t TcpLink::memory_bytes() const noexcept {
  std::size_t bytes = queue_.size() * sizeof(Outgoing) + memory_.size();
  for (const Flow& flow : flows_) {
    bytes += flow.ring.size() + (flow.cipher == nullptr ? 0 : flow.cipher->memory_bytes());
    if (flow.unpacked != nullptr) bytes += unpacked_lines(shape_) * sizeof(CacheLine);
  }
  return bytes;
}

}  // namespace shoal::tcp
