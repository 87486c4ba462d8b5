#include "transports/tcp/keeper_dials.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/base/descriptor_limit.h"
#include "src/base/tcp_options.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectTime{1000};  // one try of one address, before the system's second retransmission
constexpr milliseconds kAnswerTime{2000};   // for each half of the handshake
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLastPause{500};
constexpr milliseconds kForget{2000};     // a process that was not tried for so long is tried at once
constexpr milliseconds kShortLife{1000};  // a connection that ends sooner counts as a try that failed
constexpr milliseconds kClosedTooLong{3000};
constexpr milliseconds kClosedPause{50};
constexpr milliseconds kUnreachablePause{300};  // where the system says at once that there is no route

short events_of(const std::vector<pollfd>& polled, int fd) noexcept {
  const auto found = std::ranges::find(polled, fd, &pollfd::fd);
  return found == polled.end() ? short{0} : found->revents;
}

}  // namespace

Connection KeeperIdentity::connection(Descriptor socket, const std::string& records, bool dialled, const Hello& theirs) const {
  Connection made{std::move(socket), {}};
  const bool aes = (theirs.encryption & hello.encryption & kHasAes) != 0;
  if ((hello.encryption & kEncrypted) != 0) {
    const std::string_view greeting_and_reply = std::string_view(records).substr(0, 2 * kHelloBytes);
    made.keys = derive_sealing_keys(key, "keeper traffic", greeting_and_reply, dialled, aes);
  }
  return made;
}

bool KeeperIdentity::send(int socket, const Hello& next, std::string& records) const {
  const HelloRecord record = encode(next, key, records);
  records += as_text(record);
  return send_record(socket, record);
}

KeeperDials::KeeperDials(const KeeperIdentity& identity, std::vector<std::string> addresses)
    : identity_(identity), addresses_(std::move(addresses)) {}

void KeeperDials::dial(int rank, Time now) {
  if (std::ranges::find(dials_, rank, &Dial::rank) != dials_.end()) return;
  auto addresses = split_addresses(addresses_[static_cast<std::size_t>(rank)]);
  Dial& dial = dials_.emplace_back();
  dial.rank = rank;
  if (addresses.ok()) dial.addresses = std::move(addresses).value();
  History& history = history_[rank];
  if (now - history.tried_at >= kForget) history.pause = milliseconds(0);
  dial.until = std::max(now, history.tried_at + history.pause);
  dial.began = dial.until;
  history.tried_at = dial.until;
  history.pause = std::clamp(2 * history.pause, kFirstPause, kLastPause);
}

void KeeperDials::cancel(int rank) noexcept {
  std::erase_if(dials_, [rank](const Dial& dial) { return dial.rank == rank; });
}

bool KeeperDials::is_dialling(int rank) const noexcept {
  const auto found = std::ranges::find(dials_, rank, &Dial::rank);
  return found != dials_.end() && found->state != Dial::State::waiting && found->state != Dial::State::ended;
}

void KeeperDials::note_lifetime(int rank, Time::duration time) {
  if (time >= kShortLife) history_.erase(rank);
}

void KeeperDials::append_wait_fds(std::vector<pollfd>& out) const {
  for (const Dial& dial : dials_) {
    if (!dial.socket.valid()) continue;
    out.push_back({dial.socket.get(), static_cast<short>(dial.state == Dial::State::connecting ? POLLOUT : POLLIN), 0});
  }
}

KeeperDials::Time KeeperDials::next_time() const noexcept {
  Time next = Time::max();
  for (const Dial& dial : dials_) next = std::min(next, dial.until);
  return next;
}

void KeeperDials::step(const std::vector<pollfd>& polled, Time now, std::vector<DialResult>& results) {
  for (Dial& dial : dials_) {
    if (dial.state == Dial::State::waiting && now >= dial.until) {
      start(dial, now);
    } else if (dial.socket.valid()) {
      serve(dial, events_of(polled, dial.socket.get()), now);
    }
    if (dial.state == Dial::State::ended && now >= dial.until) results.push_back(std::move(dial.result));
  }
  std::erase_if(dials_, [now](const Dial& dial) { return dial.state == Dial::State::ended && now >= dial.until; });
}

void KeeperDials::start(Dial& dial, Time now) {
  dial.records.clear();
  dial.reader.got = 0;
  if (dial.place >= dial.addresses.size()) return conclude(dial, now);
  const SocketAddress& address = dial.addresses[dial.place];
  dial.socket = Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!dial.socket.valid()) return fail(dial, errno, now);
  const bool own_rail = dial.place < identity_.rails.size() && identity_.rails[dial.place].family() == address.family();
  if (const int error = own_rail ? bind_to(dial.socket, identity_.rails[dial.place]) : 0; error != 0)
    return fail(dial, error, now);
  dial.state = Dial::State::connecting;
  dial.until = now + kConnectTime;
  if (::connect(dial.socket.get(), address.raw(), address.length()) != 0 && errno != EINPROGRESS && errno != EINTR)
    fail(dial, errno, now);
}

