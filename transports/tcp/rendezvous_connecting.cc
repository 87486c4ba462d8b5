// Rendezvous: making connections, at startup and again later, and probing.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "src/base/descriptor_limit.h"
#include "src/base/tcp_options.h"
#include "transports/tcp/rendezvous.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLastRetry{200};
// Where a peer has several addresses, a silent one is left for the next after this time.
constexpr milliseconds kAddressTimeout{1000};
constexpr milliseconds kReplyTimeout{3000};
// For a connection that is made again: how long one try may stay unanswered by the peer's host, and how long an address may
// take connections and close them at once before it counts as one without the peer's process. A host that answers, but whose
// rank is busy, is waited for.
constexpr milliseconds kUnansweredTry{3000};
// Without several rails, the next try comes before the system's second retransmission (after 3 s): a route that works again
// is found at once.
constexpr milliseconds kSilentTry{1000};
constexpr milliseconds kClosedLimit{3000};
constexpr milliseconds kLongEnough{1000};
// A probe that has met only silence for this long sends a byte.
constexpr milliseconds kSilentProbe{100};

// Whether a host has refused or closed the connection (0). Other errors do not concern the peer: there is no route to it, or
// this host lacks a resource.
bool is_answer(int error) noexcept {
  return error == 0 || error == ECONNREFUSED || error == ECONNRESET || error == ECONNABORTED || error == EPIPE;
}

}  // namespace

Status Rendezvous::no_descriptors(int error, const std::string& what) const {
  std::size_t needed = 0;
  std::size_t ranks = 0;
  for (const Peer& peer : peers_) {
    if (!peer.requested) continue;
    needed += peer.missing;
    ++ranks;
  }
  return descriptor_error(what, error, fmt::format(", and needs {} more for connections with {} ranks", needed, ranks));
}

void Rendezvous::start_outbounds() {
  const auto now = Clock::now();
  for (Outbound& outbound : outbounds_) {
    if (outbound.state == Outbound::State::waiting && now >= outbound.until && may_start(outbound)) start(outbound);
  }
}

// Index of the peer's address to try: each socket tries its own rail first, and then the next ones.
std::size_t Rendezvous::place_of(const Outbound& outbound) const noexcept {
  const Peer& peer = peers_[outbound.peer];
  return rails_.empty() ? peer.address : (outbound.index + outbound.hops) % peer.where.addresses.size();
}

void Rendezvous::leave_address(Outbound& outbound) noexcept {
  Peer& peer = peers_[outbound.peer];
  if (!rails_.empty()) {
    ++outbound.hops;
  } else if (peer.address == outbound.place) {  // or another socket has left it already
    peer.address = (peer.address + 1) % peer.where.addresses.size();
  }
}

void Rendezvous::start(Outbound& outbound) {
  const Peer& peer = peers_[outbound.peer];
  const std::size_t place = outbound.place = place_of(outbound);
  const SocketAddress& address = peer.where.addresses[place];
  outbound.since = Clock::now();
  outbound.sent_byte = outbound.reached = false;
  outbound.socket = Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!outbound.socket.valid()) {
    const bool is_limit = errno == EMFILE || errno == ENFILE;
    if (startup_has_ended() && is_short_of_descriptors(errno) && (peer.made || !is_limit))
      return postpone(outbound, error_text(errno));
    if (peer.made || !is_limit) return retry(outbound, errno, error_text(errno));
    Status why = no_descriptors(errno, fmt::format("a socket to rank {} ({})", peer.sockets.rank, address.to_string()));
    if (!startup_has_ended()) {
      failure_ = std::move(why);
    } else {
      unreachable_.emplace_back(peer.where.rank, std::move(why));
    }
    return;
  }
  // Two rails may be in one network, where a route by the target alone would send both by the same interface.
  if (!rails_.empty() && rails_[place].family() == address.family()) {
    const int error = bind_to(outbound.socket, rails_[place]);
    if (error != 0) return retry(outbound, error, fmt::format("from {}: {}", rails_[place].to_string(), error_text(error)));
  }
  // A busy rank may leave the handshake waiting for any time. If its host vanishes, the kernel has to report that.
  if (startup_has_ended()) tune_handshake(outbound.socket.get(), time_limit_for(peer));
  outbound.state = Outbound::State::connecting;
  outbound.until = peer.where.addresses.size() > 1 ? Clock::now() + kAddressTimeout : deadline_;
  // During startup, leaving a rail is final; later, the other rails continue while one is silent.
  const bool several_rails = rails_.size() > 1;
  if (startup_has_ended() != several_rails) outbound.until = Clock::now() + (startup_has_ended() ? kSilentTry : kUnansweredTry);
  // The last try ends when the host counts as lost.
  const auto lost_at = outbound.failing_since + lost_after_;
  if (outbound.failing_since != Clock::time_point{} && lost_at > Clock::now())
    outbound.until = std::min(outbound.until, lost_at);
  if (::connect(outbound.socket.get(), address.raw(), address.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    retry(outbound, errno, error_text(errno));
  } else {
    watch(outbound.socket, EPOLLOUT);
  }
}

