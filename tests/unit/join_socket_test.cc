// Where rank 0 listens, and by which address its peers connect. Fakes of getaddrinfo() and getifaddrs() stand for other hosts.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "src/join/socket.h"
#include "src/join/tcp_store.h"
#include "tests/mentions.h"

namespace {

struct Interface {
  std::string name;
  std::string address;
  unsigned flags = IFF_UP;
};
std::vector<Interface> interfaces;

/// Address of the name "node01", as /etc/hosts would give it. Other names are looked up.
std::string node01 = "127.0.1.1";

sockaddr_storage address_of(const std::string& text) {
  sockaddr_storage made{};
  auto& four = reinterpret_cast<sockaddr_in&>(made);
  auto& six = reinterpret_cast<sockaddr_in6&>(made);
  const bool is_four = ::inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1;
  if (!is_four) ::inet_pton(AF_INET6, text.c_str(), &six.sin6_addr);
  made.ss_family = is_four ? AF_INET : AF_INET6;
  return made;
}

}  // namespace

extern "C" int getifaddrs(ifaddrs** list) noexcept {
  static std::deque<ifaddrs> entries;
  static std::deque<sockaddr_storage> addresses;
  entries.clear();
  addresses.clear();
  for (Interface& each : interfaces) {
    addresses.push_back(address_of(each.address));
    ifaddrs entry{};
    entry.ifa_name = each.name.data();
    entry.ifa_flags = each.flags;
    entry.ifa_addr = reinterpret_cast<sockaddr*>(&addresses.back());
    entries.push_back(entry);
    if (entries.size() > 1) entries[entries.size() - 2].ifa_next = &entries.back();
  }
  *list = entries.empty() ? nullptr : &entries.front();
  return 0;
}
extern "C" void freeifaddrs(ifaddrs* /*list*/) noexcept {}

extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool ours = name != nullptr && std::strcmp(name, "node01") == 0 && (hints->ai_flags & AI_NUMERICHOST) == 0;
  return real(ours ? node01.c_str() : name, service, hints, found);
}

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point deadline() { return Clock::now() + std::chrono::seconds(60); }

class JoinSocket : public ::testing::Test {
 protected:
  ~JoinSocket() override {
    interfaces.clear();
    node01 = "127.0.1.1";
    ::unsetenv("SHOAL_HOST_ADDRESS");
    ::unsetenv("SHOAL_SOCKET_IFNAME");
  }
  /// Whether a connection to this address of the host is accepted.
  static bool accepts(const Descriptor& listener, const std::string& address) {
    const auto port = port_of(listener);
    return port.ok() && connect_to(address, *port, Clock::now() + std::chrono::milliseconds(20)).ok();
  }
};

TEST_F(JoinSocket, OwnAddressPrefersNicOverBridge) {
  interfaces = {{"lo", "127.0.0.1", IFF_UP | IFF_LOOPBACK},
                {"docker0", "172.17.0.1"},
                {"virbr0", "192.168.122.1"},
                {"eth1", "10.0.0.9", 0},
                {"eth0", "10.0.0.7"}};
  EXPECT_EQ(own_address(), "10.0.0.7");
  interfaces.back() = {"eth0", "fd00::7"};
  EXPECT_EQ(own_address(), "fd00::7");
  interfaces.back() = {"eth0", "fe80::7"};
  EXPECT_EQ(own_address(), "172.17.0.1");
  interfaces.resize(1);
  EXPECT_EQ(own_address(), "127.0.0.1");
  ::setenv("SHOAL_SOCKET_IFNAME", "virbr0", 1);
  interfaces = {{"eth0", "10.0.0.7"}, {"virbr0", "fd01::1"}, {"virbr0", "192.168.122.1"}};
  EXPECT_EQ(own_address(), "192.168.122.1");
}

