// A bounded cache of registrations of lasting memory.
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

/// Registrations of one rail, for memory that stays mapped. It registers whole blocks, so that neighbouring tiles share one.
/// When there is no room, it drops registrations that are not in use, the least recently used first. When pages may have
/// changed, it drops all: a card would go on reading the old pages. Thread rule: that of the rail.
class RegistrationCache {
 public:
  struct Entry {
    std::span<std::byte> memory;
    Registration registration;
    std::uint32_t users = 0;
    std::uint64_t used_at = 0;
    bool stale = false;  ///< dropped with its last user
  };
  static constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

  RegistrationCache(Rail& rail, std::span<std::byte> lasting, const RegistrationLimits& limits);
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  /// Null where [data, data + bytes) is not within the lasting memory, where entries in use leave no room, or where the rail
  /// refuses. `changes`: differs from the previous call where pages have been given back to the system since.
  Entry* acquire(const std::byte* data, std::size_t bytes, std::uint64_t changes);
  void release(Entry& entry);
  /// Ends all registrations; to be called before the rail is destroyed. No entry may be used afterwards.
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
