// The comparison of all ranks' settings before training.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include <shoal/status.h>

#include "bench/train/job.h"

namespace shoal::train {

/// ok if all ranks pass an object with the same values and none passes a `refusal`. Else the same error on all ranks: the first
/// refusal, or mismatch with the first key that differs from rank 0's, both values and ranks. Collective.
Status agree_on_settings(const Job& job, const nlohmann::ordered_json& settings, const Status& refusal);

}  // namespace shoal::train