TEST_F(JoinSocket, ListensOnAllWhenHostNameIsLoopback) {
  const auto listener = listen_on("node01", 0);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  // 127.0.0.2 stands for an address that other hosts reach: the listener is bound to all addresses.
  EXPECT_TRUE(accepts(*listener, "127.0.0.2"));
  EXPECT_TRUE(accepts(*listener, "node01"));
  // With SHOAL_HOST_ADDRESS, it is bound to that address only.
  ::setenv("SHOAL_HOST_ADDRESS", "127.0.0.3", 1);
  const auto chosen = listen_on("node01", 0);
  ASSERT_TRUE(chosen.ok()) << chosen.status().to_string();
  EXPECT_TRUE(accepts(*chosen, "127.0.0.3"));
  EXPECT_FALSE(accepts(*chosen, "127.0.0.2"));
}

TEST_F(JoinSocket, ListensOnLoopbackOnlyWhenAsked) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto listener = listen_on(host, 0);
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    EXPECT_TRUE(accepts(*listener, host));
    EXPECT_FALSE(accepts(*listener, "127.0.0.2")) << host;
  }
}

TEST_F(JoinSocket, RanksConnectAtChosenHostAddress) {
  ::setenv("SHOAL_HOST_ADDRESS", "127.0.0.3", 1);
  const int port = free_port("127.0.0.3").value();
  const Key key{};
  const auto server = make_tcp_store("node01", port, true, "job", key, deadline());
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  const auto client = make_tcp_store("node01", port, false, "job", key, deadline());
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  ASSERT_TRUE((*server)->set("key", "value").ok());
  EXPECT_EQ((*client)->get("key", deadline()).value(), "value");
}

TEST_F(JoinSocket, HostNameAsHostAddressIsRefused) {
  ::setenv("SHOAL_HOST_ADDRESS", "node01", 1);
  const auto listener = listen_on("node01", 0);
  ASSERT_FALSE(listener.ok());
  EXPECT_THAT(listener.status().message(), testing::Mentions("node01", "SHOAL_HOST_ADDRESS"));
}

TEST_F(JoinSocket, WildcardCoversIpv4AndIpv6) {
  const Descriptor six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (!six.valid() || ::bind(six.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) != 0)
    GTEST_SKIP() << "this host has no IPv6";
  // Without a name, and with the name of another host.
  node01 = "203.0.113.7";
  for (const char* host : {"", "node01"}) {
    const auto listener = listen_on(host, 0);
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    EXPECT_TRUE(accepts(*listener, "::1")) << "'" << host << "'";
    EXPECT_TRUE(accepts(*listener, "127.0.0.1")) << "'" << host << "'";
  }
}

TEST_F(JoinSocket, ErrorNamesPortInUse) {
  const auto listener = listen_on("", 0);
  ASSERT_TRUE(listener.ok());
  const int port = port_of(*listener).value();
  EXPECT_THAT(listen_on("", port).status().message(), testing::Mentions(std::to_string(port), "Address already in use"));
}

// The kernel may give a connection the ephemeral port that rank 0 wants to listen on.
TEST_F(JoinSocket, WaitsForPortHeldByConnection) {
  auto server = listen_on("127.0.0.1", 0);
  ASSERT_TRUE(server.ok());
  const auto address = [](int port) {
    sockaddr_in made{};
    made.sin_family = AF_INET;
    made.sin_port = htons(static_cast<std::uint16_t>(port));
    made.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return made;
  };
  // A port that is free and not in TIME_WAIT.
  Descriptor connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in own = address(0);
  const sockaddr_in there = address(port_of(*server).value());
  ASSERT_EQ(::bind(connection.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
  ASSERT_EQ(::connect(connection.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  const int port = port_of(connection).value();
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server->reset();  // closes the unaccepted connection at both ends
    connection.reset();
  });
  const auto listener = listen_on("127.0.0.1", port);
  closer.join();
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  EXPECT_EQ(port_of(*listener).value(), port);
}

TEST_F(JoinSocket, ServedStoreReportsItsPort) {
  const Key key{};
  const auto served = serve_tcp_store("127.0.0.1", "job", key, deadline());
  ASSERT_TRUE(served.ok()) << served.status().to_string();
  const auto client = make_tcp_store("127.0.0.1", served->port, false, "job", key, deadline());
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  ASSERT_TRUE((*client)->set("key", "value").ok());
  EXPECT_EQ(served->store->get("key", deadline()).value(), "value");
}

}  // namespace
}  // namespace shoal
