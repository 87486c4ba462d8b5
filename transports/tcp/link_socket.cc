#include "transports/tcp/link_socket.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/base/tcp_options.h"

namespace shoal::tcp {
namespace {

// A host counts as silent when it leaves this many retransmissions or probes unanswered.
constexpr std::uint8_t kSilentTries = 3;
// Fewer bytes arrive in one or two packets: the system call would cost more than it saves.
constexpr std::size_t kWorthwhileLowWater = 4 << 10;
// More would make the kernel enlarge the socket's buffer further.
constexpr std::size_t kMaxLowWater = 256 << 10;

// Unanswered retransmissions and probes in a row, and the time since the last answer; all zero where the system reports none.
tcp_info kernel_state_of(const Descriptor& socket) noexcept {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return info;
}

std::size_t bytes_in_kernel(const Descriptor& socket, unsigned long which) noexcept {
  int bytes = 0;
  return ::ioctl(socket.get(), which, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

}  // namespace

void LinkSocket::adopt(Connection connection, const LinkShape& shape) {
  descriptor = std::move(connection.socket);
  tune(descriptor.get(), shape.lost_after, shape.sockets > 1);
  taken_bytes = 0;
  rate = {};
  // An encrypted record holds what a socket pulls at once, at most the largest frame: the peer's ring has room for it in any
  // case.
  if (connection.keys) cipher = std::make_unique<RecordCipher>(*connection.keys, frame_bytes(shape.tile_bytes));
}

ssize_t LinkSocket::read_encrypted(std::byte* target, std::size_t room) {
  while (cipher->waiting_bytes() == 0) {
    const std::span<std::byte> in = cipher->room();
    const ssize_t got = ::recv(descriptor.get(), in.data(), in.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got;
    cipher->arrived(static_cast<std::size_t>(got));
  }
  const std::size_t bytes = cipher->waiting_bytes();
  errno = EBADMSG;
  if (bytes > cipher->most_bytes()) return -1;
  errno = EAGAIN;
  if (bytes > room) return -1;
  if (cipher->open(target)) return static_cast<ssize_t>(bytes);
  errno = EBADMSG;
  return -1;
}

void LinkSocket::set_low_water(std::size_t bytes) noexcept {
  const int wanted = static_cast<int>(bytes);
  if (low_water == wanted) return;
  low_water = wanted;
  // A failure costs only speed.
  ::setsockopt(descriptor.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

void LinkSocket::await_front() noexcept {
  if (is_closed() || cipher != nullptr || ring.front_is_whole() || !ring.front()) return;
  const std::size_t missing = ring.missing_bytes();
  // Also lowers the value: one that was set for a rest which has arrived in part since then would delay what is left.
  set_low_water(missing >= kWorthwhileLowWater ? std::min(missing, kMaxLowWater) : 1);
}

std::chrono::milliseconds LinkSocket::silence() const noexcept {
  const tcp_info info = kernel_state_of(descriptor);
  // Unlike TCP_USER_TIMEOUT, this does not affect a peer that is only slow: it answers each probe of its closed window.
  const bool silent = std::max(info.tcpi_retransmits, info.tcpi_probes) >= kSilentTries;
  return std::chrono::milliseconds(silent ? info.tcpi_last_ack_recv : 0);
}

std::chrono::milliseconds LinkSocket::since_last_answer() const noexcept {
  return std::chrono::milliseconds(kernel_state_of(descriptor).tcpi_last_ack_recv);
}

std::size_t LinkSocket::unread_bytes() const noexcept { return bytes_in_kernel(descriptor, SIOCINQ); }

std::size_t LinkSocket::unacknowledged_bytes() const noexcept { return bytes_in_kernel(descriptor, SIOCOUTQ); }

}  // namespace shoal::tcp
