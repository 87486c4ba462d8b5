// Ways to lose a connection between two ranks, and who may stand where a rank was.
#pragma once

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/mentions.h"
#include "tests/unit/tcp_proxy.h"
#include "tests/unit/tcp_support.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp_test {

inline Proxy::Judge pass_all() {
  return [](const Passage& passage) { return passage.bytes.size(); };
}

/// Where rank 0 looks for rank 1 when their connections are gone, and finds somebody else. Whoever asks for a connection beyond
/// the `backlog`, which nobody takes out of it, gets no answer: to him the host is silent. With kNobodyListens he is refused.
struct Door {
  static constexpr int kNobodyListens = -1;
  Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string address;

  explicit Door(int backlog, const std::string& host = "127.0.0.1") {
    auto where = *tcp::parse_host(host);
    socklen_t bytes = where.length();
    EXPECT_EQ(::bind(socket.get(), where.raw(), bytes), 0);
    if (backlog != kNobodyListens) {
      EXPECT_EQ(::listen(socket.get(), backlog), 0);
    }
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&where.storage), &bytes), 0);
    address = where.to_string();
  }
};

/// One behind which everything is silent.
struct SilentDoor : Door {
  Descriptor first{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

  SilentDoor() : Door(0) {
    const auto where = *tcp::parse_address(address);
    EXPECT_EQ(::connect(first.get(), where.raw(), where.length()), 0) << "fills the backlog";
  }
};

/// One behind which each connection is taken, and closed after that time.
struct ClosingDoor : Door {
  std::thread doorman;

  explicit ClosingDoor(std::chrono::milliseconds after, const std::string& host = "127.0.0.1") : Door(8, host) {
    doorman = std::thread([this, after] {
      for (;;) {
        const Descriptor knock(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!knock.valid()) return;
        pollfd end{socket.get(), 0, 0};
        ::poll(&end, 1, static_cast<int>(after.count()));
      }
    });
  }
  ClosingDoor(const ClosingDoor&) = delete;
  ClosingDoor& operator=(const ClosingDoor&) = delete;
  ~ClosingDoor() {
    ::shutdown(socket.get(), SHUT_RDWR);  // ends the accept
    doorman.join();
  }
};

inline constexpr const char* kAnybody = "*";
inline constexpr const char* kNobody = "";

/// The sockets of this process at `here` that are connected to `there`; those of listeners are so to nobody.
inline std::vector<int> sockets_between(const std::string& here, const std::string& there) {
  constexpr int kMostDescriptors = 1024;
  std::vector<int> found;
  for (int number = 0; number < kMostDescriptors; ++number) {
    tcp::SocketAddress own;
    tcp::SocketAddress other;
    socklen_t length = sizeof own.storage;
    if (::getsockname(number, reinterpret_cast<sockaddr*>(&own.storage), &length) != 0 || own.family() != AF_INET) continue;
    length = sizeof other.storage;
    const bool connected = ::getpeername(number, reinterpret_cast<sockaddr*>(&other.storage), &length) == 0;
    if (here != kAnybody && here != own.to_string()) continue;
    if (there == kAnybody ? connected : there == (connected ? other.to_string() : kNobody)) found.push_back(number);
  }
  return found;
}

inline std::string name_of(int socket) {
  tcp::SocketAddress own;
  socklen_t length = sizeof own.storage;
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&own.storage), &length), 0);
  return own.to_string();
}

/// From now on nothing arrives at them: neither data nor acknowledgements nor new connections.
inline void silence(const std::vector<int>& ones) {
  EXPECT_FALSE(ones.empty());
  sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program = {1, &nothing};
  for (const int socket : ones) EXPECT_EQ(::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

inline void shut(const std::vector<int>& ones) {
  EXPECT_FALSE(ones.empty());
  for (const int socket : ones) EXPECT_EQ(::shutdown(socket, SHUT_RDWR), 0);
}

/// What silence() began is over.
inline void hear_again(const std::vector<int>& ones) {
  const int unused = 0;
  for (const int socket : ones) EXPECT_EQ(::setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused), 0);
}

inline int option_of(int socket, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(socket, level, name, &value, &length), 0);
  return value;
}

/// Rank 1 reaches rank 0 through a proxy, rank 0 finds rank 1 without, or does not find it where it is told another address.
struct Pair {
  std::vector<End> ends{2};
  std::unique_ptr<Proxy> proxy;

  Pair(int sockets, std::size_t tile_bytes, bool integrity, const Proxy::Judge& judge, bool orderly = false,
       const std::string& host = "127.0.0.1", bool encryption = false, const std::string& address_told = "",
       std::chrono::seconds lost_after = std::chrono::seconds(30)) {
    auto options = options_for(2, sockets, tile_bytes);
    std::vector<std::string> addresses;
    for (std::size_t i = 0; i < 2; ++i) {
      options[i].integrity = integrity;
      options[i].encryption = encryption;
      options[i].lost_after = lost_after;
      options[i].interface_or_address = host;
      ends[i].transport = std::move(*make_tcp_transport(options[i]));
      addresses.push_back(ends[i].transport->address());
    }
    proxy = std::make_unique<Proxy>(addresses[0], judge, orderly, host);
    addresses[0] = proxy->address();
    if (!address_told.empty()) addresses[1] = address_told;
    std::thread other([&] { connect(ends[1], 1, addresses, kTimeLimit); });
    connect(ends[0], 0, addresses, kTimeLimit);
    other.join();
    for (const End& end : ends) EXPECT_TRUE(end.status.ok()) << end.status.to_string();
  }
  ~Pair() { destroy_together(ends); }
  [[nodiscard]] bool connected() const { return ends[0].status.ok() && ends[1].status.ok(); }

  void pack_if(bool packing) {
    for (End& end : ends) {
      if (packing) end.transport->use_packing();
    }
  }
  /// See exchange_messages().
  std::string exchange(std::span<const std::byte> there, std::span<const std::byte> back, std::size_t tile) {
    return exchange_messages(ends, there, back, tile);
  }
};

/// Takes what comes until the link has failed, within `limit`: with the peer, and `facts`, in the message.
inline void expect_lost(End& end, int peer, const std::vector<std::string>& facts, std::chrono::milliseconds limit) {
  Link& link = end.link(peer);
  const auto start = Clock::now();
  EXPECT_TRUE(drive(end, [&] { return !link.status().ok(); }));
  EXPECT_LT(Clock::now() - start, limit);
  EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
  std::vector<std::string> all = facts;
  all.push_back("rank " + std::to_string(peer));
  EXPECT_THAT(link.status().message(), testing::MentionsAll(all));
}

}  // namespace shoal::tcp_test
