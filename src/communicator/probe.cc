#include "src/communicator/probe.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/communicator/job_config.h"
#include "src/progress/waiter.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 4;
constexpr int kRoundTrips = 24;
constexpr int kFewRoundTrips = 3;
constexpr std::size_t kProbeTileBytes = 64 << 10;  // or the link's maximum, if that is less
// Streams that measure the bandwidth, one after the other. On a slow link the longer streams are left out; on other links
// single tiles show the burst that a shaped link lets through. The fastest stream of each kind counts, because other load on
// the machine only adds time, and choices by the result should not differ from run to run.
struct Stream {
  int tiles;
  int times;
};
constexpr std::array kStreams{Stream{1, 5}, Stream{4, 1}, Stream{32, 8}};
constexpr double kRepeatUs = 10'000;  // no stream is repeated after this time
constexpr int kPauseRoundTrips = 10;  // between single tiles
constexpr double kPauseUs = 1'000;
// A link lets a burst through if a single tile takes less than this part of the time of a tile in the longest stream.
constexpr double kBurst = 0.5;
constexpr std::size_t kSwapBytes = 512 << 10;  // larger than what always moves by one copy (peer_memory/moves)
constexpr int kSwaps = 4;                      // of each kind; the first is a warm-up
constexpr double kRoundTripsUs = 20'000;       // no new round trip after this time
constexpr double kStreamUs = 50'000;           // no stream that would take longer
constexpr int kLookMs = 100;                   // longest sleep in poll

// The leader's request to the follower, in TileHeader::edge.
enum Wish : std::uint32_t { kTakeIt, kAnswerIt, kStop, kSwapTiles, kSwapMemory };

// One end of a probed link. The lower rank leads and measures. The other rank follows the requests in the tiles, so that only
// the leader's clock determines the duration.
class Prober {
 public:
  Prober(Transport& transport, Link& link, bool may_spin, Clock::time_point give_up)
      : transport_(transport),
        link_(link),
        tile_(std::min(link.max_tile_bytes(), kProbeTileBytes)),
        waits_(may_spin),
        give_up_(give_up) {}

  /// The link may be one that is connected on request.
  bool connect() {
    link_.request(/*peer_too=*/true);
    return until([&] { return link_.connected(); });
  }

  /// `wire`: over a network, sending has a considerable overhead, which is measured too. With `latency_only` all other costs
  /// are zero.
  std::optional<LinkCost> lead(LinkClass wire, bool latency_only) {
    const auto round_trip = measure_round_trip();
    if (!round_trip) return std::nullopt;
    const double latency_us = round_trip->whole_us / 2;
    LinkCost cost{latency_us, 0};
    if (latency_only) return cost;
    if (wire == LinkClass::network) cost.overhead_us = round_trip->sending_us;
    double us_per_tile = 0;
    double us_per_single_tile = 0;
    for (const auto [tiles, times] : kStreams) {
      if (us_per_tile * tiles + 2 * latency_us > kStreamUs) break;
      const auto least_us = measure_stream(tiles, times);
      if (!least_us) return std::nullopt;
      us_per_tile = std::max(*least_us - 2 * latency_us, 1.0) / tiles;
      if (tiles == 1) us_per_single_tile = us_per_tile;
    }
    cost.us_per_byte = us_per_tile / static_cast<double>(tile_);
    if (wire == LinkClass::network && us_per_single_tile < kBurst * us_per_tile)
      cost.burst_us_per_byte = us_per_single_tile / static_cast<double>(tile_);
    return cost;
  }

