#include "transports/shm/bell.h"

#include <linux/filter.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace shoal::shm {
namespace {

constexpr char kPrefix[] = "shoal-bell-";  // 16 hexadecimal digits follow
using Key = std::array<std::byte, 8>;

Descriptor make_socket() noexcept { return Descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

sockaddr_un address_of(const BellName& name) noexcept {
  sockaddr_un address;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.socket.data(), name.socket.size());
  return address;
}
constexpr socklen_t kAddressBytes = offsetof(sockaddr_un, sun_path) + sizeof(BellName::socket);

/// Sends the key; 0 or an errno value.
int send_key(int socket, const BellName& to) noexcept {
  const sockaddr_un address = address_of(to);
  ssize_t sent;
  do {
    // Not sendto(): as a cancellation point it costs as many instructions as the rest of this function.
    sent = ::syscall(SYS_sendto, socket, to.key.data(), to.key.size(), MSG_DONTWAIT | MSG_NOSIGNAL, &address, kAddressBytes);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? errno : 0;
}

/// The four bytes as a filter loads them: the first one is the highest.
std::uint32_t as_loaded(const Key& key, std::size_t first) noexcept {
  std::uint32_t value = 0;
  for (std::size_t i = first; i < first + 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(key[i]);
  return value;
}

/// From now on the socket drops datagrams other than `key`. Best effort: without the filter such a datagram wakes for nothing.
void take_only(int socket, const Key& key) noexcept {
  constexpr std::uint8_t kToDrop = 5;
  std::array<sock_filter, 8> filter{
      sock_filter{BPF_LD | BPF_W | BPF_LEN, 0, 0, 0},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, kToDrop, sizeof(Key)},
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, kToDrop - 2, as_loaded(key, 0)},
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, 4},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, kToDrop - 4, as_loaded(key, 4)},
      sock_filter{BPF_RET | BPF_K, 0, 0, sizeof(Key)},
      sock_filter{BPF_RET | BPF_K, 0, 0, 0},
  };
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
}

}  // namespace

Result<Bell> Bell::create() {
  Bell bell;
  bell.socket_ = make_socket();
  if (!bell.socket_.valid()) return system_error("shm: socket", errno);
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number) ||
      ::getrandom(bell.name_.key.data(), bell.name_.key.size(), 0) != static_cast<ssize_t>(bell.name_.key.size())) {
    return system_error("shm: getrandom", errno);
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%s%016llx", kPrefix, static_cast<unsigned long long>(number));
  std::memcpy(bell.name_.socket.data() + 1, text.data(), bell.name_.socket.size() - 1);
  // Before the socket has its name: no foreign datagram comes first.
  take_only(bell.socket_.get(), bell.name_.key);
  const sockaddr_un address = address_of(bell.name_);
  if (::bind(bell.socket_.get(), reinterpret_cast<const sockaddr*>(&address), kAddressBytes) != 0)
    return system_error("shm: bind", errno);
  return bell;
}

void Bell::ring(const BellName& name) const noexcept {
  const int error = send_key(socket_.get(), name);
  if (error != EAGAIN && error != ENOBUFS) return;
  // Either the queue of that socket is full, so that it is readable already. Or too many bells of this rank wait in the queues
  // of stopped ranks: they fill the send buffer of this socket, not that of a new one.
  const Descriptor another = make_socket();
  if (another.valid()) static_cast<void>(send_key(another.get(), name));
}

void Bell::drain() const noexcept {
  Key taken;
  while (::recv(socket_.get(), taken.data(), taken.size(), MSG_DONTWAIT) < 0 && errno == EINTR) {
  }
}

}  // namespace shoal::shm
