// `shoal verify`: proves schedules.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <set>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/schedule_options.h"
#include "src/schedule/verifier.h"

namespace shoal {
namespace {

struct Tally {
  int proven = 0;
  int wrong = 0;
};

/// Every N x L of `ranks`, and two uneven shapes.
std::vector<Topology> shapes_of(int ranks) {
  std::vector<Topology> shapes;
  for (int nodes = 1; nodes <= ranks; ++nodes) {
    if (ranks % nodes == 0) shapes.push_back(Topology::uniform(nodes, ranks / nodes));
  }
  if (ranks > 2) shapes.push_back(Topology::ragged({ranks - 1, 1}));
  if (ranks > 3) shapes.push_back(Topology::ragged({1, ranks - 3, 2}));
  return shapes;
}

/// Proves one schedule. Errors: those of the arguments; a wrong schedule is counted and described.
Status verify_one(const Algorithm& algorithm, const Topology& topology, const Collective& collective, bool quiet,
                  Tally& tally) {
  const auto schedule = build_schedule_of_bounded_size(algorithm, topology, collective);
  if (!schedule.ok()) return schedule.status();
  const auto faults = verify(*schedule);
  if (faults.empty()) {
    ++tally.proven;
    if (!quiet)
      fmt::print("proven  {:<24} {} on {}\n", schedule->programs.front().algorithm, to_string(collective), topology.shape());
    return {};
  }
  ++tally.wrong;
  fmt::print("WRONG   {:<24} {} on {}\n", schedule->programs.front().algorithm, to_string(collective), topology.shape());
  for (const Fault& fault : faults) fmt::print("        {}: {}\n", to_string(fault.kind), fault.message);
  return {};
}

/// The algorithm `name`, or all that support `collective`. Error: not_found for an unknown name.
Result<std::vector<const Algorithm*>> algorithms_for(std::string_view name, const Topology& topology,
                                                     const Collective& collective) {
  std::vector<const Algorithm*> chosen;
  if (!name.empty()) {
    const auto algorithm = find_algorithm(name);
    if (!algorithm.ok()) return algorithm.status();
    chosen.push_back(*algorithm);
    return chosen;
  }
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.supports(topology, collective).ok()) chosen.push_back(&algorithm);
  }
  return chosen;
}

Status verify_requested(const ScheduleOptions& options, Tally& tally) {
  const auto topology = options.topology();
  if (!topology.ok()) return topology.status();
  const auto collective = options.collective();
  if (!collective.ok()) return collective.status();
  const auto chosen = algorithms_for(options.algorithm, *topology, *collective);
  if (!chosen.ok()) return chosen.status();
  for (const Algorithm* algorithm : *chosen) {
    if (Status status = verify_one(*algorithm, *topology, *collective, false, tally); !status.ok()) return status;
  }
  return {};
}

/// All collectives on 1..17, 24 and 64 ranks, all shapes, sizes and some roots. `only`: the name of one algorithm; empty: all.
Status verify_all(const std::string& only, Tally& tally) {
  if (!only.empty()) {
    if (const auto known = find_algorithm(only); !known.ok()) return known.status();
  }
  for (const Algorithm& algorithm : algorithms()) {
    if (!only.empty() && find_algorithm(only).value()->name != algorithm.name) continue;
    const Tally before = tally;
    for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 64}) {
      for (const Topology& topology : shapes_of(ranks)) {
        for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
          // An average, because it must also be divided, exactly once.
          Collective collective{static_cast<CollectiveKind>(kind), 0, DataType::float32, ReduceOp::avg, 0};
          if (!algorithm.supports(topology, collective).ok()) continue;
          const std::vector<std::size_t> all_counts{0, 1, 1009, 5'000'011};
          // A share is divided in the same way for every size.
          const std::vector<std::size_t> counts = collective.kind == CollectiveKind::barrier ? std::vector<std::size_t>{0}
                                                  : deals_in_shares(collective.kind)         ? std::vector<std::size_t>{0, 7}
                                                                                             : all_counts;
          const std::set<int> roots = has_root(collective.kind) ? std::set{0, ranks / 2, ranks - 1} : std::set{0};
          for (const std::size_t count : counts) {
            for (const int root : roots) {
              collective.count = count;
              collective.root = root;
              if (Status status = verify_one(algorithm, topology, collective, true, tally); !status.ok()) return status;
            }
          }
        }
      }
    }
    fmt::print("{}  {:<20} {} schedules\n", tally.wrong == before.wrong ? "proven" : "WRONG ", algorithm.name,
               tally.proven - before.proven);
  }
  return {};
}

}  // namespace

void add_verify_command(CLI::App& app, int* exit_status) {
  auto* command =
      app.add_subcommand("verify", "Proves that schedules give the right result on every rank, without deadlock or race");
  const auto options = std::make_shared<ScheduleOptions>();
  const auto all = std::make_shared<bool>(false);
  options->add_to(*command);
  options->add_size_to(*command);
  command->add_flag(
      "--all", *all,
      "every collective on many numbers of ranks, shapes and sizes, by every algorithm or by the one of --algorithm");
  command->callback([options, all, exit_status] {
    Tally tally;
    const Status status = *all ? verify_all(options->algorithm, tally) : verify_requested(*options, tally);
    if (!status.ok()) {
      *exit_status = report_error("verify", status);
      return;
    }
    fmt::print("{} proven, {} wrong\n", tally.proven, tally.wrong);
    *exit_status = tally.wrong == 0 ? 0 : 1;
  });
}

}  // namespace shoal
