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

TEST(Waiter, TriesYieldsAgainAfterManyWaits) {
  Waiter waiter(/*cores_to_spare=*/false);
  waiter.yielded(3ms);
  bool again = false;
  for (int wait = 0; wait < 10'000 && !again; ++wait) again = looks_again(waiter);
  EXPECT_TRUE(again);
}

}  // namespace
}  // namespace shoal
