#include "transports/rails/rail_selector.h"

#include <algorithm>

namespace shoal::rails {

void RailSelector::prepare(std::size_t rails, std::size_t parts) {
  rails_ = rails;
  all_ = mask_of(rails) - 1;
  for (std::size_t r = 0; rails > 1 && r < rails; ++r) loads_[r].reserve(parts);
}

void RailSelector::lose(std::size_t rail) noexcept {
  lost_ |= mask_of(rail);
  loads_[rail].drop();
}

// A rail that is not measured counts as being as fast as the best one.
double RailSelector::best_rate() const noexcept {
  double best = 0;
  for (std::size_t r = 0; r < rails_; ++r) best = std::max(best, loads_[r].last_bytes_per_us());
  return best > 0 ? best : 1;
}

int RailSelector::choose(std::size_t bytes, RailMask excluded) const noexcept {
  int best = -1;
  double least = 0;
  const double otherwise = best_rate();
  for (std::size_t r = 0; r < rails_; ++r) {
    if ((usable() & ~excluded & mask_of(r)) == 0) continue;
    const double time = loads_[r].arrival_us(bytes, otherwise);
    if (best >= 0 && time >= least) continue;
    best = static_cast<int>(r);
    least = time;
  }
  return best;
}

std::size_t RailSelector::soonest(std::size_t preferred, RailMask candidates) const noexcept {
  const double otherwise = best_rate();
  std::size_t soonest = preferred;
  for (std::size_t r = 0; r < rails_; ++r) {
    if ((candidates & mask_of(r)) == 0) continue;
    if (loads_[r].arrival_us(0, otherwise) < loads_[soonest].arrival_us(0, otherwise)) soonest = r;
  }
  return soonest;
}

int RailSelector::next_usable(std::size_t wanted, RailMask busy) const noexcept {
  for (std::size_t i = 0; i < rails_; ++i) {
    const std::size_t r = (wanted + i) % rails_;
    if ((usable() & ~busy & mask_of(r)) != 0) return static_cast<int>(r);
  }
  return -1;
}

}  // namespace shoal::rails
