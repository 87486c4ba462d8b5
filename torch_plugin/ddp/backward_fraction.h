// How much of each bucket travels beside backward.
#pragma once

#include <algorithm>
#include <chrono>

namespace shoal::ddp {

/// Before anything is measured: a little less than backward's part of computing, two thirds.
inline constexpr double kFirstShare = 5.0 / 8;

/// What one rank saw of the wire in a step: from a backward's first bucket to the next one's.
struct StepOnWire {
  double bytes = 0;        ///< of all buckets
  double ended_bytes = 0;  ///< that had been averaged when backward ended
  double left_bytes = 0;   ///< that were to be averaged beside backward, and were not
  double busy_s = 0;       ///< beside backward: something was under way
  double idle_s = 0;       ///< beside backward: nothing was, since backward had not come to the next bucket
  double spare_share = 0;  ///< of the whole step: nothing was
};

/// The share for a later step that wants neither an idle wire beside backward nor a backlog at its end, which would stand
/// before what the next forward needs first. Goes there in small steps, since no step is like the one before. Where the wire is
/// hardly ever idle a backlog costs nothing: it is the wire that limits, and a smaller share would leave it with nothing to do
/// for longer when the next backward begins (ResNet18 on two hosts: 1 to 2 % slower).
inline double better_share(double share, const StepOnWire& seen) {
  constexpr double kMostChange = 1.0 / 16;
  constexpr double kLeast = 1.0 / 8;
  constexpr double kHardlyEver = 0.1;
  if (seen.bytes <= 0) return share;
  const double more = seen.busy_s > 0 ? seen.idle_s * seen.ended_bytes / seen.busy_s : 0;
  const double less = seen.spare_share > kHardlyEver ? seen.left_bytes : 0;
  const double change = (more - less) / seen.bytes / 2;
  return std::clamp(share + std::clamp(change, -kMostChange, kMostChange), kLeast, 1.0);
}

/// Watches one step after the other. Thread rule: one thread at a time.
class WireWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The first bucket of a step is there. Returns what was seen of the step before.
  StepOnWire begin(Time now) {
    const double step_s = seconds(now - began_);
    if (step_s > 0) seen_.spare_share = std::max(0.0, 1 - busy_until(now) / step_s);
    const StepOnWire seen = seen_;
    *this = {};
    began_ = now;
    return seen;
  }
  void add(double bytes, double first_bytes) { seen_.bytes += bytes, first_bytes_ += first_bytes; }
  void started(Time now) {
    if (in_flight_++ == 0) busy_since_ = now;
  }
  void ended(Time now, double bytes) {
    ended_bytes_ += bytes;
    if (--in_flight_ == 0) busy_s_ += seconds(now - busy_since_);
  }
  void end_backward(Time now) {
    seen_.busy_s = busy_until(now);
    seen_.idle_s = std::max(0.0, seconds(now - began_) - seen_.busy_s);
    seen_.ended_bytes = ended_bytes_;
    seen_.left_bytes = std::max(0.0, first_bytes_ - ended_bytes_);
  }

 private:
  static double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }
  [[nodiscard]] double busy_until(Time now) const { return busy_s_ + (in_flight_ > 0 ? seconds(now - busy_since_) : 0); }

  StepOnWire seen_;
  double first_bytes_ = 0;
  double ended_bytes_ = 0;
  double busy_s_ = 0;
  int in_flight_ = 0;
  Time began_;
  Time busy_since_;
};

}  // namespace shoal::ddp
