#include "transports/tcp/rendezvous.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "transports/tcp/repairs.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxNamedRanks = 8;
constexpr milliseconds kRequestDelay{50};        // where the peer requests the connection as well, and so will make it
constexpr std::size_t kMaxUnauthenticated = 64;  // connections at a time, beyond the expected ones

}  // namespace

Rendezvous::Rendezvous(const Identity& self, const Key& key, std::vector<Descriptor> listeners, std::vector<PeerAddress> peers,
                       std::vector<SocketAddress> rails, std::chrono::milliseconds lost_after)
    : self_(self),
      key_(key),
      rails_(std::move(rails)),
      lost_after_(lost_after),
      listeners_(std::move(listeners)),
      start_(Clock::now()),
      inbounds_("tcp", kMaxUnauthenticated) {
  for (PeerAddress& where : peers) {
    Peer& peer = peers_.emplace_back();
    peer.where = std::move(where);
    peer.sockets.rank = peer.where.rank;
    peer.sockets.address = peer.where.addresses.front().to_string();
    peer.missing = sockets_per_peer();
    if (accepts_from(peer)) inbounds_.raise_limit(peer.missing);
    if (!peer.where.at_start) continue;
    missing_ += peer.missing;
    peer.requested = true;
    if (!accepts_from(peer)) connect_first(peers_.size() - 1);
  }
}

// The first connections with a peer.
void Rendezvous::connect_first(std::size_t peer) {
  for (std::size_t index = 0; index < sockets_per_peer(); ++index) {
    Outbound& outbound = outbounds_.emplace_back();
    outbound.peer = peer;
    outbound.index = index;
    outbound.until = Clock::now();
  }
}

Result<std::vector<PeerSockets>> Rendezvous::connect_all(ConnectDeadline time_limit) {
  start_ = Clock::now();
  deadline_ = time_limit.deadline();
  while (missing_ > 0 && failure_.ok()) {
    if (Clock::now() >= deadline_) return timed_out();
    if (Status status = time_limit.check(); !status.ok()) return status;
    start_outbounds();
    wait(true, time_limit.next());
    accept_all();
    serve_inbounds();
    serve_outbounds();
  }
  if (!failure_.ok()) return failure_;
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return system_error("tcp: epoll_create1", errno);
  for (const Descriptor& listener : listeners_) watch(listener, EPOLLIN);
  for (const Inbound& inbound : inbounds_.unproven) watch(inbound.socket, EPOLLIN);
  std::vector<PeerSockets> connected;
  for (Peer& peer : peers_) {
    if (peer.missing == 0) connected.push_back(take_sockets(peer));
  }
  // A peer that has finished its startup may have requested a connection already.
  std::erase_if(outbounds_, [](const Outbound& outbound) { return outbound.state == Outbound::State::done; });
  for (const Outbound& outbound : outbounds_) {
    if (outbound.socket.valid()) watch(outbound.socket, outbound.state == Outbound::State::connecting ? EPOLLOUT : EPOLLIN);
  }
  deadline_ = Clock::time_point::max();
  return connected;
}

void Rendezvous::request(int rank, bool peer_too) {
  const std::size_t at = find(rank);
  if (at == peers_.size()) return;
  Peer& peer = peers_[at];
  if (peer.ended || peer.made) return;
  const bool again = std::exchange(peer.requested, true);
  if (accepts_from(peer)) {
    send_request(at, Clock::now() + (peer_too ? kRequestDelay : milliseconds(0)));
  } else if (!again) {
    connect_first(at);
  }
}

void Rendezvous::send_request(std::size_t peer, Clock::time_point when) {
  for (Outbound& outbound : outbounds_) {
    if (outbound.peer != peer) continue;
    if (outbound.state == Outbound::State::waiting) outbound.until = std::min(outbound.until, when);
    return;
  }
  Outbound& outbound = outbounds_.emplace_back();
  outbound.peer = peer;
  outbound.probe = true;
  outbound.until = when;
}

void Rendezvous::reconnect(int rank, std::size_t index, Clock::time_point silent_since) {
  const std::size_t at = find(rank);
  if (at == peers_.size() || peers_[at].ended || !peers_[at].made) return;
  peers_[at].lost[index] = true;
  const bool probe = accepts_from(peers_[at]);
  for (const Outbound& outbound : outbounds_) {
    if (outbound.peer == at && (probe || outbound.index == index)) return;
  }
  Outbound& outbound = outbounds_.emplace_back();
  outbound.peer = at;
  outbound.index = index;
  outbound.probe = probe;
  outbound.until = Clock::now();
  outbound.failing_since = silent_since;
}

void Rendezvous::forget(int rank) {
  const std::size_t at = find(rank);
  if (at == peers_.size()) return;
  peers_[at].ended = true;
  peers_[at].sockets.sockets.clear();
  std::erase_if(outbounds_, [&](const Outbound& outbound) { return outbound.peer == at; });
  std::erase_if(inbounds_.unproven, [&](const Inbound& inbound) { return inbound.greeted() && inbound.peer == at; });
}

