// Registrations of memory that lasts, kept for the next time: a cache with bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transports/rails/rail.h"

namespace shoal::rails {

/// Bounds of a cache.
struct RegistrationLimits {
  std::size_t bytes = std::size_t{1} << 30;
  std::size_t entries = 256;
};

/// What one rail has registered of memory that stays mapped. Whole blocks of it, so that neighbouring tiles share one. Those
/// that nobody uses go, the longest unused first, when there is no room, and all of them when pages may have changed behind
/// them: a card goes on reading the old ones. Thread rule: that of the rail.
class RegistrationCache {
 public:
  struct Entry {
    std::span<std::byte> memory;
    Registration registration;
    std::uint32_t users = 0;
    std::uint64_t used_at = 0;
    bool stale = false;  ///< goes with its last user
  };
  static constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

  RegistrationCache(Rail& rail, std::span<std::byte> lasting, const RegistrationLimits& limits);
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  /// Null where [data, data + bytes) is not within the lasting memory, or there is no room beside what is in use, or the rail
  /// refuses. `changes`: another number than the last time where pages have been given back since.
  Entry* acquire(const std::byte* data, std::size_t bytes, std::uint64_t changes);
  void release(Entry& entry);
  /// Ends all registrations; to be called before the rail goes. No entry is used afterwards.
  void clear() noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t entries() const noexcept { return entries_.size(); }

 private:
  void drop(std::size_t index) noexcept;
  bool make_room(std::size_t bytes) noexcept;

  Rail& rail_;
  const std::span<std::byte> lasting_;
  const RegistrationLimits limits_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::size_t bytes_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t changes_ = 0;
};

}  // namespace shoal::rails
