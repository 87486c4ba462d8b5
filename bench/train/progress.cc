#include "bench/train/progress.h"

#include <array>
#include <cmath>
#include <cstdio>

#include <unistd.h>

namespace shoal::train {

std::string describe(const ProgressState& state) {
  const auto left = static_cast<long>(std::ceil(state.remaining_s));
  std::array<char, 256> line{};
  (void)std::snprintf(line.data(), line.size(), "%-5s  epoch %d/%d  step %lld/%lld  %.1f images/s  loss %.4f  %ld:%02ld left",
                      state.backend.c_str(), state.epoch, state.epochs, static_cast<long long>(state.step),
                      static_cast<long long>(state.steps), state.images_per_s, state.loss, left / 60, left % 60);
  return line.data();
}

Progress::Progress(bool visible) : visible_(visible), terminal_(isatty(STDOUT_FILENO) == 1) {}

void Progress::show(const ProgressState& state) {
  if (!visible_) return;
  std::printf(terminal_ ? "\r\033[K%s" : "%s\n", describe(state).c_str());
  std::fflush(stdout);
  line_open_ = terminal_;
}

void Progress::say(const std::string& line) {
  if (!visible_) return;
  finish();
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Progress::finish() {
  if (line_open_) std::printf("\n");
  line_open_ = false;
}

}  // namespace shoal::train