void Rendezvous::step(ReconnectHandler& links) {
  links_ = &links;
  resume_listening();
  start_outbounds();
  wait(false, Clock::time_point::max());
  accept_all();
  serve_inbounds();
  serve_outbounds();
  start_outbounds();  // those that may start now: requested by the peer, or after the first socket has found an address
  std::erase_if(outbounds_, [this](const Outbound& outbound) {
    const Peer& peer = peers_[outbound.peer];
    if (outbound.probe) return peer.missing == 0 && std::find(peer.lost.begin(), peer.lost.end(), true) == peer.lost.end();
    return outbound.state == Outbound::State::done;
  });
  // Last, because the links call forget() in turn.
  report_made();
  report_unreachable();
  links_ = nullptr;
}

void Rendezvous::report_made() {
  for (const std::size_t at : std::exchange(made_, {})) {
    std::erase_if(inbounds_.unproven, [&](const Inbound& inbound) { return inbound.requests && inbound.peer == at; });
    if (!peers_[at].ended) links_->open(take_sockets(peers_[at]));
  }
}

void Rendezvous::report_unreachable() {
  while (!unreachable_.empty()) {
    const auto [rank, why] = std::move(unreachable_.back());
    unreachable_.pop_back();
    const bool made = peers_[find(rank)].made;
    forget(rank);
    if (made) {
      links_->on_peer_lost(rank, why.message());
    } else {
      links_->on_not_connected(rank, why);
    }
  }
}

void Rendezvous::leave_to_parent() noexcept {
  epoll_.reset();
  listeners_.clear();
  inbounds_.unproven.clear();
  outbounds_.clear();
}

Hello Rendezvous::hello(HelloKind kind, int to_rank, std::size_t index) const noexcept {
  Hello hello = self_;
  hello.kind = kind;
  hello.to_rank = static_cast<std::uint32_t>(to_rank);
  hello.socket_index = static_cast<std::uint16_t>(index);
  return hello;
}

bool Rendezvous::accepts_from(const Peer& peer) const noexcept { return peer.where.rank > static_cast<int>(self_.from_rank); }

std::size_t Rendezvous::find(int rank) const noexcept {
  const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.where.rank == rank; });
  return static_cast<std::size_t>(found - peers_.begin());
}

// Makes wait_fd() readable when the socket is. epoll removes a closed socket by itself.
void Rendezvous::watch(const Descriptor& socket, std::uint32_t events) noexcept {
  if (!epoll_.valid()) return;  // during startup poll() waits
  epoll_event event{};
  event.events = events;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0)
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket.get(), &event);
}

// The first socket finds an address that works; the other sockets use the same one.
bool Rendezvous::may_start(const Outbound& outbound) const noexcept {
  const Peer& peer = peers_[outbound.peer];
  return peer.made || outbound.index == 0 || (!peer.sockets.sockets.empty() && peer.sockets.sockets[0].socket.valid());
}

void Rendezvous::wait(bool block, Clock::time_point until) {
  polled_.clear();
  bool listening = false;
  const auto now = Clock::now();
  if (now >= inbounds_.accept_again()) {
    listening = true;
    for (const Descriptor& listener : listeners_) polled_.push_back({listener.get(), POLLIN, 0});
  } else {
    until = std::min(until, inbounds_.accept_again());
  }
  for (const Inbound& inbound : inbounds_.unproven) {
    polled_.push_back({inbound.socket.get(), POLLIN, 0});
    until = std::min(until, inbound.until);
  }
  for (Outbound& outbound : outbounds_) {
    outbound.poll_slot = kNotPolled;
    if (outbound.state == Outbound::State::done || !may_start(outbound)) continue;
    until = std::min(until, outbound.until);
    if (outbound.state == Outbound::State::waiting) continue;
    const short events = outbound.state == Outbound::State::connecting ? POLLOUT : POLLIN;
    outbound.poll_slot = polled_.size();
    polled_.push_back({outbound.socket.get(), events, 0});
  }
  const auto left = block ? std::chrono::ceil<milliseconds>(until - now).count() : 0;
  if (::poll(polled_.data(), polled_.size(), static_cast<int>(std::clamp<long>(left, 0, 1000))) < 0 && errno != EINTR) {
    failure_ = system_error("tcp: poll", errno);
  }
  may_accept_ = listening && std::any_of(polled_.begin(), polled_.begin() + static_cast<std::ptrdiff_t>(listeners_.size()),
                                         [](const pollfd& one) { return one.revents != 0; });
}

// Sends a record and adds it to those of its handshake.
bool Rendezvous::send_next(int socket, const Hello& next, std::string& records) const {
  const HelloRecord record = encode(next, key_, records);
  records += as_text(record);
  return send_record(socket, record);
}

// Fills in what has arrived on the connection that is about to be replaced. False where its link has ended.
bool Rendezvous::fill_in_received(const Peer& peer, Hello& hello, std::size_t index) {
  if (!peer.made) return true;
  const auto received = links_->give_up(static_cast<int>(hello.to_rank), index);
  hello.received = received.value_or(0);
  return received.has_value();
}

