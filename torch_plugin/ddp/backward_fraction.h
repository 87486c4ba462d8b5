// The fraction of each bucket that is averaged during backward.
#pragma once

#include <algorithm>
#include <chrono>

namespace shoal::ddp {

/// Before the first measurement: slightly less than backward's share of the computing time, two thirds.
inline constexpr double kFirstShare = 5.0 / 8;

/// What one rank measured on the wire in a step: from the first bucket of a backward to the first bucket of the next one.
struct StepOnWire {
  double bytes = 0;        ///< of all buckets
  double ended_bytes = 0;  ///< averaged when backward ended
  double left_bytes = 0;   ///< due during backward, but not averaged by its end
  double busy_s = 0;       ///< during backward: something was in flight
  double idle_s = 0;       ///< during backward: nothing was in flight, because backward had not reached the next bucket
  double spare_share = 0;  ///< fraction of the whole step in which nothing was in flight
};

/// The fraction for a later step. It should leave neither an idle wire during backward nor a backlog at its end, which would
/// delay the averages that the next forward needs first. Changes in small steps, because steps vary. If the wire is hardly
/// ever idle, a backlog costs nothing: the wire is the limit, and a smaller fraction would leave it idle for longer when the
/// next backward begins (ResNet18 on two hosts: 1 to 2 % slower).
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

/// Measures one step after the other. Thread rule: one thread at a time.
class WireWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The first bucket of a step has been added. Returns the measurement of the previous step.
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
