#include "src/communicator/probe.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr int kWarmUps = 4;
constexpr int kRoundTrips = 24;
constexpr std::size_t kNetworkStreamBytes = 2 << 20;  // well beyond the burst that a shaped link lets through
constexpr std::size_t kMemoryStreamBytes = 1 << 20;
constexpr auto kPatience = std::chrono::seconds(5);

// One end of a probed link. Both ends run the same script; the lower rank leads and measures.
class Prober {
 public:
  Prober(Transport& transport, Link& link, bool leads)
      : transport_(transport), link_(link), leads_(leads), tile_(link.max_tile_bytes()) {}

  std::optional<LinkCost> run(std::size_t stream_bytes) {
    std::array<double, kRoundTrips> round_trips{};
    for (int i = -kWarmUps; i < kRoundTrips; ++i) {
      const auto start = Clock::now();
      if (!(leads_ ? send(8) && receive() : receive() && send(8))) return std::nullopt;
      if (i >= 0) round_trips[static_cast<std::size_t>(i)] = microseconds(Clock::now() - start);
    }
    std::nth_element(round_trips.begin(), round_trips.begin() + kRoundTrips / 2, round_trips.end());
    const double latency = round_trips[kRoundTrips / 2] / 2;

    const std::size_t tiles = std::max<std::size_t>(stream_bytes / tile_, 4);
    const auto start = Clock::now();
    for (std::size_t i = 0; i < tiles; ++i) {
      if (!(leads_ ? send(tile_) : receive())) return std::nullopt;
    }
    if (!(leads_ ? receive() : send(8))) return std::nullopt;
    const double stream = std::max(microseconds(Clock::now() - start) - 2 * latency, 1.0);
    return LinkCost{latency, stream / static_cast<double>(tiles * tile_)};
  }

 private:
  static double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

  // Looks again until `ready`; lets others run in between. Start-up only, and bounded.
  template <typename Ready>
  bool until(Ready ready) {
    while (!ready()) {
      if (!link_.status().ok() || Clock::now() > give_up_) return false;
      if (!transport_.progress()) ::sched_yield();
    }
    return true;
  }
  bool send(std::size_t bytes) {
    const TileHeader header{0, 0, 0, static_cast<std::uint32_t>(bytes), 0};
    if (!until([&] { return link_.try_send(header, {buffer_.data(), bytes}); })) return false;
    ++sent_;
    return until([&] { return link_.sent_tiles() >= sent_; });
  }
  bool receive() {
    const Arrival* arrival = nullptr;
    if (!until([&] { return (arrival = link_.peek()) != nullptr; })) return false;
    std::copy(arrival->data.begin(), arrival->data.end(), buffer_.begin());  // a reader touches the bytes
    link_.release();
    return true;
  }

  Transport& transport_;
  Link& link_;
  bool leads_;
  std::size_t tile_;
  std::uint64_t sent_ = link_.sent_tiles();
  std::vector<std::byte> buffer_ = std::vector<std::byte>(tile_);
  Clock::time_point give_up_ = Clock::now() + kPatience;
};

double measure_reduction(const Device& device) {
  constexpr std::size_t kCount = 32 << 10;  // 128 KiB: resident in a second-level cache
  std::vector<float> a(kCount, 1.0F);
  std::vector<float> b(kCount, 2.0F);
  const std::array operands{reinterpret_cast<const std::byte*>(a.data()), reinterpret_cast<const std::byte*>(b.data())};
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    device.reduce(reinterpret_cast<std::byte*>(a.data()), operands, kCount, DataType::float32, ReduceOp::sum);
    best = std::min(best, std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  return best / static_cast<double>(kCount * sizeof(float));
}

// The ranks that rank 0 probes with: its first peer on its own node and its first elsewhere; -1 for none.
int probe_partner(const Topology& topology, LinkClass wanted) {
  for (int peer = 1; peer < topology.ranks(); ++peer) {
    if (topology.link_class(0, peer) == wanted) return peer;
  }
  return -1;
}

}  // namespace

Status measure_costs(Store& store, ExecutorParts& parts, bool measure, Clock::time_point deadline) {
  Topology& topology = parts.topology;
  if (measure) {
    for (const LinkClass wire : {LinkClass::shared_memory, LinkClass::network}) {
      const int partner = probe_partner(topology, wire);
      if (partner < 0 || (parts.rank != 0 && parts.rank != partner)) continue;
      const int peer = parts.rank == 0 ? partner : 0;
      const auto link = std::find_if(parts.links.begin(), parts.links.end(), [&](const auto& l) { return l->peer() == peer; });
      const auto index = static_cast<std::size_t>(link - parts.links.begin());
      Prober prober(*parts.transports[parts.transport_of_link[index]], **link, parts.rank == 0);
      const auto cost = prober.run(wire == LinkClass::network ? kNetworkStreamBytes : kMemoryStreamBytes);
      if (!cost)
        return {StatusCode::peer_failed, fmt::format("start-up: measuring the link to rank {} failed: {}", peer,
                                                     (*link)->status().ok() ? "no answer" : (*link)->status().message())};
      topology.cost[static_cast<std::size_t>(wire)] = *cost;
    }
    if (parts.rank == 0) topology.reduce_us_per_byte = measure_reduction(*parts.device);
  }
  if (parts.rank == 0) {
    Json costs{{"reduce", topology.reduce_us_per_byte}, {"cores", topology.cores_per_node}};
    for (const LinkCost& cost : topology.cost) costs["links"].push_back({cost.latency_us, cost.us_per_byte});
    return store.set("costs", costs.dump());
  }
  const auto text = store.get("costs", deadline);
  if (!text.ok())
    return {text.status().code(), fmt::format("start-up: rank 0 has not measured the links: {}", text.status().message())};
  const Json costs = Json::parse(*text, nullptr, false);
  if (!costs.is_object() || !costs.contains("links") || costs["links"].size() != kLinkClassCount) {
    return {StatusCode::internal, "rank 0 published malformed costs"};
  }
  topology.reduce_us_per_byte = costs.value("reduce", topology.reduce_us_per_byte);
  topology.cores_per_node = costs.value("cores", topology.cores_per_node);
  for (std::size_t i = 0; i < topology.cost.size(); ++i) {
    topology.cost[i] = {costs["links"][i][0].get<double>(), costs["links"][i][1].get<double>()};
  }
  return {};
}

}  // namespace shoal
