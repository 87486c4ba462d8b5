// Which links to other hosts create() connects, and how many a process can have; the others are connected at first use.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/topology/topology.h"

namespace shoal {

/// The names of the algorithms that the Selector chooses for the usual calls: a barrier, a broadcast from rank 0, and an
/// all_reduce from bytes to megabytes (`all_reduce`, where that names an algorithm). The choice takes up to 0.2 s of a core for
/// hundreds of ranks, so rank 0 makes it for all. Only the placement of ranks counts, not the measured costs, which are not
/// known yet when the links are connected. `most_links`: see select().
std::string usual_algorithms(const Topology& topology, std::string_view all_reduce, int most_links);

/// The peers of `rank` in the Programs of these `algorithms`. Ascending; about two for each binary digit of the number of ranks
/// where there are many, all where there are few. Both ends of a link decide alike. Errors: internal for a text that
/// usual_algorithms() does not make.
Result<std::vector<int>> usual_peers(const Topology& topology, int rank, std::string_view algorithms);

/// How many links of `descriptors` each this process can open under its limit of open files, beside `others` descriptors and
/// some for the program.
std::size_t link_budget(std::size_t others, std::size_t descriptors);

}  // namespace shoal
