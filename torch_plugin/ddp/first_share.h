// How much of each bucket travels beside backward.
#pragma once

#include <algorithm>
#include <chrono>

namespace shoal::ddp {

inline constexpr double kFirstShare =
    5.0 / 8;  ///< before anything is measured: a little less than backward's part of computing

/// What one rank saw of the wire between a backward's first bucket and its end.
struct BackwardOnWire {
  double bytes = 0;        ///< of all buckets
  double ended_bytes = 0;  ///< that had been averaged when backward ended
  double left_bytes = 0;   ///< that were to be averaged beside backward, and were not
  double busy_s = 0;       ///< something was under way
  double idle_s = 0;       ///< nothing was: backward had not come to the next bucket
};

/// The share for a later step that wants neither an idle wire beside backward nor a backlog at its end, which would stand
/// before what the next forward needs first. Goes there in small steps, since no step is like the one before.
inline double better_share(double share, const BackwardOnWire& seen) {
  constexpr double kMostChange = 1.0 / 16;
  constexpr double kLeast = 1.0 / 8;
  if (seen.bytes <= 0) return share;
  const double more = seen.busy_s > 0 ? seen.idle_s * seen.ended_bytes / seen.busy_s : 0;
  const double change = (more - seen.left_bytes) / seen.bytes / 2;
  return std::clamp(share + std::clamp(change, -kMostChange, kMostChange), kLeast, 1.0);
}

/// Watches one backward after the other. Thread rule: one thread at a time.
class WireWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void begin(Time now) { *this = {}, began_ = now; }
  void add(double bytes, double first_bytes) { seen_.bytes += bytes, first_bytes_ += first_bytes; }
  void started(Time now) {
    if (in_flight_++ == 0) busy_since_ = now;
  }
  void ended(Time now, double bytes) {
    seen_.ended_bytes += bytes;
    if (--in_flight_ == 0) seen_.busy_s += seconds(now - busy_since_);
  }
  /// Backward has ended. What starts and ends later does not count.
  [[nodiscard]] BackwardOnWire end(Time now) const {
    BackwardOnWire seen = seen_;
    if (in_flight_ > 0) seen.busy_s += seconds(now - busy_since_);
    seen.idle_s = std::max(0.0, seconds(now - began_) - seen.busy_s);
    seen.left_bytes = std::max(0.0, first_bytes_ - seen.ended_bytes);
    return seen;
  }

 private:
  static double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

  BackwardOnWire seen_;
  double first_bytes_ = 0;
  int in_flight_ = 0;
  Time began_;
  Time busy_since_;
};

}  // namespace shoal::ddp
