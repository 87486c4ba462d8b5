// The output of a run while it continues: on the terminal and in the file of --log.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "bench/train/figures.h"
#include "bench/train/json_lines.h"
#include "bench/train/options.h"
#include "bench/train/progress.h"
#include "bench/train/report.h"
#include "bench/train/survival.h"

namespace shoal::train {

/// The position of a replica at the end of its turn.
struct Place {
  int epoch = 0;             ///< from 1
  std::int64_t step = 0;     ///< steps made
  std::int64_t steps = 0;    ///< its steps in all
  double learning_rate = 0;  ///< of the last step
  double remaining_s = 0;    ///< for all replicas together
};

/// Rank 0 writes; other ranks are silent. If the file cannot be written, this is reported once and the run continues: a full
/// disk must not waste hours of training on all ranks. Thread rule: one thread.
class RunLog {
 public:
  /// `options` must outlive the object.
  explicit RunLog(const TrainOptions& options) : options_(options) {}

  /// Sets the number of this rank: before all other calls, and again after ranks have been lost.
  void be(int rank);
  /// Opens the file on rank 0, if one is requested. Errors: system_error with the file's name.
  Status open();
  /// Times in the file are relative to `start`.
  void start(std::chrono::steady_clock::time_point start) { start_ = start; }

  /// Returns the turn's line.
  nlohmann::json tell(const ReplicaOptions& who, const Turn& turn, const Place& place);
  /// An epoch has ended with `step` steps made.
  void tell(const EpochResult& result, std::int64_t step);
  /// On a new rank 0, the following lines are appended to those of the old one.
  void tell(const Loss& loss);
  /// Ends the line on the terminal.
  void finish() { progress_->finish(); }

  /// Reports that `what` is not written, and the reason.
  void do_without(const Status& why, const char* what);
  /// Whether do_without() has been called.
  [[nodiscard]] bool misses_files() const { return misses_files_; }

 private:
  [[nodiscard]] nlohmann::json line_of(const char* event, const nlohmann::json& details) const;
  void note(const nlohmann::json& line);

  const TrainOptions& options_;
  int rank_ = 0;
  std::optional<Progress> progress_;
  JsonLines file_;
  std::chrono::steady_clock::time_point start_;
  bool misses_files_ = false;
};

}  // namespace shoal::train
