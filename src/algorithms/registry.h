// What each algorithm's file offers to the list in registry.cc.
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

/// Every stage that serves inside a node with every stage between nodes: hierarchical(WIRE) where the node goes direct, which
/// come first, and hierarchical(NODE,WIRE).
std::span<const Algorithm> hierarchical_compositions();

/// Those of them that the Selector rates: direct inside a node, where one hop costs least, but not between nodes, which is what
/// "hierarchical" does where it pays; and through a leader of each node, with what suits small messages between the leaders.
std::vector<Algorithm> hierarchical_candidates();

/// How the names above are made up, for messages.
std::string hierarchical_names();

/// See Algorithm: of two_tree_all_reduce among n members. What a member inside a tree sees is a hop up and a hop down.
int two_tree_hidden_hops(int members);

/// ok where `asked` is one of `served`; else unsupported, naming both.
Status serves_only(CollectiveKind asked, std::initializer_list<CollectiveKind> served);

/// ok among a power of two of ranks; else unsupported.
Status needs_power_of_two(const Topology& topology, CollectiveKind asked);

}  // namespace shoal
