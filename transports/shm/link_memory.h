// LinkMemory: how much of the shared memory the rings of a rank take.
#pragma once

#include <algorithm>
#include <cstddef>

#include "transports/shm/ring_layout.h"

namespace shoal::shm {

/// The limit on the rings into which one rank sends. A ring takes memory from its first tile on. It gets all slots while that
/// leaves kLeastSlots to each ring that has not started, and kLeastSlots otherwise. So the rings of a rank take at most the
/// limit, or kLeastSlots each where that is more. Thread rule: as for Link.
class LinkMemory {
 public:
  /// `rings`: so many of the shape `full` may start.
  LinkMemory(std::size_t limit_bytes, std::size_t rings, RingShape full) noexcept
      : limit_bytes_(limit_bytes), unstarted_(rings), full_(full), least_(full) {
    least_.slots = std::min(full.slots, kLeastSlots);
    most_bytes_ = std::clamp(limit_bytes, rings * least_.ring_bytes(), rings * full_.ring_bytes());
  }

  /// The slots of a ring that starts now.
  std::size_t start_ring() noexcept {
    if (unstarted_ > 0) --unstarted_;
    const bool fits = used_bytes_ + full_.ring_bytes() + unstarted_ * least_.ring_bytes() <= limit_bytes_;
    const RingShape& shape = fits ? full_ : least_;
    used_bytes_ += shape.ring_bytes();
    return shape.slots;
  }
  /// Of the rings that have started.
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_bytes_; }
  /// Of all rings, when they have started.
  [[nodiscard]] std::size_t most_bytes() const noexcept { return most_bytes_; }

 private:
  std::size_t limit_bytes_;
  std::size_t unstarted_;
  RingShape full_;
  RingShape least_;
  std::size_t most_bytes_ = 0;
  std::size_t used_bytes_ = 0;
};

}  // namespace shoal::shm
