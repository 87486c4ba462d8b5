#include "transports/tcp/socket_choice.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace shoal::tcp {
namespace {

bool takes_a_tile(const LinkSocket& socket) noexcept { return socket.is_idle() && !socket.outgoing.resends(); }

}  // namespace

LinkSocket* first_idle(std::span<LinkSocket> sockets) noexcept {
  for (LinkSocket& socket : sockets) {
    if (takes_a_tile(socket)) return &socket;
  }
  return nullptr;
}

LinkSocket* soonest(std::span<LinkSocket> sockets, SendWindow& window) noexcept {
  const auto now = DrainRate::Clock::now();
  const std::size_t tile_bytes = window.next_bytes();
  std::array<std::uint64_t, kMostSockets> waiting{};
  double fastest = 0;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    LinkSocket& socket = sockets[i];
    int in_flight = 0;
    if (socket.down || ::ioctl(socket.descriptor.get(), SIOCOUTQ, &in_flight) != 0) continue;
    waiting[i] = static_cast<std::uint64_t>(in_flight);
    socket.rate.update(now, socket.taken_bytes - std::min(socket.taken_bytes, waiting[i]), waiting[i]);
    if (!socket.outgoing.empty()) waiting[i] += window.due(socket.outgoing).size();
    fastest = std::max(fastest, socket.rate.bytes_per_us());
  }
  LinkSocket* chosen = nullptr;
  double least_us = 0;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    LinkSocket& socket = sockets[i];
    // A socket that only takes nothing now counts: the kernel will report when it takes bytes again.
    if (!takes_a_tile(socket) && (socket.down || socket.hung_up || !socket.blocked)) continue;
    // A socket that is not measured, or whose measurement is too old, counts as being as fast as the best one.
    const bool unknown = socket.rate.bytes_per_us() == 0 || (waiting[i] == 0 && socket.rate.trial_is_due());
    const double known = unknown ? fastest : socket.rate.bytes_per_us();
    const double us = static_cast<double>(waiting[i] + tile_bytes) / (known > 0 ? known : 1);
    if (chosen != nullptr && us >= least_us) continue;
    chosen = &socket;
    least_us = us;
  }
  if (chosen == nullptr || !takes_a_tile(*chosen)) return nullptr;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if (waiting[i] != 0) continue;
    if (&sockets[i] == chosen)
      chosen->rate.given(now, chosen->taken_bytes);
    else
      sockets[i].rate.passed_over(tile_bytes);
  }
  return chosen;
}

}  // namespace shoal::tcp