void KeeperDials::serve(Dial& dial, short events, Time now) {
  if (events == 0) {
    if (now < dial.until) return;
    // A process that has taken the connection and does not answer: another address of it would not answer either.
    if (dial.state == Dial::State::connecting) return fail(dial, ETIMEDOUT, now);
    dial.place = dial.addresses.size();
    return conclude(dial, now);
  }
  if (dial.state != Dial::State::connecting) return answer(dial, now);
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(dial.socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error != 0) return fail(dial, error, now);
  dial.reached = true;
  Hello greeting = identity_.to(dial.rank, HelloKind::greet);
  greeting.nonce = random_nonce();
  if (!identity_.send(dial.socket.get(), greeting, dial.records)) return fail(dial, 0, now);
  dial.state = Dial::State::replying;
  dial.until = now + kAnswerTime;
}

void KeeperDials::answer(Dial& dial, Time now) {
  int error = 0;
  const RecordReader::Outcome outcome = dial.reader.read(dial.socket.get(), error);
  if (outcome == RecordReader::Outcome::more) return;
  if (outcome == RecordReader::Outcome::ended) return fail(dial, 0, now);
  dial.reader.got = 0;
  const bool replying = dial.state == Dial::State::replying;
  const auto theirs = decode_hello(dial.reader.bytes);
  const Hello& own = identity_.hello;
  if (!theirs || theirs->kind != (replying ? HelloKind::reply : HelloKind::accept) || theirs->job_id != own.job_id ||
      theirs->to_rank != own.from_rank || theirs->from_rank != static_cast<std::uint32_t>(dial.rank) ||
      !is_proven(dial.reader.bytes, identity_.key, dial.records)) {
    return fail(dial, 0, now);  // another process listens at an address of this one
  }
  if (replying) {
    dial.records += as_text(dial.reader.bytes);
    if (!identity_.send(dial.socket.get(), identity_.to(dial.rank, HelloKind::confirm), dial.records))
      return fail(dial, 0, now);
    dial.state = Dial::State::accepting;
    dial.until = now + kAnswerTime;
    return;
  }
  history_[dial.rank].closed_since = {};
  if (theirs->received != 0) {
    dial.result.keeper = static_cast<int>(theirs->received - 1);
    const bool known = theirs->received <= addresses_.size();
    return end(dial, known ? DialResult::Kind::redirected : DialResult::Kind::unanswered, now);
  }
  dial.result.connection = identity_.connection(std::move(dial.socket), dial.records, true, *theirs);
  end(dial, DialResult::Kind::connected, now);
}

void KeeperDials::fail(Dial& dial, int error, Time now) {
  dial.socket.reset();
  dial.refusals += error == ECONNREFUSED ? 1 : 0;
  dial.closed |= error == 0;
  dial.lacks_resource |= is_short_of_descriptors(error);
  ++dial.place;
  dial.state = Dial::State::waiting;
  dial.until = now;
  if (dial.place >= dial.addresses.size()) conclude(dial, now);
}

void KeeperDials::conclude(Dial& dial, Time now) {
  using Kind = DialResult::Kind;
  History& history = history_[dial.rank];
  if (!dial.closed) history.closed_since = {};
  if (dial.closed) {
    if (history.closed_since == Time{}) history.closed_since = dial.began;
    // A process of another job may have taken the port.
    if (now - history.closed_since >= kClosedTooLong) return end(dial, Kind::refused, now);
    return end(dial, Kind::unanswered, now + kClosedPause);
  }
  if (dial.reached) return end(dial, Kind::unanswered, now);
  if (dial.lacks_resource) return end(dial, Kind::unanswered, now + kUnreachablePause);
  // A refusal at one address proves nothing while another one is silent: it may be that of another host, as those of bridges.
  if (dial.refusals == dial.addresses.size()) return end(dial, Kind::refused, now);
  end(dial, Kind::silent, std::max(now, dial.began + kUnreachablePause));
}

void KeeperDials::end(Dial& dial, DialResult::Kind kind, Time at) {
  dial.socket.reset();
  dial.state = Dial::State::ended;
  dial.result.kind = kind;
  dial.result.rank = dial.rank;
  dial.until = at;
}

}  // namespace shoal::tcp
