// `shoal topology`: the machine, and the GPU, NICs and cores that each rank will use; or hosts in the order of the network.
#include <fmt/format.h>

#include <shoal/limits.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/schedule_options.h"
#include "src/cli/topology_drawing.h"
#include "src/machine/affinity.h"
#include "src/machine/cores.h"
#include "src/machine/detect.h"
#include "src/machine/placing.h"
#include "src/machine/rank_order.h"
#include "src/machine/sysfs.h"

namespace shoal {
namespace {

using Json = nlohmann::ordered_json;

struct TopologyOptions {
  std::string root;
  std::string instance;
  bool no_metadata = false;
  bool metadata = false;  // request metadata even if this does not look like EC2
  bool json = false;
  std::string svg;
  int ranks = 0;
  std::string rank_order;
  std::vector<std::string> hosts;
};

Status bad_option(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

/// The cores that the ranks may use: of another machine's files all, of this machine those that this process may use.
HostRanks ranks_of_host(const TopologyOptions& options, const Hardware& hardware, int ranks) {
  const bool here = options.root.empty() && setting("SHOAL_SYSFS_ROOT") == "/sys";
  const std::vector<int> cores = here ? affinity_cores() : hardware.cores();
  return {std::vector<std::vector<int>>(static_cast<std::size_t>(ranks), cores),
          here ? allowed_cores() : static_cast<int>(cores.size())};
}

/// Notes on settings that decide which NICs the ranks use.
std::vector<std::string> notes_on_rails(const Hardware& hardware) {
  const std::string named = setting("SHOAL_RAILS");
  if (!named.empty()) return {fmt::format("SHOAL_RAILS={}: every rank uses these NICs, also if others are nearer", named)};
  const auto rails = network_rails(hardware);
  if (rails.size() < 2 || hardware.nics[static_cast<std::size_t>(rails.front())].kind != Nic::Kind::ethernet) return {};
  return {
      "of several Ethernet devices a rank uses the one that reaches the other hosts, or the one that SHOAL_HOST_ADDRESS or "
      "SHOAL_SOCKET_IFNAME names; several together only with SHOAL_RAILS"};
}

std::string describe_instance(const Instance& row) {
  std::string words = fmt::format("{} x {}, {}", row.gpus, row.gpu,
                                  row.nvlink_gbyte_s > 0 ? fmt::format("NVLink {} GB/s each", row.nvlink_gbyte_s)
                                                         : fmt::format("PCIe {} between them", row.pcie_generation));
  if (row.efa_cards == 0) return words + "; no EFA";
  words += fmt::format("; {} x {} Gbit/s EFA v{} ({}), {:g} a GPU, {} Gbit/s in all", row.efa_cards, row.card_gbit_s,
                       row.efa_generation,
                       row.rdma_write  ? "RDMA read and write"
                       : row.rdma_read ? "RDMA read only"
                                       : "no RDMA",
                       row.rails_of_gpu(), row.efa_cards * row.card_gbit_s);
  return words + (row.latency_us > 0 ? fmt::format("; {} us", row.latency_us) : "");
}

std::string describe_found(const Hardware& hardware) {
  const auto count = [&](Nic::Kind kind) {
    return std::count_if(hardware.nics.begin(), hardware.nics.end(), [&](const Nic& nic) { return nic.kind == kind; });
  };
  std::string words = fmt::format("{} GPUs, {} EFA, {} InfiniBand and {} Ethernet devices", hardware.gpus.size(),
                                  count(Nic::Kind::efa), count(Nic::Kind::infiniband), count(Nic::Kind::ethernet));
  return words + (hardware.nvswitches > 0 ? fmt::format(", {} NVSwitches", hardware.nvswitches) : "");
}

void print_machine(const FoundMachine& machine, const std::vector<RankPlace>& places) {
  const Hardware& hardware = machine.hardware;
  fmt::print("machine  {}\n", describe_type(machine));
  if (machine.instance != nullptr) fmt::print("table    {}\n", describe_instance(*machine.instance));
  fmt::print("found    {}\n", describe_found(hardware));
  for (const NumaNode& node : hardware.numa_nodes) fmt::print("node {:<3} cores {}\n", node.id, format_cores(node.cores));
  fmt::print("\n{:<5} {:<14} {:<5} {:<20} {:<20} {}\n", "rank", "GPU", "NUMA", "cores", "progress thread", "NICs");
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const RankPlace& place = places[rank];
    const int home = home_of(hardware, place);
    std::string nics = nic_names(hardware, place.nics);
    if (!place.why.empty()) nics += fmt::format(" ({})", place.why);
    if (place.shares_nic_with > 0) nics += fmt::format(", shared by {} ranks", place.shares_nic_with + 1);
    fmt::print("{:<5} {:<14} {:<5} {:<20} {:<20} {}\n", rank,
               place.gpu < 0 ? "-" : hardware.gpus[static_cast<std::size_t>(place.gpu)].place.address,
               home < 0 ? "-" : std::to_string(home), place.cores.empty() ? "any" : format_cores(place.cores),
               place.progress_cores.empty() ? fmt::format("any ({})", place.progress_why) : format_cores(place.progress_cores),
               nics);
  }
  for (const std::string& note : machine.notes) fmt::print("\nnote: {}\n", note);
}

Json table_row(const Instance& row) {
  return {{"name", row.name},
          {"gpu", row.gpu},
          {"gpus", row.gpus},
          {"nvlink_gbyte_s", row.nvlink_gbyte_s},
          {"efa_cards", row.efa_cards},
          {"card_gbit_s", row.card_gbit_s},
          {"rails_of_gpu", row.rails_of_gpu()},
          {"efa_generation", row.efa_generation},
          {"rdma_read", row.rdma_read},
          {"rdma_write", row.rdma_write},
          {"latency_us", row.latency_us},
          {"numa_nodes", row.numa_nodes},
          {"source", row.source}};
}

Json machine_json(const FoundMachine& machine, const std::vector<RankPlace>& places) {
  const Hardware& hardware = machine.hardware;
  Json found{{"type", machine.type},
             {"type_origin", machine.type_origin},
             {"instance_id", machine.instance_id},
             {"metadata", machine.metadata},
             {"table", machine.instance == nullptr ? Json() : table_row(*machine.instance)},
             {"numa_nodes", Json::array()},
             {"gpus", Json::array()},
             {"nvswitches", hardware.nvswitches},
             {"nics", Json::array()},
             {"ranks", Json::array()},
             {"notes", machine.notes}};
  for (const NumaNode& node : hardware.numa_nodes) found["numa_nodes"].push_back({{"node", node.id}, {"cores", node.cores}});
  for (const Gpu& gpu : hardware.gpus) {
    found["gpus"].push_back(
        {{"address", gpu.place.address}, {"numa_node", gpu.place.numa_node}, {"bridges", gpu.place.bridges}});
  }
  const auto used = network_rails(hardware);
  for (std::size_t i = 0; i < hardware.nics.size(); ++i) {
    const Nic& nic = hardware.nics[i];
    found["nics"].push_back({{"address", nic.place.address},
                             {"name", nic.name},
                             {"kind", to_string(nic.kind)},
                             {"efa_generation", nic.efa_generation},
                             {"gbit_s", nic.gbit_s},
                             {"up", nic.up},
                             {"numa_node", nic.place.numa_node},
                             {"bridges", nic.place.bridges},
                             {"used", std::binary_search(used.begin(), used.end(), static_cast<int>(i))}});
  }
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const RankPlace& place = places[rank];
    Json names = Json::array();
    for (const int nic : place.nics) names.push_back(hardware.nics[static_cast<std::size_t>(nic)].name);
    found["ranks"].push_back(
        {{"local_rank", rank},
         {"gpu", place.gpu < 0 ? Json() : Json(hardware.gpus[static_cast<std::size_t>(place.gpu)].place.address)},
         {"numa_node", home_of(hardware, place)},
         {"nics", names},
         {"nics_are", place.why},
         {"shares_nics_with", place.shares_nic_with},
         {"cores", place.cores},
         {"progress_cores", place.progress_cores},
         {"progress_cores_are", place.progress_why}});
  }
  return found;
}

Status write_text(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return system_error("open " + path, errno);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written ? Status() : system_error("write " + path, errno);
}

/// Prints the hosts, one on each line, as mpirun, torchrun's launchers and --hosts take them.
Status print_order(const TopologyOptions& options) {
  if (options.hosts.empty()) return bad_option("--rank-order needs the hosts to order: --hosts a,b,c");
  const auto tree = read_network_tree(options.rank_order);
  if (!tree.ok()) return tree.status();
  const HostOrder order = order_hosts(*tree, options.hosts);
  for (const std::size_t host : order.order) fmt::print("{}\n", options.hosts[host]);
  for (const std::string& host : order.unknown)
    fmt::print(stderr, "shoal topology: the rank order does not contain {}\n", host);
  return {};
}

Status run_topology(const TopologyOptions& options) {
  if (!options.rank_order.empty()) return print_order(options);
  if (!options.hosts.empty()) return bad_option("--hosts needs --rank-order");
  auto where = detect_options();
  if (!where.ok()) return where.status();
  if (!options.root.empty()) where->sysfs_root = options.root;
  if (!options.instance.empty()) where->instance_type = options.instance;
  if (options.no_metadata) where->metadata_url.clear();
  where->always_ask = options.metadata;
  if (Status status = check_progress_cores(); !status.ok()) return status;
  FoundMachine machine = detect_machine(*where);
  for (std::string& note : notes_on_rails(machine.hardware)) machine.notes.push_back(std::move(note));
  const int gpus = static_cast<int>(machine.hardware.gpus.size());
  const int ranks = options.ranks > 0 ? options.ranks : std::max(gpus, 1);
  const auto places =
      places_of(machine.hardware, ranks_of_host(options, machine.hardware, ranks), setting("SHOAL_PROGRESS_CORES"));
  if (!options.svg.empty()) {
    if (Status status = write_text(options.svg, draw_machine(machine, places)); !status.ok()) return status;
  }
  if (options.json) {
    // Names come from the kernel and the metadata service; invalid UTF-8 in them must not end the program.
    fmt::print("{}\n", machine_json(machine, places).dump(1, ' ', false, Json::error_handler_t::replace));
  } else {
    print_machine(machine, places);
  }
  return {};
}

}  // namespace

