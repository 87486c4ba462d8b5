// The engine on SimGrid, compared with closed forms; and one node that represents all, compared with all nodes.

#include "src/simulate/scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/machine/instances.h"
#include "src/simulate/published.h"
#include "src/simulate/simgrid_engine.h"
#include "tests/mentions.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

using testing::all_reduce;

using ::testing::HasSubstr;
using testing::Mentions;

const Algorithm& algorithm(std::string_view name) { return **find_algorithm(name); }

/// Wires and latencies only: the work of workers takes negligible time.
Platform wires_only() {
  Platform platform;
  platform.name = "wires";
  platform.nic_gbit_s = 8;  // 1000 bytes a microsecond
  platform.network_latency_us = 10;
  platform.memory_gbyte_s = 100;
  platform.memory_latency_us = 0;
  platform.fold_gbyte_s = 1e6;
  return platform;
}

double time_us(std::string_view name, const Topology& topology, std::size_t bytes, const Platform& platform,
               Symmetry symmetry = Symmetry::none) {
  const auto schedule = symmetry == Symmetry::none ? build_schedule(algorithm(name), topology, all_reduce(bytes))
                                                   : schedule_of_first_node(algorithm(name), topology, all_reduce(bytes));
  EXPECT_TRUE(schedule.ok()) << schedule.status().to_string();
  const auto graph = task_graph(*schedule, platform, symmetry);
  EXPECT_TRUE(graph.ok()) << name << " on " << topology.shape() << ": " << graph.status().to_string();
  if (!graph.ok()) return 0;
  const auto run = run_on_simgrid(*graph);
  EXPECT_TRUE(run.ok()) << name << " on " << topology.shape() << ": " << run.status().to_string();
  return run.ok() ? run->total_us : 0;
}

/// Flows {sender, receiver} between hosts with full-duplex wires.
double flows_us(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& flows, double bytes, double flow_share = 0) {
  TaskGraph graph;
  graph.cpus = {{1}};
  graph.workers.resize(4, {0, 8});
  for (std::uint32_t host = 0; host < 4; ++host) {
    graph.wires.insert(graph.wires.end(), 2, {1.0, flow_share});
    graph.sources.push_back({2 * host});
    graph.sinks.push_back({2 * host + 1});
  }
  for (const auto& [from, to] : flows) {
    TaskGraph::Task task;
    task.worker = task.source = from;
    task.sink = to;
    task.link = graph.links++;
    task.bytes = bytes;
    graph.tasks.push_back(task);
  }
  graph.connect({});
  const auto run = run_on_simgrid(graph);
  EXPECT_TRUE(run.ok()) << run.status().to_string();
  return run.ok() ? run->total_us : 0;
}

TEST(SimGridEngine, ConcurrentFlowsShareTheWire) {
  EXPECT_NEAR(flows_us({{0, 1}}, 1e6), 1000, 0.1);
  EXPECT_NEAR(flows_us({{0, 1}, {1, 0}, {2, 3}}, 1e6), 1000, 0.1);  // no shared wire: wires are full duplex
  EXPECT_NEAR(flows_us({{0, 2}, {1, 2}}, 1e6), 2000, 0.1);          // into one NIC
  EXPECT_NEAR(flows_us({{0, 1}, {0, 2}, {0, 3}}, 1e6), 3000, 0.1);  // out of one NIC
  EXPECT_NEAR(flows_us({{0, 2}, {1, 2}}, 1e6, 0.1), 2200, 1);       // with a loss by sharing
  EXPECT_NEAR(flows_us({{0, 1}}, 1e6, 0.1), 1000, 0.1);
}

TEST(SimGridEngine, WorkersShareCores) {
  TaskGraph graph;
  graph.cpus = {{2}};
  graph.workers.resize(4, {0, 1});
  for (std::uint32_t worker = 0; worker < 4; ++worker) {
    TaskGraph::Task task;
    task.worker = worker;
    task.work_us = 100;
    graph.tasks.push_back(task);
  }
  graph.connect({});
  EXPECT_NEAR(run_on_simgrid(graph)->total_us, 200, 0.1);  // four workers on two cores
  graph.cpus = {{4}};
  EXPECT_NEAR(run_on_simgrid(graph)->total_us, 100, 0.1);
  for (TaskGraph::Task& task : graph.tasks) task.worker = 0;
  EXPECT_NEAR(run_on_simgrid(graph)->total_us, 400, 0.1);  // one worker does one thing at a time
}

