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

/// ok where `asked` is one of `served`; else unsupported, naming both.
Status serves_only(CollectiveKind asked, std::initializer_list<CollectiveKind> served);

}  // namespace shoal
