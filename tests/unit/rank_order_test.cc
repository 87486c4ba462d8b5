// Host order by network distance, from the answer of DescribeInstanceTopology in a file or of a command.
#include "src/machine/rank_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <fmt/format.h>

#include "tests/mentions.h"
#include "tests/unit/fake_machine.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Three layers; i-3 and i-1 are nearest, i-2 shares the second layer with them, i-4 is in another part, i-5 does not run.
constexpr const char* kTopology = R"({"Instances": [
  {"InstanceId": "i-1", "InstanceType": "p4d.24xlarge", "ZoneId": "z", "NetworkNodes": ["nn-a", "nn-b", "nn-c"]},
  {"InstanceId": "i-2", "InstanceType": "p4d.24xlarge", "ZoneId": "z", "NetworkNodes": ["nn-a", "nn-b", "nn-d"]},
  {"InstanceId": "i-3", "InstanceType": "p4d.24xlarge", "ZoneId": "z", "NetworkNodes": ["nn-a", "nn-b", "nn-c"]},
  {"InstanceId": "i-4", "InstanceType": "p4d.24xlarge", "ZoneId": "z", "NetworkNodes": ["nn-x", "nn-y", "nn-z"]},
  {"InstanceId": "i-5", "NetworkNodes": null}], "NextToken": null})";
constexpr const char* kInstances = R"({"Reservations": [{"Instances": [
  {"InstanceId": "i-1", "PrivateDnsName": "ip-10-0-0-1.ec2.internal", "PrivateIpAddress": "10.0.0.1", "PublicDnsName": ""},
  {"InstanceId": "i-2", "PrivateDnsName": "ip-10-0-0-2.ec2.internal", "PrivateIpAddress": "10.0.0.2"}]}]})";

std::vector<std::string> ordered(const NetworkTree& tree, const std::vector<std::string>& hosts) {
  std::vector<std::string> result;
  for (const std::size_t host : order_hosts(tree, hosts).order) result.push_back(hosts[host]);
  return result;
}

TEST(RankOrder, OrdersHostsByLowestSharedNode) {
  NetworkTree tree;
  ASSERT_TRUE(add_answer(kTopology, tree).ok());
  EXPECT_EQ(tree.paths.size(), 4U);
  EXPECT_THAT(ordered(tree, {"i-1", "i-4", "i-2", "i-3"}), ElementsAre("i-1", "i-3", "i-2", "i-4"));
  EXPECT_THAT(ordered(tree, {"i-4", "i-3", "i-2", "i-1"}), ElementsAre("i-4", "i-3", "i-1", "i-2"));  // the first stays first
}

TEST(RankOrder, UnknownHostsComeLast) {
  NetworkTree tree;
  ASSERT_TRUE(add_answer(kTopology, tree).ok());
  const std::vector<std::string> hosts{"i-5", "i-2", "other", "i-1"};
  EXPECT_THAT(ordered(tree, hosts), ElementsAre("i-2", "i-1", "i-5", "other"));
  EXPECT_THAT(order_hosts(tree, hosts).unknown, ElementsAre("i-5", "other"));
}

TEST(RankOrder, FindsHostsByNameAddressAndUser) {
  NetworkTree tree;
  ASSERT_TRUE(add_answer(kTopology, tree).ok());
  ASSERT_TRUE(add_answer(kInstances, tree).ok());
  EXPECT_THAT(ordered(tree, {"ec2-user@10.0.0.2", "i-4.ec2.internal", "ip-10-0-0-1", "i-3"}),
              ElementsAre("ec2-user@10.0.0.2", "ip-10-0-0-1", "i-3", "i-4.ec2.internal"));
  EXPECT_THAT(order_hosts(tree, std::vector<std::string>{"ip-10-0-0-1.ec2.internal"}).unknown, IsEmpty());
}

TEST(RankOrder, UltraServersUnderOneNodeStayTogether) {
  NetworkTree tree;
  ASSERT_TRUE(add_answer(R"({"Instances": [
    {"InstanceId": "i-1", "NetworkNodes": ["a", "b", "c"], "CapacityBlockId": "cb-1"},
    {"InstanceId": "i-2", "NetworkNodes": ["a", "b", "c"], "CapacityBlockId": "cb-2"},
    {"InstanceId": "i-3", "NetworkNodes": ["a", "b", "c"], "CapacityBlockId": "cb-1"}]})",
                         tree)
                  .ok());
  EXPECT_THAT(ordered(tree, {"i-1", "i-2", "i-3"}), ElementsAre("i-1", "i-3", "i-2"));
}

TEST(RankOrder, RefusesMalformedAnswers) {
  std::string layers = "\"0\"";
  for (int i = 1; i < 17; ++i) layers += fmt::format(",\"{}\"", i);
  const std::string deep = R"({"Instances": [{"InstanceId": "i", "NetworkNodes": [)" + layers + "]}]}";
  using Case = std::pair<std::string, std::vector<std::string>>;
  const std::vector<std::string> expected_answers{"describe-instance-topology", "describe-instances"};
  for (const auto& [text, facts] :
       {Case{"", {"JSON"}}, Case{"[]", expected_answers}, Case{R"({"Instances": {}})", expected_answers},
        Case{R"({"Instances": [1]})", {"Instances", "InstanceId"}},
        Case{R"({"Instances": [{"InstanceId": "i", "NetworkNodes": [1]}]})", {"i"}}, Case{deep, {"i", "17"}},
        Case{R"({"Reservations": [{}]})", {"Reservations", "Instances"}}}) {
    NetworkTree tree;
    const Status status = add_answer(text, tree);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << text;
    EXPECT_THAT(status.message(), testing::MentionsAll(facts));
  }
}

TEST(RankOrder, ReadsFilesAndCommands) {
  const fake::Folder folder;
  const std::string topology = folder.path() + "/topology.json";
  const std::string instances = folder.path() + "/instances.json";
  std::ofstream(topology) << kTopology;
  std::ofstream(instances) << kInstances;
  auto tree = read_network_tree(topology + "," + instances);
  ASSERT_TRUE(tree.ok()) << tree.status().to_string();
  EXPECT_EQ(tree->paths.size(), 4U);
  EXPECT_EQ(tree->ids.at("10.0.0.1"), "i-1");
  tree = read_network_tree("|cat " + topology);
  ASSERT_TRUE(tree.ok()) << tree.status().to_string();
  EXPECT_EQ(tree->paths.size(), 4U);
  tree = read_network_tree("|exit 3");
  EXPECT_THAT(tree.status().message(), testing::Mentions("exit 3", "status 3"));
  tree = read_network_tree(folder.path() + "/none.json");
  EXPECT_THAT(tree.status().message(), testing::Mentions(folder.path() + "/none.json", "No such file or directory"));
}

}  // namespace
}  // namespace shoal
