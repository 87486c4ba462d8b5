// What the terminal shows while training goes on.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::train {

/// Where training is.
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

/// Writes states to standard output: over one another where that is a terminal, a line each where not. Silent where told to be.
class Progress {
 public:
  explicit Progress(bool visible);
  void show(const ProgressState& state);
  /// Prints a line of its own.
  void say(const std::string& line);
  /// Leaves the last state standing.
  void finish();

 private:
  const bool visible_;
  const bool terminal_;
  bool line_open_ = false;
};

}  // namespace shoal::train
