#include "transports/rails/rails.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "transports/rails/hub.h"

namespace shoal::rails {
namespace {

/// The Link that a caller holds for a RailsPeer.
class RailsLink final : public Link {
 public:
  RailsLink(std::shared_ptr<Hub> hub, RailsPeer& peer) : hub_(std::move(hub)), peer_(peer) {}
  ~RailsLink() override {
    if (hub_->in_owner()) peer_.leave();
  }
  [[nodiscard]] int peer() const noexcept override { return peer_.remote.rank; }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return hub_->max_tile_bytes(); }
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override { return peer_.send(header, data, false); }
  bool try_lend(const TileHeader& header, std::span<const std::byte> data) override { return peer_.send(header, data, true); }
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return peer_.sender().window().sent(); }
  void keep_copies() override { peer_.sender().keep_copies(); }
  [[nodiscard]] const Arrival* peek() noexcept override { return peer_.received().peek(); }
  void release() noexcept override { peer_.release(); }
  [[nodiscard]] const Status& status() const noexcept override { return peer_.status(); }

 private:
  const std::shared_ptr<Hub> hub_;
  RailsPeer& peer_;
};

class RailsTransport final : public Transport {
 public:
  explicit RailsTransport(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}
  ~RailsTransport() override { hub_->close(); }

  [[nodiscard]] std::string_view name() const noexcept override { return hub_->name(); }
  [[nodiscard]] std::string address() const override { return hub_->address(); }
  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                     ConnectDeadline time_limit) override {
    auto connected = hub_->connect(peers, addresses, std::move(time_limit));
    if (!connected.ok()) return connected.status();
    std::vector<std::unique_ptr<Link>> links;
    for (RailsPeer* peer : *connected) links.push_back(std::make_unique<RailsLink>(hub_, *peer));
    return links;
  }
  bool progress() override { return hub_->progress(); }
  [[nodiscard]] int wait_fd() const noexcept override { return hub_->wait_fd(); }
  bool prepare_wait() override { return hub_->prepare_wait(); }
  void finish_wait(bool readable) override { hub_->finish_wait(readable); }
  void use_check_sums() noexcept override { hub_->use_check_sums(); }
  void leave_to_parent() noexcept override { hub_->leave_to_parent(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return hub_->memory_bytes(); }

 private:
  const std::shared_ptr<Hub> hub_;
};

}  // namespace

Status check(const Options& options) {
  const auto bad = [&](const std::string& text) {
    return Status(StatusCode::invalid_argument, options.transport + ": " + text);
  };
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

// While the caller computes, no thread reads the completion queue: it needs room for all operations that may complete
// meanwhile. Writes may turn out to be emulated when the rails are open; then all tiles are sent.
std::size_t operations_of(const Options& options, std::span<const RailTraits> rails) {
  const auto peers = static_cast<std::size_t>(std::max(options.size - 1, 1));
  std::vector<RailTraits> sending(rails.begin(), rails.end());
  for (RailTraits& each : sending) each.max_write_bytes = 0;
  std::size_t most = 0;
  for (const std::span<const RailTraits> each : {rails, std::span<const RailTraits>(sending)}) {
    const LinkShape shape = shape_of(options, each);
    if (shape.piece_bytes < kRecordBytes) continue;  // no transport can use these rails
    for (const RailTraits& rail : each) most = std::max(most, peers * shape.completions(rail));
  }
  return most;
}

Result<std::unique_ptr<Transport>> make_transport(const Options& options, std::vector<std::unique_ptr<Rail>> rails) {
  auto hub = Hub::make(options, std::move(rails));
  if (!hub.ok()) return hub.status();
  return std::unique_ptr<Transport>(std::make_unique<RailsTransport>(std::move(*hub)));
}

}  // namespace shoal::rails
