// Which rail the next piece, or the next control record, to a peer takes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transports/rails/rail_load.h"
#include "transports/rails/wire.h"

namespace shoal::rails {

/// A set of rails: one bit for each.
using RailMask = std::uint32_t;
[[nodiscard]] constexpr RailMask mask_of(std::size_t rail) noexcept { return RailMask{1} << rail; }

/// The rails to one peer: which of them work, and what each carries. A piece goes to the rail on which it should arrive
/// first. Thread rule: that of the transport.
class RailSelector {
 public:
  /// Allocates. `parts`: how many may be in flight on a rail. With one rail the load is not kept.
  void prepare(std::size_t rails, std::size_t parts);

  /// The rail carries nothing more; what was in flight on it does not count as load.
  void lose(std::size_t rail) noexcept;
  /// The peer has lost the rail and has removed its slots from it.
  void on_lost_by_peer(std::size_t rail) noexcept { lost_by_peer_ |= mask_of(rail); }
  [[nodiscard]] bool is_lost(std::size_t rail) const noexcept { return (lost_ & mask_of(rail)) != 0; }
  [[nodiscard]] RailMask usable() const noexcept { return all_ & ~lost_; }
  [[nodiscard]] std::size_t count_usable() const noexcept { return static_cast<std::size_t>(std::popcount(usable())); }
  /// Whether a one-sided write on a lost rail, reported as failed, can no longer reach the peer's slots.
  [[nodiscard]] bool slots_are_safe() const noexcept { return (lost_ & ~lost_by_peer_) == 0; }

  [[nodiscard]] RailLoad& load(std::size_t rail) noexcept { return loads_[rail]; }
  [[nodiscard]] const RailLoad& load(std::size_t rail) const noexcept { return loads_[rail]; }
  void forget_rates_of_idle(RailLoad::Clock::time_point now) noexcept {
    for (std::size_t r = 0; r < rails_; ++r) loads_[r].forget_rate_of_idle(now);
  }

  /// The usable rail on which `bytes` further bytes should arrive first; -1 where all usable ones are in `excluded`.
  [[nodiscard]] int choose(std::size_t bytes, RailMask excluded) const noexcept;
  /// The rail of `candidates` whose bytes in flight should have arrived first; `preferred`, one of them, unless another is
  /// faster.
  [[nodiscard]] std::size_t soonest(std::size_t preferred, RailMask candidates) const noexcept;
  /// `wanted`, or else the next usable rail that is not in `busy`; -1 where there is none.
  [[nodiscard]] int next_usable(std::size_t wanted, RailMask busy) const noexcept;

 private:
  [[nodiscard]] double best_rate() const noexcept;

  std::size_t rails_ = 0;
  RailMask all_ = 0;
  RailMask lost_ = 0;
  RailMask lost_by_peer_ = 0;
  std::array<RailLoad, kMaxRails> loads_{};  // bytes that the peer has not reported
};

}  // namespace shoal::rails