void add_topology_command(CLI::App& app, int* exit_status) {
  auto* command = app.add_subcommand(
      "topology", "Shows the machine, and the GPU, NICs and cores that each rank uses; or orders hosts (--rank-order)");
  const auto options = std::make_shared<TopologyOptions>();
  command->add_option("--ranks,-n", options->ranks, "ranks on this machine (default: one for each GPU, or one)")
      ->check(CLI::Range(1, kMaxHostRanks));
  command->add_flag("--json", options->json, "print JSON");
  command->add_option("--svg", options->svg, "draw the machine into this file");
  command->add_option("--root", options->root, "folder like /sys to read instead (default: SHOAL_SYSFS_ROOT)");
  command->add_option("--instance", options->instance,
                      "instance type, overrides the detected type (default: SHOAL_INSTANCE_TYPE)");
  auto* const never = command->add_flag("--no-metadata", options->no_metadata, "do not use the instance's metadata service");
  command->add_flag("--metadata", options->metadata, "use it even if nothing indicates EC2")->excludes(never);
  command->add_option("--rank-order", options->rank_order,
                      "print --hosts in the order of the network: a file with the output of aws ec2 "
                      "describe-instance-topology, optionally with ,FILE of describe-instances for the names of hosts, or "
                      "|COMMAND that prints it");
  command->add_option("--hosts", options->hosts, "hosts to order: a,b,c")->delimiter(',');
  command->callback([options, exit_status] {
    const Status status = run_topology(*options);
    if (!status.ok()) *exit_status = report_error("topology", status);
  });
}

}  // namespace shoal
