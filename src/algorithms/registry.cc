#include "src/algorithms/registry.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace shoal {
namespace {

Status invalid(const std::string& message) { return {StatusCode::invalid_argument, message}; }

/// Checks that counts, if given, have the right number and do not overflow.
Status check_counts(const Collective& collective, int ranks) {
  if (collective.counts.empty()) return {};
  if (!deals_in_shares(collective.kind)) return invalid(std::string(to_string(collective.kind)) + " takes no counts");
  const std::size_t wanted = static_cast<std::size_t>(ranks) * (collective.kind == CollectiveKind::all_to_all ? 2 : 1);
  if (collective.counts.size() != wanted) {
    return invalid(std::to_string(collective.counts.size()) + " counts where " + std::to_string(wanted) + " are needed");
  }
  const std::size_t limit = std::numeric_limits<std::size_t>::max() / 2 / size_of(collective.type) / wanted;
  for (const std::size_t count : collective.counts) {
    if (count > limit) return invalid("a count of " + std::to_string(count) + " elements does not fit in memory");
  }
  return {};
}

}  // namespace

Status check_call(const Topology& topology, const Collective& collective) {
  const int ranks = topology.ranks();
  if (ranks < 1) return invalid("a collective needs at least one rank");
  int nodes = 0;
  for (const int node : topology.node_of_rank) {
    if (node < 0 || node > nodes) return invalid("nodes must be numbered 0.. in order of their lowest rank");
    nodes = std::max(nodes, node + 1);
  }
  if (static_cast<int>(collective.kind) >= kCollectiveKindCount) return invalid("unknown kind of collective");
  const std::size_t element_bytes = size_of(collective.type);
  if (element_bytes == 0) return invalid("unknown data type");
  if (Status status = check_counts(collective, ranks); !status.ok()) return status;
  // Half of the address space, for all shares together.
  const std::size_t limit = std::numeric_limits<std::size_t>::max() / 2 / element_bytes / static_cast<std::size_t>(ranks);
  if (collective.count > limit) return invalid(std::to_string(collective.count) + " elements do not fit in memory");
  if (reduces(collective.kind) && !supports(collective.type, collective.op)) {
    return invalid(std::string(to_string(collective.op)) + " is not defined on " + std::string(to_string(collective.type)));
  }
  if (has_root(collective.kind) && (collective.root < 0 || collective.root >= ranks)) {
    return invalid("root " + std::to_string(collective.root) + " is not one of the ranks 0.." + std::to_string(ranks - 1));
  }
  return {};
}

Status check_support(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  const Status status = algorithm.supports(topology, collective);
  if (status.ok()) return status;
  return {status.code(), "algorithm '" + std::string(algorithm.name) + "' " + status.message()};
}

namespace {

Status check(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  if (Status status = check_call(topology, collective); !status.ok()) return status;
  return check_support(algorithm, topology, collective);
}

}  // namespace

Status serves_only(CollectiveKind asked, std::initializer_list<CollectiveKind> served) {
  if (std::ranges::find(served, asked) != served.end()) return {};
  std::string message = "does not serve " + std::string(to_string(asked)) + ", only";
  for (const CollectiveKind kind : served) message += " " + std::string(to_string(kind));
  return {StatusCode::unsupported, message};
}

Status needs_power_of_two(const Topology& topology, CollectiveKind asked) {
  if (std::has_single_bit(static_cast<unsigned>(topology.ranks()))) return {};
  return {StatusCode::unsupported, "does not serve " + std::string(to_string(asked)) + " among " +
                                       std::to_string(topology.ranks()) + " ranks, only among a power of two"};
}

std::span<const Algorithm> algorithms() {
  // If the Selector finds two algorithms equally fast, the earlier one wins: simpler ones first.
  static const std::vector<Algorithm> all_algorithms = [] {
    std::vector<Algorithm> all{one_shot_algorithm(),           direct_algorithm(), hierarchical_algorithm(),
                               recursive_doubling_algorithm(), ring_algorithm(),   circulant_algorithm(),
                               recursive_halving_algorithm()};
    const auto compositions = hierarchical_candidates();
    all.insert(all.end(), compositions.begin(), compositions.end());
    all.insert(all.end(), {dissemination_algorithm(), tree_algorithm(), chain_algorithm(), bruck_algorithm()});
    return all;
  }();
  return all_algorithms;
}

bool repeats_another(const Algorithm& algorithm, const Topology& topology) {
  const bool composed = algorithm.name.starts_with("hierarchical");
  return composed && (topology.nodes() == 1 || topology.nodes() == topology.ranks());
}

Result<const Algorithm*> find_algorithm(std::string_view name) {
  // Aliases: direct has two hops and is called two-shot elsewhere; and it is the stage inside the nodes unless another is
  // named.
  std::string canonical(name);
  for (const auto& [alias, meaning] : {std::pair{"two_shot", "direct"}, std::pair{"(direct,", "("}}) {
    for (std::size_t at; (at = canonical.find(alias)) != std::string::npos;) canonical.replace(at, std::strlen(alias), meaning);
  }
  std::string known;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name == canonical) return &algorithm;
    if (algorithm.name.find('(') == std::string_view::npos) known += " " + std::string(algorithm.name);
  }
  for (const Algorithm& algorithm : hierarchical_compositions()) {
    if (algorithm.name == canonical) return &algorithm;
  }
  return Status(StatusCode::not_found, "unknown algorithm '" + std::string(name) + "'; known:" + known +
                                           "; two_shot is direct; " + hierarchical_names());
}

Result<Schedule> build_schedule(const Algorithm& algorithm, const Topology& topology, const Collective& collective,
                                const std::vector<std::vector<std::size_t>>& counts_of_rank) {
  Schedule schedule{topology, collective, {}, counts_of_rank};
  // If all ranks make the same call, only the first check can fail.
  if (Status status = check(algorithm, topology, topology.ranks() > 0 ? schedule.collective_of(0) : collective); !status.ok())
    return status;
  const RanksByNode nodes(topology);
  schedule.programs.reserve(topology.node_of_rank.size());
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    if (rank > 0 && !counts_of_rank.empty()) {
      if (Status status = check(algorithm, topology, schedule.collective_of(rank)); !status.ok()) return status;
    }
    schedule.programs.push_back(algorithm.build(nodes, schedule.collective_of(rank), rank));
  }
  return schedule;
}

Result<Program> build_program(const Algorithm& algorithm, const Topology& topology, const Collective& collective, int rank) {
  if (Status status = check(algorithm, topology, collective); !status.ok()) return status;
  if (rank < 0 || rank >= topology.ranks()) {
    return invalid("rank " + std::to_string(rank) + " is not one of the ranks 0.." + std::to_string(topology.ranks() - 1));
  }
  return algorithm.build(topology, collective, rank);
}

}  // namespace shoal
