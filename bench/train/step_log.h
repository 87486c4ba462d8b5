// What a rank writes down so that it can go on without lost ones.
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

/// Where training was when a turn began, with the one replica that there is where ranks may be lost.
struct TurnStart {
  std::int64_t step = 0;
  EpochPlan course;
  bool epoch_open = false;
  Figures epoch = {};
  std::size_t results = 0;  ///< their number, as of the next
  std::size_t turns = 0;
};

/// A step that this rank has made.
struct OwnStep {
  using Time = std::chrono::steady_clock::time_point;

  std::int64_t number = 0;  ///< from 1
  double loss = 0;
  Time end = {};
};

/// The starts of the last two turns, and the steps since the older one: no rank is more than one turn ahead of another. Thread
/// rule: one thread.
class StepLog {
 public:
  /// When all ranks have finished the turn before.
  void begin_turn(TurnStart start);
  void add(const OwnStep& step) { steps_.push_back(step); }

  /// The turn that has begun last, from 1.
  [[nodiscard]] std::int64_t turn() const { return turn_; }
  /// Of turn() or the one before it; where nothing is known of that, of turn(). One must have begun.
  [[nodiscard]] const TurnStart& start_of(std::int64_t turn) const;
  /// This rank's losses of the steps after `from`, until `to`.
  [[nodiscard]] std::vector<double> losses(std::int64_t from, std::int64_t to) const;
  /// When the last known step until `to` ended.
  [[nodiscard]] std::optional<OwnStep::Time> end_of(std::int64_t to) const;

  /// Forgets what has been since.
  void go_back(const TrainingState& to);

 private:
  std::int64_t turn_ = 0;
  std::array<std::optional<TurnStart>, 2> starts_;
  std::vector<OwnStep> steps_;
};

}  // namespace shoal::train
