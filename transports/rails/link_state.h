// The life of a link over rails: open, ending, failed; and which of the two ranks has left.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <shoal/status.h>

namespace shoal::rails {

/// Grace period at shutdown in which tiles lost on a failed rail are retransmitted. Longer than the time to detect a silent
/// rail.
inline constexpr std::chrono::milliseconds kRepairTime{2500};

/// A link that ends sends nothing more, but data in flight may still arrive; then it fails. Thread rule: that of the
/// transport.
class LinkState {
 public:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] bool has_failed() const noexcept { return !status_.ok(); }
  [[nodiscard]] bool is_ending() const noexcept { return !reason_.empty(); }
  [[nodiscard]] bool is_open() const noexcept { return status_.ok() && reason_.empty(); }
  [[nodiscard]] bool takes_tiles() const noexcept { return is_open() && !leaving_; }

  /// Each returns false, and changes nothing, where the link ends or has failed already.
  bool fail(Status status) {
    if (has_failed()) return false;
    status_ = std::move(status);
    return true;
  }
  bool begin_end(std::string reason, Clock::time_point now) {
    if (!is_open()) return false;
    reason_ = std::move(reason);
    since_ = now;
    return true;
  }
  /// The status of a link that has ended.
  [[nodiscard]] Status end_status() const { return {StatusCode::peer_failed, reason_}; }
  /// Data has arrived on the link that ends.
  void extend(Clock::time_point now) noexcept { since_ = now; }
  /// Whether nothing more is to be waited for. `repairs`: the peer may retransmit what a silent rail has lost.
  [[nodiscard]] bool is_overdue(Clock::time_point now, bool repairs) const noexcept {
    return now - since_ >= (repairs ? kRepairTime : kDrainTime);
  }

  /// The peer has left after sending that many tiles.
  void on_close_notice(std::uint64_t tiles) noexcept { peer_total_ = tiles; }
  void on_process_ended() noexcept { process_ended_ = true; }
  [[nodiscard]] bool peer_has_left() const noexcept { return peer_total_.has_value(); }
  /// A peer that has left or ended shows no caller what still arrives there.
  [[nodiscard]] bool peer_is_gone() const noexcept { return process_ended_ || peer_has_left(); }
  /// The peer has left; `arrived` is all that it sent.
  [[nodiscard]] bool has_all(std::uint64_t arrived) const noexcept { return peer_total_ && arrived >= *peer_total_; }
  /// The peer has left, but its process lives, and not all of its tiles have arrived.
  [[nodiscard]] bool may_repair(std::uint64_t arrived) const noexcept {
    return peer_total_ && arrived < *peer_total_ && !process_ended_;
  }

  /// This rank leaves; false where it has left already.
  bool leave() noexcept { return !std::exchange(leaving_, true); }
  [[nodiscard]] bool is_leaving() const noexcept { return leaving_; }
  void on_packet() noexcept { answered_ |= leaving_; }
  /// A packet of the peer has arrived since this rank left.
  [[nodiscard]] bool peer_answered() const noexcept { return answered_; }

 private:
  // Time without arrivals after which a link that ends fails.
  static constexpr std::chrono::milliseconds kDrainTime{300};

  Status status_;
  std::string reason_;  ///< not empty: the link ends
  Clock::time_point since_{};
  std::optional<std::uint64_t> peer_total_;
  bool process_ended_ = false;
  bool leaving_ = false;
  bool answered_ = false;
};

}  // namespace shoal::rails
