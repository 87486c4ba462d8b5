// Which provider and which devices the ofi transport takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transports/ofi/libfabric.h"

namespace shoal::ofi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
  near.near = "10.9.9.9";  // a wish, no condition
  EXPECT_THAT(chosen(machine_with_sockets(), near), ElementsAre(2));
  EXPECT_THAT(chosen({machine_with_sockets()[1]}, {}), ElementsAre(0)) << "loopback where there is nothing else";
}

TEST(OfiChoose, WhatReachesOnlyThisHostIsForThoseWhoNameIt) {
  EXPECT_THAT(refusal({machine_with_sockets()[0]}, {}), HasSubstr("there is shm on shm"));
  RailRequest request;
  request.provider = "shm";
  EXPECT_THAT(chosen(machine_with_sockets(), request), ElementsAre(0));
}

TEST(OfiChoose, NamedDevicesAreRailsInTheirOrder) {
  RailRequest request;
  request.devices = {"eth1", "10.0.0.1"};
  EXPECT_THAT(chosen(machine_with_sockets(), request), ElementsAre(3, 2));
  request.devices = {"eth0", "eth7"};
  EXPECT_THAT(refusal(machine_with_sockets(), request), HasSubstr("eth0,eth7 (SHOAL_RAILS)"));
  request.devices = {"eth0"};
  request.provider = "udp;ofi_rxd";
  EXPECT_THAT(chosen(machine_with_sockets(), request), ElementsAre(4));
}

TEST(OfiChoose, AnUnknownProviderIsNamedWithWhatThereIs) {
  RailRequest request;
  request.provider = "efa";
  EXPECT_THAT(refusal(machine_with_sockets(), request),
              testing::AllOf(HasSubstr("'efa' (SHOAL_OFI_PROVIDER)"), HasSubstr("tcp;ofi_rxm on eth0")));
}

TEST(OfiChoose, CardsComeBeforeSocketsTheFastestFirstAndAreShared) {
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

TEST(OfiChoose, TheCardsOfThePlacementWhereTheyAreThere) {
  std::vector<Candidate> candidates = machine_with_sockets();
  for (const char* name : {"rdmap144s27-rdm", "rdmap16s27-rdm", "rdmap160s27-rdm", "rdmap32s27-rdm", "rdmap3-rdm"})
    candidates.push_back(card(name, 100, true));
  RailRequest request;
  request.share = 1;
  request.shares = 2;
  request.cards = {"rdmap160s27", "rdmap16s27"};
  EXPECT_THAT(chosen(candidates, request), ElementsAre(7, 6)) << "in the placement's order";
  request.cards = {"rdmap3"};
  EXPECT_THAT(chosen(candidates, request), ElementsAre(9)) << "not those whose names begin like it";
  request.cards = {"eth0"};
  request.shares = 5;
  EXPECT_THAT(chosen(candidates, request), ElementsAre(6)) << "a part of all: by bus numbers, of which 3 is the first";
  request.devices = {"rdmap32s27-rdm"};
  request.cards = {"rdmap3"};
  EXPECT_THAT(chosen(candidates, request), ElementsAre(8)) << "SHOAL_RAILS counts more";
}

}  // namespace
}  // namespace shoal::ofi
