// Algorithm: a name, a pure function, and what it supports.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/schedule/program.h"

namespace shoal {

/// A recipe for Programs. `build` is pure: the same arguments give the same Program, on every rank, for ever.
struct Algorithm {
  std::string_view name;
  std::string_view summary;  ///< one line for `shoal explain`, with the source (paper) it comes from
  /// ok, or why this algorithm cannot serve the collective on this topology.
  Status (*supports)(const Topology& topology, const Collective& collective);
  /// The Program of `rank`. Precondition: supports() is ok, 0 <= rank < topology.ranks().
  Program (*build)(const Topology& topology, const Collective& collective, int rank);
  /// Hops of an all_reduce that do not show in the Program of any one rank, because what it waits for has come from far down a
  /// tree. Predictions that look at a few Programs only add them. Null: none.
  int (*hidden_hops)(const Topology& topology) = nullptr;
};

/// The algorithms that the tests prove and the Selector rates, in a fixed order. No registration macros: the list is in
/// registry.cc.
std::span<const Algorithm> algorithms();

/// Whether `algorithm` does on `topology` what an earlier one of algorithms() does too: there is nothing to choose between
/// them. A composition over a single node, or over nodes of one rank each, is what runs on its own there.
bool repeats_another(const Algorithm& algorithm, const Topology& topology);

/// The algorithm called `name`: one of algorithms(), hierarchical(NODE,WIRE) composed of two stages, or another name of one of
/// these (two_shot is direct). Error: not_found, which lists the known ones.
Result<const Algorithm*> find_algorithm(std::string_view name);

/// Every rank's Program. `counts_of_rank`: see Schedule; as many as there are ranks, or none.
Result<Schedule> build_schedule(const Algorithm& algorithm, const Topology& topology, const Collective& collective,
                                const std::vector<std::vector<std::size_t>>& counts_of_rank = {});

/// Builds the Program of one rank after checking supports() and rank.
Result<Program> build_program(const Algorithm& algorithm, const Topology& topology, const Collective& collective, int rank);

}  // namespace shoal
