#include "transports/tcp/keeper_sockets.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "src/base/tcp_options.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMostUnproven = 64;  // beyond the expected ones: one of each process that asks at a time
constexpr std::size_t kMostAcceptsInARow = 64;
constexpr milliseconds kGreetTime{2000};
constexpr milliseconds kConfirmTime{5000};
constexpr milliseconds kEndTime{1000};  // for the peer to close a connection that this rank ends

constexpr const char* kUnconfirmed = "it sent a greeting but could not prove that it holds the job's key";

}  // namespace

Result<std::unique_ptr<KeeperSockets>> KeeperSockets::open(const TcpOptions& options) {
  auto listeners = open_listeners(options);
  if (!listeners.ok()) return listeners.status();
  return std::unique_ptr<KeeperSockets>(new KeeperSockets(options, std::move(listeners).value()));
}

KeeperSockets::KeeperSockets(const TcpOptions& options, Listeners listeners)
    : listeners_(std::move(listeners.sockets)),
      address_(join_addresses(listeners.advertised)),
      inbounds_("tcp", kMostUnproven) {
  Hello& hello = identity_.hello;
  hello.job_id = options.job_id;
  hello.from_rank = static_cast<std::uint32_t>(options.rank);
  hello.size = static_cast<std::uint32_t>(options.size);
  hello.tile_bytes = KeeperStream::kMostBytes;
  if (options.encryption) hello.encryption = kEncrypted | (has_aes() ? kHasAes : 0);
  identity_.key = options.key;
  if (!options.rails.empty()) identity_.rails = listeners.advertised;
}

Status KeeperSockets::begin(std::vector<std::string> addresses, std::function<std::optional<int>()> redirect) {
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    if (const auto parsed = split_addresses(addresses[rank]); !parsed.ok())
      return {StatusCode::invalid_argument, fmt::format("tcp: the address of rank {}: {}", rank, parsed.status().message())};
  }
  redirect_ = std::move(redirect);
  dials_ = std::make_unique<KeeperDials>(identity_, std::move(addresses));
  return {};
}

void KeeperSockets::connect(int rank, Time now) {
  if (left_) return;
  if (const auto known = peers_.find(rank); known != peers_.end()) {
    events_.push_back({.kind = Event::Kind::connected, .rank = rank, .bytes = {}, .connection = known->second.number});
    return;
  }
  dials_->dial(rank, now);
}

void KeeperSockets::disconnect(int rank, Time now) {
  const auto known = peers_.find(rank);
  if (known == peers_.end()) return;
  dials_->note_lifetime(rank, now - known->second.since);
  std::erase_if(events_, [number = known->second.number](const Event& event) { return event.connection == number; });
  end(std::move(known->second.stream), now);
  peers_.erase(known);
}

void KeeperSockets::end(std::unique_ptr<KeeperStream> stream, Time now) {
  stream->finish_sending();
  if (!stream->has_ended()) ending_.push_back({std::move(stream), now + kEndTime});
}

void KeeperSockets::send(int rank, std::span<const std::byte> message) {
  if (const auto known = peers_.find(rank); known != peers_.end()) known->second.stream->send(message);
}

void KeeperSockets::leave(Time now) {
  left_ = true;
  listeners_.clear();
  inbounds_.unproven.clear();
  dials_->cancel_all();
  for (auto& [rank, peer] : std::exchange(peers_, {})) end(std::move(peer.stream), now);
}

bool KeeperSockets::is_flushed() const {
  return std::ranges::all_of(peers_, [](const auto& each) { return each.second.stream->is_flushed(); });
}

