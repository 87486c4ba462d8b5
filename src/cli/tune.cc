// `shoal tune`: measures the algorithms between the ranks of a job and writes the table that SHOAL_TUNING names.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/machine.h"
#include "src/cli/schedule_options.h"
#include "src/cli/tuner.h"
#include "src/communicator/communicator_impl.h"
#include "src/communicator/tuning_file.h"
#include "src/join/launch.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

using Json = nlohmann::ordered_json;

/// The arguments of the command.
struct Arguments {
  std::string output = "shoal-tuning.json";
  std::vector<std::string> collectives{"all_reduce", "broadcast", "all_gather"};
  std::string min_size = "4";
  std::string max_size = "64MiB";
  int factor = 4;
  double budget_s = 120;
};

Result<TuneOptions> options_from(const Arguments& arguments) {
  const auto invalid = [](const std::string& message) { return Status(StatusCode::invalid_argument, message); };
  TuneOptions options;
  options.collectives.clear();
  for (const std::string& name : arguments.collectives) {
    const auto kind = parse_collective(name);
    if (!kind.ok()) return kind.status();
    if (*kind == CollectiveKind::barrier) return invalid("a barrier cannot be tuned");
    if (std::ranges::find(options.collectives, *kind) != options.collectives.end()) return invalid(name + " is named twice");
    options.collectives.push_back(*kind);
  }
  const auto least = parse_size(arguments.min_size);
  if (!least.ok()) return least.status();
  const auto most = parse_size(arguments.max_size);
  if (!most.ok()) return most.status();
  if (*least == 0 || *least % 4 != 0)
    return invalid(fmt::format("--min-size {} is not a multiple of 4 bytes", arguments.min_size));
  if (*most < *least)
    return invalid(fmt::format("--max-size {} is less than --min-size {}", arguments.max_size, arguments.min_size));
  if (*most > std::size_t{1} << 34) return invalid(fmt::format("--max-size {} is more than 16 GiB", arguments.max_size));
  options.min_bytes = *least;
  options.max_bytes = *most;
  options.factor = arguments.factor;
  options.budget_s = arguments.budget_s;
  return options;
}

/// The shapes that the file has already; none if it does not exist. They are kept, because one file may hold several shapes.
Result<std::vector<Json>> known_shapes(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::vector<Json>();
  if (const auto table = read_tuning_file(path); !table.ok()) {
    return Status(table.status().code(),
                  fmt::format("{}; remove the file or name another with --output", table.status().message()));
  }
  std::ifstream file(path);
  return Json::parse(file, nullptr, false)["shapes"].get<std::vector<Json>>();
}

/// One measurement on each line, for readers and for diffs.
std::string text_of(const std::vector<Json>& shapes) {
  std::string text = tuning_file(shapes).dump();
  for (const std::string_view start : {"{\"collective\"", "{\"shape\"", "\"entries\""}) {
    for (std::size_t at = 0; (at = text.find(start, at)) != std::string::npos; at += 1 + start.size()) text.insert(at, "\n");
  }
  return text + "\n";
}

/// Writes under another name first, so that a reader sees either the old file or the new one.
Status write_file(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  errno = 0;
  std::ofstream file(draft, std::ios::trunc);
  file << text;
  file.close();
  if (!file || std::rename(draft.c_str(), path.c_str()) != 0) return system_error(fmt::format("write {}", path), errno);
  return {};
}

/// Checks before the measurements whether the result can be written.
Status check_writable(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) return system_error(fmt::format("write {}", path), errno);
  if (std::filesystem::is_directory(path)) return system_error(fmt::format("write {}", path), EISDIR);
  return {};
}

std::string today() {
  std::array<char, 32> text{};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

Json describe_costs(const Topology& topology) {
  const auto link = [&](LinkClass wire) {
    const LinkCost& cost = topology.cost[static_cast<std::size_t>(wire)];
    Json described{{"latency_us", cost.latency_us}, {"gbyte_s", cost.us_per_byte > 0 ? 1 / cost.us_per_byte / 1000 : 0}};
    if (cost.burst_us_per_byte > 0) described["burst_gbyte_s"] = 1 / cost.burst_us_per_byte / 1000;
    return described;
  };
  return {{"in_a_node", link(LinkClass::shared_memory)},
          {"between_nodes", link(LinkClass::network)},
          {"reduce_gbyte_s", topology.reduce_us_per_byte > 0 ? 1 / topology.reduce_us_per_byte / 1000 : 0},
          {"cores_per_node", topology.cores_per_node},
          {"one_copy_gain", topology.one_copy_gain}};
}

/// Prints a line for each size; on a terminal also a temporary line with the current step.
void show(const TuneStep& step, double budget_s) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const std::string head =
      fmt::format("[{:>2}/{}] {:<10} {:>10}", step.number, step.total, to_string(step.kind), format_bytes(step.bytes));
  const std::string time =
      fmt::format("{:.0f} s, at most {:.0f} s left", step.elapsed_s, std::max(budget_s - step.elapsed_s, 0.0));
  if (step.results.empty() && !step.skipped) {
    if (terminal) fmt::print(stderr, "{}  measuring ...  ({})", head, time);
    return;
  }
  std::string words = step.skipped ? "skipped: no time left" : "";
  constexpr std::size_t kShown = 4;
  for (const Measurement& one : std::span(step.results).first(std::min(kShown, step.results.size()))) {
    words += words.empty() ? fmt::format("{} {:.2f} us", one.algorithm->name, one.median_us)
                           : fmt::format(", {} {:.2f} x", one.algorithm->name, one.median_us / step.results.front().median_us);
  }
  if (step.results.size() > kShown) words += fmt::format(", {} more", step.results.size() - kShown);
  fmt::print(stderr, "{}{}  {}  ({})\n", terminal ? "\r\033[K" : "", head, words, time);
}

