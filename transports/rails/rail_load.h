// Bytes in flight to a peer on one rail, and the measured rate of the rail.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shoal::rails {

/// The peer counts the pieces that have arrived on each rail, and reports the counts. Counts of whole tiles would not do: all
/// rails that carry a tile would look as slow as the slowest. A report has the peer's time, because reports have a delay of
/// their own. It does not name the pieces: a rail is assumed to keep their order, which only shifts the time at which a few
/// bytes are counted. A plain value; nothing is allocated after reserve().
class RailLoad {
 public:
  using Clock = std::chrono::steady_clock;

  /// Allocates room for this many pieces in flight.
  void reserve(std::size_t pieces) { pieces_.resize(pieces); }

  void post(std::uint32_t bytes, Clock::time_point now) noexcept {
    if (bytes_ == 0) {
      measuring_ = false;
      idle_until_ = now;
      bytes_since_idle_ = 0;
    }
    bytes_since_idle_ += bytes;
    pieces_[posted_++ % pieces_.size()] = bytes;
    bytes_ += bytes;
  }

  /// Takes a report of the peer. `count`: pieces that have arrived since the handshake, modulo 2^32; `their_us`: the time of
  /// the report by the peer's clock, modulo 2^32. True where the count is higher than in all earlier reports.
  bool on_report(std::uint32_t count, std::uint32_t their_us, Clock::time_point now) noexcept {
    const std::uint32_t more = count - static_cast<std::uint32_t>(arrived_);
    if (more == 0 || more > posted_ - arrived_) return false;  // a report that was overtaken, or an invalid one
    const std::uint64_t before = bytes_;
    for (std::uint32_t i = 0; i < more; ++i) bytes_ -= pieces_[arrived_++ % pieces_.size()];
    measure(before - bytes_, their_us, now);
    if (bytes_per_us_ == 0 && bytes_ == 0) raise_previous_rate(now);
    return true;
  }

  /// Forgets the bytes in flight: they will not arrive, or do not count.
  void drop() noexcept {
    arrived_ = posted_;
    bytes_ = 0;
  }

  /// Forgets the rate of a rail that has been idle for a while, so that a slow rail is tried again: with one piece, and with
  /// more where that piece arrives soon.
  void forget_rate_of_idle(Clock::time_point now) noexcept {
    if (bytes_ != 0 || bytes_per_us_ == 0 || now - measured_at_ <= kRateForgotten) return;
    previous_rate_ = bytes_per_us_;
    bytes_per_us_ = 0;
    measured_ = 0;
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] double bytes_per_us() const noexcept { return bytes_per_us_; }  ///< 0: not measured
  /// The rate, or the one before it was forgotten.
  [[nodiscard]] double last_bytes_per_us() const noexcept { return bytes_per_us_ > 0 ? bytes_per_us_ : previous_rate_; }
  /// Time until `more` further bytes would have arrived. `otherwise` is the rate of a rail that is not measured.
  [[nodiscard]] double arrival_us(std::size_t more, double otherwise) const noexcept {
    const double unmeasured = bytes_ != 0 && previous_rate_ > 0 ? previous_rate_ : otherwise;
    return static_cast<double>(bytes_ + more) / (bytes_per_us_ > 0 ? bytes_per_us_ : unmeasured);
  }

 private:
  // Smaller samples do not show the rate.
  static constexpr std::uint32_t kSampleUs = 4000;
  static constexpr std::uint64_t kSampleBytes = 128 << 10;
  static constexpr std::size_t kSamples = 8;
  static constexpr std::chrono::milliseconds kRateForgotten{200};

  // The first report after an idle time only starts the measurement: its bytes may have passed faster than the steady rate.
  void measure(std::uint64_t bytes, std::uint32_t their_us, Clock::time_point now) noexcept {
    if (!std::exchange(measuring_, true)) {
      counted_from_us_ = their_us;
      counted_bytes_ = 0;
      return;
    }
    counted_bytes_ += bytes;
    const std::uint32_t passed = their_us - counted_from_us_;
    if (passed < kSampleUs || counted_bytes_ < kSampleBytes) return;
    samples_[measured_++ % kSamples] = static_cast<double>(counted_bytes_) / passed;
    counted_bytes_ = 0;
    counted_from_us_ = their_us;
    measured_at_ = now;
    // Samples in which the rail had little to send look slow, and their mean would keep the rail from getting more. So the
    // upper quartile counts.
    auto sorted = samples_;
    const std::size_t count = std::min(measured_, kSamples);
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
    bytes_per_us_ = sorted[count * 3 / 4];
  }

  // All bytes that an idle rail was given have arrived: the rail is at least as fast as that.
  void raise_previous_rate(Clock::time_point now) noexcept {
    const auto passed = std::chrono::duration<double, std::micro>(now - idle_until_).count();
    if (previous_rate_ > 0 && passed > 0)
      previous_rate_ = std::max(previous_rate_, static_cast<double>(bytes_since_idle_) / passed);
  }

  std::vector<std::uint32_t> pieces_;  // their sizes in bytes, in the order of posting
  std::uint64_t posted_ = 0;
  std::uint64_t arrived_ = 0;
  std::uint64_t bytes_ = 0;
  bool measuring_ = false;  // a measurement runs, since counted_from_us_
  std::uint64_t counted_bytes_ = 0;
  std::uint32_t counted_from_us_ = 0;
  std::array<double, kSamples> samples_{};
  std::size_t measured_ = 0;
  Clock::time_point idle_until_{};      // when the rail last got a piece while idle,
  std::uint64_t bytes_since_idle_ = 0;  // and the bytes that it got since
  double previous_rate_ = 0;            // the rate before it was forgotten
  double bytes_per_us_ = 0;
  Clock::time_point measured_at_{};
};

}  // namespace shoal::rails
