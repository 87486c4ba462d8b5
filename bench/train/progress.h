// The terminal output during training.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::train {

/// The current position of training.
struct ProgressState {
  std::string backend;
  int epoch = 0;  ///< from 1
  int epochs = 0;
  std::int64_t step = 0;  ///< of all steps of this backend, from 1
  std::int64_t steps = 0;
  double images_per_s = 0;
  double loss = 0;
  double remaining_s = 0;  ///< for all backends together
};

/// "shoal  epoch 1/2  step 40/312  512.3 images/s  loss 1.2345  4:05 left".
std::string describe(const ProgressState& state);

/// Writes states to standard output: each overwrites the last one on a terminal, otherwise one line each. Silent unless
/// visible.
class Progress {
 public:
  explicit Progress(bool visible);
  void show(const ProgressState& state);
  /// Prints a separate line.
  void say(const std::string& line);
  /// Ends the line of the last state, which stays visible.
  void finish();

 private:
  const bool visible_;
  const bool terminal_;
  bool line_open_ = false;
};

}  // namespace shoal::train
