// PlanCache: the Plans of a communicator, found without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "src/plan/plan.h"

namespace shoal {

/// A hash table that only grows, up to kCapacity Plans; a program whose calls never repeat gets its further Plans uncached.
/// Thread rule: any thread.
class PlanCache {
 public:
  static constexpr std::size_t kCapacity = 1024;

  /// The Plan for `key`, or null.
  [[nodiscard]] Plan* find(const PlanKey& key) const noexcept {
    const std::uint64_t hash = key.hash();
    for (std::size_t i = 0; i < kSlots; ++i) {
      // acquire: pairs with the release in insert, which publishes a finished Plan.
      Plan* plan = slots_[(hash + i) % kSlots].load(std::memory_order_acquire);
      if (plan == nullptr || plan->key == key) return plan;
    }
    return nullptr;
  }

  /// Takes ownership of `plan` and returns it, or returns the equal Plan that was inserted first. Null, and `plan` unchanged,
  /// where the cache holds `room` Plans already.
  Plan* insert(std::unique_ptr<Plan>& plan, std::size_t room = kCapacity) {
    const std::scoped_lock lock(mutex_);
    if (Plan* known = find(plan->key)) return known;
    if (owned_.size() >= room) return nullptr;
    const std::uint64_t hash = plan->key.hash();
    for (std::size_t i = 0; i < kSlots; ++i) {
      auto& slot = slots_[(hash + i) % kSlots];
      if (slot.load(std::memory_order_relaxed) != nullptr) continue;
      owned_.push_back(std::move(plan));
      slot.store(owned_.back().get(), std::memory_order_release);
      return owned_.back().get();
    }
    return nullptr;
  }

 private:
  static constexpr std::size_t kSlots = 2 * kCapacity;  // at most half full, so find ends soon

  std::array<std::atomic<Plan*>, kSlots> slots_{};
  std::mutex mutex_;  // writers only
  std::vector<std::unique_ptr<Plan>> owned_;
};

}  // namespace shoal