// `records`: those of the handshake that authenticated the socket, greeting and reply first.
Connection Rendezvous::connection(Descriptor socket, std::string_view records, bool connects, const Hello& theirs) const {
  Connection made{std::move(socket), {}};
  const bool aes = (theirs.encryption & self_.encryption & kHasAes) != 0;
  if ((self_.encryption & kEncrypted) != 0)
    made.keys = derive_sealing_keys(key_, "tcp traffic", records.substr(0, 2 * kHelloBytes), connects, aes);
  return made;
}

// A peer that did not receive the acceptance repeats the handshake; it uses the new connection.
void Rendezvous::complete(Peer& peer, std::size_t index, Connection made, std::uint64_t received) {
  unwatch(made.socket);
  if (peer.made) {
    peer.lost[index] = false;
    peer.denied.clear();
    // The peer's host has answered: its silence counts from now on.
    for (Outbound& other : outbounds_) {
      if (&peers_[other.peer] == &peer) other.failing_since = {};
    }
    count_repaired_connection();
    links_->resume(peer.where.rank, index, std::move(made), received);
    return;
  }
  if (accepts_from(peer) && rails_.empty()) remember_address(peer, made.socket);
  peer.sockets.sockets.resize(sockets_per_peer());
  const bool again = peer.sockets.sockets[index].socket.valid();
  peer.sockets.sockets[index] = std::move(made);
  if (again) return;
  --peer.missing;
  if (peer.where.at_start) --missing_;
  if (peer.missing == 0 && startup_has_ended()) made_.push_back(static_cast<std::size_t>(&peer - peers_.data()));
}

// All sockets of the peer are connected: from now on the link has them, and each is only replaced.
PeerSockets Rendezvous::take_sockets(Peer& peer) {
  peer.made = true;
  peer.lost.resize(sockets_per_peer());
  PeerSockets sockets = std::move(peer.sockets);
  peer.sockets = {sockets.rank, sockets.address, {}};
  return sockets;
}

// Of the addresses of a peer that has connected, the one from which it came is most likely to work.
void Rendezvous::remember_address(Peer& peer, const Descriptor& socket) {
  SocketAddress from;
  socklen_t length = sizeof from.storage;
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&from.storage), &length) != 0) return;
  for (std::size_t i = 0; i < peer.where.addresses.size(); ++i) {
    from.set_port(peer.where.addresses[i].port());
    if (from.to_string() == peer.where.addresses[i].to_string()) peer.address = i;
  }
}

// Fails where a rank of the same job was started with other settings: waiting would not help.
bool Rendezvous::check_settings(const Hello& theirs) {
  const auto differ = [&](std::string_view what, auto their_value, auto own_value) {
    if (their_value == own_value) return false;
    Status failure(StatusCode::mismatch,
                   fmt::format("tcp: rank {} of this job has {} {}, rank {} has {}; start all ranks with the same settings",
                               theirs.from_rank, what, their_value, self_.from_rank, own_value));
    if (!startup_has_ended()) {
      failure_ = std::move(failure);
    } else {
      const auto rank = static_cast<int>(theirs.from_rank);
      if (!peers_[find(rank)].made) unreachable_.emplace_back(rank, std::move(failure));  // else they were the same before
    }
    return true;
  };
  return !differ("wire version", theirs.version, self_.version) && !differ("a job size of", theirs.size, self_.size) &&
         !differ("sockets per peer:", theirs.sockets, self_.sockets) &&
         !differ("a tile size of", theirs.tile_bytes, self_.tile_bytes) &&
         !differ("checksums (SHOAL_INTEGRITY):", theirs.integrity, self_.integrity) &&
         !differ("encryption (SHOAL_ENCRYPTION):", theirs.encryption & kEncrypted, self_.encryption & kEncrypted);
}

Status Rendezvous::timed_out() const {
  const double seconds = std::chrono::duration<double>(deadline_ - start_).count();
  std::string text;
  std::size_t named = 0;
  std::size_t late_ranks = 0;
  for (const Peer& peer : peers_) {
    if (peer.missing == 0 || !peer.where.at_start) continue;
    if (++late_ranks > kMaxNamedRanks) continue;
    ++named;
    if (!text.empty()) text += "; ";
    text += fmt::format("rank {} ({}) did not connect within {:.1f} s", peer.sockets.rank, peer.sockets.address, seconds);
    const bool silent = std::any_of(outbounds_.begin(), outbounds_.end(), [&](const Outbound& o) {
      return &peers_[o.peer] == &peer && (o.state == Outbound::State::replying || o.state == Outbound::State::accepting);
    });
    if (silent) {
      text += fmt::format(": {}", kSilent);
    } else if (!peer.last_error.empty()) {
      text += fmt::format(": {}", peer.last_error);
    }
  }
  if (late_ranks > named) text += fmt::format("; and {} more ranks", late_ranks - named);
  return {StatusCode::timeout, text + inbounds_.to_text()};
}

}  // namespace shoal::tcp
