#include "transports/tcp/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "src/trust/refusals.h"

namespace shoal::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A stranger costs one descriptor for this long.
constexpr milliseconds kGreetTimeout{2000};
constexpr milliseconds kConfirmTimeout{5000};
// Beyond the connections that are expected so many others are heard at a time; the oldest makes room for the next.
constexpr std::size_t kMaxStrangers = 64;
constexpr int kMaxAcceptsInARow = 64;  // so that those who are known are heard in between
constexpr milliseconds kFirstRetry{10};
constexpr milliseconds kLastRetry{200};
// Where a peer has several addresses, a silent one is left for the next after this time.
constexpr milliseconds kAddressTimeout{1000};
constexpr milliseconds kReplyTimeout{3000};
constexpr milliseconds kDescriptorPause{50};
constexpr std::size_t kMaxNamedRanks = 8;

// One handshake record on its way in.
struct RecordReader {
  HelloRecord bytes{};
  std::size_t got = 0;

  enum class Outcome { more, whole, ended };
  // `error` is set where the outcome is `ended`; 0 = the other side closed.
  Outcome read(int socket, int& error) noexcept {
    const ssize_t n = ::recv(socket, bytes.data() + got, bytes.size() - got, MSG_DONTWAIT);
    if (n > 0) {
      got += static_cast<std::size_t>(n);
      return got == bytes.size() ? Outcome::whole : Outcome::more;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Outcome::more;
    error = n == 0 ? 0 : errno;
    return Outcome::ended;
  }
};

// A connection that somebody made to this rank.
struct Inbound {
  Descriptor socket;
  Clock::time_point until;
  RecordReader reader;
  bool confirming = false;
  std::string records;   // of its handshake; empty for a stranger
  std::size_t peer = 0;  // once greeted
  std::size_t index = 0;
};

constexpr std::size_t kNotPolled = static_cast<std::size_t>(-1);

// A connection that this rank makes.
struct Outbound {
  enum class State { waiting, connecting, replying, accepting, done };
  std::size_t peer = 0;
  std::size_t index = 0;
  State state = State::waiting;
  Descriptor socket;
  Clock::time_point until;  // when to start (waiting) or to give up this try
  std::size_t poll_slot = kNotPolled;
  RecordReader reader;
  std::string records;  // of the handshake so far
  milliseconds retry = kFirstRetry;
};

struct Peer {
  const PeerAddress* where = nullptr;
  PeerSockets sockets;
  std::size_t missing = 0;
  std::size_t address = 0;  // the one in use
  std::string last_error;
};

bool send_record(int socket, const HelloRecord& record) noexcept {
  ssize_t n = 0;
  do {
    n = ::send(socket, record.data(), record.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(record.size());
}

std::string words(int error) { return std::generic_category().message(error); }

class Rendezvous {
 public:
  Rendezvous(const Identity& self, const Key& key, std::span<const Descriptor> listeners, std::span<const PeerAddress> peers,
             Clock::time_point deadline)
      : self_(self), key_(key), listeners_(listeners), start_(Clock::now()), deadline_(deadline) {
    for (const PeerAddress& where : peers) {
      Peer& peer = peers_.emplace_back();
      peer.where = &where;
      peer.sockets.rank = where.rank;
      peer.sockets.address = where.addresses.front().to_string();
      peer.sockets.sockets.resize(self.sockets);
      peer.missing = self.sockets;
      missing_ += peer.missing;
      if (where.rank > static_cast<int>(self.from_rank)) {
        inbound_limit_ += peer.missing;
        continue;
      }
      for (std::size_t index = 0; index < self.sockets; ++index) {
        Outbound& outbound = outbounds_.emplace_back();
        outbound.peer = peers_.size() - 1;
        outbound.index = index;
        outbound.until = start_;
      }
    }
  }

  Result<std::vector<PeerSockets>> run() {
    while (missing_ > 0 && failure_.ok()) {
      if (Clock::now() >= deadline_) return late();
      start_outbounds();
      wait();
      accept_all();
      serve_inbounds();
      serve_outbounds();
    }
    if (!failure_.ok()) return failure_;
    std::vector<PeerSockets> connected;
    for (Peer& peer : peers_) connected.push_back(std::move(peer.sockets));
    return connected;
  }

 private:
  Hello hello(HelloKind kind, int to_rank, std::size_t index) const noexcept {
    Hello hello = self_;
    hello.kind = kind;
    hello.to_rank = static_cast<std::uint32_t>(to_rank);
    hello.socket_index = static_cast<std::uint16_t>(index);
    return hello;
  }

  // The first socket looks for an address that works; the others follow it there.
  bool may_start(const Outbound& outbound) const noexcept {
    return outbound.index == 0 || peers_[outbound.peer].sockets.sockets[0].valid();
  }

  void wait() {
    polled_.clear();
    bool listening = false;
    const auto now = Clock::now();
    auto until = deadline_;
    if (now >= listen_after_) {
      listening = true;
      for (const Descriptor& listener : listeners_) polled_.push_back({listener.get(), POLLIN, 0});
    } else {
      until = std::min(until, listen_after_);
    }
    for (const Inbound& inbound : inbounds_) {
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
    const auto left = std::chrono::ceil<milliseconds>(until - now).count();
    if (::poll(polled_.data(), polled_.size(), static_cast<int>(std::clamp<long>(left, 0, 1000))) < 0 && errno != EINTR) {
      failure_ = system_error("tcp: poll", errno);
    }
    may_accept_ = listening && std::any_of(polled_.begin(), polled_.begin() + static_cast<std::ptrdiff_t>(listeners_.size()),
                                           [](const pollfd& one) { return one.revents != 0; });
  }

  // Listening side ------------------------------------------------------------------------------------------------------------

  void accept_all() {
    if (!may_accept_) return;
    for (const Descriptor& listener : listeners_) accept_from(listener.get());
  }

  void accept_from(int listener) {
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
    }
  }

  // Strangers first; then those whose greeting may be a recording. A peer that is dropped comes again.
  void drop_oldest_inbound() {
    auto oldest = std::find_if(inbounds_.begin(), inbounds_.end(), [](const Inbound& i) { return !i.confirming; });
    if (oldest == inbounds_.end()) oldest = inbounds_.begin();
    if (oldest == inbounds_.end()) return;
    count_stranger("too many at a time");
    inbounds_.erase(oldest);
  }

  void count_stranger(std::string_view why) {
    ++strangers_;
    stranger_ = why;
    count_refusal("tcp", why);
  }

  void serve_inbounds() {
    const auto now = Clock::now();
    for (auto i = inbounds_.begin(); i != inbounds_.end();) {
      i = serve(*i, now) ? std::next(i) : inbounds_.erase(i);
    }
  }

  // False where the connection is done with: it became a peer's, or was dropped.
  bool serve(Inbound& inbound, Clock::time_point now) {
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

  bool greet(Inbound& inbound, const std::optional<Hello>& said) {
    const auto refuse = [&](std::string_view why) { return count_stranger(why), false; };
    if (!said || said->kind != HelloKind::greet) return refuse("it does not speak shoal's protocol");
    if (said->job_id != self_.job_id) return refuse("it belongs to another job");
    if (!is_proven(inbound.reader.bytes, key_)) return refuse("it does not hold the job's key");
    if (said->to_rank != self_.from_rank) return refuse(fmt::format("it looks for rank {}", said->to_rank));
    const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) {
      return p.sockets.rank == static_cast<int>(said->from_rank) && said->from_rank > self_.from_rank;
    });
    if (peer == peers_.end()) return refuse(fmt::format("rank {} is not expected", said->from_rank));
    // The reply goes out even where the settings differ, so that both sides can say why they part.
    inbound.records = as_text(inbound.reader.bytes);
    Hello reply = hello(HelloKind::reply, peer->sockets.rank, said->socket_index);
    reply.nonce = random_nonce();
    if (!send_next(inbound.socket.get(), reply, inbound.records)) return refuse(kUnconfirmed);
    if (!check_settings(*said)) return false;
    if (said->socket_index >= self_.sockets) return refuse("its socket number is too high");
    inbound.confirming = true;
    inbound.until = Clock::now() + kConfirmTimeout;
    inbound.peer = static_cast<std::size_t>(peer - peers_.begin());
    inbound.index = said->socket_index;
    return true;
  }

  bool confirm(Inbound& inbound, const std::optional<Hello>& said) {
    Peer& peer = peers_[inbound.peer];
    Hello expected = self_;
    expected.kind = HelloKind::confirm;
    expected.from_rank = static_cast<std::uint32_t>(peer.sockets.rank);
    expected.to_rank = self_.from_rank;
    expected.socket_index = static_cast<std::uint16_t>(inbound.index);
    if (said != expected || !is_proven(inbound.reader.bytes, key_, inbound.records)) return count_stranger(kUnconfirmed), false;
    inbound.records += as_text(inbound.reader.bytes);
    if (send_next(inbound.socket.get(), hello(HelloKind::accept, peer.sockets.rank, inbound.index), inbound.records))
      complete(peer, inbound.index, std::move(inbound.socket));
    return false;
  }

  // Connecting side -----------------------------------------------------------------------------------------------------------

  void start_outbounds() {
    const auto now = Clock::now();
    for (Outbound& outbound : outbounds_) {
      if (outbound.state == Outbound::State::waiting && now >= outbound.until && may_start(outbound)) start(outbound);
    }
  }

  void start(Outbound& outbound) {
    const Peer& peer = peers_[outbound.peer];
    const SocketAddress& address = peer.where->addresses[peer.address];
    outbound.socket = Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!outbound.socket.valid()) {
      if (errno != EMFILE && errno != ENFILE) return retry(outbound, words(errno));
      failure_ = Status(StatusCode::system_error,
                        fmt::format("a socket to rank {} ({}): {}; raise the limit of open files (ulimit -n)",
                                    peer.sockets.rank, address.to_string(), words(errno)));
      return;
    }
    outbound.state = Outbound::State::connecting;
    outbound.until = peer.where->addresses.size() > 1 ? Clock::now() + kAddressTimeout : deadline_;
    if (::connect(outbound.socket.get(), address.raw(), address.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
      retry(outbound, words(errno));
    }
  }

  void retry(Outbound& outbound, std::string why) {
    Peer& peer = peers_[outbound.peer];
    peer.last_error = std::move(why);
    outbound.socket.reset();
    outbound.reader.got = 0;
    outbound.state = Outbound::State::waiting;
    const bool more_addresses = outbound.index == 0 && peer.address + 1 < peer.where->addresses.size();
    if (outbound.index == 0) peer.address = (peer.address + 1) % peer.where->addresses.size();
    outbound.until = Clock::now();
    if (more_addresses) return;
    outbound.until += outbound.retry;
    outbound.retry = std::min(2 * outbound.retry, kLastRetry);
  }

  void serve_outbounds() {
    const auto now = Clock::now();
    for (Outbound& outbound : outbounds_) {
      if (outbound.state == Outbound::State::connecting) {
        serve_connecting(outbound, now);
      } else if (outbound.state == Outbound::State::replying || outbound.state == Outbound::State::accepting) {
        serve_answering(outbound, now);
      }
    }
  }

  void serve_connecting(Outbound& outbound, Clock::time_point now) {
    const int socket = outbound.socket.get();
    if (outbound.poll_slot == kNotPolled || polled_[outbound.poll_slot].revents == 0) {
      if (now >= outbound.until) retry(outbound, words(ETIMEDOUT));
      return;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    const Peer& peer = peers_[outbound.peer];
    outbound.records.clear();
    Hello greeting = hello(HelloKind::greet, peer.sockets.rank, outbound.index);
    greeting.nonce = random_nonce();
    if (error == 0 && !send_next(socket, greeting, outbound.records)) error = errno;
    if (error != 0) return retry(outbound, words(error));
    outbound.state = Outbound::State::replying;
    outbound.until = peer.where->addresses.size() > 1 ? now + kReplyTimeout : deadline_;
  }

  void serve_answering(Outbound& outbound, Clock::time_point now) {
    int error = 0;
    switch (outbound.reader.read(outbound.socket.get(), error)) {
      case RecordReader::Outcome::more:
        if (now >= outbound.until) retry(outbound, kSilent);
        return;
      case RecordReader::Outcome::ended:
        return retry(outbound, error != 0 ? words(error)
                                          : "it closed the connection during the handshake (does it hold this job's key?)");
      case RecordReader::Outcome::whole:
        break;
    }
    outbound.reader.got = 0;
    Peer& peer = peers_[outbound.peer];
    const bool replying = outbound.state == Outbound::State::replying;
    const auto said = decode_hello(outbound.reader.bytes);
    if (!said || said->kind != (replying ? HelloKind::reply : HelloKind::accept) || said->job_id != self_.job_id ||
        said->to_rank != self_.from_rank || said->from_rank != static_cast<std::uint32_t>(peer.sockets.rank) ||
        said->socket_index != outbound.index || !is_proven(outbound.reader.bytes, key_, outbound.records)) {
      return retry(outbound, "whoever listens there is not this rank of this job");
    }
    if (!check_settings(*said)) return;
    if (replying) {
      outbound.records += as_text(outbound.reader.bytes);
      if (!send_next(outbound.socket.get(), hello(HelloKind::confirm, peer.sockets.rank, outbound.index), outbound.records))
        return retry(outbound, words(errno));
      outbound.state = Outbound::State::accepting;
      return;
    }
    outbound.state = Outbound::State::done;
    peer.sockets.address = peer.where->addresses[peer.address].to_string();
    complete(peer, outbound.index, std::move(outbound.socket));
  }

  // Both ----------------------------------------------------------------------------------------------------------------------

  // Sends a record and adds it to those of its handshake.
  bool send_next(int socket, const Hello& next, std::string& records) const {
    const HelloRecord record = encode(next, key_, records);
    records += as_text(record);
    return send_record(socket, record);
  }

  // A peer that did not hear that it was accepted proves itself once more; its new connection is the one it uses.
  void complete(Peer& peer, std::size_t index, Descriptor socket) {
    const bool again = peer.sockets.sockets[index].valid();
    peer.sockets.sockets[index] = std::move(socket);
    if (again) return;
    --peer.missing;
    --missing_;
  }

  // Sets failure_ where a rank of the same job was started with other settings: waiting will not help.
  bool check_settings(const Hello& said) {
    const auto differ = [&](std::string_view what, auto theirs, auto ours) {
      if (theirs == ours) return false;
      failure_ = Status(StatusCode::mismatch,
                        fmt::format("tcp: rank {} of this job has {} {}, rank {} has {}; start all ranks with the "
                                    "same settings",
                                    said.from_rank, what, theirs, self_.from_rank, ours));
      return true;
    };
    return !differ("wire version", said.version, self_.version) && !differ("a job size of", said.size, self_.size) &&
           !differ("sockets per peer:", said.sockets, self_.sockets) &&
           !differ("a tile size of", said.tile_bytes, self_.tile_bytes);
  }

  Status late() const {
    const double seconds = std::chrono::duration<double>(deadline_ - start_).count();
    std::string text;
    std::size_t named = 0;
    std::size_t late_ranks = 0;
    for (const Peer& peer : peers_) {
      if (peer.missing == 0) continue;
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
    if (!note_.empty()) text += fmt::format("; {}", note_);
    if (strangers_ > 0) {
      text += fmt::format("; dropped {} connection{} from strangers, the last because {}", strangers_,
                          strangers_ == 1 ? "" : "s", stranger_);
    }
    return {StatusCode::timeout, text};
  }

  static constexpr const char* kSilent = "it accepted the connection but did not answer";
  static constexpr const char* kUnconfirmed = "it greeted but could not prove that it holds the job's key";

  const Identity self_;
  const Key key_;
  const std::span<const Descriptor> listeners_;
  const Clock::time_point start_;
  const Clock::time_point deadline_;
  std::vector<Peer> peers_;
  std::list<Inbound> inbounds_;
  std::vector<Outbound> outbounds_;
  std::vector<pollfd> polled_;
  std::size_t missing_ = 0;
  std::size_t inbound_limit_ = 0;
  Clock::time_point listen_after_;
  bool may_accept_ = false;
  std::size_t strangers_ = 0;
  std::string stranger_;
  std::string note_;
  Status failure_;
};

}  // namespace

Result<std::vector<PeerSockets>> connect_peers(const Identity& self, const Key& key, std::span<const Descriptor> listeners,
                                               std::span<const PeerAddress> peers,
                                               std::chrono::steady_clock::time_point deadline) {
  return Rendezvous(self, key, listeners, peers, deadline).run();
}

}  // namespace shoal::tcp
