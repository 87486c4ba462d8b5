// How a rank learns that the processes of its peers have ended, with few descriptors.
#include "transports/shm/peer_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "transports/shm/process_identity.h"

namespace shoal::shm {
namespace {

using namespace std::chrono_literals;

/// A segment whose first rank is this process. The other ranks are children that do nothing.
class Ring {
 public:
  explicit Ring(std::size_t ranks)
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)), bell_(std::move(Bell::create()).value()), pids_(ranks, -1) {
    Descriptor file;
    segment_ = std::move(Segment::create({ranks, {64, 2}, 0}, 7, &file)).value();
    segment_.block(0).card.process = own_identity();
    for (std::size_t i = 1; i < ranks; ++i) {
      pids_[i] = ::fork();
      if (pids_[i] != 0) continue;
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      segment_.block(i).card.process = own_identity();
      segment_.block(i).rung.store(1);
      for (;;) ::pause();
    }
    for (std::size_t i = 1; i < ranks; ++i) {
      while (segment_.block(i).rung.load() == 0) std::this_thread::sleep_for(1ms);
    }
  }
  ~Ring() {
    for (std::size_t i = 1; i < pids_.size(); ++i) kill(i);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  PeerWatch& watch() {
    if (watch_ == nullptr) watch_ = std::make_unique<PeerWatch>(segment_, bell_, 0, epoll_.get(), std::vector<Descriptor>());
    return *watch_;
  }
  RankBlock& block(std::size_t position) { return segment_.block(position); }
  [[nodiscard]] std::uint32_t closed(std::size_t position) const { return segment_.block(position).closed.load(); }
  [[nodiscard]] std::uint32_t closures() const { return segment_.header().closures.load(); }
  void kill(std::size_t position) {
    if (pids_[position] < 0) return;
    ::kill(pids_[position], SIGKILL);
    ::waitpid(pids_[position], nullptr, 0);
    pids_[position] = -1;
  }
  /// Kills without reaping, so that the processes become zombies together.
  void kill_together(std::initializer_list<std::size_t> positions) {
    for (const std::size_t each : positions) ::kill(pids_[each], SIGSTOP);
    for (const std::size_t each : positions) ::kill(pids_[each], SIGKILL);
  }
  /// Handles what epoll reports until nothing has come for a while.
  void settle() {
    watch();
    epoll_event event{};
    while (::epoll_wait(epoll_.get(), &event, 1, 200) == 1) {
      watch().on_readable(event.data.u64);
      EXPECT_LE(watch().descriptors(), PeerWatch::kSuccessors + PeerWatch::kMostAwaited);
    }
  }
  /// A sleep in which this rank awaits the ranks [first, last).
  void sleep_awaiting(std::size_t first, std::size_t last) {
    watch().begin_sleep();
    for (std::size_t i = first; i < last; ++i) watch().await(i);
    watch().check_others();
  }

 private:
  Descriptor epoll_;
  Bell bell_;
  Segment segment_;
  std::vector<pid_t> pids_;
  std::unique_ptr<PeerWatch> watch_;
};

TEST(ShmWatch, NeighboursThatDieTogetherAreAllNoticed) {
  Ring ring(8);
  EXPECT_EQ(ring.watch().descriptors(), 2U);
  ring.kill_together({1, 2, 3, 5});
  ring.settle();
  for (const std::size_t dead : {1, 2, 3, 5}) EXPECT_EQ(ring.closed(dead), kDied) << dead;
  for (const std::size_t alive : {4, 6, 7}) EXPECT_EQ(ring.closed(alive), kOpen) << alive;
  EXPECT_EQ(ring.closures(), 4U);
  EXPECT_EQ(ring.watch().descriptors(), 2U);
  for (const std::size_t dead : {4, 6, 7}) ring.kill(dead);
  ring.settle();
  EXPECT_EQ(ring.closures(), 7U);
  EXPECT_EQ(ring.watch().descriptors(), 0U);
}

TEST(ShmWatch, DeathsBeforeTheFirstWatchAreNoticed) {
  Ring ring(5);
  ring.kill(1);             // its identifier is free
  ring.kill_together({2});  // a zombie
  ring.settle();
  EXPECT_EQ(ring.closed(1), kDied);
  EXPECT_EQ(ring.closed(2), kDied);
  EXPECT_EQ(ring.closed(3), kOpen);
}

TEST(ShmWatch, ReusedIdentifierIsAnEnd) {
  Ring ring(4);
  // A later process with the identifier of rank 1 has another start.
  ring.block(1).card.process.start -= 1;
  EXPECT_EQ(ring.watch().check(2), 0);
  EXPECT_EQ(ring.closed(1), kDied);
  EXPECT_EQ(ring.closed(2), kOpen);
  EXPECT_EQ(ring.closed(3), kOpen);
}

TEST(ShmWatch, IdentifierOfAThreadIsAnEnd) {
  ProcessIdentity process = own_identity();
  ASSERT_NE(process.space, 0U);
  Descriptor pidfd;
  EXPECT_EQ(open_process(process, pidfd), 0);
  std::atomic<pid_t> thread_id = 0;
  std::atomic<bool> over = false;
  std::thread thread([&] {
    thread_id = static_cast<pid_t>(::syscall(SYS_gettid));
    while (!over) std::this_thread::sleep_for(1ms);
  });
  while (thread_id == 0) std::this_thread::sleep_for(1ms);
  process.pid = thread_id;
  process.start -= 1;
  EXPECT_EQ(open_process(process, pidfd), ESRCH);
  over = true;
  thread.join();
}

TEST(ShmWatch, AwaitedPeerIsWatchedAtOnce) {
  Ring ring(12);
  ring.sleep_awaiting(7, 8);
  EXPECT_EQ(ring.watch().descriptors(), 3U);
  ring.kill(9);  // nobody's concern: not a neighbour, not awaited
  ring.kill(7);
  ring.settle();
  EXPECT_EQ(ring.closed(7), kDied);
  EXPECT_EQ(ring.closed(9), kOpen);
  ring.sleep_awaiting(9, 10);
  EXPECT_EQ(ring.closed(9), kDied);
}

TEST(ShmWatch, AwaitedPeersWithoutDescriptorAreChecked) {
  Ring ring(40);
  ring.sleep_awaiting(1, 40);
  EXPECT_EQ(ring.watch().descriptors(), PeerWatch::kSuccessors + PeerWatch::kMostAwaited);
  for (const std::size_t dead : {30, 39}) ring.kill(dead);
  std::this_thread::sleep_for(300ms);
  ring.sleep_awaiting(1, 40);
  for (const std::size_t dead : {30, 39}) EXPECT_EQ(ring.closed(dead), kDied);
  EXPECT_EQ(ring.closures(), 2U);
}

TEST(ShmWatch, LongAwaitedPeerReplacesAnotherOne) {
  Ring ring(30);
  ring.sleep_awaiting(1, 19);
  std::this_thread::sleep_for(20ms);
  ring.sleep_awaiting(25, 26);
  EXPECT_EQ(ring.watch().descriptors(), PeerWatch::kSuccessors + PeerWatch::kMostAwaited);
  ring.kill(25);
  ring.settle();
  EXPECT_EQ(ring.closed(25), kDied);
}

TEST(ShmWatch, RankThatClosedInOrderIsNoDeath) {
  Ring ring(5);
  ring.watch();
  ring.block(1).closed.store(kClosed);
  ring.watch().follow_ring();
  EXPECT_EQ(ring.watch().descriptors(), 2U) << "ranks 2 and 3";
  ring.kill(1);
  ring.kill(3);
  ring.settle();
  EXPECT_EQ(ring.closed(1), kClosed);
  EXPECT_EQ(ring.closed(3), kDied);
  EXPECT_EQ(ring.closures(), 1U);
}

TEST(ShmWatch, CheckTellsLivingFromEnded) {
  Ring ring(24);
  for (std::size_t i = 1; i < 24; ++i) EXPECT_EQ(ring.watch().check(i), 0) << i;
  EXPECT_LE(ring.watch().descriptors(), PeerWatch::kSuccessors + PeerWatch::kMostAwaited);
  ring.kill(5);
  ring.kill(23);
  EXPECT_EQ(ring.watch().check(5), ESRCH);
  EXPECT_EQ(ring.watch().check(23), ESRCH);
  EXPECT_EQ(ring.watch().check(6), 0);
}

TEST(ShmWatch, PeersOfAnotherNamespaceAreNotWatched) {
  Ring ring(4);
  for (std::size_t i = 1; i < 4; ++i) ring.block(i).card.process.space = i == 1 ? 0 : 12345;
  for (std::size_t i = 1; i < 4; ++i) EXPECT_FALSE(ring.watch().can_watch(i)) << i;
  ring.kill(1);
  ring.sleep_awaiting(1, 4);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(ring.closed(i), kOpen);
  EXPECT_EQ(ring.watch().descriptors(), 0U);
}

TEST(ShmWatch, PassedDescriptorsAreWatched) {
  Ring ring(3);
  std::vector<Descriptor> passed(3);
  ASSERT_EQ(open_process(ring.block(2).card.process, passed[2]), 0);
  ring.block(2).card.process.space = 12345;
  const Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  const Bell bell = std::move(Bell::create()).value();
  Descriptor file;
  Segment segment = std::move(Segment::create({3, {64, 2}, 0}, 8, &file)).value();
  for (std::size_t i = 0; i < 3; ++i) segment.block(i).card = ring.block(i).card;
  PeerWatch watch(segment, bell, 0, epoll.get(), std::move(passed));
  EXPECT_TRUE(watch.can_watch(2));
  EXPECT_EQ(watch.check(2), 0);
  ring.kill(2);
  epoll_event event{};
  ASSERT_EQ(::epoll_wait(epoll.get(), &event, 1, 5000), 1);
  ASSERT_EQ(std::uint64_t{event.data.u64}, 2U);  // a copy: the system packs the structure
  watch.on_readable(2);
  EXPECT_EQ(segment.block(2).closed.load(), kDied);
  EXPECT_EQ(watch.check(2), ESRCH);
  EXPECT_EQ(::epoll_wait(epoll.get(), &event, 1, 0), 0) << "reported once";
}

}  // namespace
}  // namespace shoal::shm
