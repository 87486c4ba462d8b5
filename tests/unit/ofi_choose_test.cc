// The provider and devices that the ofi transport chooses, and the devices that UCX may use.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/mentions.h"
#include "transports/ofi/libfabric.h"
#include "transports/ucx/devices.h"
#include "transports/ucx/ucx.h"

namespace shoal::ofi {
namespace {

using ::testing::ElementsAre;

Candidate on_sockets(std::string provider, std::string device, std::string address, bool loopback = false) {
  Candidate candidate;
  candidate.provider = std::move(provider);
  candidate.device = std::move(device);
  candidate.address = std::move(address);
  candidate.writes = candidate.other_hosts = true;
  candidate.loopback = loopback;
  return candidate;
}

Candidate card(std::string device, std::uint64_t gigabits, bool writes) {
  Candidate candidate;
  candidate.provider = "efa";
  candidate.device = std::move(device);
  candidate.hardware = candidate.other_hosts = true;
  candidate.writes = writes;
  candidate.bits_per_second = gigabits * 1'000'000'000;
  return candidate;
}

std::vector<Candidate> machine_with_sockets() {
  Candidate shm;
  shm.provider = shm.device = "shm";
  shm.writes = true;
  return {shm, on_sockets("tcp;ofi_rxm", "lo", "127.0.0.1", true), on_sockets("tcp;ofi_rxm", "eth0", "10.0.0.1"),
          on_sockets("tcp;ofi_rxm", "eth1", "10.1.0.1"), on_sockets("udp;ofi_rxd", "eth0", "10.0.0.1")};
}

std::vector<std::size_t> chosen(const std::vector<Candidate>& candidates, const RailRequest& request) {
  const auto result = choose(candidates, request);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? *result : std::vector<std::size_t>{};
}

std::string refusal(const std::vector<Candidate>& candidates, const RailRequest& request) {
  const auto result = choose(candidates, request);
  EXPECT_FALSE(result.ok());
  if (result.ok()) return {};
  EXPECT_EQ(result.status().code(), StatusCode::unsupported);
  return result.status().message();
}

TEST(OfiChoose, SocketsGetOneAddressThatOtherHostsReach) {
  EXPECT_THAT(chosen(machine_with_sockets(), {}), ElementsAre(2));
  RailRequest near;
  near.near = "10.1.0.1";
  EXPECT_THAT(chosen(machine_with_sockets(), near), ElementsAre(3));
  near.near = "eth1";
  EXPECT_THAT(chosen(machine_with_sockets(), near), ElementsAre(3));
  EXPECT_THAT(chosen({machine_with_sockets()[1]}, {}), ElementsAre(0)) << "loopback if there is nothing else";
}

// A user who restricts the traffic to an interface must learn that it does not exist.
TEST(OfiChoose, UnknownInterfaceErrorListsTheKnownOnes) {
  for (const char* nowhere : {"10.9.9.9", "eth7"}) {
    RailRequest request;
    request.near = nowhere;
    EXPECT_THAT(refusal(machine_with_sockets(), request),
                testing::Mentions(nowhere, "SHOAL_HOST_ADDRESS", "SHOAL_SOCKET_IFNAME", "tcp;ofi_rxm", "eth1", "10.1.0.1"));
    request.provider = "shm";
    EXPECT_THAT(chosen(machine_with_sockets(), request), ElementsAre(0)) << "this provider has no interfaces";
    request.provider.clear();
    request.devices = {"eth1"};
    EXPECT_THAT(chosen(machine_with_sockets(), request), ElementsAre(3)) << "SHOAL_RAILS has priority";
    std::vector<Candidate> candidates = machine_with_sockets();
    candidates.push_back(card("rdmap79", 100, true));
    request.devices.clear();
    EXPECT_THAT(chosen(candidates, request), ElementsAre(5)) << "cards are chosen by SHOAL_RAILS and the placement";
  }
}

TEST(OfiChoose, LocalProvidersAreUsedOnlyIfNamed) {
  EXPECT_THAT(refusal({machine_with_sockets()[0]}, {}), testing::Mentions("shm"));
  RailRequest request;
  request.provider = "shm";
  EXPECT_THAT(chosen(machine_with_sockets(), request), ElementsAre(0));
}

TEST(OfiChoose, NamedDevicesAreRailsInTheirOrder) {
  RailRequest request;
  request.devices = {"eth1", "10.0.0.1"};
  EXPECT_THAT(chosen(machine_with_sockets(), request), ElementsAre(3, 2));
  request.devices = {"eth0", "eth7"};
  EXPECT_THAT(refusal(machine_with_sockets(), request), testing::Mentions("eth0,eth7", "SHOAL_RAILS"));
  request.devices = {"eth0"};
  request.provider = "udp;ofi_rxd";
  EXPECT_THAT(chosen(machine_with_sockets(), request), ElementsAre(4));
}

TEST(OfiChoose, UnknownProviderErrorListsTheKnownOnes) {
  RailRequest request;
  request.provider = "efa";
  EXPECT_THAT(refusal(machine_with_sockets(), request), testing::Mentions("efa", "SHOAL_OFI_PROVIDER", "tcp;ofi_rxm", "eth0"));
}

TEST(OfiChoose, CardsPrecedeSocketsFastestFirst) {
  std::vector<Candidate> candidates = machine_with_sockets();
  for (const char* name : {"rdmap80", "rdmap79", "rdmap97", "rdmap96"}) candidates.push_back(card(name, 100, true));
  candidates.push_back(card("slow", 25, true));
  candidates.push_back(card("rdmap79", 100, false));  // the same card once more, without writes
  EXPECT_THAT(chosen(candidates, {}), ElementsAre(6, 5, 8, 7)) << "all, in the order of their names";
  RailRequest half;
  half.shares = 2;
  half.share = 1;
  EXPECT_THAT(chosen(candidates, half), ElementsAre(8, 7));
  half.shares = 8;
  half.share = 6;
  EXPECT_THAT(chosen(candidates, half), ElementsAre(8)) << "ranks outnumber cards";
}

TEST(OfiChoose, PrefersTheCardsOfThePlacement) {
  std::vector<Candidate> candidates = machine_with_sockets();
  for (const char* name : {"rdmap144s27-rdm", "rdmap16s27-rdm", "rdmap160s27-rdm", "rdmap32s27-rdm", "rdmap3-rdm"})
    candidates.push_back(card(name, 100, true));
  RailRequest request;
  request.share = 1;
  request.shares = 2;
  request.cards = {"rdmap160s27", "rdmap16s27"};
  EXPECT_THAT(chosen(candidates, request), ElementsAre(7, 6)) << "in the placement's order";
  request.cards = {"rdmap3"};
  EXPECT_THAT(chosen(candidates, request), ElementsAre(9)) << "not cards that only share the prefix";
  request.cards = {"eth0"};
  request.shares = 5;
  EXPECT_THAT(chosen(candidates, request), ElementsAre(6)) << "a share of all cards, ordered by bus number: 3 is the first";
  request.devices = {"rdmap32s27-rdm"};
  request.cards = {"rdmap3"};
  EXPECT_THAT(chosen(candidates, request), ElementsAre(8)) << "SHOAL_RAILS has priority";
}

TEST(UcxDevices, AreFoundByInterfaceNameOrAddress) {
  const std::vector<ucx::Interface> there{{"lo", "127.0.0.1"}, {"eth0", ""}, {"eth0", "10.0.0.1"}, {"ib0", "fd00::7"}};
  const std::filesystem::path sysfs = ::testing::TempDir() + "ucx_devices_" + std::to_string(::getpid());
  const auto devices = [&](const char* near) {
    const auto found = ucx::net_devices(near, there, sysfs);
    return found.ok() ? *found : found.status().to_string();
  };
  EXPECT_EQ(devices("eth0"), "eth0");
  EXPECT_EQ(devices("10.0.0.1"), "eth0");
  EXPECT_EQ(devices("fd00::7"), "ib0");
  for (const char* nowhere : {"eth7", "10.0.0.2"}) {
    EXPECT_THAT(devices(nowhere),
                testing::Mentions(nowhere, "SHOAL_HOST_ADDRESS", "SHOAL_SOCKET_IFNAME", "lo", "127.0.0.1", "eth0", "10.0.0.1"));
  }
  // A card with verbs has its own name, and a port: UCX counts from 1.
  std::filesystem::create_directories(sysfs / "class/net/ib0/device/infiniband/mlx5_3");
  EXPECT_EQ(devices("ib0"), "ib0,mlx5_3:1");
  std::ofstream(sysfs / "class/net/ib0/dev_port") << "1\n";
  EXPECT_EQ(devices("ib0"), "ib0,mlx5_3:2");
  EXPECT_EQ(devices("eth0"), "eth0");
  std::filesystem::remove_all(sysfs);
}

/// The address of a ucx transport with `options`, or the error. Runs in a child process.
std::string ucx_address(const UcxOptions& options, const char* net_devices = nullptr) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 1);  // not needed here, and incompatible with sanitizers
    ::unsetenv("UCX_TLS");
    ::unsetenv("UCX_NET_DEVICES");
    if (net_devices != nullptr) ::setenv("UCX_NET_DEVICES", net_devices, 1);
    const auto made = make_ucx_transport(options);
    const std::string text = made.ok() ? (*made)->address() : made.status().to_string();
    ::_exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

TEST(UcxDevices, AreTheOnlyOnesUnlessUcxNetDevicesIsSet) {
  if (const auto version = ucx_version(); !version.ok()) GTEST_SKIP() << version.status().message();
  std::string elsewhere;  // bytes of an IPv4 address, as in a UCX address
  for (const ucx::Interface& each : ucx::interfaces()) {
    in_addr bytes{};
    if (each.name != "lo" && ::inet_pton(AF_INET, each.address.c_str(), &bytes) == 1)
      elsewhere.assign(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  }
  UcxOptions options;
  if (elsewhere.empty() || ucx_address(options).find(elsewhere) == std::string::npos)
    GTEST_SKIP() << "UCX takes no interface here but the loopback";
  for (const char* near : {"lo", "127.0.0.1"}) {
    options.near = near;
    EXPECT_EQ(ucx_address(options).find(elsewhere), std::string::npos) << near;
    EXPECT_NE(ucx_address(options, "all").find(elsewhere), std::string::npos) << "UCX_NET_DEVICES has priority";
  }
  options.near = "nosuch0";
  EXPECT_THAT(ucx_address(options), testing::Mentions("nosuch0", "SHOAL_HOST_ADDRESS"));
}

TEST(UcxDevices, IncludeTheLoopbackOfThisHost) {
  const auto found = ucx::net_devices("127.0.0.1", ucx::interfaces(), "/sys");
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, "lo");
}

}  // namespace
}  // namespace shoal::ofi
