// When a Waiter looks again and when it blocks.
#include <gtest/gtest.h>

#include <chrono>

#include "src/engine/waiter.h"

namespace shoal {
namespace {

using namespace std::chrono_literals;

// Whether a wait that starts now looks again at least once before it blocks.
bool looks_again(Waiter& waiter) {
  const bool looks = waiter.look_again();
  for (int looked = 0; looked < 1'000'000 && waiter.look_again(); ++looked) {
  }
  waiter.blocking();
  return looks;
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

// Yields of 20 us each, for ten times as long as it would look again by itself. Not every time: the machine may take the core
// away.
TEST(Waiter, TheTimeOfOthersIsNotItsOwn) {
  bool waited = false;
  for (int attempt = 0; attempt < 100 && !waited; ++attempt) {
    Waiter waiter(/*cores_to_spare=*/false);
    const auto start = std::chrono::steady_clock::now();
    while (waiter.look_again()) {
      const auto until = std::chrono::steady_clock::now() + 20us;
      while (std::chrono::steady_clock::now() < until) {
      }
    }
    const auto took = std::chrono::steady_clock::now() - start;
    waited = took > 500us && took < 4ms;
  }
  EXPECT_TRUE(waited);
}

TEST(Waiter, TriesYieldsAgainAfterManyWaits) {
  Waiter waiter(/*cores_to_spare=*/false);
  waiter.yielded(3ms);
  bool again = false;
  for (int wait = 0; wait < 10'000 && !again; ++wait) again = looks_again(waiter);
  EXPECT_TRUE(again);
}

}  // namespace
}  // namespace shoal
