// Rendezvous: accepting connections, and authenticating their peers.
#include <algorithm>
#include <cerrno>
#include <iterator>
#include <list>
#include <utility>

#include <fmt/format.h>

#include "transports/tcp/rendezvous.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

// An unauthenticated connection takes a descriptor for at most this long.
constexpr milliseconds kGreetTimeout{2000};
constexpr milliseconds kConfirmTimeout{5000};
constexpr std::size_t kMaxAcceptsInARow = 64;  // so that known connections are served in between

}  // namespace

void Rendezvous::accept_all() {
  if (!may_accept_) return;
  for (const Descriptor& listener : listeners_) accept_from(listener.get());
}

void Rendezvous::accept_from(int listener) {
  // All listeners together take less than half of the limit: a new connection is served before it may have to make room.
  const std::size_t most = std::min(kMaxAcceptsInARow, inbounds_.limit() / 4) / listeners_.size();
  for (std::size_t i = 0; i < std::max<std::size_t>(most, 1); ++i) {
    Descriptor socket = inbounds_.accept(listener);
    if (!socket.valid()) break;  // the queue is empty, or a connection was gone before it was accepted: poll() will report
    Inbound& inbound = inbounds_.add({});
    inbound.socket = std::move(socket);
    inbound.until = Clock::now() + kGreetTimeout;
    watch(inbound.socket, EPOLLIN);
  }
  if (inbounds_.shortage() == 0) return;
  if (inbounds_.is_stuck(listener)) fail_accepting();
  pause_listening();
  inbounds_.drop_one();
}

// No connection can be accepted, now or later.
void Rendezvous::fail_accepting() {
  Status why = no_descriptors(EMFILE, "accept a connection");
  if (!startup_has_ended()) {
    failure_ = std::move(why);
    return;
  }
  for (const Peer& peer : peers_) {
    if (peer.requested && !peer.ended && peer.missing > 0 && accepts_from(peer))
      unreachable_.emplace_back(peer.where.rank, why);
  }
}

// A connection that cannot be accepted would keep wait_fd() readable, and its caller awake, until there are descriptors
// again.
void Rendezvous::pause_listening() {
  inbounds_.pause();
  if (std::exchange(paused_, true)) return;
  for (const Descriptor& listener : listeners_) unwatch(listener);
}

void Rendezvous::resume_listening() {
  if (!paused_ || Clock::now() < inbounds_.accept_again()) return;
  paused_ = false;
  for (const Descriptor& listener : listeners_) watch(listener, EPOLLIN);
}

void Rendezvous::serve_inbounds() {
  const auto now = Clock::now();
  std::list<Inbound>& unproven = inbounds_.unproven;
  for (auto i = unproven.begin(); i != unproven.end();) i = serve(*i, now) ? std::next(i) : unproven.erase(i);
}

// False where the connection is finished: it became a peer's, or was dropped.
bool Rendezvous::serve(Inbound& inbound, Clock::time_point now) {
  if (inbound.requests) return still_requests(inbound, now);
  int error = 0;
  switch (inbound.reader.read(inbound.socket.get(), error)) {
    case RecordReader::Outcome::more:
      if (now < inbound.until) return true;
      inbounds_.refuse(inbound.greeted() ? kUnconfirmed : "it sent no greeting in time");
      return false;
    case RecordReader::Outcome::ended:
      inbounds_.refuse(inbound.greeted() ? kUnconfirmed : "it closed without a greeting");
      return false;
    case RecordReader::Outcome::whole:
      break;
  }
  const auto theirs = decode_hello(inbound.reader.bytes);
  inbound.reader.got = 0;
  return inbound.greeted() ? confirm(inbound, theirs) : greet(inbound, theirs);
}

