// Notices the ends of peers' processes, with a number of descriptors that does not grow with the number of peers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/descriptor.h"
#include "transports/shm/bell.h"
#include "transports/shm/process_identity.h"
#include "transports/shm/segment.h"

namespace shoal::shm {

/// The ranks of a group form a ring, in which each rank watches the next two live ones by their pidfds. It also watches up to
/// kMostAwaited peers for which it waits, or whose memory it uses. A rank that sees an end marks the RankBlock of the ended
/// rank and wakes all ranks, which see the mark in their next look; then it watches the next live rank. So of any number of
/// ranks that end at the same time, each is noticed.
///
/// A waiting rank notices at once that the awaited one has ended. Of the awaited peers above kMostAwaited it checks all about
/// once a second. Where ranks do not see each other's process identifiers (containers), the handshake has passed the pidfds:
/// these are all watched. Without pidfds only the layers above notice.
/// Thread rule: one thread at a time.
class PeerWatch {
 public:
  static constexpr std::size_t kSuccessors = 2;
  static constexpr std::size_t kMostAwaited = 16;
  static constexpr std::size_t kMostWatches = kSuccessors + kMostAwaited;

  /// Of the rank at `own` of `segment`. `epoll` reports a readable pidfd by the position of its rank. `passed`: pidfds by
  /// position from the handshake, mostly invalid. All but `passed` outlive it.
  PeerWatch(const Segment& segment, const Bell& bell, std::size_t own, int epoll, std::vector<Descriptor> passed);

  /// Watches the next live ranks of the ring. To be called at the start, and when ranks have closed or ended.
  void follow_ring();
  /// epoll has reported this position.
  void on_readable(std::size_t position);

  /// This rank is about to sleep; await() names for whom it waits, and check_others() ends the list.
  void begin_sleep() noexcept { ++sleep_; }
  void await(std::size_t position) {
    if (const std::uint8_t slot = slot_of_[position]; slot != kUnwatched) [[likely]] {
      watches_[slot].awaited_in = sleep_;
      return;
    }
    start_awaiting(position);
  }
  void check_others() {
    if (!others_.empty()) [[unlikely]]
      check_awaited_others();
  }

  /// Whether this rank can learn at any time if the process at `position` has ended.
  [[nodiscard]] bool can_watch(std::size_t position) const noexcept;
  /// 0 where that process lives; ESRCH where it has ended; else an errno value: not known.
  int check(std::size_t position);
  /// Opens another pidfd of that process, for the caller. Returns as check(). Any thread.
  int open(std::size_t position, Descriptor& pidfd) const noexcept;
  /// How many pidfds it has open.
  [[nodiscard]] std::size_t descriptors() const noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint8_t kUnwatched = 0xff;
  struct Watch {
    std::size_t position = 0;
    Descriptor pidfd;
    std::uint32_t awaited_in = 0;  ///< number of the last sleep in which the rank was awaited
    bool succeeds = false;         ///< one of the next live ranks of the ring
  };

  [[nodiscard]] const ProcessIdentity& process(std::size_t position) const noexcept {
    return segment_.block(position).card.process;
  }
  [[nodiscard]] bool is_open(std::size_t position) const noexcept {
    return segment_.block(position).closed.load(std::memory_order_acquire) == kOpen;
  }
  void start_awaiting(std::size_t position);
  void check_awaited_others();
  /// 0 where the process is watched; else as check().
  int watch(std::size_t position);
  void forget(std::size_t slot);
  /// The slot of the watch that was awaited longest ago, among those that do not succeed this rank.
  [[nodiscard]] std::size_t least_recent() const noexcept;
  /// Tells all ranks that the process at `position` has ended.
  void tell_end(std::size_t position);

  const Segment& segment_;
  const Bell& bell_;
  std::size_t own_;
  int epoll_;
  bool has_pidfds_ = false;
  std::vector<Descriptor> passed_;     ///< empty, or by position
  std::vector<Watch> watches_;         ///< at most kMostWatches
  std::vector<std::uint8_t> slot_of_;  ///< by position: index in watches_, or kUnwatched
  std::vector<std::size_t> others_;    ///< awaited in this sleep and not watched
  std::uint32_t sleep_ = 1;
  Clock::time_point replaced_at_{};  ///< when a watch last made room for another one
  Clock::time_point retry_at_{};     ///< after a failure for lack of descriptors
  Clock::time_point others_checked_at_{};
};

}  // namespace shoal::shm
