#include "transports/ofi/ofi.h"

#include <utility>

#include <fmt/format.h>

#include "transports/ofi/hub.h"
#include "transports/ofi/libfabric.h"

namespace shoal {
namespace ofi {
namespace {

/// What users hold of a Lane.
class OfiLink final : public Link {
 public:
  OfiLink(std::shared_ptr<Hub> hub, Lane& lane) : hub_(std::move(hub)), lane_(lane) {}
  ~OfiLink() override {
    if (hub_->in_owner()) lane_.leave();
  }
  [[nodiscard]] int peer() const noexcept override { return lane_.peer(); }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return lane_.shape().tile_bytes; }
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override { return lane_.try_send(header, data); }
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return lane_.sent(); }
  [[nodiscard]] const Arrival* peek() noexcept override { return lane_.peek(); }
  void release() noexcept override { lane_.release(); }
  [[nodiscard]] const Status& status() const noexcept override { return lane_.status(); }

 private:
  const std::shared_ptr<Hub> hub_;
  Lane& lane_;
};

class OfiTransport final : public Transport {
 public:
  explicit OfiTransport(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}
  ~OfiTransport() override { hub_->close(); }

  [[nodiscard]] std::string_view name() const noexcept override { return "ofi"; }
  [[nodiscard]] std::string address() const override { return hub_->address(); }
  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                     std::chrono::steady_clock::time_point deadline) override {
    auto lanes = hub_->connect(peers, addresses, deadline);
    if (!lanes.ok()) return lanes.status();
    std::vector<std::unique_ptr<Link>> links;
    for (Lane* lane : *lanes) links.push_back(std::make_unique<OfiLink>(hub_, *lane));
    return links;
  }
  bool progress() override { return hub_->progress(); }
  [[nodiscard]] int wait_fd() const noexcept override { return hub_->wait_fd(); }
  bool prepare_wait() override { return hub_->prepare_wait(); }
  void finish_wait(bool readable) override { hub_->finish_wait(readable); }
  void leave_to_parent() noexcept override { hub_->leave_to_parent(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return hub_->memory_bytes(); }

 private:
  const std::shared_ptr<Hub> hub_;
};

Status check(const OfiOptions& options) {
  const auto bad = [](std::string text) { return Status(StatusCode::invalid_argument, "ofi: " + std::move(text)); };
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size)
    return bad(fmt::format("rank {} of {} ranks does not exist", options.rank, options.size));
  if (options.tile_bytes < 512 || options.tile_bytes > (8 << 20))
    return bad(fmt::format("tiles of {} bytes; 512 to 8388608 are possible", options.tile_bytes));
  if (options.tiles_per_peer < 2 || options.tiles_per_peer > kMaxWindow)
    return bad(fmt::format("{} tiles per peer; 2 to {} are possible", options.tiles_per_peer, kMaxWindow));
  if (options.stripe_bytes < 1024)
    return bad(fmt::format("stripes of {} bytes; at least 1024 are possible", options.stripe_bytes));
  return {};
}

}  // namespace
}  // namespace ofi

Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options) {
  if (Status status = ofi::check(options); !status.ok()) return status;
  std::shared_ptr<ofi::Fabric> fabric = options.fabric;
  if (fabric == nullptr) {
    auto found = ofi::libfabric();
    if (!found.ok()) return found.status();
    fabric = std::move(*found);
  }
  ofi::RailRequest request;
  request.provider = options.provider;
  request.devices = options.devices;
  request.near = options.near;
  request.share = options.share;
  request.shares = options.shares;
  request.peers = static_cast<std::size_t>(options.size);
  // Nothing reads the queue while its owner computes: room for all that may end meanwhile.
  request.operations = 4096 + 16 * request.peers * options.tiles_per_peer;
  auto rails = fabric->open(request);
  if (!rails.ok()) return rails.status();
  auto hub = ofi::Hub::make(options, std::move(*rails));
  if (!hub.ok()) return hub.status();
  return std::unique_ptr<Transport>(std::make_unique<ofi::OfiTransport>(std::move(*hub)));
}

Result<std::vector<OfiProvider>> ofi_providers() { return ofi::libfabric_providers(); }

}  // namespace shoal