  /// Topology::one_copy_gain. Precondition: the transport reaches all memory.
  std::optional<double> compare_copies() {
    std::array least{std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
    for (int i = 0; i < kSwaps; ++i) {
      for (const Wish way : {kSwapTiles, kSwapMemory}) {
        const auto start = Clock::now();
        own_address();
        if (!send(kSmall, way) || (way == kSwapMemory && !receive()) || !swap(way) || !receive()) return std::nullopt;
        double& shortest = least[way == kSwapMemory];
        if (i > 0) shortest = std::min(shortest, microseconds(Clock::now() - start));
      }
    }
    return copies_ ? least[0] / least[1] : 0;
  }

  bool end() {
    if (!send(kSmall, kStop)) return false;
    transport_.progress();  // the tile may have waited for other tiles to share a packet
    return true;
  }

  bool follow() {
    while (Clock::now() < give_up_) {
      const auto wish = receive();
      if (!wish) return false;
      if (*wish == kStop) return true;
      // A swap reveals an address of this process. reaches_all_memory() is read only now: when the leader asks for a swap, all
      // ranks have determined it.
      if (*wish > kSwapMemory || (*wish >= kSwapTiles && !transport_.reaches_all_memory()))
        return refuse(fmt::format("the peer asked for a measurement that this rank does not support ({})", *wish));
      if (*wish == kAnswerIt && !send(kSmall, kTakeIt)) return false;
      if (*wish == kSwapTiles && !(swap(kSwapTiles) && send(kSmall, kTakeIt))) return false;
      if (*wish == kSwapMemory && !answer_swap()) return false;
    }
    return false;
  }

  /// Why the measurement failed.
  [[nodiscard]] std::string failure() const {
    if (!link_.status().ok()) return link_.status().message();
    return nonsense_.empty() ? "no answer" : nonsense_;
  }

 private:
  static constexpr std::size_t kSmall = 8;

  /// Writes the address of `given_` to the next message, for the peer that will read `given_`.
  void own_address() {
    given_.resize(kSwapBytes);
    const auto address = reinterpret_cast<std::uint64_t>(given_.data());
    std::memcpy(buffer_.data(), &address, sizeof address);
  }

  bool answer_swap() {
    const auto theirs = buffer_;
    own_address();
    if (!send(kSmall, kTakeIt)) return false;
    std::copy_n(theirs.begin(), kSmall, buffer_.begin());
    return swap(kSwapMemory) && send(kSmall, kTakeIt);
  }

  /// Both ends send kSwapBytes to each other and receive as many, at the same time. For kSwapMemory `buffer_` holds the peer's
  /// address.
  bool swap(Wish way) {
    given_.resize(kSwapBytes);
    taken_.resize(kSwapBytes);
    if (way == kSwapMemory) {
      std::uint64_t theirs = 0;
      std::memcpy(&theirs, buffer_.data(), sizeof theirs);
      copies_ = transport_.copy_from(link_.peer(), theirs, taken_.data(), kSwapBytes).ok() && copies_;
      return true;  // a failed copy is not an error here: calls fall back by themselves
    }
    std::size_t given = 0;
    std::size_t taken = 0;
    const bool all = until([&] {
      for (bool moved = true; moved;) {
        moved = false;
        if (const std::size_t size = std::min(tile_, kSwapBytes - given); size > 0) {
          const TileHeader header{0, 0, kTakeIt, static_cast<std::uint32_t>(size), 0};
          moved = link_.try_send(header, {given_.data() + given, size});
          if (moved) given += size, ++sent_;
        }
        if (taken == kSwapBytes) continue;  // the next tile does not belong to this swap
        if (const Arrival* arrival = link_.peek()) {
          if (!fits(*arrival, kSwapBytes - taken)) return true;
          std::ranges::copy(arrival->data, taken_.begin() + static_cast<std::ptrdiff_t>(taken));
          taken += arrival->data.size();
          link_.release();
          moved = true;
        }
      }
      return given == kSwapBytes && taken == kSwapBytes;
    });
    return all && nonsense_.empty();
  }

  static double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

  struct RoundTrip {
    double whole_us;
    double sending_us;  // until the message has left: messages of a burst would travel, and wake their receiver, together
  };

  // Of the round trips the 25th percentile, because other load on the machine only adds time. Of the sending times the median,
  // because sending costs more or less depending on whether the receiver sleeps or polls.
  std::optional<RoundTrip> measure_round_trip() {
    const auto begin = Clock::now();
    std::vector<double> whole;
    std::vector<double> sending;
    for (int i = 0; i < kWarmUps + kRoundTrips; ++i) {
      const auto start = Clock::now();
      if (i >= kFewRoundTrips && microseconds(start - begin) > kRoundTripsUs) break;
      if (!send(kSmall, kAnswerIt)) return std::nullopt;
      sending.push_back(microseconds(Clock::now() - start));
      if (!receive()) return std::nullopt;
      whole.push_back(microseconds(Clock::now() - start));
    }
    return RoundTrip{least_of(0.25, std::move(whole)), least_of(0.5, std::move(sending))};
  }

  /// A pause with little traffic, in which a token bucket refills.
  bool pause() {
    const auto begin = Clock::now();
    for (int i = 0; i < kPauseRoundTrips && microseconds(Clock::now() - begin) < kPauseUs; ++i) {
      if (!send(kSmall, kAnswerIt) || !receive()) return false;
    }
    return true;
  }

  /// The shortest time of `times` streams of `tiles` tiles, from the start of the first tile to the answer to the last.
  std::optional<double> measure_stream(int tiles, int times) {
    const auto begin = Clock::now();
    double least_us = std::numeric_limits<double>::max();
    for (int turn = 0; turn < times && (turn == 0 || microseconds(Clock::now() - begin) < kRepeatUs); ++turn) {
      if (tiles == 1 && turn > 0 && !pause()) return std::nullopt;
      const auto start = Clock::now();
      for (int i = 1; i <= tiles; ++i) {
        if (!send(tile_, i == tiles ? kAnswerIt : kTakeIt)) return std::nullopt;
      }
      if (!receive()) return std::nullopt;
      least_us = std::min(least_us, microseconds(Clock::now() - start));
    }
    return least_us;
  }

  /// The quantile `share` of `times` without the warm-ups.
  static double least_of(double share, std::vector<double> times) {
    if (times.size() > kWarmUps) times.erase(times.begin(), times.begin() + kWarmUps);
    const auto bound = times.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(times.size()));
    std::nth_element(times.begin(), bound, times.end());
    return *bound;
  }

