// The bells by which ranks wake each other: full queues, foreign datagrams, ranks that have ended.
#include "transports/shm/bell.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace shoal::shm {
namespace {

Bell make_bell() {
  Result<Bell> bell = Bell::create();
  EXPECT_TRUE(bell.ok()) << bell.status().to_string();
  return std::move(bell).value();
}

bool rings(const Bell& bell) {
  pollfd item{bell.descriptor(), POLLIN, 0};
  return ::poll(&item, 1, 0) == 1;
}

TEST(ShmBell, RingsUntilDrained) {
  const Bell one = make_bell();
  const Bell two = make_bell();
  EXPECT_FALSE(rings(two));
  one.ring(two.name());
  EXPECT_TRUE(rings(two));
  EXPECT_FALSE(rings(one));
  two.drain();
  EXPECT_FALSE(rings(two));
  two.drain();
  two.ring(two.name());
  EXPECT_TRUE(rings(two)) << "a rank may ring its own bell";
}

TEST(ShmBell, FullQueueDoesNotBlock) {
  const Bell one = make_bell();
  const Bell two = make_bell();
  for (int i = 0; i < 10'000; ++i) one.ring(two.name());
  EXPECT_TRUE(rings(two));
  int taken = 0;
  for (; rings(two) && taken < 10'000; ++taken) two.drain();
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, 10'000) << "the queue is bounded by the kernel";
}

// Every unread bell takes room in the send buffer of the socket that rang it.
TEST(ShmBell, UnreadBellsDoNotSilenceLaterOnes) {
  constexpr std::size_t kBells = 700;
  const Bell one = make_bell();
  std::vector<Bell> stopped;
  for (std::size_t i = 0; i < kBells; ++i) stopped.push_back(make_bell());
  for (const Bell& each : stopped) one.ring(each.name());
  for (std::size_t i = 0; i < kBells; ++i) EXPECT_TRUE(rings(stopped[i])) << i;
}

TEST(ShmBell, EndedRankIsIgnored) {
  const Bell one = make_bell();
  BellName gone;
  {
    const Bell two = make_bell();
    gone = two.name();
  }
  one.ring(gone);
  one.ring(BellName());
  EXPECT_FALSE(rings(one));
}

TEST(ShmBell, ForeignDatagramsAreDropped) {
  const Bell bell = make_bell();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, bell.name().socket.data(), bell.name().socket.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bell.name().socket.size());
  const Descriptor foreign(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto send = [&](const void* bytes, std::size_t count) {
    return ::sendto(foreign.get(), bytes, count, MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), size);
  };
  std::array<std::byte, 64> longer{};
  std::memcpy(longer.data(), bell.name().key.data(), bell.name().key.size());
  std::array<std::byte, 8> wrong = bell.name().key;
  for (int i = 0; i < 100; ++i) {
    wrong = bell.name().key;
    wrong[static_cast<std::size_t>(i) % 8] ^= std::byte{1};
    EXPECT_EQ(send(wrong.data(), wrong.size()), 8);
    EXPECT_EQ(send(longer.data(), longer.size()), 64);
    EXPECT_EQ(send(longer.data(), 7), 7);
    EXPECT_EQ(send(longer.data(), 0), 0);
  }
  EXPECT_FALSE(rings(bell));
  EXPECT_EQ(send(longer.data(), 8), 8);
  EXPECT_TRUE(rings(bell)) << "the key itself rings";
}

}  // namespace
}  // namespace shoal::shm
