#include "bench/train/pipeline/link.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace shoal::train {
namespace {

using pipeline::Axis;
using std::chrono::steady_clock;

constexpr int kTag = 0;
constexpr std::size_t kSmallBytes = 64;
constexpr std::size_t kFirstBytes = std::size_t{32} << 10;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr int kSmallRounds = 10;
constexpr int kLargeRounds = 3;
constexpr double kLongEnoughUs = 5000;  // a round trip of several milliseconds shows the rate of a slow link
constexpr double kUnlimited = 1e9;      // bytes per microsecond: the most that the partitioner takes

/// Sends to `peer` and back.
Status round_trip(Communicator& all, int peer, bool begins, std::vector<std::uint8_t>& buffer, std::size_t bytes) {
  for (const bool sends : {begins, !begins}) {
    Status status = sends ? all.send(buffer.data(), bytes, DataType::uint8, peer, kTag)
                          : all.recv(buffer.data(), bytes, DataType::uint8, peer, kTag);
    if (!status.ok()) return status;
  }
  return {};
}

/// The shortest of `rounds` messages, half of a round trip, in microseconds: what delays the other ones is not the link.
Result<double> message_us(Communicator& all, int peer, bool begins, std::vector<std::uint8_t>& buffer, std::size_t bytes,
                          int rounds) {
  double shortest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    const auto start = steady_clock::now();
    if (Status status = round_trip(all, peer, begins, buffer, bytes); !status.ok()) return status;
    shortest = std::min(shortest, std::chrono::duration<double, std::micro>(steady_clock::now() - start).count() / 2);
  }
  return shortest;
}

/// What this rank finds between itself and `peer`, which makes the same calls. The rank that begins says when a message was
/// long enough. The rate is that of the second half of the longest message: networks may pass a burst at once.
Result<pipeline::Link> measure(Communicator& all, int peer, bool begins) {
  std::vector<std::uint8_t> buffer(kMostBytes);
  const Result<double> small_us = message_us(all, peer, begins, buffer, kSmallBytes, kSmallRounds);
  if (!small_us.ok()) return small_us.status();
  pipeline::Link link{.latency_us = *small_us, .bytes_per_us = kUnlimited};
  Result<double> half_us = message_us(all, peer, begins, buffer, kFirstBytes, kLargeRounds);
  if (!half_us.ok()) return half_us.status();
  for (std::size_t bytes = 2 * kFirstBytes; bytes <= kMostBytes; bytes *= 2) {
    const Result<double> whole_us = message_us(all, peer, begins, buffer, bytes, kLargeRounds);
    if (!whole_us.ok()) return whole_us.status();
    const double second_half_us = *whole_us - *half_us;
    link.bytes_per_us = second_half_us > 0 ? std::min(kUnlimited, static_cast<double>(bytes) / 2 / second_half_us) : kUnlimited;
    half_us = whole_us;
    std::uint8_t is_last = 2 * *whole_us > kLongEnoughUs ? 1 : 0;
    const Status told =
        begins ? all.send(&is_last, 1, DataType::uint8, peer, kTag) : all.recv(&is_last, 1, DataType::uint8, peer, kTag);
    if (!told.ok()) return told;
    if (is_last != 0) break;
  }
  return link;
}

/// The ranks with which this one exchanges messages, and whether it begins: first the pairs whose first stage is even, then the
/// others, then the last and the first stage. So no rank waits for one that measures elsewhere.
std::vector<std::pair<int, bool>> partners(const pipeline::Layout& layout, int rank, bool wraps) {
  const int stages = layout.size(Axis::pipeline);
  const pipeline::Position own = layout.position(rank);
  const auto rank_at = [&](int stage) { return layout.rank({own.replica, stage, own.slice}); };
  std::vector<std::pair<int, bool>> found;
  for (const int first : {0, 1}) {
    const bool begins = own.stage % 2 == first;
    const int other = begins ? own.stage + 1 : own.stage - 1;
    if (other >= 0 && other < stages) found.emplace_back(rank_at(other), begins);
  }
  if (wraps && stages > 2 && own.stage == stages - 1) found.emplace_back(rank_at(0), true);
  if (wraps && stages > 2 && own.stage == 0) found.emplace_back(rank_at(stages - 1), false);
  return found;
}

/// A tenth is more than the measurement knows; short fractions keep the partitioner's numbers small.
double tenths(double value) { return std::max(0.1, std::round(10 * value) / 10); }

}  // namespace

Result<pipeline::Link> find_link(Communicator& all, const pipeline::Layout& layout, bool wraps,
                                 const PipelineChoices& choices) {
  pipeline::Link link{.latency_us = choices.link_latency_us.value_or(0), .bytes_per_us = choices.link_bytes_per_us};
  const bool is_given = choices.link_latency_us && choices.link_bytes_per_us;
  if (layout.size(Axis::pipeline) == 1 || is_given) return link;
  std::array<double, 2> slowest{0, -kUnlimited};  // latency, and the rate with its sign changed: the largest of both count
  for (const auto& [peer, begins] : partners(layout, all.rank(), wraps)) {
    const Result<pipeline::Link> measured = measure(all, peer, begins);
    if (!measured.ok()) return measured.status();
    slowest = {std::max(slowest[0], measured->latency_us), std::max(slowest[1], -*measured->bytes_per_us)};
  }
  if (Status status = all.all_reduce(slowest.data(), slowest.data(), slowest.size(), DataType::float64, ReduceOp::max);
      !status.ok()) {
    return status;
  }
  if (!choices.link_latency_us) link.latency_us = tenths(slowest[0]);
  if (!choices.link_bytes_per_us) link.bytes_per_us = tenths(-slowest[1]);
  return link;
}

}  // namespace shoal::train
