// KeeperSockets: authenticated connections between the processes that speak for their hosts.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/trust/admission.h"
#include "transports/tcp/keeper_dials.h"
#include "transports/tcp/keeper_stream.h"
#include "transports/tcp/listeners.h"
#include "transports/tcp/tcp.h"

namespace shoal::tcp {

/// Connects with any process of the job when asked to, and accepts connections of any. Two processes have at most one
/// connection. The handshake is that of links (wire.h), with a key of its own. Where both ask for a connection at the same
/// time, the higher rank's counts: that rank does not answer while its own handshake is in progress, and the lower rank ends
/// its own when it has accepted the other.
///
/// The owner sleeps until a descriptor of append_wait_fds() is ready or next_time() has come, calls step(), and then takes all
/// events. Thread rule: one thread at a time.
class KeeperSockets {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// A connection whose peer has not answered for this long ends; the owner may ask for another one.
  static constexpr std::chrono::milliseconds kSilence{3000};
  static constexpr std::size_t kMostMessageBytes = KeeperStream::kMostBytes;

  struct Event {
    enum class Kind {
      connected,
      lost,        ///< the connection has ended; the peer had not answered for `silent_for`
      message,     ///< `bytes` have arrived
      refused,     ///< as in DialResult: the result of connect()
      silent,      ///< likewise
      unanswered,  ///< likewise
      redirected,  ///< likewise; `keeper` is to be asked
    };
    Kind kind = Kind::connected;
    int rank = 0;
    int keeper = -1;
    Time::duration silent_for{0};
    std::vector<std::byte> bytes;
    std::uint64_t connection = 0;  ///< its number; for this class
  };

  /// `options`: rank, size, key, job id and encryption count. Opens the listeners. Errors: those of make_tcp_transport().
  static Result<std::unique_ptr<KeeperSockets>> open(const TcpOptions& options);
  /// By which peers reach this rank, as Transport::address().
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  /// `addresses`: of all ranks. `redirect`: the rank that accepts connections in place of this one; nothing: this one does.
  /// Before any other call. Errors: invalid_argument for a malformed address.
  Status begin(std::vector<std::string> addresses, std::function<std::optional<int>()> redirect);

  /// Reports `connected` at once where there is a connection.
  void connect(int rank, Time now);
  /// What was sent before still arrives. Reports nothing more about the connection.
  void disconnect(int rank, Time now);
  /// Nothing happens where there is no connection.
  void send(int rank, std::span<const std::byte> message);
  /// Accepts and asks for no more connections, and ends all.
  void leave(Time now);
  /// All that was sent has left this host.
  [[nodiscard]] bool is_flushed() const;
  /// No connection is left that has been told to end.
  [[nodiscard]] bool has_ended_all() const noexcept { return ending_.empty(); }

  void append_wait_fds(std::vector<pollfd>& out, Time now) const;
  [[nodiscard]] Time next_time() const noexcept;
  void step(Time now);
  /// The next event; nothing where there is none. What the owner does in between may make events void.
  std::optional<Event> take_event();

  /// In a child of fork(): closes its copies of the sockets.
  void leave_to_parent() noexcept;
  /// Of the buffers of as many connections as there have been at a time.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  /// A connection to this rank that has not finished its handshake.
  struct Inbound {
    Descriptor socket;
    Time until;
    RecordReader reader;
    std::string records;  // of its handshake; empty before a valid greeting
    int rank = -1;
    std::uint64_t accepted_after = 0;  // the number of the newest connection then
    bool held = false;                 // not answered, since this rank has a handshake with the same process in progress

    [[nodiscard]] bool greeted() const noexcept { return !records.empty(); }
  };
  struct Peer {
    std::unique_ptr<KeeperStream> stream;
    std::uint64_t number = 0;
    Time since;
  };
  struct Ending {
    std::unique_ptr<KeeperStream> stream;
    Time until;
  };

  KeeperSockets(const TcpOptions& options, Listeners listeners);

  void accept_all(Time now);
  /// False where the connection is finished: it became a peer's, or was dropped.
  bool serve(Inbound& inbound, Time now);
  bool greet(Inbound& inbound, const std::optional<Hello>& theirs, Time now);
  bool reply(Inbound& inbound, Time now);
  /// The peer has closed a connection after its greeting. False.
  bool end_unconfirmed(const Inbound& inbound);
  bool confirm(Inbound& inbound, const std::optional<Hello>& theirs, Time now);
  void establish(int rank, Connection connection, Time now);
  void end(std::unique_ptr<KeeperStream> stream, Time now);
  void serve_peer(int rank, Peer& peer, Time now);
  void report(const DialResult& result);
  [[nodiscard]] bool is_ready(int fd) const noexcept;

  KeeperIdentity identity_;
  std::vector<Descriptor> listeners_;
  std::string address_;
  std::function<std::optional<int>()> redirect_;
  std::unique_ptr<KeeperDials> dials_;
  Admission<Inbound> inbounds_;
  std::map<int, Peer> peers_;
  std::vector<Ending> ending_;
  std::deque<Event> events_;
  std::uint64_t numbers_ = 0;
  bool left_ = false;
  std::size_t most_bytes_ = 0;  // memory_bytes()
  std::vector<pollfd> polled_;
  std::vector<DialResult> results_;               // scratch of step()
  std::vector<std::vector<std::byte>> messages_;  // scratch of serve_peer()
};

}  // namespace shoal::tcp
