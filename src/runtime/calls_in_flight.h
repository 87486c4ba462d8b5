// CallsInFlight: the calls of one communicator that have been posted and not ended.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/ring_queue.h"
#include "src/plan/operation.h"

namespace shoal {

/// Thread rule: the driver.
struct CallsInFlight {
  std::vector<internal::Operation*> waiting;  ///< an earlier call has not started
  RingQueue<internal::Operation*> started;    ///< by sequence; calls mostly end in this order

  [[nodiscard]] bool empty() const noexcept { return waiting.empty() && started.empty(); }
  /// Takes call `sequence` out of `waiting`; null where it has not been posted.
  internal::Operation* take_waiting(std::uint64_t sequence) noexcept {
    const auto found = std::ranges::find(waiting, sequence, &internal::Operation::sequence);
    if (found == waiting.end()) return nullptr;
    internal::Operation* operation = *found;
    *found = waiting.back();
    waiting.pop_back();
    return operation;
  }
  /// Takes the i-th out of `started`.
  void take_started(std::size_t i) noexcept {
    for (; i > 0; --i) started[i] = started[i - 1];
    started.pop();
  }
};

}  // namespace shoal
