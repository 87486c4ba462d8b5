// Waiter: how long to look again before sleeping. Spinning is for processes that have cores to spare.
#pragma once

namespace shoal {

/// Decides, after a look that found nothing, whether to look again at once, to let others run first, or to block.
///
/// With cores to spare it polls briefly; without, it only offers its core to whoever is ready. Polling that ends in blocking all the
/// same halves the next attempt, polling that pays doubles it, so waits on a slow wire soon cost nothing.
/// Thread rule: one thread.
class Waiter {
 public:
  explicit Waiter(bool cores_to_spare) noexcept : cores_to_spare_(cores_to_spare) {}

  /// False: block now. True: a pause or a yield was spent; look again.
  bool look_again() noexcept;
  /// Something moved.
  void moved() noexcept;
  /// The caller is about to block.
  void blocking() noexcept;

 private:
  bool cores_to_spare_;
  int rounds_ = 0;
  int pause_budget_ = kMaxPauses;
  int yield_budget_ = kMaxYields;

  static constexpr int kMaxPauses = 1024;  // about 20..50 us of looking
  static constexpr int kMinPauses = 16;
  static constexpr int kMaxYields = 32;
  static constexpr int kMinYields = 1;
};

}  // namespace shoal
