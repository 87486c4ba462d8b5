#include "src/simulate/platform.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include <shoal/limits.h>

#include "src/machine/instances.h"

namespace shoal {
namespace {

constexpr std::size_t kMaxFileBytes = 64 << 10;
constexpr int kMaxCount = kMaxHostRanks;  // of NICs, ranks or cores in a node
// TCP flows that arrive at one receiver displace each other in the queues: bench/cluster loses up to 12 % with seven of them
// in large messages, and nothing in small ones, which fit into the queues.
constexpr double kTcpFlowShare = 0.01;
constexpr double kUnknownLatencyUs = 75;  // of EFA if aws-ofi-nccl has no entry: its value for most types
constexpr double kMaxNumber = 1e6;        // of any other number: a second of latency, a million GB/s

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

/// The rate from one GPU to another over PCIe, one way: 12 GB/s for 16 lanes of the third generation, as NCCL plans; each
/// later generation is assumed to double it.
double pcie_gbyte_s(int generation) { return 12.0 * (1 << (generation - 3)); }

/// An EC2 type, from its row. A card delivers 94.8 % (fi_rma_bw, one 100 Gbit/s card of a p5, 64 KiB writes and larger) and
/// takes 1.24 us to post a message (same test; libfabric-efa-demo). NVLink's total is of both directions. A fold reads two
/// operands and writes one, hence a third of the memory bandwidth.
Platform ec2(const Instance& row) {
  Platform platform;
  const double peers_gbyte_s = row.nvlink_gbyte_s > 0 ? row.nvlink_gbyte_s / 2.0 : pcie_gbyte_s(row.pcie_generation);
  platform.name = row.name;
  platform.hardware = fmt::format("{} x {} ({}, {:g} GB/s each way), {} x {} Gbit/s EFA v{}, {:g} a GPU", row.gpus, row.gpu,
                                  row.nvlink_gbyte_s > 0 ? "NVLink" : fmt::format("PCIe {}", row.pcie_generation),
                                  peers_gbyte_s, row.efa_cards, row.card_gbit_s, row.efa_generation, row.rails_of_gpu());
  platform.source = fmt::format(
      "EC2 and NVIDIA documentation, {}; 94.8 % of a card and 1.24 us a post as measured on p5; 2 us inside the node assumed{}",
      row.latency_us > 0 ? "aws-ofi-nccl's latency" : "75 us assumed",
      row.nvlink_gbyte_s > 0 ? "" : fmt::format("; PCIe {} twice as fast as its predecessor assumed", row.pcie_generation));
  platform.ranks_per_node = row.gpus;
  platform.nics = row.efa_cards;
  platform.nic_gbit_s = row.card_gbit_s * 0.948;
  platform.network_latency_us = row.latency_us > 0 ? row.latency_us : kUnknownLatencyUs;
  platform.message_us = 1.24;
  platform.network_window = 32;  // posts in flight before the rate of small packets falls (pplx-kernels)
  platform.memory_gbyte_s = peers_gbyte_s;
  platform.memory_latency_us = 2;
  platform.fold_gbyte_s = row.gpu_memory_gbyte_s / 3.0;
  return platform;
}

/// Servers with plain TCP. A frame of 1,538 bytes on the wire carries 1,448. The rest is assumed: the rate of one core
/// through the kernel, and the latency of a switch and two kernels; memory as in the closed model.
Platform ethernet(std::string name, double gbit_s, double latency_us) {
  Platform platform;
  platform.name = std::move(name);
  platform.source =
      "94.1 % of the wire for frames of 1,500 bytes; latency, 4 GB/s and 2 us a message for a core in kernel TCP assumed";
  platform.ranks_per_node = 8;
  platform.nic_gbit_s = gbit_s * 1448 / 1538;
  platform.network_latency_us = latency_us;
  platform.message_us = 2;
  platform.network_core_gbyte_s = 4;
  platform.flow_share = kTcpFlowShare;
  platform.copy_gbyte_s = 5;
  return platform;
}

/// bench/cluster on the machine of bench/results: all hosts on its two cores. The rate and latency of the wire differ between
/// runs: tests/multiprocess/simulated_test.py measures them together with the times that it compares.
Platform emulated() {
  Platform platform;
  platform.name = "emulated";
  platform.source = "bench/cluster at 1 Gbit/s on two cores: goodput and latency as measured on the machine of bench/results";
  platform.nic_gbit_s = 0.944;
  platform.network_latency_us = 40;
  platform.message_us = 5;
  platform.network_core_gbyte_s = 2.5;
  platform.flow_share = kTcpFlowShare;
  platform.copy_gbyte_s = 5;
  platform.cores = 2;
  platform.one_machine = true;
  return platform;
}

/// A member of Platform and its key in a file.
struct Field {
  const char* key;
  double Platform::*number;  // or
  int Platform::*count;
  double least;  // exclusive for a number that is used as a divisor
  bool may_be_least;
};

constexpr Field kFields[] = {
    {"ranks_per_node", nullptr, &Platform::ranks_per_node, 1, true},
    {"nics", nullptr, &Platform::nics, 1, true},
    {"nic_gbit_s", &Platform::nic_gbit_s, nullptr, 0, false},
    {"network_latency_us", &Platform::network_latency_us, nullptr, 0, true},
    {"message_us", &Platform::message_us, nullptr, 0, true},
    {"network_core_gbyte_s", &Platform::network_core_gbyte_s, nullptr, 0, true},
    {"network_window", nullptr, &Platform::network_window, 1, true},
    {"flow_share", &Platform::flow_share, nullptr, 0, true},
    {"memory_gbyte_s", &Platform::memory_gbyte_s, nullptr, 0, false},
    {"node_memory_gbyte_s", &Platform::node_memory_gbyte_s, nullptr, 0, true},
    {"memory_latency_us", &Platform::memory_latency_us, nullptr, 0, true},
    {"copy_gbyte_s", &Platform::copy_gbyte_s, nullptr, 0, true},
    {"fold_gbyte_s", &Platform::fold_gbyte_s, nullptr, 0, false},
    {"cores", nullptr, &Platform::cores, 0, true},
};

Status read_field(const Field& field, const nlohmann::json& value, std::string_view origin, Platform& platform) {
  if (field.number != nullptr && value.is_number()) {
    platform.*field.number = value.get<double>();
  } else if (field.count != nullptr && value.is_number_integer() && std::abs(value.get<double>()) <= kMaxCount) {
    platform.*field.count = value.get<int>();
  } else {
    // A structure is not printed: it may be nested deeper than the stack allows.
    return invalid(fmt::format("{}: '{}' is {}, not {}", origin, field.key,
                               value.is_structured() ? value.type_name() : value.dump(),
                               field.number != nullptr ? "a number" : fmt::format("a whole number up to {}", kMaxCount)));
  }
  return {};
}

Result<std::string> read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "r"), std::fclose);
  if (file == nullptr) return system_error("open the platform " + path, errno);
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return system_error("read the platform " + path, errno);
  if (text.size() > kMaxFileBytes)
    return invalid(fmt::format("{} is not a platform: larger than {} bytes", path, kMaxFileBytes));
  return text;
}

}  // namespace

