// Inbox: calls that any thread leaves for the driver.
#pragma once

#include <atomic>
#include <span>

#include "src/plan/operation.h"

namespace shoal {

/// Thread rule: any thread; take() by the driver. Lock-free.
class Inbox {
 public:
  [[nodiscard]] bool empty() const noexcept { return latest_.load(std::memory_order_seq_cst) == nullptr; }

  /// `operations` are at least one. The driver sees all of them or none.
  void put(std::span<internal::Operation* const> operations) noexcept {
    for (std::size_t i = 0; i + 1 < operations.size(); ++i) operations[i]->next_in_inbox = operations[i + 1];
    internal::Operation* const last = operations.back();
    last->next_in_inbox = latest_.load(std::memory_order_relaxed);
    while (!latest_.compare_exchange_weak(last->next_in_inbox, operations.front(), std::memory_order_seq_cst)) {
    }
  }
  /// All of them, linked by Operation::next_in_inbox; null where there is none.
  internal::Operation* take() noexcept {
    if (latest_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    // acquire: the posters' writes to their Operations.
    return latest_.exchange(nullptr, std::memory_order_seq_cst);
  }

 private:
  std::atomic<internal::Operation*> latest_{nullptr};
};

}  // namespace shoal
