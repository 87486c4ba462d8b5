#include "src/base/tcp_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace shoal::tcp {
namespace {

// A socket holds at most this many unsent bytes: bytes that a slow flow has taken arrive late, and all tiles behind them wait.
constexpr int kUnsentBytes = 1 << 20;
constexpr int kUnsentBytesOfSeveral = 128 << 10;
constexpr int kMostProbes = 127;  // the limit of Linux

void set_option(int socket, int level, int name, int value) noexcept {
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
}

// Detects a host that vanishes while the connection is idle. The link counts the probes and ends first: the kernel has one
// probe to spare.
void keep_alive(int socket, std::chrono::milliseconds lost_after) noexcept {
  const int seconds = static_cast<int>(std::chrono::ceil<std::chrono::seconds>(lost_after).count());
  const int interval = seconds / kMostProbes + 1;
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, std::min(kMostProbes, (seconds - kProbeAfterS) / interval + 2));
}

}  // namespace

void tune(int socket, std::chrono::milliseconds lost_after, bool shares) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, shares ? kUnsentBytesOfSeveral : kUnsentBytes);
  keep_alive(socket, lost_after);
  // The handshake's TCP_USER_TIMEOUT would end a link whose peer is only slow, because it also counts while the window is
  // closed.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
}

void tune_handshake(int socket, std::chrono::milliseconds time_limit) noexcept {
  keep_alive(socket, time_limit);
  // The kernel does not probe while data is in flight, so that case needs a limit of its own.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(time_limit.count()));
}

}  // namespace shoal::tcp
