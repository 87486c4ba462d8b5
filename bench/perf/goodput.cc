#include "bench/perf/goodput.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/perf/agree.h"

namespace shoal::perf {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTimeLimit = std::chrono::seconds(5);
constexpr auto kWindow = std::chrono::milliseconds(100);
constexpr int kWindows = 3;
constexpr std::size_t kBufferBytes = 256 << 10;
constexpr std::size_t kMostAddressBytes = 900;  // somewhat below the limit of gather_text()

/// First message of a stream. It distinguishes an expected connection from an unrelated one, and the next node's listener
/// from this host's own.
struct Hello {
  std::uint64_t job;
  std::uint64_t receiver;
};

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int fd() const { return fd_; }

  void set_time_limit() const {
    const timeval time_limit{std::chrono::seconds(kTimeLimit).count(), 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time_limit, sizeof time_limit);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &time_limit, sizeof time_limit);
  }

 private:
  int fd_;
};

std::string of_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// Where this host listens, and the addresses at which other hosts may reach it.
struct Place {
  std::string listens_on;  ///< the chosen address; empty: none was chosen, and it listens on every address
  std::string addresses;   ///< separated by blanks, best first
};

/// SHOAL_HOST_ADDRESS, else the address of SHOAL_SOCKET_IFNAME, else all addresses of this host that other hosts may be able
/// to reach.
Result<Place> own_place() {
  if (const std::string given = of_environment("SHOAL_HOST_ADDRESS"); !given.empty()) return Place{given, given};
  const std::string interface = of_environment("SHOAL_SOCKET_IFNAME");
  std::string addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return system_error("the addresses of this host", errno);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (interface.empty() ? (entry->ifa_flags & IFF_LOOPBACK) != 0 : interface != entry->ifa_name) continue;
    if (entry->ifa_addr->sa_family != AF_INET || addresses.size() > kMostAddressBytes) continue;
    if (!interface.empty() && !addresses.empty()) continue;  // one address is enough
    char host[NI_MAXHOST];
    if (getnameinfo(entry->ifa_addr, sizeof(sockaddr_in), host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    addresses += fmt::format("{}{}", addresses.empty() ? "" : " ", host);
  }
  freeifaddrs(list);
  if (!interface.empty() && addresses.empty())
    return Status(StatusCode::not_found, fmt::format("goodput: SHOAL_SOCKET_IFNAME '{}' has no IPv4 address here", interface));
  return Place{interface.empty() ? std::string() : addresses, addresses};
}

/// `host` as an address for sockets; null if it is not an address.
std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

/// Listens on a free port of `host`, or of every address if `host` is empty.
Result<Socket> listen_on(const std::string& host, int& port) {
  const auto place = resolve(host.empty() ? "0.0.0.0" : host, 0);
  if (!place)
    return Status(StatusCode::invalid_argument, fmt::format("goodput: '{}' is not an address; see SHOAL_HOST_ADDRESS", host));
  Socket listener(socket(place->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (listener.fd() < 0 || bind(listener.fd(), place->ai_addr, place->ai_addrlen) != 0 || listen(listener.fd(), 16) != 0 ||
      getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return system_error(fmt::format("goodput: listen on {}", host.empty() ? "every address" : host), errno);
  }
  port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
  return listener;
}

/// A connection to one address, or an empty Socket if it is not made within a second.
Socket try_connect(const std::string& host, int port) {
  const auto place = resolve(host, port);
  if (!place) return Socket();
  Socket socket_of(socket(place->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool started = connect(socket_of.fd(), place->ai_addr, place->ai_addrlen) == 0 || errno == EINPROGRESS;
  pollfd waiting{socket_of.fd(), POLLOUT, 0};
  int error = 0;
  socklen_t length = sizeof error;
  if (!started || poll(&waiting, 1, 1000) != 1 || getsockopt(socket_of.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 ||
      error != 0) {
    return Socket();
  }
  fcntl(socket_of.fd(), F_SETFL, fcntl(socket_of.fd(), F_GETFL) & ~O_NONBLOCK);
  socket_of.set_time_limit();
  return socket_of;
}

/// Tries the addresses in turn; the intended receiver answers the Hello.
Result<Socket> connect_to(const std::string& addresses, int port, const Hello& hello) {
  for (std::size_t start = 0; start < addresses.size();) {
    const std::size_t end = std::min(addresses.find(' ', start), addresses.size());
    Socket stream = try_connect(addresses.substr(start, end - start), port);
    start = end + 1;
    char answer = 0;
    if (stream.fd() >= 0 && send(stream.fd(), &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello &&
        recv(stream.fd(), &answer, 1, 0) == 1) {
      return stream;
    }
  }
  return Status(StatusCode::timeout,
                fmt::format("goodput: the next node did not answer at any of '{}' port {}; set SHOAL_HOST_ADDRESS "
                            "on every host to its address",
                            addresses, port));
}

Result<Socket> accept_stream(const Socket& listener, const Hello& expected) {
  const auto deadline = Clock::now() + kTimeLimit;
  while (Clock::now() < deadline) {
    pollfd waiting{listener.fd(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) != 1) break;
    Socket stream(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (stream.fd() < 0) continue;
    stream.set_time_limit();
    Hello hello{};
    if (recv(stream.fd(), &hello, sizeof hello, MSG_WAITALL) != sizeof hello) continue;
    if (hello.job != expected.job || hello.receiver != expected.receiver) continue;
    const char answer = 1;
    if (send(stream.fd(), &answer, 1, MSG_NOSIGNAL) == 1) return stream;
  }
  return Status(StatusCode::timeout, "goodput: the previous node did not connect");
}

/// Sends until the receiver has had time for its windows, and ends the stream by closing it.
void send_stream(const Socket& stream) {
  const std::vector<char> data(kBufferBytes, 'x');
  const auto end = Clock::now() + (kWindows + 2) * kWindow;
  while (Clock::now() < end && send(stream.fd(), data.data(), data.size(), MSG_NOSIGNAL) > 0) {
  }
  shutdown(stream.fd(), SHUT_WR);
}

/// GB/s of the best window.
double receive_stream(const Socket& stream) {
  std::vector<char> data(kBufferBytes);
  double best = 0;
  std::size_t bytes = 0;
  int windows = -1;  // the first window, in which TCP speeds up, does not count
  auto start = Clock::now();
  for (;;) {
    const ssize_t received = recv(stream.fd(), data.data(), data.size(), 0);
    if (received <= 0) return best;
    bytes += static_cast<std::size_t>(received);
    const auto now = Clock::now();
    if (now - start < kWindow || windows >= kWindows) continue;
    const double seconds = std::chrono::duration<double>(now - start).count();
    if (windows >= 0) best = std::max(best, static_cast<double>(bytes) * 1e-9 / seconds);
    ++windows;
    bytes = 0;
    start = now;
  }
}

/// State of a leader: its own listener, and its port and addresses for the neighbour.
struct Ring {
  Socket listener;
  std::string own;  ///< "port address address ..."
};

Result<double> stream_through(const Ring& ring, const std::string& next, std::uint64_t job, std::uint64_t own_rank,
                              std::uint64_t next_rank) {
  int port = 0;
  const char* const end = next.data() + next.size();
  const std::from_chars_result read = std::from_chars(next.data(), end, port);
  if (read.ec != std::errc() || port < 1 || port > 65535 || end - read.ptr < 2 || *read.ptr != ' ')
    return Status(StatusCode::not_found, fmt::format("goodput: the next node sent '{}', not its port and addresses", next));
  Result<Socket> outgoing = Status(StatusCode::internal, "not connected");
  std::thread connector([&] { outgoing = connect_to(std::string(read.ptr + 1, end), port, {job, next_rank}); });
  Result<Socket> incoming = accept_stream(ring.listener, {job, own_rank});
  connector.join();
  if (!outgoing.ok()) return outgoing.status();
  if (!incoming.ok()) return incoming.status();
  std::thread sender([&] { send_stream(*outgoing); });
  const double gbs = receive_stream(*incoming);
  sender.join();
  if (gbs <= 0) return Status(StatusCode::peer_failed, "goodput: the stream of the previous node ended early");
  return gbs;
}

}  // namespace

Result<double> measure_goodput(Communicator& communicator) {
  if (communicator.nodes() < 2) return 0.0;
  const bool leads = communicator.local_rank() == 0;
  Ring ring;
  Status status;
  if (leads) {
    int port = 0;
    const Result<Place> place = own_place();
    Result<Socket> listener = place.ok() ? listen_on(place->listens_on, port) : place.status();
    status = listener.status();
    if (listener.ok()) ring = {*std::move(listener), fmt::format("{} {}", port, place->addresses)};
  }
  if (status = agree(communicator, status); !status.ok()) return status;
  Result<std::vector<std::string>> places = gather_text(communicator, ring.own);
  if (!places.ok()) return places.status();
  Result<double> job = decide(communicator, static_cast<double>(std::random_device{}()));
  if (!job.ok()) return job.status();

  double gbs = 0;
  if (leads) {
    const std::size_t ranks = places->size();
    auto next = static_cast<std::size_t>(communicator.rank());
    do next = (next + 1) % ranks;
    while ((*places)[next].empty());
    Result<double> measured = stream_through(ring, (*places)[next], static_cast<std::uint64_t>(*job),
                                             static_cast<std::uint64_t>(communicator.rank()), static_cast<std::uint64_t>(next));
    status = measured.status();
    if (measured.ok()) gbs = *measured;
  }
  if (status = agree(communicator, status); !status.ok()) return status;
  Result<std::vector<std::vector<double>>> all = gather(communicator, {gbs});
  if (!all.ok()) return all.status();
  double slowest = 0;
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    if ((*places)[rank].empty()) continue;
    slowest = slowest == 0 ? (*all)[rank][0] : std::min(slowest, (*all)[rank][0]);
  }
  return slowest;
}

}  // namespace shoal::perf
