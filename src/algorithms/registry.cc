#include "src/algorithms/registry.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace shoal {
namespace {

Status invalid(const std::string& message) { return {StatusCode::invalid_argument, message}; }

/// What every algorithm may take for granted.
Status check(const Topology& topology, const Collective& collective) {
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
  // Half of the address space, and for the larger side of an all_gather, which is `ranks` times the input.
  const std::size_t limit = std::numeric_limits<std::size_t>::max() / 2 / element_bytes / static_cast<std::size_t>(ranks);
  if (collective.count > limit) return invalid(std::to_string(collective.count) + " elements do not fit in memory");
  if (collective.kind == CollectiveKind::all_reduce && !supports(collective.type, collective.op)) {
    return invalid(std::string(to_string(collective.op)) + " is not defined on " + std::string(to_string(collective.type)));
  }
  if (collective.kind == CollectiveKind::broadcast && (collective.root < 0 || collective.root >= ranks)) {
    return invalid("root " + std::to_string(collective.root) + " is not one of the ranks 0.." + std::to_string(ranks - 1));
  }
  return {};
}

Status check(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  if (Status status = check(topology, collective); !status.ok()) return status;
  const Status status = algorithm.supports(topology, collective);
  if (status.ok()) return status;
  return {status.code(), "algorithm '" + std::string(algorithm.name) + "' " + status.message()};
}

}  // namespace

Status serves_only(CollectiveKind asked, std::initializer_list<CollectiveKind> served) {
  if (std::ranges::find(served, asked) != served.end()) return {};
  std::string message = "does not serve " + std::string(to_string(asked)) + ", only";
  for (const CollectiveKind kind : served) message += " " + std::string(to_string(kind));
  return {StatusCode::unsupported, message};
}

std::span<const Algorithm> algorithms() {
  // Where the Selector finds two equally fast, the earlier one wins: simpler ones first.
  static const std::vector<Algorithm> kAlgorithms = [] {
    std::vector<Algorithm> all{one_shot_algorithm(),           direct_algorithm(), hierarchical_algorithm(),
                               recursive_doubling_algorithm(), ring_algorithm(),   circulant_algorithm(),
                               recursive_halving_algorithm()};
    const auto compositions = hierarchical_candidates();
    all.insert(all.end(), compositions.begin(), compositions.end());
    all.insert(all.end(), {dissemination_algorithm(), tree_algorithm(), chain_algorithm()});
    return all;
  }();
  return kAlgorithms;
}

bool repeats_another(const Algorithm& algorithm, const Topology& topology) {
  const bool composed = algorithm.name.starts_with("hierarchical");
  return composed && (topology.nodes() == 1 || topology.nodes() == topology.ranks());
}

Result<const Algorithm*> find_algorithm(std::string_view name) {
  // Two names that mean the same: direct has two hops, so it is what others call two-shot; and it is what runs inside the nodes
  // unless something else is named.
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

Result<Schedule> build_schedule(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  if (Status status = check(algorithm, topology, collective); !status.ok()) return status;
  Schedule schedule{topology, collective, {}};
  schedule.programs.reserve(topology.node_of_rank.size());
  for (int rank = 0; rank < topology.ranks(); ++rank) schedule.programs.push_back(algorithm.build(topology, collective, rank));
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
