#include "src/cli/simulate_platform.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <shoal/limits.h>

#include "src/base/text.h"
#include "src/selector/selector.h"
#include "src/simulate/platform.h"
#include "src/simulate/published.h"
#include "src/simulate/scale.h"

namespace shoal {
namespace {

constexpr int kMaxNodes = 4096;  // of the tool, as its tables
constexpr std::string_view kTableNodes = "2..4096";
constexpr double kTie = 1.02;  // times within this ratio count as equal: the model is not more precise

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

/// "512", "2,8,64" or "2..4096" (the powers of two in this range).
Result<std::vector<int>> parse_nodes(std::string_view text) {
  const Status error =
      invalid(fmt::format("nodes '{}' are not of the form 512, 2,8,64 or 2..4096, with at most {} nodes", text, kMaxNodes));
  const auto number = [](std::string_view part) {
    int value = 0;
    const auto [end, problem] = std::from_chars(part.data(), part.data() + part.size(), value);
    return problem == std::errc() && end == part.data() + part.size() && value > 0 && value <= kMaxNodes ? value : 0;
  };
  std::vector<int> nodes;
  if (const auto dots = text.find(".."); dots != std::string_view::npos) {
    const int first = number(text.substr(0, dots));
    const int last = number(text.substr(dots + 2));
    if (first == 0 || last < first) return error;
    for (int n = first; n <= last; n *= 2) nodes.push_back(n);
    return nodes;
  }
  for (const std::string& part : split_at_commas(text)) {
    nodes.push_back(number(part));
    if (nodes.back() == 0 || nodes.size() > 64) return error;
  }
  return nodes;
}

/// "412 us", "9.81 ms", "1.20 s".
std::string format_time(double us) {
  if (us < 999.5) return fmt::format("{:.3g} us", us);
  if (us < 999.5e3) return fmt::format("{:.3g} ms", us / 1e3);
  return fmt::format("{:.3g} s", us / 1e6);
}

/// Shows the progress on standard error, if the work takes more than a second.
class Progress {
 public:
  explicit Progress(std::size_t runs) : runs_(runs), on_terminal_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (shown_ && on_terminal_) fmt::print(stderr, "\r{:70}\r", "");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin(std::string what) {
    what_ = std::move(what);
    ++run_;
    show(0);
  }
  void show(double part) {
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + (on_terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000));
    shown_ = true;
    const std::string line = fmt::format("simulating {} of {}: {}, {:.0f} %", run_, runs_, what_, part * 100);
    if (on_terminal_) {
      fmt::print(stderr, "\r{:70.70}", line);
    } else {
      fmt::print(stderr, "{}\n", line);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::size_t runs_;
  bool on_terminal_;
  bool shown_ = false;
  std::size_t run_ = 0;
  std::string what_;
  Clock::time_point next_ = Clock::now() + std::chrono::seconds(1);
};

/// One simulation, or its error.
struct Cell {
  int nodes = 0;
  int ranks = 0;
  std::string algorithm;  // as named by the user
  Result<ScalePrediction> prediction;
};

/// Where one algorithm becomes faster than another.
struct Crossover {
  std::string behind;
  std::string ahead;
  int from_nodes = 0;  // between these two
  int to_nodes = 0;
};

std::vector<Crossover> crossovers_of(const std::vector<Cell>& cells, const std::vector<std::string>& names) {
  const auto time_us = [&](const std::string& name, int nodes) {
    for (const Cell& cell : cells) {
      if (cell.nodes == nodes && cell.algorithm == name) return cell.prediction.ok() ? cell.prediction->total_us : 0.0;
    }
    return 0.0;
  };
  std::vector<int> nodes;
  for (const Cell& cell : cells) nodes.push_back(cell.nodes);
  std::ranges::sort(nodes);
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  std::vector<Crossover> crossovers;
  for (std::size_t a = 0; a < names.size(); ++a) {
    for (std::size_t b = a + 1; b < names.size(); ++b) {
      int leader = 0;  // the algorithm that was clearly faster last: -1 is a, 1 is b
      int led_at = 0;  // on this number of nodes
      for (const int n : nodes) {
        const double time_a = time_us(names[a], n);
        const double time_b = time_us(names[b], n);
        if (time_a == 0 || time_b == 0) continue;
        const int now = time_b > time_a * kTie ? -1 : time_a > time_b * kTie ? 1 : 0;
        if (now == 0) continue;
        if (leader != 0 && now != leader) crossovers.push_back({names[now < 0 ? b : a], names[now < 0 ? a : b], led_at, n});
        leader = now;
        led_at = n;
      }
    }
  }
  return crossovers;
}

const ScalePrediction* fastest_of(const std::vector<Cell>& cells, int nodes) {
  const ScalePrediction* best = nullptr;
  for (const Cell& cell : cells) {
    if (cell.nodes != nodes || !cell.prediction.ok()) continue;
    if (best == nullptr || cell.prediction->total_us < best->total_us) best = &*cell.prediction;
  }
  return best;
}

void print_list(const std::vector<Cell>& cells, const Collective& collective) {
  fmt::print("{:<28} {:>14} {:>11} {:>11}  {}\n", "algorithm", "time (us)", "algbw GB/s", "busbw GB/s", "how");
  for (const Cell& cell : cells) {
    if (!cell.prediction.ok()) {
      fmt::print("{:<28} {:>14} {:>11} {:>11}  {}\n", cell.algorithm, "-", "-", "-", cell.prediction.status().message());
      continue;
    }
    const ScalePrediction& found = *cell.prediction;
    const double algbw = found.total_us > 0 ? static_cast<double>(collective.input_bytes()) / found.total_us / 1000 : 0;
    fmt::print("{:<28} {:>14.1f} {:>11.3f} {:>11.3f}  {}, {} tasks\n", found.algorithm, found.total_us, algbw,
               found.bus_gbyte_s, found.how, found.tasks);
  }
}

void print_table(const std::vector<Cell>& cells, const std::vector<int>& nodes, const std::vector<std::string>& names) {
  std::string line = fmt::format("{:>5} {:>6}", "nodes", "ranks");
  for (const std::string& name : names) line += fmt::format(" | {:>20}", name);
  fmt::print("{}\n{:>12}", line, "");
  for (std::size_t i = 0; i < names.size(); ++i) fmt::print(" | {:>9} {:>10}", "time", "busbw GB/s");
  fmt::print("\n");
  bool one_for_all = false;
  std::string missing;
  for (const int n : nodes) {
    const ScalePrediction* fastest = fastest_of(cells, n);
    for (const Cell& cell : cells) {
      if (cell.nodes != n) continue;
      if (cell.algorithm == names.front()) fmt::print("{:>5} {:>6}", n, cell.ranks);
      if (!cell.prediction.ok()) {
        fmt::print(" | {:>9} {:>10}", "-", "-");
        if (missing.find(cell.algorithm) == std::string::npos) {
          missing += fmt::format("- {} on {} nodes: {}\n", cell.algorithm, n, cell.prediction.status().message());
        }
        continue;
      }
      const bool folded = cell.prediction->how != "every node";
      one_for_all |= folded;
      const char* mark = &*cell.prediction == fastest ? "*" : "";
      fmt::print(" | {:>9} {:>8.3g}{}{}", format_time(cell.prediction->total_us), cell.prediction->bus_gbyte_s,
                 folded ? "~" : " ", *mark != 0 ? "*" : " ");
    }
    fmt::print("\n");
  }
  fmt::print(
      "* fastest{}\n{}",
      one_for_all
          ? "; ~ only one node simulated, for all nodes: exact for rings, up to 12 % too fast for direct, 25 % for circulant"
          : "",
      missing);
  for (const auto& [behind, ahead, from, to] : crossovers_of(cells, names)) {
    fmt::print("crossover: {} overtakes {} between {} and {} nodes\n", ahead, behind, from, to);
  }
}

Status write_json(const std::string& path, const Platform& platform, const Collective& collective,
                  const std::vector<Cell>& cells, const std::vector<std::string>& names) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const Cell& cell : cells) {
    nlohmann::ordered_json row{{"nodes", cell.nodes}, {"ranks", cell.ranks}, {"algorithm", cell.algorithm}};
    if (cell.prediction.ok()) {
      row["program"] = cell.prediction->algorithm;
      row["time_us"] = cell.prediction->total_us;
      row["busbw_gbs"] = cell.prediction->bus_gbyte_s;
      row["tasks"] = cell.prediction->tasks;
      row["how"] = cell.prediction->how;
    } else {
      row["how"] = cell.prediction.status().message();
    }
    results.push_back(row);
  }
  nlohmann::ordered_json crossovers = nlohmann::ordered_json::array();
  for (const auto& [behind, ahead, from, to] : crossovers_of(cells, names)) {
    crossovers.push_back({{"ahead", ahead}, {"behind", behind}, {"from_nodes", from}, {"to_nodes", to}});
  }
  const nlohmann::ordered_json all{{"platform",
                                    {{"name", platform.name},
                                     {"source", platform.source},
                                     {"nics", platform.nics},
                                     {"nic_gbit_s", platform.nic_gbit_s},
                                     {"network_latency_us", platform.network_latency_us}}},
                                   {"collective", to_string(collective)},
                                   {"bytes", collective.input_bytes()},
                                   {"model", "SimGrid"},
                                   {"results", results},
                                   {"crossovers", crossovers}};
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  if (file == nullptr) return system_error("open " + path, errno);
  fmt::print(file, "{}\n", all.dump(1));
  if (std::fflush(file) != 0 || (file != stdout && std::fclose(file) != 0)) return system_error("write " + path, errno);
  return {};
}

/// Prints the published result for the same call, if there is one.
void print_published_beside(const Platform& platform, int nodes, int ranks, const Collective& collective) {
  if (collective.kind != CollectiveKind::all_reduce) return;
  const PublishedResult* published = find_published(platform.name, nodes, collective.input_bytes());
  if (published == nullptr || published->ranks != ranks) return;
  const double us = published->microseconds();
  fmt::print("{:<28} {:>14.1f} {:>11.3f} {:>11.3f}  published: {}\n", "NCCL", us,
             static_cast<double>(collective.input_bytes()) / us / 1000, bus_bytes(collective, ranks) / us / 1000,
             published->source);
}

/// The platform `name`, with the costs that the user has given in place of its own.
Result<Platform> platform_of(const CLI::App& command, const std::string& name) {
  auto platform = find_platform(name);
  if (!platform.ok()) return platform;
  const auto replace = [&](const char* option, auto& value) {
    if (command.count(option) > 0) value = command.get_option(option)->as<std::remove_reference_t<decltype(value)>>();
  };
  replace("--network-latency-us", platform->network_latency_us);
  replace("--network-gbit-s", platform->nic_gbit_s);
  replace("--shared-latency-us", platform->memory_latency_us);
  replace("--shared-gbyte-s", platform->memory_gbyte_s);
  replace("--cores", platform->cores);
  if (Status status = check(*platform); !status.ok()) return status;
  return platform;
}

/// The algorithms to compare. A table has those that differ between the nodes.
Result<std::vector<std::string>> names_of(const ScheduleOptions& schedule, const Collective& collective, bool table) {
  std::vector<std::string> names;
  if (!schedule.algorithm.empty()) {
    const auto found = find_algorithm(schedule.algorithm);
    if (!found.ok()) return found.status();
    return std::vector{std::string((*found)->name)};
  }
  const Topology topology = Topology::uniform(2, 2);
  if (table) {
    for (const char* name :
         {"ring", "circulant", "direct", "hierarchical(ring)", "hierarchical(circulant)", "hierarchical(direct)"}) {
      const auto found = find_algorithm(name);
      if (found.ok() && (*found)->supports(topology, collective).ok()) names.emplace_back(name);
    }
    return names;
  }
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.supports(topology, collective).ok()) names.emplace_back(algorithm.name);
  }
  return names;
}

}  // namespace

