// Algorithm: a name, a pure function, and what it supports.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/schedule/program.h"
#include "src/topology/ranks_by_node.h"

namespace shoal {

/// A recipe for Programs. `build` is pure: the same arguments always give the same Program, on every rank.
struct Algorithm {
  std::string_view name;
  std::string_view summary;  ///< one line for `shoal explain`, with the source (paper) it comes from
  /// ok, or why this algorithm cannot serve the collective on this topology.
  Status (*supports)(const Topology& topology, const Collective& collective);
  /// The Program of `rank`, in time that grows with its length and the number of ranks: a choice builds dozens. Precondition:
  /// supports() is ok, 0 <= rank < nodes.ranks().
  Program (*build)(const RanksByNode& nodes, const Collective& collective, int rank);
  /// Hops of an all_reduce that the Program of a single rank does not show, because the tile that it waits for comes from far
  /// down a tree. Predictions that read only a few Programs add these hops. Null: none.
  int (*hidden_hops)(const Topology& topology) = nullptr;
};

/// The algorithms that the tests prove and the Selector rates, in a fixed order. The list is in registry.cc, without
/// registration macros.
std::span<const Algorithm> algorithms();

/// Whether `algorithm` sends on `topology` the same messages as an earlier one of algorithms(), so that there is nothing to
/// choose. A composition over a single node, or over nodes of one rank each, equals the stage that runs there by itself.
bool repeats_another(const Algorithm& algorithm, const Topology& topology);

/// The algorithm called `name`: one of algorithms(), hierarchical(NODE,WIRE) composed of two stages, or an alias (two_shot is
/// direct). Error: not_found, which lists the known names.
Result<const Algorithm*> find_algorithm(std::string_view name);

/// The Programs of all ranks. `counts_of_rank`: see Schedule; one entry per rank, or none.
Result<Schedule> build_schedule(const Algorithm& algorithm, const Topology& topology, const Collective& collective,
                                const std::vector<std::vector<std::size_t>>& counts_of_rank = {});

/// ok if every algorithm whose supports() is ok can serve the call; else what is wrong with its arguments.
Status check_call(const Topology& topology, const Collective& collective);

/// supports(), with the name of the algorithm in the message. Precondition: check_call() is ok.
Status check_support(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// Builds the Program of one rank after both checks and one of the rank.
Result<Program> build_program(const Algorithm& algorithm, const Topology& topology, const Collective& collective, int rank);

}  // namespace shoal
