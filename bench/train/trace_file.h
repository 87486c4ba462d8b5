// The recorded steps of all ranks and replicas as one trace.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <shoal/communicator.h>

#include "bench/train/entry.h"

namespace shoal::train {

/// The trace of --trace, on rank 0; null on other ranks. Chrome's trace events (Trace Event Format, 2016), which Perfetto
/// reads too: times in microseconds from the first event, and a process for each rank of each replica, called by their names,
/// with threads for training, for operations and for each of their stages. `title` is stored in the file. Collective.
Result<nlohmann::json> gather_trace(Communicator& control, const std::vector<Entry>& entries, const std::string& title);

}  // namespace shoal::train