void PlatformOptions::add_to(CLI::App& command) {
  std::string known;
  for (const Platform& each : shoal::platforms()) known += (known.empty() ? "" : ", ") + each.name;
  command.add_option("--platform,-p", platform,
                     "simulate on SimGrid, with contention for wires and cores: " + known + ", or a JSON file");
  command.add_option("--nodes,-N", nodes, "nodes of the platform: 512; 2,8,64; 2..4096 (powers of two)");
  command.add_option("--ranks-per-node,-L", ranks_per_node, "ranks of each node (default: the platform's)");
  command.add_flag("--table", table, fmt::format("compare the algorithms on {} nodes, or on --nodes", kTableNodes));
  command.add_flag("--published", published, "print a table (Markdown) of predictions beside published results");
  command.add_option("--json", json, "write the predictions to this file, - for standard output");
}

Result<bool> PlatformOptions::wanted() const {
  if (!platform.empty()) return true;
  const char* needs = !nodes.empty()   ? "--nodes"
                      : ranks_per_node ? "--ranks-per-node"
                      : table          ? "--table"
                      : !json.empty()  ? "--json"
                                       : nullptr;
  if (needs != nullptr) return invalid(fmt::format("{} needs a --platform", needs));
  return false;
}

namespace {

/// 8 -> "8 B", 1048576 -> "1 MiB".
std::string short_size(std::uint64_t bytes) { return bytes < 1024 ? fmt::format("{} B", bytes) : format_bytes(bytes); }

/// One row of the table beside published results.
Result<std::string> beside_published(const PublishedResult& published) {
  const auto platform = find_platform(published.platform);
  if (!platform.ok()) return platform.status();
  const int local = published.ranks / published.nodes;
  const Topology topology = topology_of(*platform, published.nodes, local);
  const Collective collective{CollectiveKind::all_reduce, published.bytes / 4, DataType::float32, ReduceOp::sum, 0};
  const auto choice = select(topology, collective);
  if (!choice.ok()) return choice.status();
  const auto found = predict_at_scale(*choice->algorithm, topology, collective, *platform);
  if (!found.ok()) return found.status();
  const double limit = wire_limit_gbyte_s(*platform, published.nodes, published.ranks);
  const double theirs_us = published.microseconds();
  const double theirs_gbyte_s = bus_bytes(collective, published.ranks) / theirs_us / 1000;
  const auto of_limit = [&](double gbyte_s) {
    return limit > 0 ? fmt::format("{:.3g} ({:.2g} %)", gbyte_s, 100 * gbyte_s / limit) : fmt::format("{:.3g}", gbyte_s);
  };
  return fmt::format("| {} x {} | {} | {}{} | {} | {} | {} | {} | {:.2f} x |\n", published.nodes, published.platform,
                     short_size(published.bytes), format_time(theirs_us),
                     published.note.empty() ? "" : fmt::format(", {}", published.note), of_limit(theirs_gbyte_s),
                     found->algorithm, format_time(found->total_us), of_limit(found->bus_gbyte_s), theirs_us / found->total_us);
}

}  // namespace

