#include "bench/train/survival.h"

#include <array>
#include <cstdio>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

namespace shoal::train {

std::string describe(const Loss& loss) {
  std::string names;
  for (const int rank : loss.ranks) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  std::array<char, 128> rest{};
  (void)std::snprintf(rest.data(), rest.size(), "%d %s on from step %lld after %.1f s", loss.left,
                      loss.left == 1 ? "rank goes" : "ranks go", static_cast<long long>(loss.step), loss.seconds);
  return (loss.ranks.size() == 1 ? "rank " + names + " is lost: " : "ranks " + names + " are lost: ") + rest.data();
}

nlohmann::json to_json(const Loss& loss) {
  return {{"ranks", loss.ranks}, {"step", loss.step}, {"left", loss.left}, {"seconds", loss.seconds}};
}

Result<TrainingState> agree(Communicator& control, const TrainingState& own) {
  std::array<std::int64_t, 2> both{own.turn, own.step};
  const Status status = control.all_reduce(both.data(), both.data(), both.size(), DataType::int64, ReduceOp::min);
  if (!status.ok()) return status;
  return TrainingState{.turn = both[0], .step = both[1]};
}

StatusCode code_of(const std::exception& error) {
  const bool communicated = dynamic_cast<const c10::DistBackendError*>(&error) != nullptr;
  return communicated ? StatusCode::peer_failed : StatusCode::internal;
}

bool may_be_a_loss(const Status& status) {
  return status.code() == StatusCode::peer_failed || status.code() == StatusCode::timeout ||
         status.code() == StatusCode::aborted;
}

}  // namespace shoal::train
