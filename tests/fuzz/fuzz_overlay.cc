// Messages between the keepers of hosts: each alone, and what a host does with a series of them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <variant>
#include <vector>

#include "src/progress/overlay/host_control.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function and its parts

namespace {

constexpr int kHosts = 6;
constexpr int kRanksPerHost = 3;

std::vector<int> hosts() {
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < kHosts * kRanksPerHost; ++rank) host_of_rank.push_back(rank / kRanksPerHost);
  return host_of_rank;
}

/// What is read is written as it came, but for sets of ranks, which have several forms; and it is in range.
void check_message(std::span<const std::byte> bytes, const HostTable& table) {
  const auto message = parse_overlay(bytes, table.ranks());
  if (!message) return;
  const auto again = parse_overlay(to_bytes(*message), table.ranks());
  if (!again || to_bytes(*again) != to_bytes(*message)) std::abort();
  const auto* facts = std::get_if<RankFacts>(&*message);
  if (facts != nullptr) {
    facts->ranks.each([&](int rank) {
      if (rank < 0 || rank >= table.ranks()) std::abort();
    });
  }
}

/// All that it wants is sent to hosts with a connection, and can be read.
void check_actions(HostControl& control, const HostTable& table) {
  for (const auto& [host, bytes] : control.actions().send) {
    if (host <= 0 || host >= kHosts || !parse_overlay(*bytes, table.ranks())) std::abort();
  }
  for (const Endpoint& peer : control.actions().connect) {
    if (peer.host < 0 || peer.host >= kHosts || table.host_of(peer.rank) != peer.host) std::abort();
  }
  control.actions() = {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const HostTable table(hosts());
  const auto bytes = std::as_bytes(std::span(data, size));
  check_message(bytes, table);

  // Rank 0 is the keeper of host 0. Each message has a byte for its sender and one for its length in front.
  HostControl::Time now{std::chrono::hours(1)};
  HostControl control(table, 0, {}, now);
  control.look({1, 0, 0}, now);
  for (const Endpoint& peer : std::vector(control.actions().connect)) control.on_connected(peer);
  check_actions(control, table);
  std::span<const std::byte> rest = bytes;
  while (rest.size() > 2) {
    const int from = 1 + std::to_integer<int>(rest[0]) % (kHosts - 1);
    const auto length = std::min(std::to_integer<std::size_t>(rest[1]), rest.size() - 2);
    control.on_message(from, rest.subspan(2, length), now);
    check_actions(control, table);
    rest = rest.subspan(2 + length);
    now += std::chrono::milliseconds(7);
    control.look({1, 0, 0}, now);
    check_actions(control, table);
  }
  now += std::chrono::seconds(10);
  control.look({1, 0, 0}, now);
  check_actions(control, table);
  return 0;
}