Status simulate_published() {
  std::string rows;
  Progress progress(published_results().size());
  for (const PublishedResult& each : published_results()) {
    progress.begin(fmt::format("{} of {}", short_size(each.bytes), each.platform));
    const auto row = beside_published(each);
    if (!row.ok()) return row.status();
    rows += *row;
  }
  fmt::print(
      "| nodes | size | NCCL, published | GB/s (of the wire) | shoal's plan | **predicted** | GB/s (of the wire) | ratio |\n"
      "|---|---:|---:|---:|---|---:|---:|---:|\n{}",
      rows);
  return {};
}

Status simulate_platform(const CLI::App& command, const ScheduleOptions& schedule, const PlatformOptions& options) {
  const auto platform = platform_of(command, options.platform);
  if (!platform.ok()) return platform.status();
  if (command.count("--shape") + command.count("--ranks") > 0) {
    return invalid("a platform has equal nodes: give --nodes and --ranks-per-node instead of --shape or --ranks");
  }
  if (options.nodes.empty() && !options.table) return invalid("give --nodes, or --table for 2..4096 nodes");
  const auto nodes = parse_nodes(options.nodes.empty() ? kTableNodes : options.nodes);
  if (!nodes.ok()) return nodes.status();
  const bool table = options.table || nodes->size() > 1;
  const int local = options.ranks_per_node.value_or(platform->ranks_per_node);
  const int most = *std::ranges::max_element(*nodes);
  if (local < 1 || local > kMaxJobRanks / most) {
    return invalid(fmt::format("{} nodes of {} ranks: not between 1 and {} ranks", most, local, kMaxJobRanks));
  }
  const auto collective = schedule.collective();
  if (!collective.ok()) return collective.status();
  const auto names = names_of(schedule, *collective, table);
  if (!names.ok()) return names.status();

  std::vector<Cell> cells;
  {
    Progress progress(nodes->size() * names->size());
    for (const int n : *nodes) {
      const Topology topology = Topology::uniform(n, local);
      for (const std::string& name : *names) {
        progress.begin(fmt::format("{} on {} nodes", name, n));
        auto found = predict_at_scale(**find_algorithm(name), topology, *collective, *platform,
                                      [&](double part) { progress.show(part); });
        // An unsupported call is an error for a single algorithm; among several, the algorithm is only left out.
        const bool left_out = found.ok() || found.status().code() == StatusCode::unsupported;
        if (!left_out || (!found.ok() && nodes->size() * names->size() == 1)) return found.status();
        cells.push_back({n, n * local, name, std::move(found)});
      }
    }
  }
  if (options.json != "-") {
    fmt::print("{} ({} of each rank) on {} nodes x {} ranks of {}, SimGrid\n", to_string(*collective), schedule.size,
               table ? fmt::format("{} .. {}", nodes->front(), nodes->back()) : std::to_string(most), local, platform->name);
    fmt::print("{} x {:.4g} Gbit/s, {:g} us between nodes; {:g} GB/s, {:g} us inside; {}\n", platform->nics,
               platform->nic_gbit_s, platform->network_latency_us, platform->memory_gbyte_s, platform->memory_latency_us,
               platform->source);
    if (!platform->hardware.empty()) fmt::print("{}\n", platform->hardware);
    if (table) {
      print_table(cells, *nodes, *names);
    } else {
      print_list(cells, *collective);
      print_published_beside(*platform, most, most * local, *collective);
    }
  }
  return options.json.empty() ? Status() : write_json(options.json, *platform, *collective, cells, *names);
}

}  // namespace shoal