Status run(const Arguments& arguments, const TuneOptions& options) {
  // A table of an older version would be refused, although this command replaces it.
  ::unsetenv("SHOAL_TUNING");
  auto communicator = Communicator::create();
  if (!communicator.ok()) return communicator.status();
  const auto& inside = internal::CommunicatorImpl::of(**communicator);
  const bool leads = (*communicator)->rank() == 0;
  const Topology& topology = inside.executor().topology();

  std::vector<Json> shapes;
  // 0 = continue. If rank 0 cannot write the file, all ranks end together.
  int refused = 0;
  Status problem;
  if (leads) {
    problem = check_writable(arguments.output);
    if (auto known = known_shapes(arguments.output); problem.ok() && !known.ok()) {
      problem = known.status();
    } else if (known.ok()) {
      shapes = *known;
    }
    refused = problem.ok() ? 0 : 1;
    if (!refused) {
      fmt::print(stderr, "shoal tune: {} ranks on {} over {}, for at most about {:.0f} s\n", topology.ranks(), topology.shape(),
                 inside.transports(), options.budget_s);
    }
  }
  if (Status status = (*communicator)->broadcast(&refused, 1, DataType::int32, 0); !status.ok()) return status;
  if (refused != 0) return leads ? problem : Status(StatusCode::aborted, "");

  auto tuned = tune(**communicator, options, [&](const TuneStep& step) { show(step, options.budget_s); });
  if (!tuned.ok()) return tuned.status();
  if (!leads) return {};
  if (tuned->measurements.empty()) {
    return {StatusCode::timeout, fmt::format("{:.1f} s are too short to measure anything; raise --budget", options.budget_s)};
  }

  std::erase_if(shapes, [&](const Json& shape) {
    return shape["node_of_rank"] == Json(tuned->node_of_rank) && shape["transports"] == tuned->transports;
  });
  Json mine = to_json(*tuned);
  Json entries = std::move(mine["entries"]);
  mine.erase("entries");
  mine["measured"] = today();
  mine["machine"] = describe_machine();
  mine["costs"] = describe_costs(topology);
  mine["entries"] = std::move(entries);
  shapes.push_back(std::move(mine));
  const std::size_t count = shapes.size();
  if (Status status = write_file(arguments.output, text_of(shapes)); !status.ok()) return status;
  fmt::print(stderr, "wrote {}: {} measurements of {}{}\nuse it: export SHOAL_TUNING={}\n", arguments.output,
             tuned->measurements.size(), tuned->name(), count > 1 ? fmt::format(", {} shapes in all", count) : "",
             std::filesystem::absolute(arguments.output).lexically_normal().string());
  return {};
}

}  // namespace

void add_tune_command(CLI::App& app, int* exit_status) {
  auto* command = app.add_subcommand(
      "tune", "Measures the algorithms between the ranks of a job and writes a table: shoal run -n 4 -- shoal tune");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("--output,-o", arguments->output, "file that rank 0 writes; other shapes in it are kept")
      ->capture_default_str();
  command->add_option("--collectives,-c", arguments->collectives, "collectives to measure, in this order")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--min-size", arguments->min_size, "smallest input of a rank")->capture_default_str();
  command->add_option("--max-size", arguments->max_size, "largest buffer of a rank")->capture_default_str();
  command->add_option("--factor", arguments->factor, "ratio of one size to the next: 2 or 4")
      ->check(CLI::IsMember({2, 4}))
      ->capture_default_str();
  command->add_option("--budget", arguments->budget_s, "seconds after which no further size is started")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([arguments, exit_status] {
    const auto options = options_from(*arguments);
    if (!options.ok()) {
      // The error is the same on every rank, so only rank 0 prints it.
      const auto launch = detect_launch([](const char* name) { return std::getenv(name); });
      *exit_status = launch.ok() && launch->rank > 0 ? 1 : report_error("tune", options.status());
      return;
    }
    if (const Status status = run(*arguments, *options); !status.ok()) {
      *exit_status = status.message().empty() ? 1 : report_error("tune", status);
    }
  });
}

}  // namespace shoal
