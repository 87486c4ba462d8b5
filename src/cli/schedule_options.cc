#include "src/cli/schedule_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <limits>
#include <vector>

#include <shoal/limits.h>

namespace shoal {
namespace {

constexpr std::size_t kMaxSteps = 8'000'000;

Status invalid(const std::string& message) { return {StatusCode::invalid_argument, message}; }

/// `text` as a positive number; 0 for any other text.
int parse_ranks(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 && value <= kMaxScheduleRanks ? value : 0;
}

}  // namespace

Result<std::size_t> parse_size(std::string_view text) {
  const Status error = invalid(fmt::format("size '{}' is not a number of bytes such as 4, 4K, 4KiB, 64MiB or 1G", text));
  std::size_t number = 0;
  const char* last = text.data() + text.size();
  const auto [end, problem] = std::from_chars(text.data(), last, number);
  if (problem == std::errc::result_out_of_range) return invalid(fmt::format("size '{}' is too large", text));
  if (problem != std::errc()) return error;
  std::string_view unit(end, static_cast<std::size_t>(last - end));
  int power = 0;
  if (!unit.empty()) {
    constexpr std::string_view kUnits = "kmgt";
    const auto at = kUnits.find(static_cast<char>(unit.front() | 0x20));
    if (at != std::string_view::npos) {
      power = static_cast<int>(at) + 1;
      unit.remove_prefix(1);
      if (unit == "iB" || unit == "B" || unit == "b") unit = {};
    } else if (unit == "B" || unit == "b") {
      unit = {};
    }
  }
  if (!unit.empty()) return error;
  const int shift = 10 * power;
  if (number > std::numeric_limits<std::size_t>::max() >> shift) return invalid(fmt::format("size '{}' is too large", text));
  return number << shift;
}

Result<Topology> parse_shape(std::string_view text) {
  const Status error = invalid(
      fmt::format("shape '{}' is not like 2x4 (nodes x ranks of each), 3+1+2 (ranks of each node) or 8, of at most {} ranks",
                  text, kMaxScheduleRanks));
  if (const auto cross = text.find('x'); cross != std::string_view::npos) {
    const int nodes = parse_ranks(text.substr(0, cross));
    const int ranks = parse_ranks(text.substr(cross + 1));
    if (nodes == 0 || ranks == 0 || nodes > kMaxScheduleRanks / ranks) return error;
    return Topology::uniform(nodes, ranks);
  }
  std::vector<int> nodes;
  int total = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    nodes.push_back(parse_ranks(text.substr(begin, end - begin)));
    total += nodes.back();
    if (nodes.back() == 0 || total > kMaxScheduleRanks) return error;
    begin = end + 1;
  }
  return Topology::ragged(nodes);
}

void ScheduleOptions::add_to(CLI::App& command) {
  auto* ranks = command.add_option("--ranks,-n", ranks_, "ranks, all on one node");
  command.add_option("--shape", shape_, "2x4: two nodes of four ranks; 3+1+2: uneven nodes (default 2x4)")->excludes(ranks);
  command.add_option("--type", type_, "data type")->capture_default_str();
  command.add_option("--op", op_, "reduction operation")->capture_default_str();
  command.add_option("--root", root_, "root of a broadcast, reduce, gather or scatter")->capture_default_str();
  command.add_option("--algorithm,-a", algorithm, "name of an algorithm (default: all, or the Selector's choice)");
}

void ScheduleOptions::add_size_to(CLI::App& command) {
  command.add_option("--collective,-c", collective_name, "all_reduce, reduce_scatter, all_to_all, ...")->capture_default_str();
  command.add_option("--size,-s", size, "bytes of the message, or of each rank's share of it: 4, 4K, 4KiB, 64MiB")
      ->capture_default_str();
}

void ScheduleOptions::add_costs_to(CLI::App& command) {
  auto& network = costs_.cost[static_cast<std::size_t>(LinkClass::network)];
  auto& shared = costs_.cost[static_cast<std::size_t>(LinkClass::shared_memory)];
  command.add_option("--network-latency-us", network.latency_us, "latency between nodes")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--network-gbit-s", network_gbit_s_, "bandwidth of a node's wire (default 1, less headers)");
  command.add_option("--shared-latency-us", shared.latency_us, "latency inside a node")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--shared-gbyte-s", shared_gbyte_s_, "bandwidth between two ranks of a node (default 5)");
  command.add_option("--cores", costs_.cores_per_node, "cores of a node; 0 = one for each rank")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
}

Result<Topology> ScheduleOptions::topology() const {
  if (ranks_ && (*ranks_ < 1 || *ranks_ > kMaxScheduleRanks))
    return invalid(fmt::format("{} ranks: not between 1 and {}", *ranks_, kMaxScheduleRanks));
  if (network_gbit_s_.value_or(1) <= 0 || shared_gbyte_s_.value_or(1) <= 0) return invalid("a bandwidth must be positive");
  Result<Topology> topology = ranks_ ? Topology::uniform(1, *ranks_) : parse_shape(shape_.empty() ? "2x4" : shape_);
  if (!topology.ok()) return topology;
  topology->cost = costs_.cost;
  topology->cores_per_node = costs_.cores_per_node;
  if (network_gbit_s_) topology->cost[static_cast<std::size_t>(LinkClass::network)].us_per_byte = 8 / (*network_gbit_s_ * 1000);
  if (shared_gbyte_s_)
    topology->cost[static_cast<std::size_t>(LinkClass::shared_memory)].us_per_byte = 1 / (*shared_gbyte_s_ * 1000);
  return topology;
}

Result<Collective> ScheduleOptions::collective() const {
  const auto kind = parse_collective(collective_name);
  if (!kind.ok()) return kind.status();
  const auto type = parse_data_type(type_);
  if (!type.ok()) return type.status();
  const auto op = parse_reduce_op(op_);
  if (!op.ok()) return op.status();
  const auto bytes = parse_size(size);
  if (!bytes.ok()) return bytes.status();
  const std::size_t element_bytes = size_of(*type);
  if (*bytes % element_bytes != 0) {
    return invalid(fmt::format("size '{}' is not a multiple of the {} bytes of a {}", size, element_bytes, to_string(*type)));
  }
  return Collective{*kind, *kind == CollectiveKind::barrier ? 0 : *bytes / element_bytes, *type, *op, root_};
}

Result<Schedule> build_schedule_of_bounded_size(const Algorithm& algorithm, const Topology& topology,
                                                const Collective& collective) {
  const auto first = build_program(algorithm, topology, collective, 0);
  if (!first.ok()) return first.status();
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  if (first->steps.size() > kMaxSteps / ranks) {
    return invalid(fmt::format("about {} steps are too many to process at once; use fewer ranks or a smaller message",
                               first->steps.size() * ranks));
  }
  return build_schedule(algorithm, topology, collective);
}

Status write_output(const std::string& path, const std::string& text) {
  if (path.empty()) {
    fmt::print("{}", text);
    return {};
  }
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return system_error("open " + path, errno);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int write_errno = errno;
  if (std::fclose(file) != 0) return system_error("close " + path, errno);
  return written ? Status() : system_error("write " + path, write_errno);
}

int report_error(std::string_view command, const Status& status) {
  fmt::print(stderr, "shoal {}: {}\n", command, status.message());
  return 1;
}

}  // namespace shoal