void KeeperSockets::append_wait_fds(std::vector<pollfd>& out, Time now) const {
  const auto add = [&out](int fd, bool writes) {
    out.push_back({fd, static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  };
  for (const Descriptor& listener : listeners_) {
    if (now >= inbounds_.accept_again()) add(listener.get(), false);
  }
  for (const Inbound& inbound : inbounds_.unproven) {
    if (!inbound.held) add(inbound.socket.get(), false);
  }
  dials_->append_wait_fds(out);
  for (const auto& [rank, peer] : peers_) add(peer.stream->descriptor(), !peer.stream->is_flushed());
  for (const Ending& ending : ending_) add(ending.stream->descriptor(), !ending.stream->is_flushed());
}

KeeperSockets::Time KeeperSockets::next_time() const noexcept {
  Time next = dials_->next_time();
  if (!listeners_.empty() && inbounds_.accept_again() > std::chrono::steady_clock::now())
    next = std::min(next, inbounds_.accept_again());
  for (const Inbound& inbound : inbounds_.unproven) next = std::min(next, inbound.until);
  for (const Ending& ending : ending_) next = std::min(next, ending.until);
  // A connection that broke while something was sent on it.
  const bool broken = std::ranges::any_of(peers_, [](const auto& each) { return each.second.stream->is_broken(); });
  return broken || !events_.empty() ? Time{} : next;
}

bool KeeperSockets::is_ready(int fd) const noexcept {
  const auto found = std::ranges::find(polled_, fd, &pollfd::fd);
  return found != polled_.end() && found->revents != 0;
}

void KeeperSockets::step(Time now) {
  polled_.clear();
  append_wait_fds(polled_, now);
  if (::poll(polled_.data(), polled_.size(), 0) < 0) {
    for (pollfd& each : polled_) each.revents = 0;
  }
  accept_all(now);
  dials_->step(polled_, now, results_);
  for (DialResult& result : results_) {
    if (result.kind == DialResult::Kind::connected) {
      establish(result.rank, std::move(result.connection), now);
    } else {
      report(result);
    }
  }
  results_.clear();
  std::list<Inbound>& unproven = inbounds_.unproven;
  for (auto i = unproven.begin(); i != unproven.end();) i = serve(*i, now) ? std::next(i) : unproven.erase(i);
  for (auto i = peers_.begin(); i != peers_.end();) {
    const auto next = std::next(i);
    if (is_ready(i->second.stream->descriptor()) || i->second.stream->is_broken()) serve_peer(i->first, i->second, now);
    if (i->second.stream->has_ended()) peers_.erase(i);
    i = next;
  }
  std::erase_if(ending_, [&](Ending& ending) {
    ending.stream->flush();
    messages_.clear();
    ending.stream->receive(messages_);  // so that the kernel does not reset the connection for unread bytes
    return ending.stream->has_ended() || now >= ending.until;
  });
}

void KeeperSockets::serve_peer(int rank, Peer& peer, Time now) {
  messages_.clear();
  peer.stream->flush();
  peer.stream->receive(messages_);
  for (std::vector<std::byte>& message : messages_) {
    events_.push_back({.kind = Event::Kind::message, .rank = rank, .bytes = std::move(message), .connection = peer.number});
  }
  if (!peer.stream->has_ended()) return;
  dials_->note_lifetime(rank, now - peer.since);
  const Time::duration silence = peer.stream->error() == ETIMEDOUT ? kSilence : Time::duration::zero();
  events_.push_back({.kind = Event::Kind::lost, .rank = rank, .silent_for = silence, .bytes = {}, .connection = peer.number});
}

void KeeperSockets::report(const DialResult& result) {
  using Kind = DialResult::Kind;
  const Event::Kind kind = result.kind == Kind::redirected ? Event::Kind::redirected
                           : result.kind == Kind::refused  ? Event::Kind::refused
                           : result.kind == Kind::silent   ? Event::Kind::silent
                                                           : Event::Kind::unanswered;
  events_.push_back({.kind = kind, .rank = result.rank, .keeper = result.keeper, .bytes = {}});
}

std::optional<KeeperSockets::Event> KeeperSockets::take_event() {
  while (!events_.empty()) {
    Event event = std::move(events_.front());
    events_.pop_front();
    const auto known = peers_.find(event.rank);
    const bool connected = known != peers_.end();
    const bool current = connected && known->second.number == event.connection;
    const bool of_connection = event.kind == Event::Kind::connected || event.kind == Event::Kind::message;
    // What has happened before a newer connection was made no longer counts.
    if (!connected || (of_connection && current)) return event;
  }
  return std::nullopt;
}

void KeeperSockets::accept_all(Time now) {
  for (const Descriptor& listener : listeners_) {
    if (!is_ready(listener.get())) continue;
    for (std::size_t i = 0; i < kMostAcceptsInARow; ++i) {
      Descriptor socket = inbounds_.accept(listener.get());
      if (!socket.valid()) break;
      Inbound& inbound = inbounds_.add({});
      inbound.socket = std::move(socket);
      inbound.until = now + kGreetTime;
      inbound.accepted_after = numbers_;
    }
    if (inbounds_.shortage() == 0) continue;
    inbounds_.pause();
    inbounds_.drop_one();
  }
}

bool KeeperSockets::serve(Inbound& inbound, Time now) {
  if (inbound.held && !dials_->is_dialling(inbound.rank)) {
    inbound.held = false;
    return reply(inbound, now);
  }
  int error = 0;
  const auto outcome = inbound.held ? RecordReader::Outcome::more : inbound.reader.read(inbound.socket.get(), error);
  if (outcome == RecordReader::Outcome::more) {
    if (now < inbound.until) return true;
    inbounds_.refuse(inbound.greeted() ? kUnconfirmed : "it sent no greeting in time");
    return false;
  }
  if (outcome == RecordReader::Outcome::ended) {
    if (inbound.greeted()) return end_unconfirmed(inbound);
    inbounds_.refuse("it closed without a greeting");
    return false;
  }
  const auto theirs = decode_hello(inbound.reader.bytes);
  inbound.reader.got = 0;
  return inbound.greeted() ? confirm(inbound, theirs, now) : greet(inbound, theirs, now);
}

bool KeeperSockets::greet(Inbound& inbound, const std::optional<Hello>& theirs, Time now) {
  const auto refuse = [&](std::string_view why) { return inbounds_.refuse(why), false; };
  const Hello& own = identity_.hello;
  if (!theirs || theirs->kind != HelloKind::greet) return refuse("it does not speak shoal's protocol");
  if (theirs->job_id != own.job_id) return refuse("it belongs to another job");
  if (!is_proven(inbound.reader.bytes, identity_.key)) return refuse("it does not hold the job's key");
  if (theirs->to_rank != own.from_rank) return refuse(fmt::format("it is for rank {}", theirs->to_rank));
  if (theirs->from_rank >= own.size || theirs->from_rank == own.from_rank)
    return refuse(fmt::format("rank {} is not expected", theirs->from_rank));
  if (theirs->version != own.version || theirs->size != own.size || theirs->tile_bytes != own.tile_bytes ||
      (theirs->encryption & kEncrypted) != (own.encryption & kEncrypted)) {
    return refuse(fmt::format("rank {} has other settings", theirs->from_rank));
  }
  inbound.records = as_text(inbound.reader.bytes);
  inbound.rank = static_cast<int>(theirs->from_rank);
  inbound.until = now + kConfirmTime;
  inbound.held = own.from_rank > theirs->from_rank && dials_->is_dialling(inbound.rank);
  return inbound.held || reply(inbound, now);
}

bool KeeperSockets::reply(Inbound& inbound, Time now) {
  Hello reply = identity_.to(inbound.rank, HelloKind::reply);
  reply.nonce = random_nonce();
  inbound.until = now + kConfirmTime;
  return identity_.send(inbound.socket.get(), reply, inbound.records) || end_unconfirmed(inbound);
}

bool KeeperSockets::end_unconfirmed(const Inbound& inbound) {
  // A process that has accepted a connection of this one ends its own handshake: no refusal.
  const auto peer = peers_.find(inbound.rank);
  const bool superseded = peer != peers_.end() && peer->second.number > inbound.accepted_after;
  if (!superseded) inbounds_.refuse(kUnconfirmed);
  return false;
}

bool KeeperSockets::confirm(Inbound& inbound, const std::optional<Hello>& theirs, Time now) {
  Hello expected = identity_.hello;
  expected.kind = HelloKind::confirm;
  expected.from_rank = static_cast<std::uint32_t>(inbound.rank);
  expected.to_rank = identity_.hello.from_rank;
  if (theirs) expected.encryption = theirs->encryption;  // checked in the greeting; processors may differ
  if (theirs != expected || !is_proven(inbound.reader.bytes, identity_.key, inbound.records))
    return inbounds_.refuse(kUnconfirmed), false;
  inbound.records += as_text(inbound.reader.bytes);
  const std::optional<int> keeper = redirect_();
  Hello accept = identity_.to(inbound.rank, HelloKind::accept);
  accept.received = keeper ? static_cast<std::uint64_t>(*keeper) + 1 : 0;
  if (!identity_.send(inbound.socket.get(), accept, inbound.records) || keeper) return false;
  dials_->cancel(inbound.rank);
  establish(inbound.rank, identity_.connection(std::move(inbound.socket), inbound.records, false, *theirs), now);
  return false;
}

void KeeperSockets::establish(int rank, Connection connection, Time now) {
  disconnect(rank, now);  // the peer has lost the old one
  tune(connection.socket.get(), kSilence, false);
  tune_handshake(connection.socket.get(), kSilence);  // it also ends when data stays unacknowledged for that long
  const std::uint64_t number = ++numbers_;
  peers_[rank] = {std::make_unique<KeeperStream>(std::move(connection)), number, now};
  events_.push_back({.kind = Event::Kind::connected, .rank = rank, .bytes = {}, .connection = number});
  most_bytes_ = std::max(most_bytes_, peers_.size() * peers_[rank].stream->memory_bytes());
}

void KeeperSockets::leave_to_parent() noexcept {
  listeners_.clear();
  inbounds_.unproven.clear();
  if (dials_ != nullptr) dials_->cancel_all();
  peers_.clear();
  ending_.clear();
}

std::size_t KeeperSockets::memory_bytes() const noexcept { return most_bytes_; }

}  // namespace shoal::tcp
