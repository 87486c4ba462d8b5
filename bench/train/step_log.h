// The records that a rank needs to continue without lost ranks.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "bench/train/epoch_plan.h"
#include "bench/train/figures.h"
#include "bench/train/survival.h"

namespace shoal::train {

/// The position of training at the start of a turn, with the single replica that exists if ranks may be lost.
struct TurnStart {
  std::int64_t step = 0;
  EpochPlan course;
  bool epoch_open = false;
  Figures epoch = {};
  std::size_t results = 0;  ///< their number, as for `turns`
  std::size_t turns = 0;
};

/// A step that this rank has made.
struct OwnStep {
  using Time = std::chrono::steady_clock::time_point;

  std::int64_t number = 0;  ///< from 1
  double loss = 0;
  Time end = {};
};

/// The starts of the last two turns, and the steps since the older one: no rank is more than one turn ahead of another.
/// Thread rule: one thread.
class StepLog {
 public:
  /// Call it when all ranks have finished the previous turn.
  void begin_turn(TurnStart start);
  void add(const OwnStep& step) { steps_.push_back(step); }

  /// The latest turn that has begun, from 1.
  [[nodiscard]] std::int64_t turn() const { return turn_; }
  /// The start of turn(), or of the previous turn; if the latter is unknown, that of turn(). At least one turn must have
  /// begun.
  [[nodiscard]] const TurnStart& start_of(std::int64_t turn) const;
  /// This rank's losses of the steps after `from`, up to and including `to`.
  [[nodiscard]] std::vector<double> losses(std::int64_t from, std::int64_t to) const;
  /// The end of the last recorded step up to `to`.
  [[nodiscard]] std::optional<OwnStep::Time> end_of(std::int64_t to) const;

  /// Discards all records after `to`.
  void go_back(const TrainingState& to);

 private:
  std::int64_t turn_ = 0;
  std::array<std::optional<TurnStart>, 2> starts_;
  std::vector<OwnStep> steps_;
};

}  // namespace shoal::train
