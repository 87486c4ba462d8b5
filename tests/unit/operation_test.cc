// The callback of an operation: exactly one is set, also when threads race and the operation ends meanwhile.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "src/plan/operation.h"
#include "src/plan/plan.h"

namespace shoal::internal {
namespace {

class OperationTest : public ::testing::Test {
 protected:
  OperationTest() : plan_(std::make_unique<Plan>()), operation_(plan_.get(), nullptr, true) { start(); }
  void start() { operation_.reset(nullptr, 1, std::chrono::steady_clock::time_point::max(), nullptr, nullptr); }

  std::unique_ptr<Plan> plan_;
  Operation operation_;
};

TEST_F(OperationTest, RefusesSecondCallbackBeforeAndAfterTheEnd) {
  int calls = 0;
  ASSERT_TRUE(operation_.set_callback([&](const Status&) { ++calls; }).ok());
  EXPECT_EQ(operation_.set_callback([&](const Status&) { calls += 100; }).code(), StatusCode::invalid_argument);
  operation_.finish({});
  EXPECT_EQ(operation_.set_callback([&](const Status&) { calls += 100; }).code(), StatusCode::invalid_argument);
  EXPECT_EQ(calls, 1);
  start();  // the next call
  ASSERT_TRUE(operation_.set_callback([&](const Status&) { ++calls; }).ok());
  operation_.finish({});
  EXPECT_EQ(calls, 2);
}

// Two threads set a callback while a third ends the operation. Exactly one succeeds, and its callback runs once.
TEST_F(OperationTest, OneOfTwoRacingCallbacksIsSet) {
  constexpr int kRounds = 2'000;
  for (int round = 0; round < kRounds; ++round) {
    start();
    std::atomic<int> ready = 0;
    std::array<std::atomic<int>, 2> calls{};
    std::array<std::atomic<bool>, 2> set{};
    const auto wait_for_all = [&] {
      ready.fetch_add(1);
      while (ready.load() < 3) std::this_thread::yield();
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        wait_for_all();
        set[i] = operation_.set_callback([&, i](const Status&) { calls[i].fetch_add(1); }).ok();
      });
    }
    wait_for_all();
    if (round % 3 != 0) std::this_thread::yield();
    operation_.finish({});
    for (std::thread& thread : threads) thread.join();
    ASSERT_NE(set[0], set[1]) << "round " << round;
    for (std::size_t i = 0; i < 2; ++i) ASSERT_EQ(calls[i].load(), set[i] ? 1 : 0) << "round " << round;
  }
}

}  // namespace
}  // namespace shoal::internal
