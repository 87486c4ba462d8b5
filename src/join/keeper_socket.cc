#include "src/join/keeper_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/join/socket.h"
#include "src/join/startup_exchange.h"
#include "src/join/startup_watch.h"
#include "src/trust/proof.h"
#include "src/trust/refusals.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRetryPause = std::chrono::milliseconds(5);
// For a name that is bound by a socket that does not listen, or whose queue is full: the keeper's is so for a moment at most.
constexpr auto kClosedTimeLimit = std::chrono::seconds(1);
constexpr int kQueue = 2 * kMostKept;

struct SocketAddress {
  sockaddr_un address{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// An abstract name begins with a zero byte. It is of this network namespace, and is free when its socket is closed.
SocketAddress address_of(const std::string& name) {
  SocketAddress made;
  made.address.sun_family = AF_UNIX;
  name.copy(made.address.sun_path + 1, sizeof made.address.sun_path - 1);
  made.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

Descriptor unix_socket() { return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// A connected socket, or an errno.
int dial(const SocketAddress& address, Descriptor* socket) {
  *socket = unix_socket();
  if (!socket->valid()) return errno;
  return ::connect(socket->get(), address.get(), address.size) == 0 ? 0 : errno;
}

// 0, or an errno.
int listen_at(const SocketAddress& address, Descriptor* listener) {
  *listener = unix_socket();
  if (!listener->valid() || ::bind(listener->get(), address.get(), address.size) != 0 || ::listen(listener->get(), kQueue) != 0)
    return errno;
  return 0;
}

Result<StoreConnection> introduce(Descriptor socket, const StoreAddress& address, Clock::time_point deadline) {
  if (!is_of_same_user(socket.get())) {
    count_refusal("store", "the socket at which the ranks of this host meet belongs to another user");
    return Status(StatusCode::unsupported, "the socket at which the ranks of this host meet belongs to another user");
  }
  return introduce_to_store(std::move(socket), address.job, address.key, random_nonce(), "this host's keeper", deadline);
}

}  // namespace

std::string keeper_socket_name(const StoreAddress& address, int group) {
  const std::string store = host_and_port(address.host, address.port);
  const Key name =
      derive_key(address.key, "keeper socket", fmt::format("{}\n{}\n{}\n{}", address.job, store, group, node_identity()));
  return "shoal-" + to_hex(name);
}

Result<StoreConnection> reach_keeper(const std::string& name, const StoreAddress& address, Clock::time_point deadline) {
  Descriptor socket;
  if (const int error = dial(address_of(name), &socket); error != 0)
    return Status(StatusCode::peer_failed, system_error("connect to this host's keeper", error).message());
  return introduce(std::move(socket), address, deadline);
}

KeeperMeeting meet_at_keeper(const std::string& name, const StoreAddress& address, Clock::time_point deadline) {
  const SocketAddress where = address_of(name);
  const auto closed_deadline = std::min(deadline, Clock::now() + kClosedTimeLimit);
  startup_waits_for("the rank of this host that connects to rank 0's store");
  for (;;) {
    Descriptor socket;
    int error = dial(where, &socket);
    if (error == ECONNREFUSED) {
      error = listen_at(where, &socket);
      if (error == 0) return {std::move(socket), std::nullopt};
    } else if (error == 0) {
      auto connection = introduce(std::move(socket), address, deadline);
      if (connection.ok()) return {Descriptor(), std::move(connection).value()};
      // A keeper of an earlier start-up closes the connection, and so does one that has died.
      const StatusCode code = connection.status().code();
      if (code != StatusCode::peer_failed && code != StatusCode::system_error) return {};
    }
    if (error != 0 && error != EADDRINUSE && error != EAGAIN) return {};
    if (Clock::now() >= (error == 0 ? deadline : closed_deadline)) return {};
    ::poll(nullptr, 0, static_cast<int>(kRetryPause.count()));  // the system does not notify of a name that becomes free
  }
}

}  // namespace shoal
