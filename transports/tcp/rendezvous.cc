#include "transports/tcp/rendezvous.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "src/trust/refusals.h"
#include "transports/tcp/repairs.h"

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
// Of a connection that is made again: how long one try may go unanswered by the peer's host, and for how long all of them may
// before the peer is lost; and the same for a peer that takes connections and closes them at once. A host that answers and
// whose rank is busy is waited for.
constexpr milliseconds kUnansweredTry{3000};
constexpr milliseconds kUnansweredLimit{10'000};
constexpr milliseconds kClosedLimit{3000};
constexpr milliseconds kLongEnough{1000};
// A knock that has met nothing but silence for so long says something.
constexpr milliseconds kQuietKnock{100};

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

// A connection that this rank makes; as a knock it only shows whether the peer's process still listens.
struct Outbound {
  enum class State { waiting, connecting, replying, accepting, knocking, done };
  std::size_t peer = 0;
  std::size_t index = 0;
  State state = State::waiting;
  Descriptor socket;
  Clock::time_point until;  // when to start (waiting) or to give up this try
  std::size_t poll_slot = kNotPolled;
  RecordReader reader;
  std::string records;  // of the handshake so far
  milliseconds retry = kFirstRetry;
  bool knock = false;
  bool spoke = false;               // this knock
  std::size_t hops = 0;             // rails that were left for the next
  std::size_t refusals = 0;         // in a row
  Clock::time_point since;          // of this try
  Clock::time_point failing_since;  // of the first of the tries that failed in a row; zero: the last one did not
};

struct Peer {
  PeerAddress where;
  bool over = false;
  std::vector<bool> lost;  // by socket index, after the start
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

// The way there is closed; whether anybody is at its end nobody knows.
bool is_unanswered(int error) noexcept {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN || error == EADDRNOTAVAIL;
}

// Makes the socket leave by the interface of that address where the system routes by it. The number of an error, or 0.
int bind_to(const Descriptor& socket, SocketAddress own) noexcept {
  own.set_port(0);
  const int on = 1;  // the port is chosen when both addresses are known, so that they do not run out
  static_cast<void>(::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on));
  return ::bind(socket.get(), own.raw(), own.length()) == 0 ? 0 : errno;
}

class RealRendezvous final : public Rendezvous {
 public:
  RealRendezvous(const Identity& self, const Key& key, std::vector<Descriptor> listeners, std::vector<PeerAddress> peers,
                 std::vector<SocketAddress> rails)
      : self_(self), key_(key), rails_(std::move(rails)), listeners_(std::move(listeners)), start_(Clock::now()) {
    const std::size_t sockets = self.sockets + std::size_t{1};
    for (PeerAddress& where : peers) {
      Peer& peer = peers_.emplace_back();
      peer.where = std::move(where);
      peer.sockets.rank = peer.where.rank;
      peer.sockets.address = peer.where.addresses.front().to_string();
      peer.sockets.sockets.resize(sockets);
      peer.lost.resize(sockets);
      peer.missing = sockets;
      missing_ += peer.missing;
      if (accepts_from(peer)) {
        inbound_limit_ += peer.missing;
        continue;
      }
      for (std::size_t index = 0; index < sockets; ++index) {
        Outbound& outbound = outbounds_.emplace_back();
        outbound.peer = peers_.size() - 1;
        outbound.index = index;
        outbound.until = start_;
      }
    }
  }

  Result<std::vector<PeerSockets>> connect_all(Clock::time_point deadline) override {
    start_ = Clock::now();
    deadline_ = deadline;
    while (missing_ > 0 && failure_.ok()) {
      if (Clock::now() >= deadline_) return late();
      start_outbounds();
      wait(true);
      accept_all();
      serve_inbounds();
      serve_outbounds();
    }
    if (!failure_.ok()) return failure_;
    epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_.valid()) return system_error("tcp: epoll_create1", errno);
    for (const Descriptor& listener : listeners_) report(listener, EPOLLIN);
    for (const Inbound& inbound : inbounds_) report(inbound.socket, EPOLLIN);
    std::vector<PeerSockets> connected;
    for (Peer& peer : peers_) {
      connected.push_back(std::move(peer.sockets));
      peer.sockets.rank = peer.where.rank;
      peer.sockets.address = connected.back().address;
    }
    outbounds_.clear();
    deadline_ = Clock::time_point::max();
    return connected;
  }

  void lose(int rank, std::size_t index) override {
    const std::size_t at = find(rank);
    if (at == peers_.size() || peers_[at].over) return;
    peers_[at].lost[index] = true;
    const bool knock = accepts_from(peers_[at]);
    for (const Outbound& outbound : outbounds_) {
      if (outbound.peer == at && (knock || outbound.index == index)) return;
    }
    Outbound& outbound = outbounds_.emplace_back();
    outbound.peer = at;
    outbound.index = index;
    outbound.knock = knock;
    outbound.until = Clock::now();
  }

  void forget(int rank) override {
    const std::size_t at = find(rank);
    if (at == peers_.size()) return;
    peers_[at].over = true;
    std::erase_if(outbounds_, [&](const Outbound& outbound) { return outbound.peer == at; });
    std::erase_if(inbounds_, [&](const Inbound& inbound) { return inbound.confirming && inbound.peer == at; });
  }

  [[nodiscard]] int wait_fd() const noexcept override { return epoll_.get(); }
  [[nodiscard]] bool busy() const noexcept override { return !outbounds_.empty() || !inbounds_.empty(); }

  void step(Rejoining& links) override {
    links_ = &links;
    start_outbounds();
    wait(false);
    accept_all();
    serve_inbounds();
    serve_outbounds();
    std::erase_if(outbounds_, [this](const Outbound& outbound) {
      const std::vector<bool>& lost = peers_[outbound.peer].lost;
      if (outbound.knock) return std::find(lost.begin(), lost.end(), true) == lost.end();
      return outbound.state == Outbound::State::done;
    });
    // Last: the links answer by forgetting the peer.
    while (!unreachable_.empty()) {
      const auto [rank, why] = std::move(unreachable_.back());
      unreachable_.pop_back();
      forget(rank);
      links.lose_peer(rank, why);
    }
    links_ = nullptr;
  }

  void leave_to_parent() noexcept override {
    epoll_.reset();
    listeners_.clear();
    inbounds_.clear();
    outbounds_.clear();
  }

 private:
  Hello hello(HelloKind kind, int to_rank, std::size_t index) const noexcept {
    Hello hello = self_;
    hello.kind = kind;
    hello.to_rank = static_cast<std::uint32_t>(to_rank);
    hello.socket_index = static_cast<std::uint16_t>(index);
    return hello;
  }

  // The start is over: sockets are only replaced.
  [[nodiscard]] bool rejoining() const noexcept { return links_ != nullptr; }
  [[nodiscard]] bool accepts_from(const Peer& peer) const noexcept {
    return peer.where.rank > static_cast<int>(self_.from_rank);
  }
  [[nodiscard]] std::size_t find(int rank) const noexcept {
    const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.where.rank == rank; });
    return static_cast<std::size_t>(found - peers_.begin());
  }

  // Makes wait_fd() readable when the socket is. A socket that closes is forgotten by itself.
  void report(const Descriptor& socket, std::uint32_t events) noexcept {
    if (!epoll_.valid()) return;  // at the start poll() waits
    epoll_event event{};
    event.events = events;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0)
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket.get(), &event);
  }
  void report_no_more(const Descriptor& socket) noexcept { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr); }

  // The first socket looks for an address that works; the others follow it there.
  bool may_start(const Outbound& outbound) const noexcept {
    return rejoining() || outbound.index == 0 || peers_[outbound.peer].sockets.sockets[0].socket.valid();
  }

  void wait(bool block) {
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
    const auto left = block ? std::chrono::ceil<milliseconds>(until - now).count() : 0;
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
      report(inbound.socket, EPOLLIN);
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

  bool confirm(Inbound& inbound, const std::optional<Hello>& said) {
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

  // Connecting side -----------------------------------------------------------------------------------------------------------

  void start_outbounds() {
    const auto now = Clock::now();
    for (Outbound& outbound : outbounds_) {
      if (outbound.state == Outbound::State::waiting && now >= outbound.until && may_start(outbound)) start(outbound);
    }
  }

  // Which of the peer's addresses it tries: each socket its own rail first, and then the others.
  [[nodiscard]] std::size_t place_of(const Outbound& outbound) const noexcept {
    const Peer& peer = peers_[outbound.peer];
    return rails_.empty() ? peer.address : (outbound.index + outbound.hops) % peer.where.addresses.size();
  }
  void leave_address(Outbound& outbound) noexcept {
    Peer& peer = peers_[outbound.peer];
    if (rails_.empty()) {
      peer.address = (peer.address + 1) % peer.where.addresses.size();
    } else {
      ++outbound.hops;
    }
  }

  void start(Outbound& outbound) {
    const Peer& peer = peers_[outbound.peer];
    const std::size_t place = place_of(outbound);
    const SocketAddress& address = peer.where.addresses[place];
    outbound.since = Clock::now();
    outbound.spoke = false;
    outbound.socket = Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!outbound.socket.valid()) {
      if (rejoining() || (errno != EMFILE && errno != ENFILE)) return retry(outbound, errno, words(errno));
      failure_ = Status(StatusCode::system_error,
                        fmt::format("a socket to rank {} ({}): {}; raise the limit of open files (ulimit -n)",
                                    peer.sockets.rank, address.to_string(), words(errno)));
      return;
    }
    // Two rails may lie in one network, where a route by the target alone would lead both out by the same interface.
    if (!rails_.empty() && rails_[place].family() == address.family()) {
      const int error = bind_to(outbound.socket, rails_[place]);
      if (error != 0) return retry(outbound, error, fmt::format("from {}: {}", rails_[place].to_string(), words(error)));
    }
    outbound.state = Outbound::State::connecting;
    outbound.until = peer.where.addresses.size() > 1 ? Clock::now() + kAddressTimeout : deadline_;
    // At the start a rail that is left is left for good; later the others go on while one is silent.
    const bool several_rails = rails_.size() > 1;
    if (rejoining() != several_rails) outbound.until = Clock::now() + kUnansweredTry;
    if (::connect(outbound.socket.get(), address.raw(), address.length()) != 0 && errno != EINPROGRESS && errno != EINTR) {
      retry(outbound, errno, words(errno));
    } else {
      report(outbound.socket, EPOLLOUT);
    }
  }

  // `error`: a number of the system, or 0 where the peer has closed.
  void retry(Outbound& outbound, int error, std::string why) {
    Peer& peer = peers_[outbound.peer];
    peer.last_error = std::move(why);
    outbound.socket.reset();
    outbound.reader.got = 0;
    outbound.state = Outbound::State::waiting;
    if (rejoining()) return retry_lost(outbound, error);
    // Of a rail that has taken the connection nothing is known to be wrong.
    const bool leaves = rails_.empty() ? outbound.index == 0 : is_unanswered(error) || error == ECONNREFUSED;
    if (leaves) leave_address(outbound);
    const bool more_addresses = leaves && (rails_.empty() ? peer.address : outbound.hops % peer.where.addresses.size()) != 0;
    outbound.until = Clock::now();
    if (more_addresses) return;
    outbound.until += outbound.retry;
    outbound.retry = std::min(2 * outbound.retry, kLastRetry);
  }

  void retry_lost(Outbound& outbound, int error) {
    Peer& peer = peers_[outbound.peer];
    const auto now = Clock::now();
    const bool refused = error == ECONNREFUSED;
    const bool answered = !is_unanswered(error);
    outbound.refusals = refused ? outbound.refusals + 1 : 0;
    if (answered && now - outbound.since >= kLongEnough) outbound.failing_since = {};
    if (outbound.failing_since == Clock::time_point{}) {
      outbound.failing_since = outbound.since;
      outbound.retry = kFirstRetry;
    }
    // Where nobody listens any more, at any of its addresses, there is no process.
    const std::size_t addresses = peer.where.addresses.size();
    if (outbound.refusals >= addresses || now - outbound.failing_since >= (answered ? kClosedLimit : kUnansweredLimit))
      unreachable_.emplace_back(peer.where.rank, peer.last_error);
    if (refused || !answered) leave_address(outbound);
    outbound.until = refused ? now : now + outbound.retry;
    outbound.retry = std::min(2 * outbound.retry, kLastRetry);
  }

  void serve_outbounds() {
    const auto now = Clock::now();
    for (Outbound& outbound : outbounds_) {
      if (outbound.state == Outbound::State::connecting) {
        serve_connecting(outbound, now);
      } else if (outbound.state == Outbound::State::knocking) {
        serve_knock(outbound, now);
      } else if (outbound.state == Outbound::State::replying || outbound.state == Outbound::State::accepting) {
        serve_answering(outbound, now);
      }
    }
  }

  void serve_connecting(Outbound& outbound, Clock::time_point now) {
    const int socket = outbound.socket.get();
    if (outbound.poll_slot == kNotPolled || polled_[outbound.poll_slot].revents == 0) {
      if (now >= outbound.until) retry(outbound, ETIMEDOUT, words(ETIMEDOUT));
      return;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    const Peer& peer = peers_[outbound.peer];
    report(outbound.socket, EPOLLIN);
    if (error == 0 && outbound.knock) {
      outbound.state = Outbound::State::knocking;
      return;
    }
    outbound.records.clear();
    Hello greeting = hello(HelloKind::greet, peer.sockets.rank, outbound.index);
    greeting.nonce = random_nonce();
    if (error == 0 && !send_next(socket, greeting, outbound.records)) error = errno;
    if (error != 0) return retry(outbound, error, words(error));
    outbound.state = Outbound::State::replying;
    const bool elsewhere = peer.where.addresses.size() > 1 && rails_.empty() && !rejoining();
    outbound.until = elsewhere ? now + kReplyTimeout : deadline_;
  }

  // The peer closes what does not greet after a while, which is a sign of life; the system closes it when the peer has ended.
  // Not always: a listener that goes away in the moment of the knock may leave this end of the connection alone with nobody to
  // say so. A byte brings the answer that there is no such connection; to a peer it is one of a bad greeting.
  void serve_knock(Outbound& outbound, Clock::time_point now) {
    std::byte byte{};
    const ssize_t got = ::recv(outbound.socket.get(), &byte, 1, MSG_DONTWAIT);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) {
      if (!outbound.spoke && now - outbound.since >= kQuietKnock)
        outbound.spoke = ::send(outbound.socket.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
      return;
    }
    const int error = got == 0 ? 0 : errno;
    retry(outbound, error, error == 0 ? kClosed : words(error));
  }

  void serve_answering(Outbound& outbound, Clock::time_point now) {
    int error = 0;
    switch (outbound.reader.read(outbound.socket.get(), error)) {
      case RecordReader::Outcome::more:
        if (now >= outbound.until) retry(outbound, ETIMEDOUT, kSilent);
        return;
      case RecordReader::Outcome::ended:
        return retry(outbound, error, error != 0 ? words(error) : kClosed);
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
      return retry(outbound, 0, "whoever listens there is not this rank of this job");
    }
    if (!check_settings(*said)) return;
    if (replying) {
      outbound.records += as_text(outbound.reader.bytes);
      Hello confirm = hello(HelloKind::confirm, peer.sockets.rank, outbound.index);
      if (!fill_in_received(confirm, outbound.index)) return;
      if (!send_next(outbound.socket.get(), confirm, outbound.records)) return retry(outbound, errno, words(errno));
      outbound.state = Outbound::State::accepting;
      return;
    }
    outbound.state = Outbound::State::done;
    peer.sockets.address = peer.where.addresses[place_of(outbound)].to_string();
    if (!rails_.empty()) say_which_rail(outbound);
    complete(peer, outbound.index, connection(std::move(outbound.socket), outbound.records, true, *said), said->received);
  }

  void say_which_rail(const Outbound& outbound) const {
    const Peer& peer = peers_[outbound.peer];
    const std::size_t own = outbound.index % peer.where.addresses.size();
    const std::size_t taken = place_of(outbound);
    if (taken == own) return;
    fmt::print(stderr, "shoal: tcp: socket {} to rank {} goes by rail {} ({}): rail {} does not answer ({})\n", outbound.index,
               peer.sockets.rank, taken, peer.where.addresses[taken].to_string(), own, peer.last_error);
  }

  // Both ----------------------------------------------------------------------------------------------------------------------

  // Sends a record and adds it to those of its handshake.
  bool send_next(int socket, const Hello& next, std::string& records) const {
    const HelloRecord record = encode(next, key_, records);
    records += as_text(record);
    return send_record(socket, record);
  }

  // What has come on the connection that is about to be replaced. False where its link is over.
  bool fill_in_received(Hello& hello, std::size_t index) {
    if (!rejoining()) return true;
    const auto received = links_->give_up(static_cast<int>(hello.to_rank), index);
    hello.received = received.value_or(0);
    return received.has_value();
  }

  // `records`: greeting and reply first, of the handshake that has made the socket the peer's.
  Connection connection(Descriptor socket, std::string_view records, bool connects, const Hello& theirs) const {
    Connection made{std::move(socket), {}};
    const bool aes = (theirs.encryption & self_.encryption & kHasAes) != 0;
    if ((self_.encryption & kEncrypted) != 0)
      made.keys = derive_sealing_keys(key_, records.substr(0, 2 * kHelloBytes), connects, aes);
    return made;
  }

  // A peer that did not hear that it was accepted proves itself once more; its new connection is the one it uses.
  void complete(Peer& peer, std::size_t index, Connection made, std::uint64_t received) {
    report_no_more(made.socket);
    if (rejoining()) {
      peer.lost[index] = false;
      count_repaired_connection();
      links_->resume(peer.where.rank, index, std::move(made), received);
      return;
    }
    if (accepts_from(peer) && rails_.empty()) remember_address(peer, made.socket);
    const bool again = peer.sockets.sockets[index].socket.valid();
    peer.sockets.sockets[index] = std::move(made);
    if (again) return;
    --peer.missing;
    --missing_;
  }

  // Of the addresses of a peer that has connected, the one it came from is most likely to reach it.
  static void remember_address(Peer& peer, const Descriptor& socket) {
    SocketAddress from;
    socklen_t length = sizeof from.storage;
    if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&from.storage), &length) != 0) return;
    for (std::size_t i = 0; i < peer.where.addresses.size(); ++i) {
      from.set_port(peer.where.addresses[i].port());
      if (from.to_string() == peer.where.addresses[i].to_string()) peer.address = i;
    }
  }

  // Sets failure_ where a rank of the same job was started with other settings: waiting will not help.
  bool check_settings(const Hello& said) {
    const auto differ = [&](std::string_view what, auto theirs, auto ours) {
      if (theirs == ours) return false;
      if (rejoining()) return true;  // cannot be: they were the same at the start
      failure_ = Status(StatusCode::mismatch,
                        fmt::format("tcp: rank {} of this job has {} {}, rank {} has {}; start all ranks with the "
                                    "same settings",
                                    said.from_rank, what, theirs, self_.from_rank, ours));
      return true;
    };
    return !differ("wire version", said.version, self_.version) && !differ("a job size of", said.size, self_.size) &&
           !differ("sockets per peer:", said.sockets, self_.sockets) &&
           !differ("a tile size of", said.tile_bytes, self_.tile_bytes) &&
           !differ("check sums (SHOAL_INTEGRITY):", said.integrity, self_.integrity) &&
           !differ("encryption (SHOAL_ENCRYPTION):", said.encryption & kEncrypted, self_.encryption & kEncrypted);
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
  static constexpr const char* kClosed = "it closed the connection during the handshake (does it hold this job's key?)";
  static constexpr const char* kUnconfirmed = "it greeted but could not prove that it holds the job's key";

  const Identity self_;
  const Key key_;
  const std::vector<SocketAddress> rails_;  // own ends
  std::vector<Descriptor> listeners_;
  Descriptor epoll_;
  Clock::time_point start_;
  Clock::time_point deadline_;
  Rejoining* links_ = nullptr;                            // during step()
  std::vector<std::pair<int, std::string>> unreachable_;  // ranks, and why
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

std::unique_ptr<Rendezvous> Rendezvous::make(const Identity& self, const Key& key, std::vector<Descriptor> listeners,
                                             std::vector<PeerAddress> peers, std::vector<SocketAddress> rails) {
  return std::make_unique<RealRendezvous>(self, key, std::move(listeners), std::move(peers), std::move(rails));
}

}  // namespace shoal::tcp
