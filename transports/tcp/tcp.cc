#include "transports/tcp/tcp.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "transports/tcp/address.h"
#include "transports/tcp/link.h"
#include "transports/tcp/reactor.h"
#include "transports/tcp/rendezvous.h"

namespace shoal {
namespace tcp {
namespace {

constexpr std::size_t kMinTileBytes = 64;
constexpr std::size_t kMaxTileBytes = 16 << 20;
constexpr int kBacklog = 4096;
// A socket holds at most this much that is not yet on its way: what a slow flow has pulled is late, and all tiles behind it
// wait.
constexpr int kUnsentBytes = 1 << 20;

void set_option(int socket, int level, int name, int value) noexcept {
  // Tuning only: a kernel that refuses one of these still moves the bytes.
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
}

void tune(int socket) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
  // A host that vanishes while nothing is under way is noticed after ten seconds.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 8);
}

// The listener's own address: the one that is advertised, or any where several are.
Result<Descriptor> bind_and_listen(const SocketAddress& address) {
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto failed = [&] { return system_error(fmt::format("tcp: listen on {}", address.to_string()), errno); };
  if (!socket.valid()) return failed();
  if (address.port() != 0) set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(socket.get(), address.raw(), address.length()) != 0 || ::listen(socket.get(), kBacklog) != 0) return failed();
  return socket;
}

struct Listener {
  Descriptor socket;
  std::vector<SocketAddress> advertised;
};

Result<Listener> open_listener(const TcpOptions& options) {
  auto advertised = local_addresses(options.interface_or_address);
  if (!advertised.ok()) return advertised.status();
  SocketAddress own = advertised->front();
  if (advertised->size() > 1) {
    const bool any_six =
        std::any_of(advertised->begin(), advertised->end(), [](const auto& a) { return a.family() == AF_INET6; });
    own = *parse_host(any_six ? "::" : "0.0.0.0");
  }
  own.set_port(options.port);
  auto socket = bind_and_listen(own);
  if (!socket.ok()) return socket.status();
  SocketAddress bound;
  socklen_t length = sizeof bound.storage;
  if (::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&bound.storage), &length) != 0) {
    return system_error("tcp: getsockname", errno);
  }
  for (SocketAddress& address : *advertised) address.set_port(bound.port());
  return Listener{std::move(*socket), std::move(*advertised)};
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(const TcpOptions& options, Listener listener, std::shared_ptr<Reactor> reactor)
      : options_(options), listener_(std::move(listener)), reactor_(std::move(reactor)) {}
  ~TcpTransport() override { reactor_->close_all(); }

  [[nodiscard]] std::string_view name() const noexcept override { return "tcp"; }
  [[nodiscard]] std::string address() const override { return join_addresses(listener_.advertised); }

  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                     std::chrono::steady_clock::time_point deadline) override {
    auto where = check(peers, addresses);
    if (!where.ok()) return where.status();
    Identity self;
    self.job_id = options_.job_id;
    self.from_rank = static_cast<std::uint32_t>(options_.rank);
    self.size = static_cast<std::uint32_t>(options_.size);
    self.sockets = static_cast<std::uint16_t>(options_.sockets_per_peer);
    self.tile_bytes = options_.tile_bytes;
    auto connected = connect_peers(self, listener_.socket.get(), *where, deadline);
    listener_.socket.reset();  // nobody else is expected
    if (!connected.ok()) return connected.status();
    std::vector<std::unique_ptr<Link>> links;
    for (PeerSockets& peer : *connected) {
      for (const Descriptor& socket : peer.sockets) tune(socket.get());
      auto link = TcpLink::make(reactor_, peer.rank, std::move(peer.address), std::move(peer.sockets), options_.tile_bytes,
                                options_.tiles_per_socket);
      if (!link.ok()) return link.status();
      links.push_back(std::move(*link));
    }
    return links;
  }

  bool progress() override { return reactor_->progress(); }
  [[nodiscard]] int wait_fd() const noexcept override { return reactor_->wait_fd(); }
  bool prepare_wait() override { return reactor_->prepare_wait(); }
  void finish_wait() override { reactor_->finish_wait(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return reactor_->memory_bytes(); }

 private:
  Result<std::vector<PeerAddress>> check(std::span<const int> peers, std::span<const std::string> addresses) const {
    const auto bad = [](std::string text) { return Status(StatusCode::invalid_argument, "tcp: connect: " + std::move(text)); };
    if (!listener_.socket.valid()) return bad("was called before");
    if (peers.size() != addresses.size()) return bad(fmt::format("{} peers but {} addresses", peers.size(), addresses.size()));
    std::vector<PeerAddress> where;
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const int rank = peers[i];
      if (rank < 0 || rank >= options_.size || rank == options_.rank)
        return bad(fmt::format("rank {} is no peer of rank {}", rank, options_.rank));
      if (std::find(peers.begin(), peers.begin() + static_cast<std::ptrdiff_t>(i), rank) !=
          peers.begin() + static_cast<std::ptrdiff_t>(i)) {
        return bad(fmt::format("rank {} is named twice", rank));
      }
      auto parsed = split_addresses(addresses[i]);
      if (!parsed.ok()) return bad(fmt::format("the address of rank {}: {}", rank, parsed.status().message()));
      where.push_back({rank, std::move(*parsed)});
    }
    return where;
  }

  const TcpOptions options_;
  Listener listener_;
  std::shared_ptr<Reactor> reactor_;
};

Status check(const TcpOptions& options) {
  const auto bad = [](std::string text) { return Status(StatusCode::invalid_argument, "tcp: " + std::move(text)); };
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return bad(fmt::format("rank {} of {} ranks does not exist", options.rank, options.size));
  }
  if (options.sockets_per_peer < 1 || options.sockets_per_peer > 16) {
    return bad(fmt::format("{} sockets per peer; 1 to 16 are possible", options.sockets_per_peer));
  }
  if (options.tile_bytes < kMinTileBytes || options.tile_bytes > kMaxTileBytes) {
    return bad(fmt::format("tiles of {} bytes; {} to {} are possible", options.tile_bytes, kMinTileBytes, kMaxTileBytes));
  }
  if (options.tiles_per_socket < 2 || options.tiles_per_socket > 64) {
    return bad(fmt::format("room for {} tiles per socket; 2 to 64 are possible", options.tiles_per_socket));
  }
  return {};
}

}  // namespace
}  // namespace tcp

Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options) {
  const Status checked = tcp::check(options);
  if (!checked.ok()) return checked;
  auto listener = tcp::open_listener(options);
  if (!listener.ok()) return listener.status();
  auto reactor = tcp::Reactor::make();
  if (!reactor.ok()) return reactor.status();
  return std::unique_ptr<Transport>(std::make_unique<tcp::TcpTransport>(options, std::move(*listener), std::move(*reactor)));
}

}  // namespace shoal
