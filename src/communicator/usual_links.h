// Which links to other hosts create() connects, and how many a process can have; the others are connected at first use.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "src/topology/topology.h"

namespace shoal {

/// The peers of `rank` in the Programs that the Selector chooses for a barrier, a broadcast from rank 0, and an all_reduce
/// from bytes to megabytes (by `all_reduce`, where that names an algorithm). Ascending; about two for each binary digit of the
/// number of ranks where there are many, all where there are few.
///
/// Only the placement of ranks counts, not the measured costs, which are not known yet when the links are connected. So both
/// ends of a link decide alike. `most_links`: see select().
std::vector<int> usual_peers(const Topology& topology, int rank, std::string_view all_reduce, int most_links);

/// How many links of `descriptors` each this process can open under its limit of open files, beside `others` descriptors and
/// some for the program.
std::size_t link_budget(std::size_t others, std::size_t descriptors);

}  // namespace shoal
