#include "transports/rails/rail_liveness.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;

// A sender probes a rail when nothing that it carries has arrived for kProbeAfter. It closes the rail after kLostAfter where
// a packet of the peer has arrived on another rail meanwhile.
constexpr milliseconds kProbeAfter{500};
constexpr milliseconds kLostAfter{1500};
constexpr milliseconds kRecent{50};

}  // namespace

RailMask RailLiveness::recent() const noexcept {
  RailMask recent = 0;
  for (std::size_t r = 0; r < kMaxRails; ++r) {
    if (states_[latest_].received_at - states_[r].received_at <= kRecent) recent |= mask_of(r);
  }
  return recent;
}

RailLiveness::Verdict RailLiveness::check(Clock::time_point now, const RailSelector& rails) const noexcept {
  Verdict verdict;
  for (std::size_t r = 0; r < kMaxRails; ++r) {
    const State& state = states_[r];
    const bool has_parts = rails.load(r).bytes() != 0 || state.in_flight != 0;
    if (!has_parts && !state.control_since) continue;
    verdict.waits = true;
    const Clock::time_point since = has_parts ? state.waits_since : *state.control_since;
    if (now - since < kProbeAfter) continue;
    verdict.overdue = true;
    const RailMask others = rails.usable() & ~mask_of(r);
    verdict.probe |= others;
    bool answers = false;
    for (std::size_t other = 0; other < kMaxRails; ++other)
      answers |= (others & mask_of(other)) != 0 && states_[other].received_at > since + kProbeAfter;
    if (!answers || now - since < kLostAfter) continue;
    verdict.silent = r;
    verdict.silence = std::chrono::duration_cast<milliseconds>(now - since);
    return verdict;
  }
  return verdict;
}

}  // namespace shoal::rails