  // Waits as calls do, so that it measures what calls will see, and is delayed by busy cores no more than they are. `ready` may
  // send a tile, so it is not called again once it has returned true.
  template <typename Ready>
  bool until(Ready ready) {
    // A new Waiter each time: one that has slept during the start-up of other ranks would keep sleeping, because polling
    // briefly has not paid off.
    Waiter waiter = waits_;
    bool done = ready();
    while (!done) {
      if (!link_.status().ok() || Clock::now() > give_up_) return false;
      if (transport_.progress()) {
        waiter.moved();
      } else if (!waiter.look_again()) {
        waiter.blocking();
        done = sleep_unless(ready);
        waiter.woken();
      }
      if (!done) done = ready();
    }
    return true;
  }
  /// Sleeps, unless `ready` is true just before the sleep. Returns whether it was.
  template <typename Ready>
  bool sleep_unless(Ready ready) {
    pollfd wake{transport_.wait_fd(), POLLIN, 0};
    bool done = false;
    if (transport_.prepare_wait() && !transport_.progress()) {
      done = ready();
      if (!done) ::poll(&wake, 1, wake.fd < 0 ? 0 : kLookMs);
    }
    transport_.finish_wait(true);
    return done;
  }
  bool send(std::size_t bytes, Wish wish) {
    const TileHeader header{0, 0, wish, static_cast<std::uint32_t>(bytes), 0};
    if (!until([&] { return link_.try_send(header, {buffer_.data(), bytes}); })) return false;
    ++sent_;
    return until([&] { return link_.sent_tiles() >= sent_; });
  }
  std::optional<std::uint32_t> receive() {
    const Arrival* arrival = nullptr;
    if (!until([&] { return (arrival = link_.peek()) != nullptr; })) return std::nullopt;
    if (!fits(*arrival, buffer_.size())) return std::nullopt;
    const std::uint32_t wish = arrival->header.edge;
    std::copy(arrival->data.begin(), arrival->data.end(), buffer_.begin());  // a real receiver reads the bytes, too
    link_.release();
    return wish;
  }

  /// A link lets through larger tiles than the probe uses.
  bool fits(const Arrival& arrival, std::size_t room) {
    return arrival.data.size() <= room ||
           refuse(fmt::format("received a tile of {} bytes where there is room for {}", arrival.data.size(), room));
  }
  bool refuse(std::string what) {
    nonsense_ = std::move(what);
    return false;
  }

