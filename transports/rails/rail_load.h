// What is on its way to a peer by one rail, and how fast it gets there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal::rails {

/// The peer counts what has come by each rail, piece by piece, and says so: whole tiles would not do, since all rails that
/// carry a tile would then look as slow as the slowest. Which piece has come it does not say: a rail is taken to keep their
/// order, which only shifts when a few bytes are counted. A plain value; nothing is allocated after make_room().
class RailLoad {
 public:
  using Clock = std::chrono::steady_clock;

  /// For so many pieces under way.
  void make_room(std::size_t pieces) { pieces_.resize(pieces); }

  void post(std::uint32_t bytes, Clock::time_point now) noexcept {
    if (bytes_ == 0) {
      counted_from_ = now;
      counted_bytes_ = 0;
    }
    pieces_[posted_++ % pieces_.size()] = bytes;
    bytes_ += bytes;
  }

  /// `count`: pieces that have come since the two met, modulo 2^32. True where these are more than the peer has said before.
  bool come(std::uint32_t count, Clock::time_point now) noexcept {
    const std::uint32_t more = count - static_cast<std::uint32_t>(come_);
    if (more == 0 || more > posted_ - come_) return false;  // said earlier and overtaken, or nonsense
    for (std::uint32_t i = 0; i < more; ++i) {
      const std::uint32_t bytes = pieces_[come_++ % pieces_.size()];
      bytes_ -= bytes;
      counted_bytes_ += bytes;
    }
    measure(now);
    return true;
  }

  /// What is under way will not come any more, or does not count.
  void drop() noexcept {
    come_ = posted_;
    bytes_ = 0;
  }

  /// A rail that looks slow and is left alone for a while gets another chance.
  void forget_speed_of_idle(Clock::time_point now) noexcept {
    if (bytes_ == 0 && now - measured_at_ > kSpeedForgotten) bytes_per_us_ = 0;
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] double bytes_per_us() const noexcept { return bytes_per_us_; }  ///< 0: not measured
  /// When so many more bytes would be there. `otherwise` is the speed of a rail that is not measured.
  [[nodiscard]] double arrival_us(std::size_t more, double otherwise) const noexcept {
    return static_cast<double>(bytes_ + more) / (bytes_per_us_ > 0 ? bytes_per_us_ : otherwise);
  }

 private:
  // Few bytes say nothing of a speed.
  static constexpr std::chrono::milliseconds kSpeedSample{5};
  static constexpr std::uint64_t kSpeedSampleBytes = 256 << 10;
  static constexpr std::chrono::milliseconds kSpeedForgotten{200};

  void measure(Clock::time_point now) noexcept {
    const auto passed = now - counted_from_;
    if (passed < kSpeedSample || counted_bytes_ < kSpeedSampleBytes) return;
    const double sample = static_cast<double>(counted_bytes_) / std::chrono::duration<double, std::micro>(passed).count();
    bytes_per_us_ = bytes_per_us_ > 0 ? 0.75 * bytes_per_us_ + 0.25 * sample : sample;
    counted_bytes_ = 0;
    counted_from_ = measured_at_ = now;
  }

  std::vector<std::uint32_t> pieces_;  // their bytes, in the order of posting
  std::uint64_t posted_ = 0;
  std::uint64_t come_ = 0;
  std::uint64_t bytes_ = 0;
  double bytes_per_us_ = 0;
  std::uint64_t counted_bytes_ = 0;  // that have come since counted_from_
  Clock::time_point counted_from_{};
  Clock::time_point measured_at_{};
};

}  // namespace shoal::rails
