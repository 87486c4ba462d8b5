// What ranks do with a Store at start-up.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>
#include <shoal/store.h>

namespace shoal {

/// Every rank contributes `mine`; every rank gets all contributions, by rank. Errors: timeout, naming the first rank that is
/// missing.
Result<std::vector<std::string>> exchange(Store& store, std::string_view name, int rank, int size, std::string_view mine,
                                          std::chrono::steady_clock::time_point deadline);

/// Text that is equal for two processes exactly where they can share memory: same running kernel, same host name, same network
/// namespace.
std::string node_identity();

}  // namespace shoal