  Transport& transport_;
  Link& link_;
  std::size_t tile_;
  std::uint64_t sent_ = link_.sent_tiles();
  const Waiter waits_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(tile_);
  std::vector<std::byte> given_;  // of swaps
  std::vector<std::byte> taken_;
  bool copies_ = true;
  std::string nonsense_;  // describes an invalid tile of the peer
  const Clock::time_point give_up_;
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

// The rank with which `rank` probes; -1 for none. On a node: rank 0 with its first peer. Between nodes: the first ranks of
// each two nodes, all pairs at once, because in a collective all nodes communicate at once. Where nodes share a resource, as
// emulated nodes share cores, the messages of one node wait for those of other nodes.
int probe_partner(const Topology& topology, int rank, LinkClass wire) {
  if (wire == LinkClass::network) {
    const int node = topology.node_of_rank[static_cast<std::size_t>(rank)];
    const bool has_partner = topology.local_rank(rank) == 0 && (node ^ 1) < topology.nodes();
    return has_partner ? topology.ranks_of_node(node ^ 1).front() : -1;
  }
  const std::vector<int> here = topology.ranks_of_node(0);
  if (here.size() < 2 || (rank != here[0] && rank != here[1])) return -1;
  return rank == here[0] ? here[1] : here[0];
}

// Whether work that takes `us_per_byte` is cheap compared with the time of the network for a byte.
bool is_little(double us_per_byte, const Topology& topology) {
  constexpr double kMostPart = 0.03;
  return us_per_byte <= kMostPart * topology.cost[static_cast<std::size_t>(LinkClass::network)].us_per_byte;
}

// Measures the links for which this rank leads or follows.
Status measure_links(StartupExchange& exchange, ProgressEngineParts& parts) {
  Topology& topology = parts.topology;
  for (const LinkClass wire : {LinkClass::network, LinkClass::shared_memory}) {
    const int peer = probe_partner(topology, parts.rank, wire);
    if (peer < 0) continue;
    const auto link = std::find_if(parts.links.begin(), parts.links.end(), [&](const auto& l) { return l->peer() == peer; });
    const auto index = static_cast<std::size_t>(link - parts.links.begin());
    const bool leads = parts.rank < peer;
    auto& transport = *parts.transports[parts.transport_of_link[index]];
    // On a busy machine the peer may come here seconds later.
    Prober prober(transport, **link, may_spin(parts), exchange.deadline());
    const bool connected = prober.connect();
    const auto cost = leads && connected ? prober.lead(wire, parts.rank != 0) : std::nullopt;
    std::optional<double> gain = topology.one_copy_gain;
    if (cost && wire == LinkClass::shared_memory && *gain == 0 && transport.reaches_all_memory())
      gain = prober.compare_copies();
    if (leads ? !cost || !gain || !prober.end() : !connected || !prober.follow())
      return {StatusCode::peer_failed,
              fmt::format("startup: measuring the link to rank {} failed: {}", peer, prober.failure())};
    if (leads) topology.cost[static_cast<std::size_t>(wire)] = *cost;
    if (leads) topology.one_copy_gain = *gain;
  }
  if (parts.rank == 0) topology.reduce_us_per_byte = measure_reduction(*parts.device);
  return {};
}

}  // namespace

Result<std::string> measure_costs(StartupExchange& exchange, ProgressEngineParts& parts, bool measure) {
  // All pairs begin together: one that has the machine or the network to itself would measure what no collective will see.
  if (measure && parts.topology.nodes() >= 4) {
    if (const auto all = exchange.all_gather("probe", ""); !all.ok()) return all.status();
  }
  if (Status status = measure ? measure_links(exchange, parts) : Status(); !status.ok()) return status;
  return parts.rank == 0 ? costs_text(parts.topology) : std::string();
}

// Making and checking checksums together takes 0.1 ms for each MiB, and so does packing and unpacking
// (transports/tcp/README.md).
bool check_sums_cost_little(const Topology& topology) { return is_little(1e-4, topology); }
bool packing_costs_little(const Topology& topology) { return is_little(1e-4, topology); }

}  // namespace shoal
