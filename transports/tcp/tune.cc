#include "transports/tcp/tune.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace shoal::tcp {
namespace {

// A socket holds at most this much that is not yet on its way: what a slow flow has pulled is late, and all tiles behind it
// wait.
constexpr int kUnsentBytes = 1 << 20;

void set_option(int socket, int level, int name, int value) noexcept {
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
}

}  // namespace

void tune(int socket) noexcept {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
  // A host that vanishes while nothing is under way is noticed after ten seconds.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 8);
}

}  // namespace shoal::tcp
