#include "transports/shm/peer_watch.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/base/descriptor_limit.h"
#include "transports/shm/waking.h"

namespace shoal::shm {
namespace {

/// A watch is made in place of another one at most so often: calls that wait for one peer after the other would otherwise make
/// one in each wait.
constexpr auto kBetweenReplacements = std::chrono::milliseconds(10);
constexpr auto kBetweenRetries = std::chrono::milliseconds(100);
/// Checking a process costs about six system calls. A sleep lasts at most a second.
constexpr auto kBetweenChecksOfOthers = std::chrono::milliseconds(250);

}  // namespace

PeerWatch::PeerWatch(const Segment& segment, const Bell& bell, std::size_t own, int epoll, std::vector<Descriptor> passed)
    : segment_(segment),
      bell_(bell),
      own_(own),
      epoll_(epoll),
      passed_(std::move(passed)),
      slot_of_(segment.layout().ranks, kUnwatched) {
  const Descriptor own_process = open_own_process();
  has_pidfds_ = own_process.valid() || is_short_of_descriptors(errno);
  watches_.reserve(kMostWatches);
  others_.reserve(segment.layout().ranks);
  for (std::size_t i = 0; i < passed_.size(); ++i) {
    if (!passed_[i].valid()) continue;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    // Without memory for it, check() and the layers above still notice the end.
    static_cast<void>(::epoll_ctl(epoll_, EPOLL_CTL_ADD, passed_[i].get(), &event));
  }
  follow_ring();
}

std::size_t PeerWatch::descriptors() const noexcept {
  return watches_.size() + static_cast<std::size_t>(std::ranges::count_if(passed_, &Descriptor::valid));
}

bool PeerWatch::can_watch(std::size_t position) const noexcept {
  if (!has_pidfds_) return false;
  return (position < passed_.size() && passed_[position].valid()) || process(position).is_valid_for(process(own_));
}

void PeerWatch::follow_ring() {
  for (std::size_t slot = watches_.size(); slot-- > 0;) {
    watches_[slot].succeeds = false;
    if (!is_open(watches_[slot].position)) forget(slot);
  }
  const std::size_t ranks = slot_of_.size();
  std::size_t found = 0;
  for (std::size_t step = 1; step < ranks && found < kSuccessors; ++step) {
    const std::size_t position = (own_ + step) % ranks;
    if (!is_open(position) || !can_watch(position)) continue;
    const int error = watch(position);
    if (error == ESRCH) {
      tell_end(position);
      continue;
    }
    ++found;
    if (slot_of_[position] != kUnwatched) watches_[slot_of_[position]].succeeds = true;
  }
}

void PeerWatch::on_readable(std::size_t position) {
  if (position >= slot_of_.size()) return;
  if (slot_of_[position] != kUnwatched) {
    forget(slot_of_[position]);
  } else if (position < passed_.size() && passed_[position].valid()) {
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, passed_[position].get(), nullptr);  // it stays readable for ever
  } else {
    return;  // reported before it was forgotten
  }
  tell_end(position);
  follow_ring();
}

void PeerWatch::tell_end(std::size_t position) {
  RankBlock& block = segment_.block(position);
  std::uint32_t before = kOpen;
  // release: the last tiles of the ended rank come before, for the peers' acquire in ShmLink::peer_closed().
  block.closed.compare_exchange_strong(before, kDied, std::memory_order_acq_rel, std::memory_order_acquire);
  // Also where the rank has closed its end: it may have ended before it counted that. At worst the ranks look for nothing.
  if (before == kDied) return;  // another rank has told the end
  segment_.header().closures.fetch_add(1, std::memory_order_seq_cst);
  for (std::size_t i = 0; i < slot_of_.size(); ++i) {
    if (i != own_) wake_if_sleeping(segment_.block(i), bell_);
  }
}

void PeerWatch::start_awaiting(std::size_t position) {
  if (!can_watch(position) || !is_open(position)) return;
  if (position < passed_.size() && passed_[position].valid()) return;
  const auto now = Clock::now();
  const bool full = watches_.size() == kMostWatches;
  const bool crowded = full && (watches_[least_recent()].awaited_in == sleep_ || now < replaced_at_ + kBetweenReplacements);
  if (crowded || now < retry_at_) return others_.push_back(position);
  if (full) replaced_at_ = now;
  const int error = watch(position);
  if (error == ESRCH) return tell_end(position);
  if (error == 0) return;
  retry_at_ = now + kBetweenRetries;
  others_.push_back(position);
}

void PeerWatch::check_awaited_others() {
  const auto now = Clock::now();
  if (now >= others_checked_at_ + kBetweenChecksOfOthers) {
    others_checked_at_ = now;
    for (const std::size_t position : others_) {
      Descriptor pidfd;
      if (open_process(process(position), pidfd) == ESRCH) tell_end(position);
    }
  }
  others_.clear();
}

int PeerWatch::check(std::size_t position) {
  if (position < passed_.size() && passed_[position].valid()) return has_ended(passed_[position]) ? ESRCH : 0;
  if (slot_of_[position] == kUnwatched) {
    const int error = watch(position);
    if (error != 0) return error;
  }
  Watch& watched = watches_[slot_of_[position]];
  watched.awaited_in = sleep_;
  return has_ended(watched.pidfd) ? ESRCH : 0;
}

int PeerWatch::open(std::size_t position, Descriptor& pidfd) const noexcept {
  if (!can_watch(position)) return ENOSYS;
  if (position >= passed_.size() || !passed_[position].valid()) return open_process(process(position), pidfd);
  pidfd = Descriptor(::fcntl(passed_[position].get(), F_DUPFD_CLOEXEC, 0));
  return pidfd.valid() ? 0 : errno;
}

int PeerWatch::watch(std::size_t position) {
  if (slot_of_[position] != kUnwatched || (position < passed_.size() && passed_[position].valid())) return 0;
  Descriptor pidfd;
  if (const int error = open_process(process(position), pidfd); error != 0) return error;
  if (watches_.size() == kMostWatches) forget(least_recent());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = position;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, pidfd.get(), &event) != 0) return errno;
  slot_of_[position] = static_cast<std::uint8_t>(watches_.size());
  watches_.push_back({position, std::move(pidfd), sleep_, false});
  return 0;
}

void PeerWatch::forget(std::size_t slot) {
  // A child of fork() may hold the pidfd open, so that closing it here would not end the reports.
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, watches_[slot].pidfd.get(), nullptr);
  slot_of_[watches_[slot].position] = kUnwatched;
  if (slot + 1 != watches_.size()) {
    watches_[slot] = std::move(watches_.back());
    slot_of_[watches_[slot].position] = static_cast<std::uint8_t>(slot);
  }
  watches_.pop_back();
}

std::size_t PeerWatch::least_recent() const noexcept {
  std::size_t least = watches_.size();
  for (std::size_t slot = 0; slot < watches_.size(); ++slot) {
    if (watches_[slot].succeeds) continue;
    // Numbers of sleeps wrap around.
    if (least == watches_.size() || sleep_ - watches_[slot].awaited_in > sleep_ - watches_[least].awaited_in) least = slot;
  }
  return least;
}

}  // namespace shoal::shm
