// GroupName: identifies a communicator, with the same value on all its ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace shoal {

/// The name that every member of a communicator computes alone, so that no rank waits for another when a group is made. It has
/// 88 bits: some two of 2^32 groups have the same with a probability of 2^-25, some two of 100,000 with one of 2^-55. A job of
/// 65,536 ranks with 100 groups each has 2^23 of them at most: 2^-43.
///
/// Tiles have room for 31 bits only. They carry a number from their sender's own counter, which gives no number out twice. So
/// no two communicators of a sender share one. See TileRouter::bind() for how the peer learns the name for a number.
struct GroupName {
  std::uint64_t key = 0;
  std::uint32_t check = 0;  ///< below kCheckLimit

  static constexpr std::uint32_t kCheckLimit = 1U << 24;

  bool operator==(const GroupName&) const = default;
  /// Of the communicator of all ranks.
  [[nodiscard]] bool is_whole() const noexcept { return *this == GroupName{}; }
  /// For reports; 0: the communicator of all ranks.
  [[nodiscard]] std::uint32_t short_form() const noexcept {
    return is_whole() ? 0 : std::max(1U, static_cast<std::uint32_t>(key >> 33));
  }

  /// The name of a group of `ranks` of this one, before which `made_before` groups of the same list have been made.
  [[nodiscard]] GroupName child(std::span<const int> ranks, std::uint32_t made_before) const noexcept {
    GroupName name;
    std::uint64_t other = check;
    name.key = key;
    const auto add = [&](std::uint64_t value) {
      name.key = mixed(name.key ^ value);
      other = mixed(other + 0x9E3779B97F4A7C15U * (value + 1));
    };
    add(made_before);
    for (const int rank : ranks) add(static_cast<std::uint64_t>(rank));
    add(ranks.size());
    name.key = std::max<std::uint64_t>(name.key, 1);  // not that of all ranks
    name.check = static_cast<std::uint32_t>(other % kCheckLimit);
    return name;
  }

  struct Hash {
    std::size_t operator()(const GroupName& name) const noexcept { return static_cast<std::size_t>(name.key); }
  };

 private:
  /// The end of splitmix64: a bijection in which every bit depends on every other.
  static constexpr std::uint64_t mixed(std::uint64_t x) noexcept {
    x += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
  }
};

}  // namespace shoal
