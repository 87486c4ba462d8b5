// When a Waiter looks again and when it blocks.
#include <gtest/gtest.h>

#include <chrono>

#include <unistd.h>

#include "src/progress/waiter.h"

namespace shoal {
namespace {

using namespace std::chrono_literals;

// Whether a wait that starts now looks again at least once before it blocks.
bool looks_again(Waiter& waiter) {
  const bool looks = waiter.look_again();
  for (int looked = 0; looked < 1'000'000 && waiter.look_again(); ++looked) {
  }
  waiter.blocking();
  waiter.woken();
  return looks;
}

// How long it looks before it blocks; the sleep that follows lasts for `sleep`.
std::chrono::nanoseconds looks_for(Waiter& waiter, std::chrono::microseconds sleep) {
  const auto start = std::chrono::steady_clock::now();
  while (waiter.look_again()) {
  }
  const auto looked = std::chrono::steady_clock::now() - start;
  waiter.blocking();
  if (sleep.count() > 0) ::usleep(static_cast<useconds_t>(sleep.count()));
  waiter.woken();
  return looked;
}

// Waits that block at once, after a yield that cost a slice.
int waits_without_yield(Waiter& waiter) {
  waiter.yielded(3ms);
  int waits = 0;
  while (waits < 10'000 && !looks_again(waiter)) ++waits;
  return waits;
}

/// Not every time: others may have the core. So for a quarter of a minute.
template <typename Attempt>
bool once(Attempt attempt) {
  const auto until = std::chrono::steady_clock::now() + 15s;
  while (std::chrono::steady_clock::now() < until) {
    if (attempt()) return true;
  }
  return false;
}

// A wait that ends well after one yield.
void good_wait(Waiter& waiter) {
  waiter.look_again();
  waiter.moved();
}

TEST(Waiter, LooksAgainBeforeItBlocks) {
  Waiter crowded(/*cores_to_spare=*/false);
  Waiter alone(/*cores_to_spare=*/true);
  EXPECT_TRUE(looks_again(crowded));
  EXPECT_TRUE(looks_again(alone));
}

TEST(Waiter, BlocksAtOnceWhereItMustNotYield) {
  Waiter beside(/*cores_to_spare=*/false, /*yields=*/false);
  EXPECT_FALSE(looks_again(beside));
}

TEST(Waiter, BlocksAtOnceAfterAYieldThatCostASlice) {
  Waiter waiter(/*cores_to_spare=*/false);
  waiter.yielded(3ms);
  EXPECT_FALSE(looks_again(waiter));
  EXPECT_FALSE(looks_again(waiter));
}

TEST(Waiter, ShortYieldsGoOn) {
  Waiter waiter(/*cores_to_spare=*/false);
  waiter.yielded(5us);
  EXPECT_TRUE(looks_again(waiter));
}

// Yields of 20 us each, for ten times as long as it would look again by itself.
TEST(Waiter, TheTimeOfOthersIsNotItsOwn) {
  EXPECT_TRUE(once([] {
    Waiter waiter(/*cores_to_spare=*/false);
    const auto start = std::chrono::steady_clock::now();
    while (waiter.look_again()) {
      const auto until = std::chrono::steady_clock::now() + 20us;
      while (std::chrono::steady_clock::now() < until) {
      }
    }
    const auto took = std::chrono::steady_clock::now() - start;
    return took > 500us && took < 4ms;
  }));
}

// Else two ranks that answer each other at once would go on sleeping, since each must wait until the other has woken up.
TEST(Waiter, ShortSleepsTeachItToLookLonger) {
  EXPECT_TRUE(once([] {
    Waiter waiter(/*cores_to_spare=*/false);
    std::chrono::nanoseconds after_long{};
    std::chrono::nanoseconds after_short{};
    for (int i = 0; i < 8; ++i) after_long = looks_for(waiter, 300us);
    for (int i = 0; i < 8; ++i) after_short = looks_for(waiter, 0us);
    return after_long < 10us && after_short > 30us;
  }));
}

TEST(Waiter, LooksForAsLongAsASleepCosts) {
  EXPECT_TRUE(once([] {
    Waiter waiter(/*cores_to_spare=*/true);
    const auto cheap = looks_for(waiter, 0us);
    for (int i = 0; i < 16; ++i) waiter.slept(50us + 50us + 200us);
    waiter.woken();
    std::chrono::nanoseconds dear{};
    for (int i = 0; i < 8; ++i) dear = looks_for(waiter, 100us);
    for (int i = 0; i < 16; ++i) waiter.slept(70us);
    waiter.woken();
    std::chrono::nanoseconds cheap_again{};
    for (int i = 0; i < 8; ++i) cheap_again = looks_for(waiter, 0us);
    return cheap < 100us && dear > 300us && dear < 1ms && cheap_again < 100us;
  }));
}

TEST(Waiter, MeasuresASleepNowAndThenWhereItMaySpin) {
  Waiter alone(/*cores_to_spare=*/true);
  Waiter crowded(/*cores_to_spare=*/false);
  int short_sleeps = 0;
  for (int i = 0; i < 160; ++i) {
    short_sleeps += alone.longest_sleep() < 1ms ? 1 : 0;
    EXPECT_GT(crowded.longest_sleep(), 1h);
  }
  EXPECT_EQ(short_sleeps, 10);
}

// Not every time: a yield of the test itself may cost a slice.
TEST(Waiter, EachLostSliceKeepsItLongerFromYields) {
  EXPECT_TRUE(once([] {
    Waiter waiter(/*cores_to_spare=*/false);
    const int first = waits_without_yield(waiter);
    const int second = waits_without_yield(waiter);
    for (int loss = 0; loss < 20; ++loss) waits_without_yield(waiter);
    const int last = waits_without_yield(waiter);
    return first < 10 && second == 2 * first && last > 100 && last < 1000;
  }));
}

TEST(Waiter, ForgetsLostSlicesWhereYieldsEndWell) {
  EXPECT_TRUE(once([] {
    Waiter waiter(/*cores_to_spare=*/false);
    const int first = waits_without_yield(waiter);
    for (int loss = 0; loss < 8; ++loss) waits_without_yield(waiter);
    for (int wait = 0; wait < 100; ++wait) good_wait(waiter);
    return waits_without_yield(waiter) == first;
  }));
}

}  // namespace
}  // namespace shoal
