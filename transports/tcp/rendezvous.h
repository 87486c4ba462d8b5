// Connecting to peers, at startup, on request and after a loss, and authenticating them.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/trust/admission.h"
#include "transports/common/connect_deadline.h"
#include "transports/tcp/address.h"
#include "transports/tcp/connection.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {

/// The values that this rank sends in each handshake; kind, to_rank, socket_index, nonce and received are filled in.
using Identity = Hello;

struct PeerAddress {
  int rank = 0;
  bool at_start = true;                  ///< connect_all() connects it; otherwise request() does
  std::vector<SocketAddress> addresses;  ///< best first; not empty. With rails: one for each, in the order of this rank's own
                                         ///< ones
};

inline constexpr std::chrono::milliseconds kFirstRetry{10};
using TimePoint = std::chrono::steady_clock::time_point;

// Receives one handshake record.
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

/// False where not all of it has left: errno says why.
inline bool send_record(int socket, const HelloRecord& record) noexcept {
  ssize_t n = 0;
  do {
    n = ::send(socket, record.data(), record.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(record.size());
}

// A connection to this rank that has not finished its handshake.
struct Inbound {
  Descriptor socket;
  TimePoint until;
  RecordReader reader;
  std::string records;   // of its handshake; empty before a valid greeting
  std::size_t peer = 0;  // valid after the greeting
  std::size_t index = 0;
  bool requests = false;  // it has sent a request, and stays open until that is fulfilled

  [[nodiscard]] bool greeted() const noexcept { return !records.empty(); }
};

inline constexpr std::size_t kNotPolled = static_cast<std::size_t>(-1);

// A connection that this rank makes. A probe only shows whether the peer's process still listens, and may bring a request.
struct Outbound {
  enum class State { waiting, connecting, replying, accepting, probing, done };
  std::size_t peer = 0;
  std::size_t index = 0;
  State state = State::waiting;
  Descriptor socket;
  TimePoint until;  // when to start (waiting) or to end this try
  std::size_t poll_slot = kNotPolled;
  RecordReader reader;
  std::string records;  // of the handshake so far
  std::chrono::milliseconds retry = kFirstRetry;
  bool probe = false;
  bool sent_byte = false;   // this probe has sent its byte, or its request
  bool reached = false;     // this try: the host has taken the connection
  std::size_t hops = 0;     // number of rails that were left for the next one
  std::size_t place = 0;    // of this try: index of the peer's address
  TimePoint since;          // of this try
  TimePoint failing_since;  // start of the first failed try in a row; zero: the last one did not fail
  TimePoint closed_since;   // start of the first try in a row that was closed at once; zero: none
};

struct Peer {
  PeerAddress where;
  bool ended = false;
  bool requested = false;  // by this rank or the peer; always at startup
  bool made = false;       // all of its sockets have been connected: from now on they are replaced
  std::vector<bool> lost;  // by socket index, after that
  PeerSockets sockets;     // before that
  std::size_t missing = 0;
  std::size_t address = 0;   // index of the address in use
  std::vector<bool> denied;  // by address: no process listens there, by all tries since the last other outcome
  std::string last_error;
};

inline std::string error_text(int error) { return std::generic_category().message(error); }

/// Connects to peers at startup, to others when they are requested, and again where a connection is lost: always the higher
/// rank connects, the lower accepts. A connection is a peer's only when the job id fits and both sides have proven that they
/// hold the key; all other connections are dropped, limited in number and time, and counted in the error and in refusals().
/// Accepting and connecting lie in files of their own. Thread rule: one thread at a time.
class Rendezvous {
 public:
  /// `listeners` are non-blocking and listen. `rails`: own addresses, each on a network of its own; the sockets to a peer use
  /// them in turn, from this rank's end of a rail to the peer's end. Empty: the system chooses the route, and all sockets
  /// take the first address of a peer that answers. `lost_after`: how long a peer's host may be silent, after startup.
  Rendezvous(const Identity& self, const Key& key, std::vector<Descriptor> listeners, std::vector<PeerAddress> peers,
             std::vector<SocketAddress> rails, std::chrono::milliseconds lost_after);

  /// Returns when every socket of the peers at_start has finished its handshake. Connections that are refused or dropped are
  /// tried again until the deadline. The result has the order of `peers`.
  /// Errors: timeout naming each missing rank and why; mismatch where a rank of this job has other settings.
  Result<std::vector<PeerSockets>> connect_all(ConnectDeadline time_limit);

  // After connect_all(); nothing blocks.

  /// Connects to a peer that was not connected at startup: links.open() or links.on_not_connected() tells the outcome. Where
  /// the peer has to connect, it is sent a request: now, or a little later where it requests the connection itself
  /// (`peer_too`).
  void request(int rank, bool peer_too);
  /// A connection is lost: connects again, or waits for the peer to do so and meanwhile checks that it is alive. No effect
  /// where that is in progress. `silent_since`: start of the silence of the peer's host.
  void reconnect(int rank, std::size_t socket_index, TimePoint silent_since);
  /// The link to `rank` has ended.
  void forget(int rank);
  /// Readable where step() has something to do.
  [[nodiscard]] int wait_fd() const noexcept { return epoll_.get(); }
  /// step() will have something to do: call it a few dozen times a second.
  [[nodiscard]] bool busy() const noexcept { return !outbounds_.empty() || !inbounds_.unproven.empty() || paused_; }
  void step(ReconnectHandler& links);
  /// In a child of fork(): closes its copies of the sockets.
  void leave_to_parent() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  Hello hello(HelloKind kind, int to_rank, std::size_t index) const noexcept;
  [[nodiscard]] bool startup_has_ended() const noexcept { return links_ != nullptr; }
  [[nodiscard]] bool accepts_from(const Peer& peer) const noexcept;
  [[nodiscard]] std::size_t find(int rank) const noexcept;
  [[nodiscard]] std::size_t sockets_per_peer() const noexcept { return self_.sockets + std::size_t{1}; }
  void connect_first(std::size_t peer);
  void send_request(std::size_t peer, Clock::time_point when);
  void report_made();
  void report_unreachable();
  void watch(const Descriptor& socket, std::uint32_t events) noexcept;
  void unwatch(const Descriptor& socket) noexcept { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr); }
  bool may_start(const Outbound& outbound) const noexcept;
  void wait(bool block, Clock::time_point until);

  // Listening side: rendezvous_accepting.cc
  void accept_all();
  void accept_from(int listener);
  void pause_listening();
  void resume_listening();
  void serve_inbounds();
  bool serve(Inbound& inbound, Clock::time_point now);
  bool greet(Inbound& inbound, const std::optional<Hello>& theirs);
  bool confirm(Inbound& inbound, const std::optional<Hello>& theirs);
  bool take_request(Inbound& inbound, const Hello& theirs);
  [[nodiscard]] bool still_requests(Inbound& inbound, Clock::time_point now) const noexcept;
  void fail_accepting();

  // Connecting side: rendezvous_connecting.cc
  void start_outbounds();
  /// The error that this process has no descriptor for `what`: the limit, and how many connections are still to be made.
  [[nodiscard]] Status no_descriptors(int error, const std::string& what) const;
  [[nodiscard]] std::size_t place_of(const Outbound& outbound) const noexcept;
  void leave_address(Outbound& outbound) noexcept;
  void start(Outbound& outbound);
  void retry(Outbound& outbound, int error, std::string why);
  void postpone(Outbound& outbound, std::string why);
  [[nodiscard]] std::chrono::milliseconds time_limit_for(const Peer& peer) const noexcept;
  void retry_lost(Outbound& outbound, int error);
  void deny(Peer& peer, std::size_t place);
  void serve_outbounds();
  void serve_connecting(Outbound& outbound, Clock::time_point now);
  void serve_probe(Outbound& outbound, Clock::time_point now);
  void serve_answering(Outbound& outbound, Clock::time_point now);
  void report_rail(const Outbound& outbound) const;

  // Both sides
  bool send_next(int socket, const Hello& next, std::string& records) const;
  bool fill_in_received(const Peer& peer, Hello& hello, std::size_t index);
  Connection connection(Descriptor socket, std::string_view records, bool connects, const Hello& theirs) const;
  PeerSockets take_sockets(Peer& peer);
  void complete(Peer& peer, std::size_t index, Connection made, std::uint64_t received);
  static void remember_address(Peer& peer, const Descriptor& socket);
  bool check_settings(const Hello& theirs);
  Status timed_out() const;

  static constexpr const char* kSilent = "it accepted the connection but did not answer";
  static constexpr const char* kClosed = "it closed the connection during the handshake (does it hold this job's key?)";
  static constexpr const char* kUnconfirmed = "it sent a greeting but could not prove that it holds the job's key";

  const Identity self_;
  const Key key_;
  const std::vector<SocketAddress> rails_;  // this rank's ends
  const std::chrono::milliseconds lost_after_;
  std::vector<Descriptor> listeners_;
  Descriptor epoll_;
  Clock::time_point start_;
  Clock::time_point deadline_;
  ReconnectHandler* links_ = nullptr;                // set during step()
  std::vector<std::pair<int, Status>> unreachable_;  // ranks, and why
  std::vector<std::size_t> made_;                    // peers that have become so in this step
  std::vector<Peer> peers_;
  Admission<Inbound> inbounds_;
  std::vector<Outbound> outbounds_;
  std::vector<pollfd> polled_;
  std::size_t missing_ = 0;  // sockets of the peers at_start
  bool paused_ = false;      // until inbounds_.accept_again(), wait_fd() does not report the listeners
  bool may_accept_ = false;
  Status failure_;
};

}  // namespace shoal::tcp
