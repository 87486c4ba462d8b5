// How fast a socket is taken to be: by samples, and by trials of one that others leave nothing for.
#include "transports/tcp/drain_rate.h"

#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kTile = 256 << 10;
constexpr std::uint64_t kTimeLimit = 8 << 20;

/// A socket with a clock, that carries so many bytes a millisecond while it has any.
struct Socket {
  DrainRate rate;
  DrainRate::Clock::time_point now{milliseconds(1)};
  std::uint64_t drained = 0;

  void look(std::uint64_t waiting) { rate.update(now, drained, waiting); }
  /// Full all the time, looked at every millisecond.
  void carry(int ms, std::uint64_t bytes_per_ms) {
    for (int i = 0; i < ms; ++i) {
      now += milliseconds(1);
      drained += bytes_per_ms;
      look(kTile);
    }
  }
  /// Others carry so much; then it is given a tile, if it is due.
  bool try_after(std::uint64_t bytes) {
    look(0);
    rate.passed_over(bytes);
    const bool due = rate.trial_is_due();
    rate.given(now, drained);
    return due;
  }
  /// The tile comes after so long, of which it is looked at until `seen`.
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
  socket.carry(200, bytes_per_ms);
  return socket;
}

TEST(DrainRate, IsWhatASocketCarriesThatNeverRunsDry) {
  EXPECT_EQ(DrainRate().bytes_per_us(), 0) << "not known";
  EXPECT_NEAR(measured(16'000).rate.bytes_per_us(), 16, 0.5);
  EXPECT_NEAR(measured(1'600).rate.bytes_per_us(), 1.6, 0.1);
}

TEST(DrainRate, ASocketThatIsFastAgainIsKnownByOneTile) {
  Socket socket = measured(1'600);
  EXPECT_FALSE(socket.try_after(kTimeLimit - 1));
  EXPECT_TRUE(socket.try_after(kTimeLimit));
  socket.tile_takes(16, 15);
  EXPECT_NEAR(socket.rate.bytes_per_us(), 16, 1);
  EXPECT_TRUE(socket.try_after(kTimeLimit)) << "as soon again";
}

TEST(DrainRate, ASocketThatStaysSlowIsTriedEverLessOften) {
  Socket socket = measured(1'600);
  for (std::uint64_t time_limit = kTimeLimit; time_limit <= 16 * kTimeLimit; time_limit *= 2) {
    EXPECT_FALSE(socket.try_after(time_limit - 1)) << time_limit;
    EXPECT_TRUE(socket.try_after(time_limit)) << time_limit;
    socket.tile_takes(164, 163);
    EXPECT_NEAR(socket.rate.bytes_per_us(), 1.6, 0.1);
  }
  EXPECT_TRUE(socket.try_after(16 * kTimeLimit)) << "but at least so often";
}

TEST(DrainRate, ATileWhoseEndNobodySawSaysNothing) {
  Socket socket = measured(1'600);
  EXPECT_TRUE(socket.try_after(kTimeLimit));
  socket.tile_takes(5'000, 2);  // the last of a message, and the next comes much later
  EXPECT_NEAR(socket.rate.bytes_per_us(), 1.6, 0.1);
  EXPECT_TRUE(socket.try_after(2 * kTimeLimit));
  socket.tile_takes(20, 0);  // before the next look, and all the same fast
  EXPECT_GT(socket.rate.bytes_per_us(), 10);
}

}  // namespace
}  // namespace shoal::tcp
