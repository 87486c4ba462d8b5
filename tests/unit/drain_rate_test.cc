// The estimated rate of a socket: from samples, and from trial tiles on a socket that gets no other work.
#include "transports/tcp/drain_rate.h"

#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kTile = 256 << 10;
constexpr std::uint64_t kTimeLimit = 8 << 20;

/// A socket on a clock that the test moves.
struct Socket {
  DrainRate rate;
  DrainRate::Clock::time_point now{milliseconds(1)};
  std::uint64_t drained = 0;

  void look(std::uint64_t waiting) { rate.update(now, drained, waiting); }
  /// Drains `bytes_per_ms` from a queue that is never empty; sampled every millisecond.
  void drain(int ms, std::uint64_t bytes_per_ms) {
    for (int i = 0; i < ms; ++i) {
      now += milliseconds(1);
      drained += bytes_per_ms;
      look(kTile);
    }
  }
  /// Other sockets drain `bytes`; then this one gets a tile. Returns whether a trial was due.
  bool trial_after(std::uint64_t bytes) {
    look(0);
    rate.passed_over(bytes);
    const bool due = rate.trial_is_due();
    rate.given(now, drained);
    return due;
  }
  /// The tile drains after `ms` milliseconds; only the first `seen` of them are sampled.
  void tile_takes(int ms, int seen) {
    for (int i = 0; i < ms; ++i) {
      now += milliseconds(1);
      if (i < seen) look(kTile);
    }
    drained += kTile;
    look(0);
  }
};

Socket measured(std::uint64_t bytes_per_ms) {
  Socket socket;
  socket.look(0);
  socket.drain(200, bytes_per_ms);
  return socket;
}

TEST(DrainRate, MeasuresBackloggedSocket) {
  EXPECT_EQ(DrainRate().bytes_per_us(), 0) << "unknown";
  EXPECT_NEAR(measured(16'000).rate.bytes_per_us(), 16, 0.5);
  EXPECT_NEAR(measured(1'600).rate.bytes_per_us(), 1.6, 0.1);
}

TEST(DrainRate, OneTileShowsThatSocketIsFastAgain) {
  Socket socket = measured(1'600);
  EXPECT_FALSE(socket.trial_after(kTimeLimit - 1));
  EXPECT_TRUE(socket.trial_after(kTimeLimit));
  socket.tile_takes(16, 15);
  EXPECT_NEAR(socket.rate.bytes_per_us(), 16, 1);
  EXPECT_TRUE(socket.trial_after(kTimeLimit)) << "the interval is unchanged";
}

TEST(DrainRate, ProbesSlowSocketEverLessOften) {
  Socket socket = measured(1'600);
  for (std::uint64_t time_limit = kTimeLimit; time_limit <= 16 * kTimeLimit; time_limit *= 2) {
    EXPECT_FALSE(socket.trial_after(time_limit - 1)) << time_limit;
    EXPECT_TRUE(socket.trial_after(time_limit)) << time_limit;
    socket.tile_takes(164, 163);
    EXPECT_NEAR(socket.rate.bytes_per_us(), 1.6, 0.1);
  }
  EXPECT_TRUE(socket.trial_after(16 * kTimeLimit)) << "the interval is limited";
}

TEST(DrainRate, IgnoresTileWithUnobservedEnd) {
  Socket socket = measured(1'600);
  EXPECT_TRUE(socket.trial_after(kTimeLimit));
  socket.tile_takes(5'000, 2);  // last tile of a message; the next one is sent much later
  EXPECT_NEAR(socket.rate.bytes_per_us(), 1.6, 0.1);
  EXPECT_TRUE(socket.trial_after(2 * kTimeLimit));
  socket.tile_takes(20, 0);  // drained before the next sample, so the rate is high
  EXPECT_GT(socket.rate.bytes_per_us(), 10);
}

}  // namespace
}  // namespace shoal::tcp
