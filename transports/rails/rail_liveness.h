// Detects rails that are silent although the peer answers on another one.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transports/rails/rail_selector.h"

namespace shoal::rails {

/// For each of several rails to one peer: what is in flight, since when nothing has arrived, and when the last packet of the
/// peer arrived. A card may report as sent what never arrives, so only packets of the peer prove that a rail works. Thread
/// rule: that of the transport.
class RailLiveness {
 public:
  using Clock = std::chrono::steady_clock;

  /// What is to be done.
  struct Verdict {
    bool waits = false;                 ///< something is in flight: check again
    bool overdue = false;               ///< on some rail nothing has arrived for kProbeAfter
    RailMask probe = 0;                 ///< rails on which the peer is to be asked for an answer
    std::optional<std::size_t> silent;  ///< this rail is to be closed
    std::chrono::milliseconds silence{0};
  };

  /// A part was posted. `is_idle`: the peer has reported all that was posted before.
  void on_posted(std::size_t rail, bool is_idle, Clock::time_point now) noexcept {
    State& state = states_[rail];
    if (is_idle && state.in_flight == 0) state.waits_since = now;
    ++state.in_flight;
  }
  void on_completed(std::size_t rail, Clock::time_point now) noexcept {
    --states_[rail].in_flight;
    states_[rail].waits_since = now;
  }
  /// The rail was closed while the part was in flight.
  void on_dropped(std::size_t rail) noexcept { --states_[rail].in_flight; }
  /// The peer reports that parts have arrived.
  void on_arrivals(std::size_t rail, Clock::time_point now) noexcept { states_[rail].waits_since = now; }
  void on_control_posted(std::size_t rail, Clock::time_point now) noexcept { states_[rail].control_since = now; }
  void on_control_ended(std::size_t rail) noexcept { states_[rail].control_since.reset(); }
  /// A packet of the peer arrived.
  void on_received(std::size_t rail, Clock::time_point now) noexcept {
    states_[rail].received_at = now;
    latest_ = rail;
  }

  /// The rail on which the latest packet of the peer arrived.
  [[nodiscard]] std::size_t latest() const noexcept { return latest_; }
  /// The rails on which a packet of the peer arrived within kRecent of the latest one.
  [[nodiscard]] RailMask recent() const noexcept;
  [[nodiscard]] Verdict check(Clock::time_point now, const RailSelector& rails) const noexcept;

 private:
  struct State {
    std::uint32_t in_flight = 0;                     ///< parts that have not completed
    Clock::time_point waits_since{};                 ///< start of the wait for the next arrival or completion
    std::optional<Clock::time_point> control_since;  ///< a control record is in flight
    Clock::time_point received_at{};
  };

  std::array<State, kMaxRails> states_{};
  std::size_t latest_ = 0;
};

}  // namespace shoal::rails
