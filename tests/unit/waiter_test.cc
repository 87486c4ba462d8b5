// When a Waiter polls, yields and blocks, on a clock that the test moves.
#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "src/progress/waiter.h"

namespace shoal {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

constexpr bool kCoresToSpare = true;
constexpr bool kNoCoresToSpare = false;

/// A Waiter whose polls and yields take as long as the test says.
struct Timed {
  explicit Timed(bool cores_to_spare, bool yields = true, WaitPolicy policy = WaitPolicy::automatic, int ranks_per_core = 1)
      : waiter(cores_to_spare, yields, policy, ranks_per_core) {}

  /// Polls until the Waiter would block; returns how long that took.
  nanoseconds poll_until_block(nanoseconds poll = 100ns, nanoseconds yield = 500ns) {
    const auto start = now;
    for (;;) {
      const Waiter::Next next = waiter.next(now);
      if (next == Waiter::Next::block) return now - start;
      now += next == Waiter::Next::poll ? poll : yield;
    }
  }
  /// A wait that polls without success and then blocks for `sleep`; returns how long it polled.
  nanoseconds wait(nanoseconds sleep) {
    const nanoseconds polled = poll_until_block();
    waiter.blocking();
    now += sleep;
    waiter.woken(now);
    return polled;
  }
  /// `count` such waits; returns how long the last one polled.
  nanoseconds waits(int count, nanoseconds sleep) {
    nanoseconds last{};
    for (int i = 0; i < count; ++i) last = wait(sleep);
    return last;
  }
  /// How many waits block at once after a yield that lost a time slice.
  int waits_without_yield() {
    waiter.yielded(3ms);
    int count = 0;
    while (count < 10'000 && wait(1ms) == 0ns) ++count;
    return count;
  }
  /// A wait that ends after one yield.
  void good_wait() {
    waiter.next(now);
    now += 500ns;
    waiter.moved(now);
  }

  Waiter waiter;
  Waiter::Clock::time_point now{1h};
};

TEST(Waiter, PollsThenYieldsThenBlocksWhereCoresAreToSpare) {
  Timed timed(kCoresToSpare);
  EXPECT_EQ(timed.waiter.next(timed.now), Waiter::Next::poll);
  timed.now += 3us;
  EXPECT_EQ(timed.waiter.next(timed.now), Waiter::Next::yield);
  for (int yield = 0; yield < 60; ++yield) timed.waiter.next(timed.now += 1us);
  EXPECT_EQ(timed.waiter.next(timed.now), Waiter::Next::block);
}

TEST(Waiter, YieldsAtOnceWithoutCoresToSpare) {
  Timed timed(kNoCoresToSpare);
  EXPECT_EQ(timed.waiter.next(timed.now), Waiter::Next::yield);
}

TEST(Waiter, BlocksAtOnceWhereItMustNotYield) {
  Timed timed(kNoCoresToSpare, /*yields=*/false);
  EXPECT_EQ(timed.waiter.next(timed.now), Waiter::Next::block);
}

TEST(Waiter, LookAgainFollowsNext) {
  Waiter polls(kCoresToSpare);
  EXPECT_TRUE(polls.look_again());
  Waiter blocks(kNoCoresToSpare, /*yields=*/false);
  EXPECT_FALSE(blocks.look_again());
}

TEST(Waiter, BlockPolicyBlocksAtOnce) {
  Timed timed(kCoresToSpare, /*yields=*/true, WaitPolicy::block);
  EXPECT_EQ(timed.wait(1ms), 0ns);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(timed.waiter.longest_sleep(), nanoseconds::max());
}

// Each round ends in a sleep of no duration, however often that has happened and whatever other threads took.
TEST(Waiter, SpinAndYieldPoliciesNeverSleep) {
  for (const auto& [policy, step] :
       {std::pair(WaitPolicy::spin, Waiter::Next::poll), {WaitPolicy::yield, Waiter::Next::yield}}) {
    for (const bool cores : {kCoresToSpare, kNoCoresToSpare}) {
      Timed timed(cores, /*yields=*/true, policy);
      for (int round = 0; round < 100; ++round) {
        EXPECT_EQ(timed.waiter.next(timed.now), step);
        EXPECT_GE(timed.wait(0ns), 900us);
        EXPECT_EQ(timed.waiter.longest_sleep(), 0ns);
        timed.now += 20ms;  // another thread computed
      }
    }
  }
}

TEST(Waiter, BlocksAtOnceAfterYieldThatLostASlice) {
  Timed timed(kNoCoresToSpare);
  timed.waiter.yielded(3ms);
  EXPECT_EQ(timed.wait(1ms), 0ns);
  EXPECT_EQ(timed.wait(1ms), 0ns);
}

// 64 ranks that share a core take some milliseconds for their polls.
TEST(Waiter, LostSliceGrowsWithRanksPerCore) {
  Timed crowded(kNoCoresToSpare, /*yields=*/true, WaitPolicy::automatic, 64);
  crowded.waiter.yielded(6ms);
  EXPECT_GT(crowded.wait(1ms), 0ns);
  crowded.waiter.yielded(50ms);
  EXPECT_EQ(crowded.wait(1ms), 0ns);
  Timed few(kNoCoresToSpare, /*yields=*/true, WaitPolicy::automatic, 4);
  few.waiter.yielded(3ms);
  EXPECT_EQ(few.wait(1ms), 0ns);
}

TEST(Waiter, YieldsOnAfterAShortYield) {
  Timed timed(kNoCoresToSpare);
  timed.waiter.yielded(5us);
  EXPECT_GT(timed.wait(1ms), 0ns);
}

// The limit is 50 us of its own time. In yields of 20 us each, nearly all time belongs to other threads.
TEST(Waiter, CountsOnlyItsOwnTime) {
  Timed timed(kNoCoresToSpare);
  const nanoseconds polled = timed.poll_until_block(100ns, 20us);
  EXPECT_GT(polled, 900us);
  EXPECT_LT(polled, 1200us);
}

// Otherwise two ranks that answer each other at once would always sleep, since each waits for the other to wake up.
TEST(Waiter, PollsForLongerAfterShortSleeps) {
  Timed timed(kNoCoresToSpare);
  EXPECT_LT(timed.waits(8, 300us), 10us);
  EXPECT_GE(timed.waits(8, 1us), 50us);
}

TEST(Waiter, PollsForAsLongAsASleepCosts) {
  Timed timed(kCoresToSpare);
  EXPECT_LT(timed.waits(8, 1us), 100us);
  for (int i = 0; i < 16; ++i) timed.waiter.slept(50us + 50us + 200us);
  timed.waiter.woken(timed.now);
  const nanoseconds dear = timed.waits(8, 100us);
  EXPECT_GT(dear, 350us);
  EXPECT_LT(dear, 450us);
  for (int i = 0; i < 16; ++i) timed.waiter.slept(70us);
  timed.waiter.woken(timed.now);
  EXPECT_LT(timed.waits(8, 1us), 100us);
}

TEST(Waiter, SamplesSleepsIfItMaySpin) {
  Waiter alone(kCoresToSpare);
  Waiter crowded(kNoCoresToSpare);
  int short_sleeps = 0;
  for (int i = 0; i < 160; ++i) {
    short_sleeps += alone.longest_sleep() < 1ms ? 1 : 0;
    EXPECT_GT(crowded.longest_sleep(), 1h);
  }
  EXPECT_EQ(short_sleeps, 10);
}

TEST(Waiter, AvoidsYieldsTwiceAsLongAfterEachLostSlice) {
  Timed timed(kNoCoresToSpare);
  const int first = timed.waits_without_yield();
  EXPECT_LT(first, 10);
  EXPECT_EQ(timed.waits_without_yield(), 2 * first);
  for (int loss = 0; loss < 20; ++loss) timed.waits_without_yield();
  const int last = timed.waits_without_yield();
  EXPECT_GT(last, 100);
  EXPECT_LT(last, 1000);
}

TEST(Waiter, ForgetsLostSlicesAfterShortYields) {
  Timed timed(kNoCoresToSpare);
  const int first = timed.waits_without_yield();
  for (int loss = 0; loss < 8; ++loss) timed.waits_without_yield();
  for (int wait = 0; wait < 100; ++wait) timed.good_wait();
  EXPECT_EQ(timed.waits_without_yield(), first);
}

}  // namespace
}  // namespace shoal
