// How many bytes of memory the rings of a rank's TCP links hold, and the limit for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace shoal::tcp {

class RingMemory;
class TcpLink;

/// The rings of one link, as RingMemory counts them. It outlives them. Thread rule: that of the link.
class LinkRings {
 public:
  LinkRings(RingMemory& memory, TcpLink* link) noexcept : memory_(memory), link_(link) {}
  LinkRings(const LinkRings&) = delete;
  LinkRings& operator=(const LinkRings&) = delete;
  ~LinkRings();

  [[nodiscard]] RingMemory& memory() const noexcept { return memory_; }
  [[nodiscard]] TcpLink* link() const noexcept { return link_; }
  [[nodiscard]] std::size_t resident_bytes() const noexcept { return resident_bytes_; }
  void add(std::size_t bytes) noexcept;
  void subtract(std::size_t bytes) noexcept;

 private:
  friend class RingMemory;

  RingMemory& memory_;
  TcpLink* const link_;
  std::size_t resident_bytes_ = 0;
  bool listed_ = false;  // is in the list of links with resident memory
};

/// Counts the resident bytes of the rings of all links of a Reactor, and knows the links that have some. Thread rule: that of
/// the Reactor.
class RingMemory {
 public:
  /// 0: no limit, and nothing is counted.
  explicit RingMemory(std::size_t limit_bytes = 0) noexcept
      : limit_bytes_(limit_bytes == 0 ? kNoLimit : limit_bytes), urgent_from_bytes_(next_urgent_bytes()) {}
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  [[nodiscard]] bool has_limit() const noexcept { return limit_bytes_ != kNoLimit; }
  [[nodiscard]] std::size_t resident_bytes() const noexcept { return resident_bytes_; }
  /// Links are to give memory back at their next regular visit.
  [[nodiscard]] bool is_over() const noexcept { return resident_bytes_ > limit_bytes_; }
  /// They are to do so at once. That is at twice the limit, and later, where the last visit left more than the limit (data that
  /// has not been consumed), whenever as many bytes as the limit have been added since. So between two urgent visits the links
  /// have filled at least that much: the cost of a visit and of the page faults behind it is proportional to the bytes moved,
  /// even where the data in flight alone exceeds the limit.
  [[nodiscard]] bool is_urgent() const noexcept { return resident_bytes_ > urgent_from_bytes_; }

  /// Room in the list of links, so that counting allocates nothing.
  void expect_links(std::size_t links) { in_use_.reserve(links); }
  /// Calls `give_back(rings)` for each link with resident memory, and for no other.
  template <typename GiveBack>
  void visit(GiveBack&& give_back) {
    std::erase_if(in_use_, [&](LinkRings* rings) {
      if (rings->resident_bytes_ > 0) give_back(*rings);
      rings->listed_ = rings->resident_bytes_ > 0;
      return !rings->listed_;
    });
    urgent_from_bytes_ = next_urgent_bytes();
  }
  /// The system does not take memory back, for example because the process has locked it: drops the limit, because further
  /// visits would cost time and free nothing.
  void on_refused() noexcept { limit_bytes_ = urgent_from_bytes_ = kNoLimit; }

 private:
  friend class LinkRings;

  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

  [[nodiscard]] std::size_t next_urgent_bytes() const noexcept {
    return has_limit() ? limit_bytes_ + std::max(limit_bytes_, resident_bytes_) : kNoLimit;
  }

  std::size_t limit_bytes_;
  std::size_t resident_bytes_ = 0;
  std::size_t urgent_from_bytes_;
  std::vector<LinkRings*> in_use_;  // those with resident memory, and some that had some at the last visit
};

inline LinkRings::~LinkRings() {
  if (listed_) std::erase(memory_.in_use_, this);
}

inline void LinkRings::add(std::size_t bytes) noexcept {
  resident_bytes_ += bytes;
  memory_.resident_bytes_ += bytes;
  if (listed_ || bytes == 0) return;
  listed_ = true;
  memory_.in_use_.push_back(this);
}

inline void LinkRings::subtract(std::size_t bytes) noexcept {
  resident_bytes_ -= bytes;
  memory_.resident_bytes_ -= bytes;
}

}  // namespace shoal::tcp