TEST(SimGridEngine, ReportsDeadlock) {
  TaskGraph graph;
  graph.cpus = {{1}};
  graph.workers.resize(1);
  graph.tasks.resize(2);
  graph.connect({{0, 1}, {1, 0}});
  const auto run = run_on_simgrid(graph);
  EXPECT_EQ(run.status().code(), StatusCode::internal);
  EXPECT_THAT(run.status().message(), Mentions("2 tasks"));
}

TEST(SimGridEngine, MatchesTheTextbookTimes) {
  const Platform platform = wires_only();
  for (const int p : {2, 3, 4, 8}) {
    // Chunks of one tile cannot overlap their own hops: 2 (p - 1) (alpha + n / p beta).
    const std::size_t chunk = 40'000;
    const double hop_us = 10 + static_cast<double>(chunk) / 1000;
    const std::size_t bytes = chunk * static_cast<std::size_t>(p);
    EXPECT_NEAR(time_us("ring", Topology::uniform(p, 1), bytes, platform), 2 * (p - 1) * hop_us, 0.005 * hop_us * p) << p;
    // Every port carries p - 1 messages, twice.
    EXPECT_NEAR(time_us("direct", Topology::uniform(p, 1), bytes, platform), 2 * (10 + (p - 1) * 40.0), 0.1 * p) << p;
    // Large chunks hide the latency of nearly all hops: 2 (p - 1) / p n beta.
    const double large_us = 64e6 / 1000 * 2 * (p - 1) / p;
    EXPECT_NEAR(time_us("ring", Topology::uniform(p, 1), 64'000'000, platform), large_us, 0.03 * large_us) << p;
  }
  // log2 p rounds of the whole message.
  EXPECT_NEAR(time_us("recursive_doubling", Topology::uniform(8, 1), 40'000, platform), 3 * 50, 1);
}

TEST(SimGridEngine, RanksShareTheRailsOfTheirNode) {
  Platform platform = wires_only();
  // Flat direct between 2 x 4: each rank sends 4/8 of the message over the wire of its node, twice.
  const double wire_us = 32e6 / 1000;
  const Topology topology = Topology::uniform(2, 4);
  EXPECT_NEAR(time_us("direct", topology, 32'000'000, platform), 4 * wire_us, 0.1 * wire_us);
  // Each byte crosses the wire once each way; two NICs take half as long.
  const double one_rail = time_us("hierarchical(ring)", topology, 32'000'000, platform);
  EXPECT_NEAR(one_rail, wire_us, 0.1 * wire_us);
  platform.nics = 2;
  EXPECT_NEAR(time_us("hierarchical(ring)", topology, 32'000'000, platform), one_rail / 2, 0.05 * wire_us);
  // The ranks of a node share all of its NICs.
  platform.nics = 8;
  EXPECT_NEAR(time_us("hierarchical(ring)", topology, 32'000'000, platform), one_rail / 8, 0.05 * wire_us);
}

TEST(SimGridEngine, ChargesWorkersForMessagesAndFolds) {
  Platform platform = wires_only();
  const Topology two = Topology::uniform(2, 1);
  const double plain = time_us("direct", two, 80'000, platform);
  platform.message_us = 5;  // posted and received, in each of two hops
  EXPECT_NEAR(time_us("direct", two, 80'000, platform), plain + 4 * 5, 0.1);
  platform.message_us = 0;
  platform.fold_gbyte_s = 1;  // 40 us for half of the message, once
  EXPECT_NEAR(time_us("direct", two, 80'000, platform), plain + 40, 0.1);
}

TEST(SimGridEngine, IsDeterministic) {
  const Platform platform = *find_platform("p4d");
  const double first = time_us("hierarchical(direct)", Topology::uniform(4, 8), 8 << 20, platform);
  EXPECT_GT(first, 0);
  EXPECT_EQ(time_us("hierarchical(direct)", Topology::uniform(4, 8), 8 << 20, platform), first);
}

TEST(Symmetry, OneNodeStandsForAll) {
  const Platform platform = *find_platform("p4d");
  // Exact if all nodes are equal; otherwise close to the slowest node (see scale.h).
  const std::pair<const char*, double> algorithms_and_bounds[] = {
      {"ring", 0.001},
      {"hierarchical(ring)", 0.01},
      {"recursive_doubling", 0.001},
      {"hierarchical(recursive_doubling)", 0.02},
      {"direct", 0.12},
      {"one_shot", 0.12},
      {"hierarchical(direct)", 0.12},
      {"circulant", 0.27},
      {"hierarchical(circulant)", 0.27},
      {"recursive_halving", 0.27},
      {"hierarchical(recursive_halving)", 0.27},
  };
  for (const auto& [name, bound] : algorithms_and_bounds) {
    for (const auto& [nodes, ranks] : {std::pair{4, 2}, std::pair{8, 1}, std::pair{4, 4}}) {
      const Topology topology = Topology::uniform(nodes, ranks);
      for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{8} << 20}) {
        const Symmetry symmetry = find_symmetry(algorithm(name), topology, all_reduce(bytes));
        ASSERT_NE(symmetry, Symmetry::none) << name << " on " << topology.shape();
        const double whole = time_us(name, topology, bytes, platform);
        const double folded = time_us(name, topology, bytes, platform, symmetry);
        EXPECT_NEAR(folded, whole, bound * whole) << name << " " << bytes << " on " << topology.shape();
      }
    }
  }
}

TEST(Symmetry, IsNotFoundIfNodesDiffer) {
  EXPECT_EQ(find_symmetry(algorithm("hierarchical(tree)"), Topology::uniform(8, 2), all_reduce(1 << 20)), Symmetry::none);
  EXPECT_EQ(find_symmetry(algorithm("recursive_halving"), Topology::uniform(6, 1), all_reduce(1 << 20)), Symmetry::none);
  EXPECT_EQ(find_symmetry(algorithm("ring"), Topology::ragged({2, 1}), all_reduce(1 << 20)), Symmetry::none);
  EXPECT_EQ(find_symmetry(algorithm("ring"), Topology::uniform(6, 2), all_reduce(1 << 20)), Symmetry::rotation);
}

TEST(Scale, ReachesFourThousandNodes) {
  const auto found = predict_at_scale(algorithm("ring"), Topology::uniform(4096, 1), all_reduce(1 << 20), wires_only());
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_THAT(found->how, Mentions("one"));
  const double alpha_us = 2 * 4095 * 10;
  EXPECT_NEAR(found->total_us, alpha_us + 2 * 4095.0 / 4096 * (1 << 20) / 1000, 0.01 * alpha_us);
  EXPECT_NEAR(found->bus_gbyte_s, 2 * 4095.0 / 4096 * (1 << 20) / found->total_us / 1000, 1e-6);
  // The nodes of a tree all differ.
  EXPECT_EQ(predict_at_scale(algorithm("hierarchical(tree)"), Topology::uniform(4096, 1), all_reduce(1 << 20), wires_only())
                .status()
                .code(),
            StatusCode::unsupported);
}

TEST(Platforms, AreValidAndNamed) {
  for (const Platform& platform : platforms()) {
    EXPECT_TRUE(check(platform).ok()) << platform.name;
    EXPECT_FALSE(platform.source.empty()) << platform.name;
    EXPECT_EQ(find_platform(platform.name)->nics, platform.nics);
  }
  EXPECT_EQ(find_platform("p4d")->nics, 4);
  EXPECT_EQ(find_platform("p9").status().code(), StatusCode::not_found);
  EXPECT_THAT(find_platform("p9").status().message(), HasSubstr(" p4d.24xlarge "));
  EXPECT_EQ(find_platform("no/such.json").status().code(), StatusCode::system_error);
}

TEST(Platforms, AreReadFromJson) {
  const auto platform = parse_platform(R"({"name": "lab", "nics": 2, "nic_gbit_s": 40, "cores": 16})", "lab.json");
  ASSERT_TRUE(platform.ok()) << platform.status().to_string();
  EXPECT_EQ(platform->name, "lab");
  EXPECT_EQ(platform->nics, 2);
  EXPECT_EQ(platform->nic_gbit_s, 40);
  EXPECT_EQ(platform->network_latency_us, Platform().network_latency_us);

  using Case = std::pair<const char*, std::vector<std::string>>;
  for (const auto& [text, facts] :
       {Case{"[1]", {"x.json", "JSON"}}, Case{"{", {"x.json", "JSON"}},
        Case{R"({"nick": 1})", {"x.json", "nick", "name", "source", "nics"}},
        Case{R"({"nics": 1.5})", {"x.json", "nics", "1.5"}}, Case{R"({"nics": 1e30})", {"x.json", "nics", "1e+30"}},
        Case{R"({"nics": 99999999999})", {"x.json", "nics", "99999999999"}},
        Case{R"({"nic_gbit_s": "fast"})", {"x.json", "nic_gbit_s", "fast"}}, Case{R"({"nic_gbit_s": 0})", {"nic_gbit_s", "0"}},
        Case{R"({"network_latency_us": -1})", {"network_latency_us", "-1"}},
        Case{R"({"one_machine": 1})", {"x.json", "one_machine", "true", "false"}}}) {
    const auto wrong = parse_platform(text, "x.json");
    EXPECT_EQ(wrong.status().code(), StatusCode::invalid_argument) << text;
    EXPECT_THAT(wrong.status().message(), testing::MentionsAll(facts)) << text;
  }
}

TEST(Platforms, InstanceTypesAreFoundByEitherName) {
  for (const Instance& row : instances()) {
    const auto platform = find_platform(row.name);
    ASSERT_TRUE(platform.ok()) << platform.status().to_string();
    EXPECT_TRUE(check(*platform).ok()) << row.name;
    EXPECT_EQ(platform->ranks_per_node, row.gpus);
    EXPECT_EQ(platform->nics, row.efa_cards);
    EXPECT_NEAR(platform->nic_gbit_s, 0.948 * row.card_gbit_s, 1e-9);
    EXPECT_THAT(platform->hardware, HasSubstr(row.gpu));
    if (row.alias.empty()) continue;
    const auto same = find_platform(row.alias);
    ASSERT_TRUE(same.ok());
    EXPECT_EQ(same->name, row.name);
  }
  EXPECT_EQ(find_platform("p4d")->memory_gbyte_s, 300);
  EXPECT_EQ(find_platform("g5")->memory_gbyte_s, 24);  // PCIe 4
  EXPECT_THAT(find_platform("g6")->source, Mentions("75 us"));
}

TEST(Platforms, TopologyHasTheWireOfAWholeNode) {
  const Platform platform = *find_platform("p5");
  const Topology topology = topology_of(platform, 3, 8);
  EXPECT_EQ(topology.shape(), "3x8");
  const LinkCost& network = topology.cost[static_cast<std::size_t>(LinkClass::network)];
  EXPECT_EQ(network.latency_us, 75);
  EXPECT_NEAR(1 / network.us_per_byte / 1000, 32 * 94.8 / 8, 1e-6);
  EXPECT_EQ(network.overhead(), 1.24);
  // Two p4d nodes move each byte once: 4 x 94.8 Gbit/s are 47.4 GB/s, times 2 * 15 / 16 in nccl-tests' terms.
  EXPECT_NEAR(wire_limit_gbyte_s(*find_platform("p4d"), 2, 16), 47.4 * 1.875, 1e-6);
  EXPECT_EQ(wire_limit_gbyte_s(platform, 1, 8), 0);
}

TEST(Published, TimesAndBandwidthsAgree) {
  for (const PublishedResult& each : published_results()) {
    EXPECT_NE(find_instance(each.platform), nullptr) << each.platform;
    // Of several results with the same key, all but the first have a distinguishing note.
    const PublishedResult* found = find_published(each.platform, each.nodes, each.bytes);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->bytes, each.bytes);
    EXPECT_TRUE(found == &each || !each.note.empty()) << each.platform << " " << each.bytes;
    if (each.time_us > 0 && each.bus_gbyte_s > 0) {
      EXPECT_NEAR(static_cast<double>(each.bytes) * 2 * (each.ranks - 1) / each.ranks / each.time_us / 1000, each.bus_gbyte_s,
                  0.01 * each.bus_gbyte_s);
    }
  }
  EXPECT_EQ(find_published("p5.48xlarge", 3, 8), nullptr);
}

}  // namespace
}  // namespace shoal
