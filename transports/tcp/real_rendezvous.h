// The state behind a Rendezvous: peers, and connections in both directions that have not finished their handshake.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "transports/tcp/rendezvous.h"

namespace shoal::tcp {

inline constexpr std::chrono::milliseconds kFirstRetry{10};
using MeetingTime = std::chrono::steady_clock::time_point;

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

// A connection to this rank that has not finished its handshake.
struct Inbound {
  Descriptor socket;
  MeetingTime until;
  RecordReader reader;
  bool confirming = false;
  std::string records;   // of its handshake; empty before a valid greeting
  std::size_t peer = 0;  // valid after the greeting
  std::size_t index = 0;
};

inline constexpr std::size_t kNotPolled = static_cast<std::size_t>(-1);

// A connection that this rank makes. A knock only shows whether the peer's process still listens.
struct Outbound {
  enum class State { waiting, connecting, replying, accepting, knocking, done };
  std::size_t peer = 0;
  std::size_t index = 0;
  State state = State::waiting;
  Descriptor socket;
  MeetingTime until;  // when to start (waiting) or to end this try
  std::size_t poll_slot = kNotPolled;
  RecordReader reader;
  std::string records;  // of the handshake so far
  std::chrono::milliseconds retry = kFirstRetry;
  bool knock = false;
  bool spoke = false;         // this knock has sent its byte
  bool reached = false;       // this try: the host has taken the connection
  std::size_t hops = 0;       // number of rails that were left for the next one
  std::size_t place = 0;      // of this try: index of the peer's address
  MeetingTime since;          // of this try
  MeetingTime failing_since;  // start of the first failed try in a row; zero: the last one did not fail
  MeetingTime closed_since;   // start of the first try in a row that was closed at once; zero: none
};

struct Peer {
  PeerAddress where;
  bool over = false;
  std::vector<bool> lost;  // by socket index, after startup
  PeerSockets sockets;
  std::size_t missing = 0;
  std::size_t address = 0;   // index of the address in use
  std::vector<bool> denied;  // by address: no process listens there, by all tries since the last other outcome
  std::string last_error;
};

inline std::string words(int error) { return std::generic_category().message(error); }

/// See Rendezvous. Accepting and connecting lie in files of their own.
class RealRendezvous final : public Rendezvous {
 public:
  RealRendezvous(const Identity& self, const Key& key, std::vector<Descriptor> listeners, std::vector<PeerAddress> peers,
                 std::vector<SocketAddress> rails, std::chrono::milliseconds lost_after);
  Result<std::vector<PeerSockets>> connect_all(ConnectDeadline time_limit) override;
  void lose(int rank, std::size_t index, std::chrono::steady_clock::time_point silent_since) override;
  void forget(int rank) override;
  [[nodiscard]] int wait_fd() const noexcept override { return epoll_.get(); }
  [[nodiscard]] bool busy() const noexcept override { return !outbounds_.empty() || !inbounds_.empty() || paused_; }
  void step(Rejoining& links) override;
  void leave_to_parent() noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  Hello hello(HelloKind kind, int to_rank, std::size_t index) const noexcept;
  // Startup has ended: sockets are only replaced.
  [[nodiscard]] bool rejoining() const noexcept { return links_ != nullptr; }
  [[nodiscard]] bool accepts_from(const Peer& peer) const noexcept;
  [[nodiscard]] std::size_t find(int rank) const noexcept;
  void report(const Descriptor& socket, std::uint32_t events) noexcept;
  void report_no_more(const Descriptor& socket) noexcept { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr); }
  bool may_start(const Outbound& outbound) const noexcept;
  void wait(bool block, Clock::time_point until);

  // Listening side: rendezvous_accepting.cc
  void accept_all();
  void accept_from(int listener);
  void pause_listening();
  void listen_again();
  void drop_inbound();
  void count_stranger(std::string_view why);
  void serve_inbounds();
  bool serve(Inbound& inbound, Clock::time_point now);
  bool greet(Inbound& inbound, const std::optional<Hello>& said);
  bool confirm(Inbound& inbound, const std::optional<Hello>& said);

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
  void serve_knock(Outbound& outbound, Clock::time_point now);
  void serve_answering(Outbound& outbound, Clock::time_point now);
  void say_which_rail(const Outbound& outbound) const;

  // Both sides
  bool send_next(int socket, const Hello& next, std::string& records) const;
  bool fill_in_received(Hello& hello, std::size_t index);
  Connection connection(Descriptor socket, std::string_view records, bool connects, const Hello& theirs) const;
  void complete(Peer& peer, std::size_t index, Connection made, std::uint64_t received);
  static void remember_address(Peer& peer, const Descriptor& socket);
  bool check_settings(const Hello& said);
  Status late() const;

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
  Rejoining* links_ = nullptr;                            // set during step()
  std::vector<std::pair<int, std::string>> unreachable_;  // ranks, and why
  std::vector<Peer> peers_;
  std::list<Inbound> inbounds_;
  std::vector<Outbound> outbounds_;
  std::vector<pollfd> polled_;
  std::size_t missing_ = 0;
  std::size_t inbound_limit_ = 0;
  Clock::time_point listen_after_;
  bool paused_ = false;  // until listen_after_, wait_fd() does not report the listeners
  bool may_accept_ = false;
  std::size_t strangers_ = 0;
  std::string stranger_;
  std::string note_;
  Status failure_;
};

}  // namespace shoal::tcp