std::span<const Platform> platforms() {
  static const std::vector<Platform> all_platforms = [] {
    std::vector<Platform> all;
    for (const Instance& row : instances()) all.push_back(ec2(row));
    for (Platform& each : std::vector{ethernet("ethernet-1g", 1, 30), ethernet("ethernet-10g", 10, 20),
                                      ethernet("ethernet-25g", 25, 15), ethernet("ethernet-100g", 100, 15), emulated()}) {
      all.push_back(std::move(each));
    }
    return all;
  }();
  return all_platforms;
}

Topology topology_of(const Platform& platform, int nodes, int ranks_per_node) {
  Topology topology = Topology::uniform(nodes, ranks_per_node);
  LinkCost& network = topology.cost[static_cast<std::size_t>(LinkClass::network)];
  network = {platform.network_latency_us, 8 / (platform.nic_gbit_s * platform.nics * 1000), platform.message_us};
  LinkCost& inside = topology.cost[static_cast<std::size_t>(LinkClass::shared_memory)];
  inside = {platform.memory_latency_us, 1 / (platform.memory_gbyte_s * 1000)};
  topology.reduce_us_per_byte = 1 / (platform.fold_gbyte_s * 1000);
  topology.cores_per_node = platform.cores;
  return topology;
}

double wire_limit_gbyte_s(const Platform& platform, int nodes, int ranks) {
  if (nodes < 2) return 0;
  const double wire_gbyte_s = platform.nics * platform.nic_gbit_s / 8;
  const double moved = 2.0 * (nodes - 1) / nodes;
  return wire_gbyte_s / moved * 2 * (ranks - 1) / ranks;
}

Status check(const Platform& platform) {
  for (const Field& field : kFields) {
    const double value = field.number != nullptr ? platform.*field.number : platform.*field.count;
    const bool enough = field.may_be_least ? value >= field.least : value > field.least;
    if (enough && value <= (field.number != nullptr ? kMaxNumber : kMaxCount)) continue;
    return invalid(fmt::format("platform '{}': {} of {} is not {} {}", platform.name, value, field.key,
                               field.may_be_least ? "at least" : "more than", field.least));
  }
  return {};
}

Result<Platform> parse_platform(std::string_view json, std::string_view origin) {
  const auto object = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return invalid(fmt::format("{} is not a JSON object that describes a platform", origin));
  Platform platform;
  platform.name = origin;
  platform.source = origin;
  for (const auto& [key, value] : object.items()) {
    if (key == "name" || key == "source") {
      if (!value.is_string()) return invalid(fmt::format("{}: '{}' is not a string", origin, key));
      (key == "name" ? platform.name : platform.source) = value.get<std::string>();
      continue;
    }
    if (key == "one_machine") {
      if (!value.is_boolean()) return invalid(fmt::format("{}: 'one_machine' is neither true nor false", origin));
      platform.one_machine = value.get<bool>();
      continue;
    }
    const Field* field = nullptr;
    for (const Field& known : kFields) {
      if (key == known.key) field = &known;
    }
    if (field == nullptr) {
      std::string known = "name source one_machine";
      for (const Field& each : kFields) known += fmt::format(" {}", each.key);
      return invalid(fmt::format("{}: unknown key '{}'; known: {}", origin, key, known));
    }
    if (Status status = read_field(*field, value, origin, platform); !status.ok()) return status;
  }
  if (Status status = check(platform); !status.ok()) return status;
  return platform;
}

Result<Platform> find_platform(std::string_view name) {
  if (name.ends_with(".json")) {
    const auto text = read_file(std::string(name));
    if (!text.ok()) return text.status();
    return parse_platform(*text, name);
  }
  const Instance* instance = find_instance(name);  // also accepts short names
  std::string known;
  for (const Platform& platform : platforms()) {
    if (platform.name == (instance != nullptr ? instance->name : name)) return platform;
    known += " " + platform.name;
  }
  return Status(StatusCode::not_found,
                fmt::format("unknown platform '{}'; known:{}; or a file that ends in .json", name, known));
}

}  // namespace shoal
