// The functions of each algorithm's file that the list in registry.cc uses.
#pragma once

#include <initializer_list>

#include "src/algorithms/algorithm.h"

namespace shoal {

Algorithm ring_algorithm();
Algorithm direct_algorithm();
Algorithm recursive_doubling_algorithm();
Algorithm one_shot_algorithm();
Algorithm hierarchical_algorithm();
Algorithm tree_algorithm();
Algorithm chain_algorithm();
Algorithm dissemination_algorithm();
Algorithm bruck_algorithm();
Algorithm circulant_algorithm();
Algorithm recursive_halving_algorithm();

/// Every stage for the inside of a node combined with every stage between nodes: first hierarchical(WIRE), with direct inside
/// the node, then hierarchical(NODE,WIRE).
std::span<const Algorithm> hierarchical_compositions();

/// The compositions that the Selector rates. First, direct inside a node, where one hop costs least, with any WIRE except
/// direct: plain "hierarchical" is that one if it pays. Second, a leader on each node with the WIREs that suit small
/// messages.
std::vector<Algorithm> hierarchical_candidates();

/// The format of the names above, for messages.
std::string hierarchical_names();

/// See Algorithm::hidden_hops, for two_tree_all_reduce among n members. An inner member of a tree sees one hop up and one hop
/// down.
int two_tree_hidden_hops(int members);

/// ok if `asked` is one of `served`; else unsupported, naming both.
Status serves_only(CollectiveKind asked, std::initializer_list<CollectiveKind> served);

/// ok for a power of two of ranks; else unsupported.
Status needs_power_of_two(const Topology& topology, CollectiveKind asked);

}  // namespace shoal
