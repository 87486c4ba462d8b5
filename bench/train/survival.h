// Records of lost ranks, and the agreement of the survivors.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <shoal/communicator.h>

namespace shoal::train {

/// Ranks that were lost, and how the survivors continued.
struct Loss {
  std::vector<int> ranks;  ///< their numbers when the job began
  std::int64_t step = 0;   ///< the last valid step
  int left = 0;            ///< ranks that continued
  double seconds = 0;      ///< from the end of that step until training continued
};

/// "rank 2 is lost: 3 ranks go on from step 37 after 0.8 s".
std::string describe(const Loss& loss);
nlohmann::json to_json(const Loss& loss);

/// The position of a survivor.
struct TrainingState {
  std::int64_t turn = 0;  ///< the last turn that it has begun
  std::int64_t step = 0;  ///< the last complete step
};

/// The position that all survivors have reached. Collective.
Result<TrainingState> agree(Communicator& control, const TrainingState& own);

/// The code of `error` for other ranks: peer_failed if communication has failed, internal if only this rank is affected.
StatusCode code_of(const std::exception& error);

/// Whether `status` may mean that a rank was lost; Communicator::shrink then determines whether it was.
bool may_be_a_loss(const Status& status);

}  // namespace shoal::train
