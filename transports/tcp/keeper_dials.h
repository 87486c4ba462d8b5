// KeeperDials: the connections that the keeper of a host asks other hosts for.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transports/tcp/address.h"
#include "transports/tcp/connection.h"
#include "transports/tcp/rendezvous.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {

/// How an attempt to connect with a process has ended.
struct DialResult {
  enum class Kind {
    connected,
    redirected,  ///< the process is not the keeper of its host, `keeper` is
    refused,     ///< its system has answered at all of its addresses that no process listens there
    silent,      ///< its system has not answered
    unanswered,  ///< its system has answered, but not its process; or nothing is known
  };
  Kind kind = Kind::unanswered;
  int rank = 0;
  int keeper = -1;
  Connection connection;
};

/// What a handshake needs to know of this rank.
struct KeeperIdentity {
  Hello hello;  ///< without kind, to_rank, nonce and received
  Key key;
  std::vector<SocketAddress> rails;  ///< own ends; empty: the system chooses the route

  [[nodiscard]] Hello to(int rank, HelloKind kind) const noexcept {
    Hello made = hello;
    made.kind = kind;
    made.to_rank = static_cast<std::uint32_t>(rank);
    return made;
  }
  /// `records`: of the handshake that authenticated the socket, greeting and reply first.
  [[nodiscard]] Connection connection(Descriptor socket, const std::string& records, bool dialled, const Hello& theirs) const;
  /// Appends the record to `records`. False where it cannot be sent.
  bool send(int socket, const Hello& next, std::string& records) const;
};

/// All addresses of a process are tried, one after the other. A process is asked again after a pause that grows, so that no
/// loop of answers keeps two hosts busy. Nothing blocks. Thread rule: one thread at a time.
class KeeperDials {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `addresses`: by rank, as join_addresses() makes them. `identity` outlives it.
  KeeperDials(const KeeperIdentity& identity, std::vector<std::string> addresses);

  /// No effect where that is in progress.
  void dial(int rank, Time now);
  void cancel(int rank) noexcept;
  void cancel_all() noexcept { dials_.clear(); }
  /// This rank has begun a handshake with `rank`.
  [[nodiscard]] bool is_dialling(int rank) const noexcept;
  /// A connection with `rank` has ended, which was up for `time`.
  void note_lifetime(int rank, Time::duration time);

  void append_wait_fds(std::vector<pollfd>& out) const;
  [[nodiscard]] Time next_time() const noexcept;
  /// Appends the results. `polled`: as poll() left it.
  void step(const std::vector<pollfd>& polled, Time now, std::vector<DialResult>& results);

 private:
  struct Dial {
    enum class State { waiting, connecting, replying, accepting, ended };
    int rank = 0;
    State state = State::waiting;
    Time until;  // when to start (waiting), or to end this try
    Time began;  // the first try
    std::vector<SocketAddress> addresses;
    std::size_t place = 0;
    std::size_t refusals = 0;  // addresses that have refused
    bool reached = false;      // some host has taken the connection
    bool closed = false;       // some host has taken it, and closed it at once
    bool lacks_resource = false;
    Descriptor socket;
    RecordReader reader;
    std::string records;
    DialResult result;  // where the state is ended
  };
  struct History {
    Time tried_at{};  // the latest try began
    std::chrono::milliseconds pause{0};
    Time closed_since{};  // the first of the tries in a row whose connections were closed at once; zero: none
  };

  void start(Dial& dial, Time now);
  void serve(Dial& dial, short events, Time now);
  void answer(Dial& dial, Time now);
  /// Goes on with the next address. `error`: an errno value; 0: the peer has closed the connection.
  void fail(Dial& dial, int error, Time now);
  void conclude(Dial& dial, Time now);
  static void end(Dial& dial, DialResult::Kind kind, Time at);

  const KeeperIdentity& identity_;
  const std::vector<std::string> addresses_;
  std::deque<Dial> dials_;
  std::map<int, History> history_;  // by rank
};

}  // namespace shoal::tcp