// `error`: an errno value, or 0 where the peer has closed.
void Rendezvous::retry(Outbound& outbound, int error, std::string why) {
  Peer& peer = peers_[outbound.peer];
  peer.last_error = std::move(why);
  outbound.socket.reset();
  outbound.reader.got = 0;
  outbound.state = Outbound::State::waiting;
  if (startup_has_ended()) return retry_lost(outbound, error);
  // A rail whose host has taken the connection is not known to be faulty.
  const bool leaves = rails_.empty() ? outbound.index == 0 : !is_answer(error) || error == ECONNREFUSED;
  if (leaves) leave_address(outbound);
  const bool more_addresses = leaves && (rails_.empty() ? peer.address : outbound.hops % peer.where.addresses.size()) != 0;
  outbound.until = Clock::now();
  if (more_addresses) return;
  outbound.until += outbound.retry;
  outbound.retry = std::min(2 * outbound.retry, kLastRetry);
}

// Nothing was tried, so nothing is known about the peer.
void Rendezvous::postpone(Outbound& outbound, std::string why) {
  peers_[outbound.peer].last_error = std::move(why);
  outbound.failing_since = {};
  outbound.until = Clock::now() + kLastRetry;
}

// How long a host that has taken a connection may be silent: where another address may answer, as short as for a host that
// does not take it.
milliseconds Rendezvous::time_limit_for(const Peer& peer) const noexcept {
  return peer.where.addresses.size() > 1 ? kUnansweredTry : lost_after_;
}

// An address may also belong to another host, or to this one, as those of bridges do. So a refusal at one address does not
// prove anything about the peer while another address is silent.
void Rendezvous::retry_lost(Outbound& outbound, int error) {
  Peer& peer = peers_[outbound.peer];
  const auto now = Clock::now();
  const bool refused = error == ECONNREFUSED;
  const bool silent = !is_answer(error);
  const bool kept = !refused && !silent && now - outbound.since >= kLongEnough;  // by a process that is there
  const bool closed = !refused && !silent && !kept;
  if (kept || outbound.failing_since == Clock::time_point{}) {
    outbound.failing_since = kept ? now : outbound.since;
    outbound.retry = kFirstRetry;
  }
  if (silent && outbound.reached) outbound.failing_since = now - time_limit_for(peer);  // until then it has answered
  if (kept || silent) {
    outbound.closed_since = {};
    peer.denied.clear();
  }
  if (closed && outbound.closed_since == Clock::time_point{}) outbound.closed_since = outbound.since;
  const bool denied = refused || (closed && now - outbound.closed_since >= kClosedLimit);
  if (denied) deny(peer, outbound.place);
  // Also where that time will have passed before the next try.
  if (now + outbound.retry - outbound.failing_since >= lost_after_)
    unreachable_.emplace_back(peer.where.rank, Status(StatusCode::peer_failed, peer.last_error));
  // Before the first connection it is not known either whether the peer's process is the one at this address.
  const bool searches = !peer.made && rails_.empty() && outbound.index == 0;
  if (denied || silent || searches) leave_address(outbound);
  outbound.until = refused ? now : now + outbound.retry;
  outbound.retry = std::min(2 * outbound.retry, kLastRetry);
}

// The peer's process is gone where no process listens at any of its addresses. The refusals of all sockets count together:
// they take turns at the addresses, so that a single socket need not reach all of them.
void Rendezvous::deny(Peer& peer, std::size_t place) {
  peer.denied.resize(peer.where.addresses.size());
  peer.denied[place] = true;
  const bool everywhere = std::find(peer.denied.begin(), peer.denied.end(), false) == peer.denied.end();
  if (everywhere) unreachable_.emplace_back(peer.where.rank, Status(StatusCode::peer_failed, peer.last_error));
}

void Rendezvous::serve_outbounds() {
  const auto now = Clock::now();
  for (Outbound& outbound : outbounds_) {
    if (outbound.state == Outbound::State::connecting) {
      serve_connecting(outbound, now);
    } else if (outbound.state == Outbound::State::probing) {
      serve_probe(outbound, now);
    } else if (outbound.state == Outbound::State::replying || outbound.state == Outbound::State::accepting) {
      serve_answering(outbound, now);
    }
  }
}