bool Rendezvous::greet(Inbound& inbound, const std::optional<Hello>& theirs) {
  const auto refuse = [&](std::string_view why) { return inbounds_.refuse(why), false; };
  const bool requests = theirs && theirs->kind == HelloKind::request;
  if (!theirs || (theirs->kind != HelloKind::greet && !requests)) return refuse("it does not speak shoal's protocol");
  if (theirs->job_id != self_.job_id) return refuse("it belongs to another job");
  if (!is_proven(inbound.reader.bytes, key_)) return refuse("it does not hold the job's key");
  if (theirs->to_rank != self_.from_rank) return refuse(fmt::format("it is for rank {}", theirs->to_rank));
  if (requests) return take_request(inbound, *theirs);
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) {
    return p.sockets.rank == static_cast<int>(theirs->from_rank) && theirs->from_rank > self_.from_rank;
  });
  if (peer == peers_.end() || peer->ended) return refuse(fmt::format("rank {} is not expected", theirs->from_rank));
  // The reply leaves even where the settings differ, so that both sides can report the difference.
  inbound.records = as_text(inbound.reader.bytes);
  Hello reply = hello(HelloKind::reply, peer->sockets.rank, theirs->socket_index);
  reply.nonce = random_nonce();
  if (!send_next(inbound.socket.get(), reply, inbound.records)) return refuse(kUnconfirmed);
  if (!check_settings(*theirs)) return false;
  if (theirs->socket_index > self_.sockets) return refuse("its socket number is too high");
  inbound.until = Clock::now() + kConfirmTimeout;
  inbound.peer = static_cast<std::size_t>(peer - peers_.begin());
  inbound.index = theirs->socket_index;
  return true;
}

// A lower rank waits for this one to connect. The request may be a recording: then it makes a connection that the job may use
// anyway.
bool Rendezvous::take_request(Inbound& inbound, const Hello& theirs) {
  const std::size_t at = find(static_cast<int>(theirs.from_rank));
  if (at == peers_.size() || accepts_from(peers_[at]))
    return inbounds_.refuse(fmt::format("rank {} is not expected to request a connection", theirs.from_rank)), false;
  if (peers_[at].ended) return false;
  request(peers_[at].where.rank, /*peer_too=*/true);
  inbound.records = as_text(inbound.reader.bytes);
  inbound.until = Clock::now() + kConfirmTimeout;
  inbound.peer = at;
  inbound.requests = true;
  return true;
}

// The peer takes an open connection for a sign of life.
bool Rendezvous::still_requests(Inbound& inbound, Clock::time_point now) const noexcept {
  std::byte byte{};
  const ssize_t got = ::recv(inbound.socket.get(), &byte, 1, MSG_DONTWAIT);
  const bool open = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return open && now < inbound.until && !peers_[inbound.peer].made;
}

bool Rendezvous::confirm(Inbound& inbound, const std::optional<Hello>& theirs) {
  Peer& peer = peers_[inbound.peer];
  Hello expected = self_;
  expected.kind = HelloKind::confirm;
  expected.from_rank = static_cast<std::uint32_t>(peer.sockets.rank);
  expected.to_rank = self_.from_rank;
  expected.socket_index = static_cast<std::uint16_t>(inbound.index);
  if (theirs) {
    expected.received = theirs->received;
    expected.encryption = theirs->encryption;  // checked in the greeting; processors may differ
  }
  if (theirs != expected || !is_proven(inbound.reader.bytes, key_, inbound.records))
    return inbounds_.refuse(kUnconfirmed), false;
  inbound.records += as_text(inbound.reader.bytes);
  Hello accept = hello(HelloKind::accept, peer.sockets.rank, inbound.index);
  // Only now: a connection that confirms is the peer's and no recording, so the peer has given the old one up.
  if (!fill_in_received(peer, accept, inbound.index)) return false;
  if (send_next(inbound.socket.get(), accept, inbound.records))
    complete(peer, inbound.index, connection(std::move(inbound.socket), inbound.records, false, *theirs), theirs->received);
  return false;
}

}  // namespace shoal::tcp
