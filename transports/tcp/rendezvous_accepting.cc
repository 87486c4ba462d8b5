// RealRendezvous: connections that others make to this rank, and telling peers from strangers.
#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "src/trust/refusals.h"
#include "transports/tcp/real_rendezvous.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

// A stranger costs one descriptor for this long.
constexpr milliseconds kGreetTimeout{2000};
constexpr milliseconds kConfirmTimeout{5000};
// Beyond the connections that are expected so many others are heard at a time; the oldest makes room for the next.
constexpr std::size_t kMaxStrangers = 64;
constexpr int kMaxAcceptsInARow = 64;  // so that those who are known are heard in between
constexpr milliseconds kDescriptorPause{50};

}  // namespace

void RealRendezvous::accept_all() {
  if (!may_accept_) return;
  for (const Descriptor& listener : listeners_) accept_from(listener.get());
}

void RealRendezvous::accept_from(int listener) {
  for (int i = 0; i < kMaxAcceptsInARow; ++i) {
    Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        note_ = fmt::format("accept: {}; raise the limit of open files (ulimit -n)", words(errno));
        listen_after_ = Clock::now() + kDescriptorPause;
        drop_oldest_inbound();
      }
      return;  // the queue is empty, or a connection was gone before it was accepted: poll() will tell
    }
    if (inbounds_.size() >= inbound_limit_ + kMaxStrangers) drop_oldest_inbound();
    Inbound& inbound = inbounds_.emplace_back();
    inbound.socket = std::move(socket);
    inbound.until = Clock::now() + kGreetTimeout;
    report(inbound.socket, EPOLLIN);
  }
}

// Strangers first; then those whose greeting may be a recording. A peer that is dropped comes again.
void RealRendezvous::drop_oldest_inbound() {
  auto oldest = std::find_if(inbounds_.begin(), inbounds_.end(), [](const Inbound& i) { return !i.confirming; });
  if (oldest == inbounds_.end()) oldest = inbounds_.begin();
  if (oldest == inbounds_.end()) return;
  count_stranger("too many at a time");
  inbounds_.erase(oldest);
}

void RealRendezvous::count_stranger(std::string_view why) {
  ++strangers_;
  stranger_ = why;
  count_refusal("tcp", why);
}

void RealRendezvous::serve_inbounds() {
  const auto now = Clock::now();
  for (auto i = inbounds_.begin(); i != inbounds_.end();) {
    i = serve(*i, now) ? std::next(i) : inbounds_.erase(i);
  }
}

// False where the connection is done with: it became a peer's, or was dropped.
bool RealRendezvous::serve(Inbound& inbound, Clock::time_point now) {
  int error = 0;
  switch (inbound.reader.read(inbound.socket.get(), error)) {
    case RecordReader::Outcome::more:
      if (now < inbound.until) return true;
      count_stranger(inbound.confirming ? kUnconfirmed : "it did not introduce itself in time");
      return false;
    case RecordReader::Outcome::ended:
      count_stranger(inbound.confirming ? kUnconfirmed : "it closed without introducing itself");
      return false;
    case RecordReader::Outcome::whole:
      break;
  }
  const auto said = decode_hello(inbound.reader.bytes);
  inbound.reader.got = 0;
  return inbound.confirming ? confirm(inbound, said) : greet(inbound, said);
}

bool RealRendezvous::greet(Inbound& inbound, const std::optional<Hello>& said) {
  const auto refuse = [&](std::string_view why) { return count_stranger(why), false; };
  if (!said || said->kind != HelloKind::greet) return refuse("it does not speak shoal's protocol");
  if (said->job_id != self_.job_id) return refuse("it belongs to another job");
  if (!is_proven(inbound.reader.bytes, key_)) return refuse("it does not hold the job's key");
  if (said->to_rank != self_.from_rank) return refuse(fmt::format("it looks for rank {}", said->to_rank));
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) {
    return p.sockets.rank == static_cast<int>(said->from_rank) && said->from_rank > self_.from_rank;
  });
  if (peer == peers_.end() || peer->over) return refuse(fmt::format("rank {} is not expected", said->from_rank));
  // The reply goes out even where the settings differ, so that both sides can say why they part.
  inbound.records = as_text(inbound.reader.bytes);
  Hello reply = hello(HelloKind::reply, peer->sockets.rank, said->socket_index);
  reply.nonce = random_nonce();
  if (!send_next(inbound.socket.get(), reply, inbound.records)) return refuse(kUnconfirmed);
  if (!check_settings(*said)) return false;
  if (said->socket_index > self_.sockets) return refuse("its socket number is too high");
  inbound.confirming = true;
  inbound.until = Clock::now() + kConfirmTimeout;
  inbound.peer = static_cast<std::size_t>(peer - peers_.begin());
  inbound.index = said->socket_index;
  return true;
}

bool RealRendezvous::confirm(Inbound& inbound, const std::optional<Hello>& said) {
  Peer& peer = peers_[inbound.peer];
  Hello expected = self_;
  expected.kind = HelloKind::confirm;
  expected.from_rank = static_cast<std::uint32_t>(peer.sockets.rank);
  expected.to_rank = self_.from_rank;
  expected.socket_index = static_cast<std::uint16_t>(inbound.index);
  if (said) {
    expected.received = said->received;
    expected.encryption = said->encryption;  // greeted with and judged; processors may differ
  }
  if (said != expected || !is_proven(inbound.reader.bytes, key_, inbound.records)) return count_stranger(kUnconfirmed), false;
  inbound.records += as_text(inbound.reader.bytes);
  Hello accept = hello(HelloKind::accept, peer.sockets.rank, inbound.index);
  // Only now: who confirms is the peer and no recording, so it has given the old connection up.
  if (!fill_in_received(accept, inbound.index)) return false;
  if (send_next(inbound.socket.get(), accept, inbound.records))
    complete(peer, inbound.index, connection(std::move(inbound.socket), inbound.records, false, *said), said->received);
  return false;
}

}  // namespace shoal::tcp
