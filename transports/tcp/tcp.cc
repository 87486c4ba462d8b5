#include "transports/tcp/tcp.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "transports/common/checksum.h"
#include "transports/tcp/address.h"
#include "transports/tcp/link.h"
#include "transports/tcp/listeners.h"
#include "transports/tcp/packing_kernels.h"
#include "transports/tcp/reactor.h"
#include "transports/tcp/rendezvous.h"

namespace shoal {
namespace tcp {
namespace {

constexpr std::size_t kMinTileBytes = 64;
constexpr std::size_t kMaxTileBytes = 16 << 20;
constexpr std::chrono::seconds kMinLostAfter{5};  // three retransmissions or probes, and a reserve
constexpr std::chrono::hours kMaxLostAfter{240};

class TcpTransport final : public Transport {
 public:
  TcpTransport(const TcpOptions& options, Listeners listeners, std::shared_ptr<Reactor> reactor)
      : options_(options), listeners_(std::move(listeners)), reactor_(std::move(reactor)) {}
  ~TcpTransport() override { reactor_->close_all(); }

  [[nodiscard]] std::string_view name() const noexcept override { return "tcp"; }
  [[nodiscard]] std::string address() const override { return join_addresses(listeners_.advertised); }

  void connect_only(std::span<const int> ranks) override { only_.emplace(ranks.begin(), ranks.end()); }
  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                     ConnectDeadline time_limit) override {
    auto where = check(peers, addresses);
    if (!where.ok()) return where.status();
    std::vector<std::string> first_addresses;
    for (PeerAddress& peer : *where) {
      peer.at_start = !only_ || std::ranges::find(*only_, peer.rank) != only_->end();
      first_addresses.push_back(peer.addresses.front().to_string());
    }
    Identity self;
    self.job_id = options_.job_id;
    self.from_rank = static_cast<std::uint32_t>(options_.rank);
    self.size = static_cast<std::uint32_t>(options_.size);
    self.sockets = static_cast<std::uint16_t>(options_.sockets_per_peer);
    self.integrity = options_.integrity ? 1 : 0;
    if (options_.encryption) self.encryption = kEncrypted | (has_aes() ? kHasAes : 0);
    self.tile_bytes = static_cast<std::uint32_t>(options_.tile_bytes);
    auto rails = options_.rails.empty() ? std::vector<SocketAddress>() : listeners_.advertised;
    auto rendezvous = std::make_unique<Rendezvous>(self, options_.key, std::exchange(listeners_.sockets, {}), std::move(*where),
                                                   std::move(rails), options_.lost_after);
    auto connected = rendezvous->connect_all(std::move(time_limit));
    if (!connected.ok()) return connected.status();
    const LinkShape shape{options_.tile_bytes,       options_.tiles_per_socket,
                          options_.sockets_per_peer, options_.integrity && !options_.encryption,
                          !options_.rails.empty(),   options_.lend_from_bytes,
                          options_.packing,          options_.lost_after};
    std::vector<std::unique_ptr<Link>> links;
    auto next = connected->begin();  // in the order of the peers, but for those that are not connected
    for (std::size_t i = 0; i < peers.size(); ++i) {
      auto link = std::make_unique<TcpLink>(reactor_, peers[i], std::move(first_addresses[i]), shape);
      if (next != connected->end() && next->rank == peers[i]) {
        if (Status opened = link->open(std::move(next->address), std::move(next->sockets)); !opened.ok()) return opened;
        ++next;
      }
      links.push_back(std::move(link));
    }
    const auto reconnects = reactor_->reconnect_by(std::move(rendezvous));
    if (!reconnects.ok()) return reconnects.status();
    return links;
  }

  bool progress() override { return reactor_->progress(); }
  bool take_active(std::vector<Link*>& links) override {
    reactor_->take_active(links);
    return true;
  }
  [[nodiscard]] int wait_fd() const noexcept override { return reactor_->wait_fd(); }
  bool prepare_wait() override { return reactor_->prepare_wait(); }
  void finish_wait(bool readable) override { reactor_->finish_wait(readable); }
  void use_check_sums() noexcept override {
    if (!options_.encryption) reactor_->use_check_sums();
  }
  void use_packing() noexcept override { reactor_->use_packing(); }
  void leave_to_parent() noexcept override { reactor_->leave_to_parent(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return reactor_->memory_bytes(); }

 private:
  Result<std::vector<PeerAddress>> check(std::span<const int> peers, std::span<const std::string> addresses) const {
    const auto bad = [](std::string text) { return Status(StatusCode::invalid_argument, "tcp: connect: " + std::move(text)); };
    if (listeners_.sockets.empty()) return bad("was called before");
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
      if (!options_.rails.empty() && parsed->size() != options_.rails.size()) {
        return Status(StatusCode::mismatch,
                      fmt::format("tcp: rank {} has {} rails, rank {} has {}; give all ranks as many (SHOAL_RAILS)", rank,
                                  parsed->size(), options_.rank, options_.rails.size()));
      }
      where.push_back({.rank = rank, .addresses = std::move(*parsed)});
    }
    return where;
  }

  const TcpOptions options_;
  std::optional<std::vector<int>> only_;  // of connect_only()
  Listeners listeners_;
  std::shared_ptr<Reactor> reactor_;
};

Status check(const TcpOptions& options) {
  const auto bad = [](std::string text) { return Status(StatusCode::invalid_argument, "tcp: " + std::move(text)); };
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return bad(fmt::format("rank {} of {} ranks does not exist", options.rank, options.size));
  }
  if (options.rails.size() > kMaxAdvertised)
    return bad(fmt::format("{} rails; at most {} are possible", options.rails.size(), kMaxAdvertised));
  if (options.sockets_per_peer < 1 || options.sockets_per_peer > static_cast<int>(kMostSockets)) {
    return bad(fmt::format("{} sockets per peer; 1 to {} are possible", options.sockets_per_peer, kMostSockets));
  }
  if (options.tile_bytes < kMinTileBytes || options.tile_bytes > kMaxTileBytes) {
    return bad(fmt::format("tiles of {} bytes; {} to {} are possible", options.tile_bytes, kMinTileBytes, kMaxTileBytes));
  }
  if (options.lost_after < kMinLostAfter || options.lost_after > kMaxLostAfter) {
    return bad(fmt::format("a peer is lost after {:.3g} s of silence; {} to {} are possible (SHOAL_LOST_AFTER)",
                           std::chrono::duration<double>(options.lost_after).count(), kMinLostAfter.count(),
                           std::chrono::seconds(kMaxLostAfter).count()));
  }
  if (options.tiles_per_socket < 1 || options.tiles_per_socket > 64) {
    return bad(fmt::format("room for {} tiles per socket; 1 to 64 are possible", options.tiles_per_socket));
  }
  return {};
}

}  // namespace
}  // namespace tcp

bool tcp_check_sums_are_fast() noexcept { return crc32c_is_fast(); }
bool tcp_packing_is_fast() noexcept { return tcp::packing_kernels().fast; }

Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options) {
  const Status checked = tcp::check(options);
  if (!checked.ok()) return checked;
  auto listeners = tcp::open_listeners(options);
  if (!listeners.ok()) return listeners.status();
  auto reactor = tcp::Reactor::make(options.link_memory_bytes);
  if (!reactor.ok()) return reactor.status();
  return std::unique_ptr<Transport>(std::make_unique<tcp::TcpTransport>(options, std::move(*listeners), std::move(*reactor)));
}

}  // namespace shoal
