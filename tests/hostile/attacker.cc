#include "tests/hostile/attacker.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "transports/tcp/address.h"

namespace shoal::hostile {
namespace {

using Clock = std::chrono::steady_clock;

void send_now(const Descriptor& socket, std::string_view bytes) {
  static_cast<void>(!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace

Result<Descriptor> Attacker::open_connection(const Listener& listener) {
  const auto failed = [&] { return system_error("connect to " + listener.name + " at " + listener.address, errno); };
  if (!listener.tcp()) {
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    listener.address.copy(address.sun_path + 1, sizeof address.sun_path - 1, 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + listener.address.size());
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return failed();
    return socket;
  }
  const auto to = tcp::parse_address(listener.address);
  if (!to.ok()) return to.status();
  Descriptor socket(::socket(to->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Avoids TIME_WAIT for each connection.
  const linger reset{1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  if (to->family() == AF_INET) {  // from many addresses, since one runs out of ports; for IPv6 there is only ::1
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + static_cast<std::uint32_t>(random_() % 200));
    ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from);
  }
  if (::connect(socket.get(), to->raw(), to->length()) != 0) return failed();
  return socket;
}

std::optional<std::string> Attacker::exchange(const Listener& listener, const std::string& bytes, Clock::time_point deadline) {
  const auto socket = open_connection(listener);
  if (!socket.ok()) return std::nullopt;
  send_now(*socket, bytes);
  pollfd polled{socket->get(), POLLIN, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (::poll(&polled, 1, static_cast<int>(std::max<long long>(left, 0))) <= 0) return std::nullopt;
  std::array<char, 256> answer{};
  const ssize_t got = ::recv(socket->get(), answer.data(), answer.size(), MSG_DONTWAIT);
  return std::string(answer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
}

std::string Attacker::random_bytes(std::size_t most) {
  std::string bytes(1 + random_() % most, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random_());
  return bytes;
}

std::string Attacker::known_bytes(const Listener& listener) {
  if (listener.recordings.empty()) return random_() % 2 == 0 ? "SHST\x02" : "SHOL";
  return listener.recordings[random_() % listener.recordings.size()];
}

void Attacker::keep(Descriptor socket, std::string unsent) {
  if (open_.size() >= kMaxOpen) open_.pop_front();
  open_.push_back({std::move(socket), std::move(unsent)});
}

void Attacker::send_slow_bytes() {
  for (Open& one : open_) {
    if (one.unsent.empty()) continue;
    send_now(one.socket, one.unsent.substr(0, 1));
    one.unsent.erase(0, 1);
  }
}

Status Attacker::input(const Listener& listener, Kind kind) {
  if (++inputs_ % 64 == 0) send_slow_bytes();
  auto opened = open_connection(listener);
  if (!opened.ok()) return opened.status();
  Descriptor socket = std::move(opened).value();
  switch (kind) {
    case Kind::junk:
      send_now(socket, random_bytes(600));
      break;
    case Kind::long_junk:
      send_now(socket, random_bytes(20'000));
      break;
    case Kind::known_start:
      send_now(socket, known_bytes(listener).substr(0, 4 + random_() % 40) + random_bytes(300));
      break;
    case Kind::http:
      send_now(socket, "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n");
      break;
    case Kind::altered: {  // one wrong bit in the handshake; later bytes would not be read
      std::string bytes = known_bytes(listener);
      bytes[random_() % std::min(bytes.size(), listener.handshake_bytes())] ^= static_cast<char>(1U << random_() % 8);
      send_now(socket, bytes);
      break;
    }
    case Kind::recorded:  // a replay
      send_now(socket, known_bytes(listener) + (random_() % 2 == 0 ? "" : random_bytes(100)));
      break;
    case Kind::half_open:
      keep(std::move(socket), {});
      break;
    case Kind::slow: {
      const std::string bytes = known_bytes(listener);
      const std::size_t now = random_() % std::min(bytes.size(), listener.handshake_bytes());
      send_now(socket, bytes.substr(0, now));
      keep(std::move(socket), bytes.substr(now));
      break;
    }
    case Kind::scan:
      break;
  }
  return {};
}

}  // namespace shoal::hostile
