// What a run tells while it goes on: on the terminal and in the file of --log.
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

/// Where a replica is when its turn has ended.
struct Place {
  int epoch = 0;             ///< from 1
  std::int64_t step = 0;     ///< steps made
  std::int64_t steps = 0;    ///< that it is to make in all
  double learning_rate = 0;  ///< of the last step
  double remaining_s = 0;    ///< for all replicas together
};

/// Rank 0 tells, the others are silent. Where the file cannot be written, that is said once and the run goes on: a full disk is
/// no reason to lose hours of training, on all ranks. Thread rule: one thread.
class RunLog {
 public:
  /// `options` must outlive the object.
  explicit RunLog(const TrainOptions& options) : options_(options) {}

  /// The number of this rank from now on: first of all, and again where ranks have been lost.
  void be(int rank);
  /// Opens the file on rank 0, where one is wanted. Errors: system_error with the file's name.
  Status open();
  /// Times in the file count from here.
  void start(std::chrono::steady_clock::time_point start) { start_ = start; }

  /// Returns the turn's line.
  nlohmann::json tell(const ContestantOptions& who, const Turn& turn, const Place& place);
  /// An epoch has ended with `step` steps made.
  void tell(const EpochResult& result, std::int64_t step);
  /// On what has become rank 0, the lines that follow are appended to those of the old one.
  void tell(const Loss& loss);
  /// Leaves the terminal with a line of its own.
  void finish() { progress_->finish(); }

  /// Says that `what` is not written, and why.
  void do_without(const Status& why, const char* what);
  /// Whether that has happened.
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
