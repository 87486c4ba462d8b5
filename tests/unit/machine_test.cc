// src/machine on fake /sys trees: devices found, NICs and cores of each rank, and the sources of the instance type.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "src/machine/affinity.h"
#include "src/machine/detect.h"
#include "src/machine/sysfs.h"
#include "tests/mentions.h"
#include "tests/unit/fake_hardware.h"
#include "tests/unit/fake_machine.h"
#include "tests/unit/fake_metadata.h"

namespace shoal {
namespace {

using fake::Folder;
using fake::MetadataServer;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Mentions;
using ::testing::Not;

std::vector<std::string> names_of(const Hardware& hardware, const std::vector<int>& nics) {
  std::vector<std::string> names;
  for (const int nic : nics) names.push_back(hardware.nics[static_cast<std::size_t>(nic)].name);
  return names;
}

/// No core is given out twice, and all are allowed.
void expect_disjoint(const std::vector<RankPlace>& places, const std::vector<int>& allowed) {
  std::set<int> seen;
  for (const RankPlace& place : places) {
    for (const auto* cores : {&place.cores, &place.progress_cores}) {
      for (const int core : *cores) {
        EXPECT_TRUE(seen.insert(core).second) << core << " twice";
        EXPECT_THAT(allowed, Contains(core));
      }
    }
  }
}

TEST(Sysfs, ParsesAndFormatsCoreLists) {
  for (const auto& [text, cores] :
       {std::pair<const char*, std::vector<int>>{"0-2,5\n", {0, 1, 2, 5}}, {"", {}}, {"7", {7}}, {" 3,1-2,2 ", {1, 2, 3}}}) {
    const auto parsed = parse_cores(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, cores);
  }
  for (const char* bad : {"a", "1-", "-1", "3-1", "1,,2", "0-99999999", "1 2", "0-65535,0-65535,0-65535"}) {
    EXPECT_FALSE(parse_cores(bad).ok()) << bad;
  }
  EXPECT_EQ(format_cores({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(format_cores({}), "");
}

TEST(Sysfs, ParsesIdsRatesAndBridges) {
  EXPECT_EQ(parse_hexadecimal("0x1d0f\n"), 0x1d0fU);
  EXPECT_EQ(parse_hexadecimal("0x1d0g"), std::nullopt);
  EXPECT_EQ(parse_infiniband_rate("100 Gb/sec (4X EDR)\n"), 100);
  EXPECT_EQ(parse_infiniband_rate("2.5 Gb/sec (1X SDR)"), 2.5);
  EXPECT_EQ(parse_infiniband_rate("fast"), 0);
  EXPECT_EQ(parse_ethernet_speed("25000"), 25);
  EXPECT_EQ(parse_ethernet_speed("-1"), 0);
  EXPECT_THAT(bridges_of_path("/sys/devices/pci0000:44/0000:44:00.0/0000:45:00.0"), ElementsAre("pci0000:44", "0000:44:00.0"));
  EXPECT_THAT(bridges_of_path("/sys/devices/platform/x"), IsEmpty());
}

TEST(Sysfs, FindsDevicesOfP5) {
  const Hardware found = hardware_of(fake::machine("p5"));
  ASSERT_EQ(found.gpus.size(), 8U);
  EXPECT_EQ(found.gpus[0].place.address, "0000:53:00.0");
  EXPECT_EQ(found.gpus[7].place.numa_node, 1);
  EXPECT_EQ(found.nvswitches, 4);
  EXPECT_EQ(found.cores().size(), 192U);
  EXPECT_EQ(found.sibling_of.at(100), 4);
  EXPECT_EQ(found.node_of_core(150), 1);
  const auto used = network_rails(found);
  ASSERT_EQ(used.size(), 32U);  // the Ethernet NICs carry no data
  const Nic& first = found.nics[static_cast<std::size_t>(used.front())];
  EXPECT_EQ(first.name, "rdmap79s0");
  EXPECT_EQ(first.efa_generation, 2);
  EXPECT_EQ(first.gbit_s, 100);
}

TEST(Sysfs, EmptyTreeIsNoError) {
  const Folder folder;
  const Hardware found = read_hardware(folder.path());
  EXPECT_THAT(found.gpus, IsEmpty());
  EXPECT_THAT(found.numa_nodes, IsEmpty());
  const auto places = place_ranks(found, 2, {0, 1});
  ASSERT_EQ(places.size(), 2U);
  EXPECT_THAT(places[0].progress_cores, IsEmpty());
}

TEST(Sysfs, ListsCoreZeroOfThisMachine) { EXPECT_THAT(read_hardware("/sys").cores(), Contains(0)); }

TEST(Placement, P5RankGetsFourNicsOfItsSwitch) {
  const Hardware p5 = hardware_of(fake::machine("p5"));
  const auto places = place_ranks(p5, 8, p5.cores());
  ASSERT_EQ(places.size(), 8U);
  EXPECT_THAT(names_of(p5, places[0].nics), ElementsAre("rdmap79s0", "rdmap80s0", "rdmap81s0", "rdmap82s0"));
  EXPECT_THAT(names_of(p5, places[7].nics), ElementsAre("rdmap198s0", "rdmap199s0", "rdmap200s0", "rdmap201s0"));
  EXPECT_THAT(places[0].why, Mentions("switch"));
  EXPECT_EQ(places[0].shares_nic_with, 0);
  // Each rank has an eighth of the physical cores; both hardware threads of the last one are for communication.
  EXPECT_EQ(format_cores(places[0].cores), "0-10,96-106");
  EXPECT_THAT(places[0].progress_cores, ElementsAre(11, 107));
  EXPECT_THAT(places[7].progress_cores, ElementsAre(95, 191));
  expect_disjoint(places, p5.cores());
}

TEST(Placement, P4dRanksShareNicsInPairs) {
  const Hardware p4d = hardware_of(fake::machine("p4d"));
  const auto places = place_ranks(p4d, 8, p4d.cores());
  EXPECT_THAT(names_of(p4d, places[0].nics), ElementsAre("rdmap16s27"));
  EXPECT_THAT(names_of(p4d, places[1].nics), ElementsAre("rdmap16s27"));
  EXPECT_THAT(names_of(p4d, places[6].nics), ElementsAre("rdmap160s27"));
  EXPECT_EQ(places[1].shares_nic_with, 1);
  EXPECT_THAT(places[0].why, Mentions("root"));
  EXPECT_EQ(format_cores(places[4].cores), "24-28,72-76");
  EXPECT_THAT(places[4].progress_cores, ElementsAre(29, 77));
  expect_disjoint(places, p4d.cores());
}

TEST(Placement, ProgressCoresAreNearNicNotGpu) {
  const Hardware g5 = hardware_of(fake::machine("g5"));
  const auto places = place_ranks(g5, 8, g5.cores());
  for (const RankPlace& place : places) {
    EXPECT_THAT(names_of(g5, place.nics), ElementsAre("rdmap0s21"));
    EXPECT_EQ(place.shares_nic_with, 7);
    ASSERT_FALSE(place.progress_cores.empty());
    EXPECT_EQ(g5.node_of_core(place.progress_cores[0]), 1);
  }
  EXPECT_EQ(g5.node_of_core(places[0].cores[0]), 0);
  expect_disjoint(places, g5.cores());
}

TEST(Placement, SpreadsRanksWithoutGpusOverNumaNodes) {
  fake::Machine machine = fake::machine("p4d");
  std::erase_if(machine.devices, [](const fake::Device& device) { return device.vendor == "0x10de"; });
  const Hardware found = hardware_of(machine);
  const auto places = place_ranks(found, 4, found.cores());
  EXPECT_THAT(names_of(found, places[0].nics), ElementsAre("rdmap16s27"));
  EXPECT_THAT(names_of(found, places[1].nics), ElementsAre("rdmap32s27"));
  EXPECT_THAT(names_of(found, places[3].nics), ElementsAre("rdmap160s27"));
  EXPECT_EQ(places[2].numa_node, 1);
  const auto one = place_ranks(found, 1, found.cores());
  EXPECT_EQ(one[0].nics.size(), 2U);  // those on its NUMA node
  expect_disjoint(places, found.cores());
  // Three ranks: two on the first NUMA node, one on the second, which has two NICs. All get equally many.
  for (const RankPlace& place : place_ranks(found, 3, found.cores())) EXPECT_EQ(place.nics.size(), 1U);
}

TEST(Placement, KeepsRanksOnTheNumaNodeTheyAreBoundTo) {
  fake::Machine machine = fake::machine("p4d");
  std::erase_if(machine.devices, [](const fake::Device& device) { return device.vendor == "0x10de"; });
  const Hardware found = hardware_of(machine);
  const auto places = place_ranks(found, 4, found.cores(), {0, 1, 0, 1});  // mpirun --map-by socket --bind-to socket
  EXPECT_THAT(names_of(found, places[0].nics), ElementsAre("rdmap16s27"));
  EXPECT_THAT(names_of(found, places[1].nics), ElementsAre("rdmap144s27"));
  EXPECT_THAT(names_of(found, places[2].nics), ElementsAre("rdmap32s27"));
  EXPECT_THAT(names_of(found, places[3].nics), ElementsAre("rdmap160s27"));
  EXPECT_EQ(node_of_all(found, {0, 50}), 0);
  EXPECT_EQ(node_of_all(found, {0, 24}), -1);
  EXPECT_EQ(node_of_all(found, {}), -1);
}

TEST(Placement, SingleRankSpreadsItsRailsOverSwitches) {
  fake::Machine machine = fake::machine("p5");
  std::erase_if(machine.devices, [](const fake::Device& device) { return device.vendor == "0x10de"; });
  const Hardware found = hardware_of(machine);
  const auto places = place_ranks(found, 1, found.cores());
  // Its NUMA node has sixteen NICs, four behind each switch: the rank takes two of each.
  EXPECT_THAT(names_of(found, places[0].nics), ElementsAre("rdmap79s0", "rdmap81s0", "rdmap96s0", "rdmap98s0", "rdmap113s0",
                                                           "rdmap115s0", "rdmap130s0", "rdmap132s0"));
}

TEST(Placement, AllRanksUseEquallyManyNics) {
  fake::Machine p5 = fake::machine("p5");
  std::erase_if(p5.devices, [](const fake::Device& device) { return device.verbs == "rdmap80s0"; });
  const Hardware found = hardware_of(p5);
  for (const RankPlace& place : place_ranks(found, 8, found.cores())) EXPECT_EQ(place.nics.size(), 3U);
}

TEST(Placement, LaptopRanksShareItsOneNic) {
  const Hardware laptop = hardware_of(fake::machine("laptop"));
  EXPECT_THAT(laptop.gpus, IsEmpty());  // the display controller is no GPU for computing
  EXPECT_THAT(names_of(laptop, network_rails(laptop)), ElementsAre("enp0s31f6"));
  const auto places = place_ranks(laptop, 2, laptop.cores());
  EXPECT_THAT(places[0].why, Not(AnyOf(Mentions("PCIe"), Mentions("NUMA"))));
  EXPECT_EQ(places[0].shares_nic_with, 1);
  EXPECT_THAT(places[1].progress_cores, ElementsAre(3, 7));
  expect_disjoint(places, laptop.cores());
}

TEST(Placement, UsesAllowedCoresOnly) {
  const Hardware p5 = hardware_of(fake::machine("p5"));
  const std::vector<int> few{50, 51, 146, 147};  // two physical cores of the second NUMA node
  auto places = place_ranks(p5, 1, few);         // its GPU is near the first NUMA node
  EXPECT_THAT(places[0].cores, ElementsAre(50, 146));
  EXPECT_THAT(places[0].progress_cores, ElementsAre(51, 147));
  places = place_ranks(p5, 8, few);
  for (const RankPlace& place : places) {
    EXPECT_THAT(place.progress_cores, IsEmpty());
    EXPECT_FALSE(place.cores.empty());
  }
  EXPECT_THAT(place_ranks(p5, 0, few), IsEmpty());
  EXPECT_EQ(place_ranks(p5, 16, p5.cores())[9].gpu, 1);
}

TEST(Placement, IgnoresNicsWithoutDriverOrLink) {
  fake::Machine machine = fake::machine("p4d");
  for (fake::Device& device : machine.devices) {
    if (device.device == "0xefa0") device.verbs.clear();
  }
  const Hardware found = hardware_of(machine);
  EXPECT_THAT(names_of(found, network_rails(found)), ElementsAre("eth0"));
}

DetectOptions options_for(const Folder& folder) {
  DetectOptions options;
  options.sysfs_root = folder.path();
  options.metadata_url.clear();
  options.metadata_budget = std::chrono::seconds(20);
  return options;
}

TEST(Detect, ReadsTypeFromDmiWithoutNetwork) {
  const Folder folder;
  fake::write(fake::machine("p5"), folder.path());
  const FoundMachine machine = detect_machine(options_for(folder));
  EXPECT_EQ(machine.type, "p5.48xlarge");
  EXPECT_THAT(machine.type_origin, Mentions("DMI"));
  ASSERT_NE(machine.instance, nullptr);
  EXPECT_EQ(machine.instance_id, "i-0fedcba9876543210");
  EXPECT_THAT(machine.notes, IsEmpty());
}

TEST(Detect, UserSettingOverridesDmi) {
  const Folder folder;
  fake::write(fake::machine("p5"), folder.path());
  DetectOptions options = options_for(folder);
  options.instance_type = "p4d";
  const FoundMachine machine = detect_machine(options);
  EXPECT_EQ(machine.type, "p4d.24xlarge");
  EXPECT_EQ(machine.type_origin, "SHOAL_INSTANCE_TYPE");
  EXPECT_THAT(machine.notes, Contains(Mentions("32", "EFA", "p4d.24xlarge", "4")));
}

TEST(Detect, ReportsMissingNic) {
  fake::Machine p5 = fake::machine("p5");
  std::erase_if(p5.devices, [](const fake::Device& device) { return device.verbs == "rdmap80s0"; });
  const Folder folder;
  fake::write(p5, folder.path());
  EXPECT_THAT(detect_machine(options_for(folder)).notes, ElementsAre(Mentions("31", "p5.48xlarge", "32", "EFA interface")));
}

TEST(Detect, ReadsZoneAndGroupFromMetadata) {
  const Folder folder;
  fake::write(fake::machine("p4d"), folder.path());
  const MetadataServer server(MetadataServer::ec2_like(
      {{"instance-type", "p4d.24xlarge"}, {"placement/group-name", "train"}, {"placement/availability-zone-id", "use1-az4"}}));
  DetectOptions options = options_for(folder);
  options.metadata_url = server.url();
  const FoundMachine machine = detect_machine(options);
  EXPECT_THAT(machine.type_origin, Mentions("DMI"));
  EXPECT_EQ(machine.metadata.at("placement/group-name"), "train");
  EXPECT_THAT(machine.notes, IsEmpty());
}

TEST(Detect, IgnoresMetadataThatContradictsDmi) {
  const Folder folder;
  fake::write(fake::machine("p4d"), folder.path());
  const MetadataServer server(
      MetadataServer::ec2_like({{"instance-type", "p5.48xlarge"}, {"instance-id", "i-0ffffffffffffffff"}}));
  DetectOptions options = options_for(folder);
  options.metadata_url = server.url();
  const FoundMachine machine = detect_machine(options);
  EXPECT_EQ(machine.type, "p4d.24xlarge");
  EXPECT_EQ(machine.instance_id, "i-0123456789abcdef0");
  EXPECT_THAT(machine.notes, ElementsAre(Mentions("p5.48xlarge", "DMI", "p4d.24xlarge")));
}

TEST(Detect, ReadsTypeFromMetadataWithoutDmiType) {
  fake::Machine xen = fake::machine("p4d");
  xen.product = "HVM domU";
  xen.asset_tag = "";
  const Folder folder;
  fake::write(xen, folder.path());
  const MetadataServer server(MetadataServer::ec2_like({{"instance-type", "p4d.24xlarge"}, {"instance-id", "i-0abc"}}));
  DetectOptions options = options_for(folder);
  options.metadata_url = server.url();
  FoundMachine machine = detect_machine(options);
  EXPECT_EQ(machine.type, "p4d.24xlarge");
  EXPECT_THAT(machine.type_origin, Mentions("metadata"));
  EXPECT_EQ(machine.instance_id, "i-0abc");
  const MetadataServer forged(MetadataServer::ec2_like({{"instance-type", "../../etc/passwd"}}));
  options.metadata_url = forged.url();
  machine = detect_machine(options);
  EXPECT_EQ(machine.type, "");
  EXPECT_THAT(machine.notes, Contains(Mentions("../../etc/passwd")));
}

TEST(Detect, QueriesMetadataIfDeviceOrHypervisorIsEc2) {
  const MetadataServer server(MetadataServer::ec2_like({{"instance-type", "p4d.24xlarge"}}));
  fake::Machine masked = fake::machine("p4d");
  masked.product = "";
  const Folder by_device;
  fake::write(masked, by_device.path());
  const Folder by_hypervisor;
  fake::write(fake::machine("plain"), by_hypervisor.path());
  std::filesystem::create_directories(by_hypervisor.path() + "/hypervisor");
  std::ofstream(by_hypervisor.path() + "/hypervisor/uuid") << "ec2f4a8b-0000-0000-0000-000000000000\n";
  for (const Folder* folder : {&by_device, &by_hypervisor}) {
    DetectOptions options = options_for(*folder);
    EXPECT_EQ(detect_machine(options).type, "");
    options.metadata_url = server.url();
    const FoundMachine machine = detect_machine(options);
    EXPECT_EQ(machine.type, "p4d.24xlarge");
    EXPECT_THAT(machine.type_origin, Mentions("metadata"));
  }
}

TEST(Detect, QueriesMetadataOnRequest) {
  const Folder folder;
  fake::write(fake::machine("plain"), folder.path());
  const MetadataServer server(MetadataServer::ec2_like({{"instance-type", "p5.48xlarge"}}));
  DetectOptions options = options_for(folder);
  options.metadata_url = server.url();
  options.always_ask = true;
  EXPECT_EQ(detect_machine(options).type, "p5.48xlarge");
}

TEST(Detect, SkipsMetadataOutsideEc2) {
  for (const char* name : {"laptop", "plain"}) {
    const Folder folder;
    fake::write(fake::machine(name), folder.path());
    const MetadataServer server(MetadataServer::ec2_like({{"instance-type", "p5.48xlarge"}}));
    DetectOptions options = options_for(folder);
    options.metadata_url = server.url();
    const FoundMachine machine = detect_machine(options);
    EXPECT_EQ(server.requests(), 0) << name;
    EXPECT_EQ(machine.type, "");
    EXPECT_EQ(machine.instance, nullptr);
  }
}

TEST(Detect, SilentMetadataServiceIsOnlyANote) {
  const Folder folder;
  fake::write(fake::machine("p5"), folder.path());
  const MetadataServer server([](const std::string&) { return MetadataServer::Reply{"", true}; });
  DetectOptions options = options_for(folder);
  options.metadata_url = server.url();
  options.metadata_budget = std::chrono::milliseconds(100);
  const FoundMachine machine = detect_machine(options);
  EXPECT_EQ(machine.type, "p5.48xlarge");
  EXPECT_EQ(machine.hardware.gpus.size(), 8U);
  EXPECT_THAT(machine.notes, ElementsAre(Mentions("metadata", "hop")));
}

TEST(Detect, NamesInvalidSettings) {
  ::setenv("SHOAL_METADATA_URL", "http://metadata.internal", 1);
  auto options = detect_options();
  EXPECT_FALSE(options.ok());
  EXPECT_THAT(options.status().message(), Mentions("SHOAL_METADATA_URL", "http://metadata.internal"));
  ::setenv("SHOAL_METADATA_URL", "off", 1);
  ::setenv("SHOAL_METADATA_TIMEOUT", "0.1", 1);
  ::setenv("SHOAL_SYSFS_ROOT", "/elsewhere", 1);
  options = detect_options();
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->metadata_url, "");
  EXPECT_EQ(options->metadata_budget.count(), 100);
  EXPECT_EQ(options->sysfs_root, "/elsewhere");
  ::setenv("SHOAL_METADATA_TIMEOUT", "never", 1);
  EXPECT_FALSE(detect_options().ok());
  for (const char* name : {"SHOAL_METADATA_URL", "SHOAL_METADATA_TIMEOUT", "SHOAL_SYSFS_ROOT"}) ::unsetenv(name);
}

TEST(Instances, RowsAreCompleteAndConsistent) {
  std::set<std::string_view> names;
  for (const Instance& row : instances()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(row.alias.empty() || names.insert(row.alias).second) << row.alias;
    EXPECT_EQ(find_instance(row.name), &row);
    EXPECT_GT(row.source.size(), 10U) << row.name;
    EXPECT_GT(row.gpus * row.gpu_memory_gbyte_s, 0) << row.name;
    EXPECT_EQ(row.efa_generation > 0, row.efa_cards > 0) << row.name;
    // The first EFA generation has RDMA reads on p4 only and no RDMA writes; later ones have both (EC2 guide).
    EXPECT_EQ(row.rdma_write, row.efa_generation >= 2) << row.name;
    EXPECT_EQ(row.rdma_read, row.efa_generation >= 2 || row.alias.starts_with("p4")) << row.name;
    if (row.gpus_of_switch > 0) {
      EXPECT_EQ(row.gpus % row.gpus_of_switch, 0) << row.name;
      EXPECT_EQ(row.gpus / row.gpus_of_switch * row.cards_of_switch, row.efa_cards) << row.name;
    }
  }
  EXPECT_EQ(find_instance("p9.48xlarge"), nullptr);
  EXPECT_EQ(find_instance(""), nullptr);
}

TEST(Instances, TotalsMatchTheDocumentation) {
  for (const auto& [name, gbit_s] : {std::pair{"p3dn", 100},
                                     {"p4d", 400},
                                     {"p4de", 400},
                                     {"p5", 3200},
                                     {"p5e", 3200},
                                     {"p5en", 3200},
                                     {"p6-b200", 3200},
                                     {"p6-b300", 6400},
                                     {"g6e", 400},
                                     {"g7e", 1600}}) {
    const Instance* row = find_instance(name);
    ASSERT_NE(row, nullptr) << name;
    EXPECT_EQ(row->efa_cards * row->card_gbit_s, gbit_s) << name;
  }
  EXPECT_EQ(find_instance("p4d")->rails_of_gpu(), 0.5);
  EXPECT_EQ(find_instance("p5.48xlarge")->rails_of_gpu(), 4);
}

TEST(Instances, FakeMachinesMatchTheirRows) {
  for (const char* name : {"p4d", "p5", "g5"}) {
    const Folder folder;
    fake::write(fake::machine(name), folder.path());
    const FoundMachine machine = detect_machine(options_for(folder));
    EXPECT_THAT(machine.notes, IsEmpty()) << name;
    ASSERT_NE(machine.instance, nullptr);
    EXPECT_EQ(machine.hardware.numa_nodes.size(), static_cast<std::size_t>(machine.instance->numa_nodes));
  }
}

}  // namespace
}  // namespace shoal
