// Cores of the progress threads and NICs of the ranks of a host, on fake machines and on this one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "src/machine/cores.h"
#include "src/machine/placing.h"
#include "src/machine/sysfs.h"
#include "tests/mentions.h"
#include "tests/unit/fake_hardware.h"
#include "tests/unit/fake_machine.h"

namespace shoal {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// `count` ranks that may all run on `cores`; no other process uses these.
HostRanks unbound(const std::vector<int>& cores, std::size_t count) {
  return {std::vector<std::vector<int>>(count, cores), static_cast<int>(cores.size())};
}

std::vector<int> numbers(int first, int end) {
  std::vector<int> all(static_cast<std::size_t>(end - first));
  std::iota(all.begin(), all.end(), first);
  return all;
}

TEST(Placing, WholeMachineUsesReservedCores) {
  for (const char* name : {"p4d", "p5", "g5", "laptop"}) {
    const Hardware machine = hardware_of(fake::machine(name));
    const std::size_t ranks = machine.gpus.empty() ? 2 : machine.gpus.size();
    const auto reserved = place_ranks(machine, static_cast<int>(ranks), machine.cores());
    const auto places = places_of(machine, unbound(machine.cores(), ranks), "near");
    for (std::size_t i = 0; i < ranks; ++i) {
      ASSERT_FALSE(reserved[i].progress_cores.empty()) << name;
      EXPECT_EQ(places[i].progress_cores, reserved[i].progress_cores) << name;
      EXPECT_EQ(places[i].cores, reserved[i].cores) << name;
      EXPECT_EQ(places[i].nics, reserved[i].nics) << name;
      const auto& nic = machine.nics[static_cast<std::size_t>(places[i].nics.front())];
      EXPECT_EQ(machine.node_of_core(places[i].progress_cores.front()), std::max(nic.place.numa_node, 0)) << name;
    }
  }
}

TEST(Placing, PinsNothingIfRanksOutnumberCores) {
  const Hardware laptop = hardware_of(fake::machine("laptop"));
  for (const char* policy : {"near", "last"}) {
    for (const RankPlace& place : places_of(laptop, unbound(laptop.cores(), 5), policy)) {
      EXPECT_THAT(place.progress_cores, IsEmpty());
      EXPECT_THAT(place.progress_why, testing::Mentions("spare"));
    }
  }
}

TEST(Placing, PinsNothingOnSharedCores) {
  const Hardware laptop = hardware_of(fake::machine("laptop"));
  HostRanks quota = unbound(laptop.cores(), 1);
  quota.cores = 4;  // a container with a quota of half the cores
  for (const HostRanks& ranks : {quota, unbound(numbers(0, 6), 1)}) {
    const RankPlace place = places_of(laptop, ranks, "near")[0];
    EXPECT_THAT(place.progress_cores, IsEmpty());
    EXPECT_THAT(place.progress_why, testing::Mentions("bound"));
    EXPECT_EQ(place.cores, ranks.masks[0]);
  }
  // An explicit "last" overrides the check.
  EXPECT_THAT(places_of(laptop, unbound(numbers(0, 6), 1), "last")[0].progress_cores, ElementsAre(5));
}

TEST(Placing, BoundRanksPreferTheNodeOfTheirNic) {
  const Hardware g5 = hardware_of(fake::machine("g5"));  // its NIC is on the second NUMA node
  RankPlace place = places_of(g5, unbound(numbers(40, 60), 2), "near")[0];
  EXPECT_EQ(place.progress_cores, numbers(48, 60));
  EXPECT_THAT(place.progress_why, testing::Mentions("NIC"));
  place = places_of(g5, unbound(numbers(0, 20), 2), "near")[0];
  EXPECT_THAT(place.progress_cores, IsEmpty());
  place = places_of(g5, unbound(numbers(50, 60), 2), "near")[0];
  EXPECT_THAT(place.progress_cores, IsEmpty());
}

TEST(Placing, BoundRanksTakeNicsOfTheirNode) {
  fake::Machine machine = fake::machine("p4d");
  std::erase_if(machine.devices, [](const fake::Device& device) { return device.vendor == "0x10de"; });
  const Hardware found = hardware_of(machine);
  const auto places = places_of(found, {{numbers(24, 48), numbers(0, 24)}, 48}, "near");
  EXPECT_EQ(found.nics[static_cast<std::size_t>(places[0].nics.front())].place.numa_node, 1);
  EXPECT_EQ(found.nics[static_cast<std::size_t>(places[1].nics.front())].place.numa_node, 0);
}

TEST(Placing, ObeysOffAndCoreLists) {
  const Hardware p5 = hardware_of(fake::machine("p5"));
  const RankPlace free = places_of(p5, unbound(p5.cores(), 8), "off")[0];
  EXPECT_THAT(free.progress_cores, IsEmpty());
  EXPECT_EQ(format_cores(free.cores), "0-11,96-107");  // the caller also has the reserved cores
  const auto listed = places_of(p5, {std::vector<std::vector<int>>(3, {0}), 1}, "11,23");
  EXPECT_THAT(listed[0].progress_cores, ElementsAre(11));
  EXPECT_THAT(listed[1].progress_cores, ElementsAre(23));
  EXPECT_THAT(listed[2].progress_cores, ElementsAre(11));
}

TEST(Placing, PlacesRanksOnUnknownMachine) {
  const Hardware unknown;
  EXPECT_THAT(places_of(unknown, unbound({0, 1, 2, 3}, 2), "near")[1].progress_cores, ElementsAre(2));
  EXPECT_THAT(places_of(unknown, {{{}, {}}, 4}, "near")[1].progress_cores, IsEmpty());
}

/// own_place() on the fake machine at SHOAL_SYSFS_ROOT.
class OwnPlaceOf : public ::testing::Test {
 protected:
  void use(const char* name) {
    fake::write(fake::machine(name), folder_.path());
    ::setenv("SHOAL_SYSFS_ROOT", folder_.path().c_str(), 1);
  }
  ~OwnPlaceOf() override { ::unsetenv("SHOAL_SYSFS_ROOT"); }

 private:
  fake::Folder folder_;
};

TEST_F(OwnPlaceOf, P4dRankTakesNicOfItsGpu) {
  use("p4d");
  const OwnPlace place = own_place(unbound(numbers(0, 96), 8), 6, true);
  EXPECT_THAT(place.nics, ElementsAre("rdmap160s27"));
  EXPECT_THAT(place.progress_cores, ElementsAre(41, 89));
  EXPECT_EQ(own_place(unbound(numbers(0, 96), 8), 6, false).progress_cores, place.progress_cores);
}

TEST_F(OwnPlaceOf, DevicesDoNotChangeCoresOfLaptop) {
  use("laptop");
  const OwnPlace with = own_place(unbound(numbers(0, 8), 2), 1, true);
  const OwnPlace without = own_place(unbound(numbers(0, 8), 2), 1, false);
  EXPECT_THAT(with.nics, ElementsAre("enp0s31f6"));
  EXPECT_THAT(without.nics, IsEmpty());
  EXPECT_EQ(with.progress_cores, without.progress_cores);
  EXPECT_THAT(with.progress_cores, ElementsAre(3, 7));
}

TEST(OwnPlace, UsesCoresOfThisProcess) {
  const std::vector<int> cores = affinity_cores();
  for (const int core : own_place({{cores}, allowed_cores()}, 0, true).progress_cores) EXPECT_THAT(cores, Contains(core));
}

}  // namespace
}  // namespace shoal
