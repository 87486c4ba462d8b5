// What is known of ranks that were lost, and what the others agree on.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <shoal/communicator.h>

namespace shoal::train {

/// Ranks that were lost, and how the others went on.
struct Loss {
  std::vector<int> ranks;  ///< their numbers when the job began
  std::int64_t step = 0;   ///< the last one that counts
  int left = 0;            ///< ranks that went on
  double seconds = 0;      ///< from the end of that step to when training went on
};

/// "rank 2 is lost: 3 ranks go on from step 37 after 0.8 s".
std::string describe(const Loss& loss);
nlohmann::json to_json(const Loss& loss);

/// Where a survivor is.
struct TrainingState {
  std::int64_t turn = 0;  ///< the last one that it has begun
  std::int64_t step = 0;  ///< the last one that is complete
};

/// What all survivors have reached. Collective.
Result<TrainingState> agree(Communicator& control, const TrainingState& own);

/// What `error` is for the others: peer_failed where communication has failed, internal where it is this rank's own affair.
StatusCode code_of(const std::exception& error);

/// Whether it may mean that a rank was lost; Communicator::shrink then tells.
bool may_be_a_loss(const Status& status);

}  // namespace shoal::train