void Rendezvous::serve_connecting(Outbound& outbound, Clock::time_point now) {
  const int socket = outbound.socket.get();
  if (outbound.poll_slot == kNotPolled || polled_[outbound.poll_slot].revents == 0) {
    if (now >= outbound.until) retry(outbound, ETIMEDOUT, error_text(ETIMEDOUT));
    return;
  }
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  const Peer& peer = peers_[outbound.peer];
  watch(outbound.socket, EPOLLIN);
  outbound.reached = error == 0;
  outbound.records.clear();
  if (error == 0 && outbound.probe) {
    if (!peer.made) outbound.sent_byte = send_next(socket, hello(HelloKind::request, peer.sockets.rank, 0), outbound.records);
    outbound.state = Outbound::State::probing;
    return;
  }
  Hello greeting = hello(HelloKind::greet, peer.sockets.rank, outbound.index);
  greeting.nonce = random_nonce();
  if (error == 0 && !send_next(socket, greeting, outbound.records)) error = errno;
  if (error != 0) return retry(outbound, error, error_text(error));
  outbound.state = Outbound::State::replying;
  const bool elsewhere = peer.where.addresses.size() > 1 && rails_.empty() && !peer.made;
  outbound.until = elsewhere ? now + kReplyTimeout : deadline_;
}

// The peer closes a connection that does not greet after a while, which is a sign of life; the kernel closes it when the peer
// has ended. But if a listener goes away at the moment of the probe, this end of the connection may stay open without a
// report. A byte makes the peer's host answer that there is no such connection; a living peer takes it for a bad greeting.
void Rendezvous::serve_probe(Outbound& outbound, Clock::time_point now) {
  std::byte byte{};
  const ssize_t got = ::recv(outbound.socket.get(), &byte, 1, MSG_DONTWAIT);
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) {
    if (!outbound.sent_byte && now - outbound.since >= kSilentProbe)
      outbound.sent_byte = ::send(outbound.socket.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
    return;
  }
  const int error = got == 0 ? 0 : errno;
  retry(outbound, error, error == 0 ? kClosed : error_text(error));
}

void Rendezvous::serve_answering(Outbound& outbound, Clock::time_point now) {
  int error = 0;
  switch (outbound.reader.read(outbound.socket.get(), error)) {
    case RecordReader::Outcome::more:
      if (now >= outbound.until) retry(outbound, ETIMEDOUT, kSilent);
      return;
    case RecordReader::Outcome::ended:
      return retry(outbound, error, error != 0 ? error_text(error) : kClosed);
    case RecordReader::Outcome::whole:
      break;
  }
  outbound.reader.got = 0;
  Peer& peer = peers_[outbound.peer];
  const bool replying = outbound.state == Outbound::State::replying;
  const auto theirs = decode_hello(outbound.reader.bytes);
  if (!theirs || theirs->kind != (replying ? HelloKind::reply : HelloKind::accept) || theirs->job_id != self_.job_id ||
      theirs->to_rank != self_.from_rank || theirs->from_rank != static_cast<std::uint32_t>(peer.sockets.rank) ||
      theirs->socket_index != outbound.index || !is_proven(outbound.reader.bytes, key_, outbound.records)) {
    return retry(outbound, 0, "the process that listens there is not this rank of this job");
  }
  if (!check_settings(*theirs)) return;
  if (replying) {
    outbound.records += as_text(outbound.reader.bytes);
    Hello confirm = hello(HelloKind::confirm, peer.sockets.rank, outbound.index);
    if (!fill_in_received(peer, confirm, outbound.index)) return;
    if (!send_next(outbound.socket.get(), confirm, outbound.records)) return retry(outbound, errno, error_text(errno));
    outbound.state = Outbound::State::accepting;
    return;
  }
  outbound.state = Outbound::State::done;
  peer.sockets.address = peer.where.addresses[outbound.place].to_string();
  if (rails_.empty()) {
    peer.address = outbound.place;
  } else {
    report_rail(outbound);
  }
  complete(peer, outbound.index, connection(std::move(outbound.socket), outbound.records, true, *theirs), theirs->received);
}

void Rendezvous::report_rail(const Outbound& outbound) const {
  const Peer& peer = peers_[outbound.peer];
  const std::size_t own = outbound.index % peer.where.addresses.size();
  const std::size_t taken = outbound.place;
  if (taken == own) return;
  fmt::print(stderr, "shoal: tcp: socket {} to rank {} uses rail {} ({}): rail {} does not answer ({})\n", outbound.index,
             peer.sockets.rank, taken, peer.where.addresses[taken].to_string(), own, peer.last_error);
}

}  // namespace shoal::tcp
