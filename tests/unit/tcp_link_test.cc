// Links of the TCP transport between threads of one process: order, integrity, waiting, memory, and the end of a peer.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/mentions.h"
#include "tests/unit/tcp_losses.h"
#include "transports/tcp/link_socket.h"

namespace shoal::tcp_test {
namespace {

struct Shape {
  int sockets;
  std::size_t tile_bytes;
  std::size_t message_bytes;
};

class TcpMessage : public ::testing::TestWithParam<Shape> {};

TEST_P(TcpMessage, ArrivesUnchangedBothWays) {
  const Shape shape = GetParam();
  auto ends = make_group(options_for(2, shape.sockets, shape.tile_bytes));
  ASSERT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
  ASSERT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
  EXPECT_EQ(ends[0].link(1).max_tile_bytes(), shape.tile_bytes);
  const auto message = random_bytes(shape.message_bytes, 1);
  bool arrived = false;
  std::thread receiver([&] {
    arrived = receive_message(ends[1], 0, message, shape.tile_bytes) && send_message(ends[1], 0, message, shape.tile_bytes);
  });
  EXPECT_TRUE(send_message(ends[0], 1, message, shape.tile_bytes));
  EXPECT_TRUE(receive_message(ends[0], 1, message, shape.tile_bytes));
  receiver.join();
  EXPECT_TRUE(arrived);
  EXPECT_GT(ends[0].transport->memory_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TcpMessage,
                         ::testing::Values(Shape{1, 128 << 10, 64 << 20}, Shape{2, 128 << 10, 64 << 20},
                                           Shape{4, 128 << 10, 32 << 20}, Shape{16, 64 << 10, 16 << 20},
                                           Shape{3, 1000, 3'000'001}, Shape{1, 64, 1'000'003}, Shape{2, 4096, 4096 * 1000 + 1},
                                           Shape{2, 16 << 20, 50'000'001}),
                         [](const auto& info) {
                           return std::to_string(info.param.sockets) + "x" + std::to_string(info.param.tile_bytes) + "_" +
                                  std::to_string(info.param.message_bytes);
                         });

TEST(TcpLink, ManyLinksHaveSmallerRings) {
  EXPECT_EQ(tcp::tiles_with_room(8, 64 << 10, 0), 8U);
  EXPECT_EQ(tcp::tiles_with_room(8, 64 << 10, tcp::kManyLinks - 1), 8U);
  EXPECT_EQ(tcp::tiles_with_room(8, 64 << 10, tcp::kManyLinks), 2U);
  EXPECT_EQ(tcp::tiles_with_room(2, 256 << 10, 4000), 1U);
  EXPECT_EQ(tcp::tiles_with_room(2, 4 << 10, 4000), 2U);
}

TEST(TcpLink, RingOfOneTilePassesMessages) {
  for (const bool encrypted : {false, true}) {
    for (const int sockets : {1, 3}) {
      auto options = options_for(2, sockets, 10'000);
      for (TcpOptions& each : options) each.tiles_per_socket = 1, each.encryption = encrypted;
      auto ends = make_group(options);
      ASSERT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
      const auto message = random_bytes(3'000'001, 2);
      bool arrived = false;
      std::thread receiver([&] { arrived = receive_message(ends[1], 0, message, 10'000); });
      EXPECT_TRUE(send_message(ends[0], 1, message, 10'000));
      receiver.join();
      EXPECT_TRUE(arrived) << sockets << " sockets" << (encrypted ? ", encrypted" : "");
    }
  }
}

std::vector<End> make_pair_of(int sockets, std::size_t tile_bytes) {
  auto ends = make_group(options_for(2, sockets, tile_bytes));
  for (const End& end : ends) EXPECT_TRUE(end.status.ok()) << end.status.to_string();
  return ends;
}

TEST(TcpLink, IdleSenderFreesLentTile) {
  auto ends = make_pair_of(1, 4096);
  const auto message = random_bytes(4096, 5);
  std::vector<std::byte> memory = message;
  Link& link = ends[0].link(1);
  ASSERT_TRUE(drive(ends[0], [&] { return !ends[0].transport->progress(); }));
  ASSERT_TRUE(link.try_lend({7, 8, 0, 4096, 0}, memory));
  EXPECT_EQ(link.sent_tiles(), 0U) << "it was copied at once";
  // The peer neither reads nor says anything.
  for (int i = 0; i < 16 && link.sent_tiles() == 0; ++i) ends[0].transport->progress();
  EXPECT_EQ(link.sent_tiles(), 1U);
  std::fill(memory.begin(), memory.end(), std::byte{0xee});
  EXPECT_TRUE(receive_message(ends[1], 0, message, 4096));
}

TEST(TcpLink, AbortFreesLentTile) {
  auto ends = make_pair_of(1, 4096);
  const auto message = random_bytes(4096, 6);
  std::vector<std::byte> memory = message;
  ASSERT_TRUE(ends[0].link(1).try_lend({7, 8, 0, 4096, 0}, memory));
  ends[0].link(1).keep_copies();
  std::fill(memory.begin(), memory.end(), std::byte{0xee});
  EXPECT_EQ(ends[0].link(1).sent_tiles(), 1U);
  EXPECT_TRUE(receive_message(ends[1], 0, message, 4096));
}

TEST(TcpLink, ManySmallTilesKeepTheirOrder) {
  auto ends = make_pair_of(4, 4096);
  constexpr std::uint32_t kTiles = 100'000;
  std::thread sender([&] {
    for (std::uint32_t i = 0; i < kTiles; ++i) {
      const TileHeader header{1, 2, i, 4, 0};
      ASSERT_TRUE(drive(ends[0], [&] { return ends[0].link(1).try_send(header, std::as_bytes(std::span(&i, 1))); }));
    }
    EXPECT_TRUE(drive(ends[0], [&] { return ends[0].link(1).sent_tiles() == kTiles; }));
  });
  std::uint32_t wrong = 0;
  for (std::uint32_t i = 0; i < kTiles; ++i) {
    const Arrival* arrival = nullptr;
    if (!drive(ends[1], [&] { return (arrival = ends[1].link(0).peek()) != nullptr; })) break;
    std::uint32_t value = ~i;
    if (arrival->data.size() == 4) std::memcpy(&value, arrival->data.data(), 4);
    wrong += value != i || arrival->header.edge != i;
    ends[1].link(0).release();
  }
  sender.join();
  EXPECT_EQ(wrong, 0U);
}

TEST(TcpLink, PayloadsAreAlignedToCacheLines) {
  auto ends = make_pair_of(1, 4096);
  for (std::uint32_t size : {25U, 63U, 64U, 65U, 449U, 4095U}) {
    const auto data = random_bytes(size, size);
    ASSERT_TRUE(send_message(ends[0], 1, data, size));
    const Arrival* arrival = nullptr;
    ASSERT_TRUE(drive(ends[1], [&] { return (arrival = ends[1].link(0).peek()) != nullptr; }));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arrival->data.data()) % 64, 0U);
    ends[1].link(0).release();
  }
}

TEST(TcpLink, SmallTilesOfOnePassAreSentTogether) {
  auto ends = make_pair_of(1, 4096);
  Link& link = ends[0].link(1);
  const auto data = random_bytes(64, 1);
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(link.try_send({0, 0, i, 64, 0}, data));
  EXPECT_EQ(link.sent_tiles(), 0U) << "they wait for each other";
  EXPECT_TRUE(ends[0].transport->progress());
  EXPECT_EQ(link.sent_tiles(), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Arrival* arrival = nullptr;
    ASSERT_TRUE(drive(ends[1], [&] { return (arrival = ends[1].link(0).peek()) != nullptr; }));
    EXPECT_EQ(arrival->header.edge, i);
    ends[1].link(0).release();
  }
  // Whoever goes to sleep instead of making progress sends them too.
  ASSERT_TRUE(link.try_send({0, 0, 9, 64, 0}, data));
  EXPECT_FALSE(ends[0].transport->prepare_wait()) << "memory became free: there is something to look at";
  EXPECT_EQ(link.sent_tiles(), 4U);
}

TEST(TcpLink, FullReceiverSleepsAndWakesAgain) {
  auto ends = make_pair_of(2, 4096);
  const auto data = random_bytes(4096, 1);
  std::uint64_t taken = 0;
  const auto fill = [&] {
    for (int quiet = 0; quiet < 1000; ++quiet) {
      if (ends[0].link(1).try_send({0, 0, 0, 4096, 0}, data)) ++taken, quiet = 0;
      ends[0].transport->progress();
      if (ends[1].transport->progress()) quiet = 0;
    }
  };
  fill();
  // The rings are full and the kernel holds more: the first tile has been seen, nothing else can be done here.
  ASSERT_NE(ends[1].link(0).peek(), nullptr);
  while (!ends[1].transport->prepare_wait()) ends[1].transport->progress();
  int wakes = 0;
  const auto until = Clock::now() + std::chrono::milliseconds(300);
  while (Clock::now() < until) {
    pollfd waiting{ends[1].transport->wait_fd(), POLLIN, 0};
    if (::poll(&waiting, 1, 300) > 0) ++wakes;
    ends[1].transport->finish_wait(true);
    while (!ends[1].transport->prepare_wait()) ends[1].transport->progress();
  }
  EXPECT_LE(wakes, 10) << "a full ring keeps waking the waiter";
  // Released memory makes the rest arrive.
  std::uint64_t arrived = 0;
  EXPECT_TRUE(drive(ends[1], [&] {
    ends[0].transport->progress();
    for (; ends[1].link(0).peek() != nullptr; ++arrived) ends[1].link(0).release();
    return arrived == taken;
  }));
}

// The link's own timer may find room in the moment in which the event that says so is on its way. Whoever is about to sleep
// then must not miss it: no second event follows.
TEST(TcpLink, RoomFoundByTheTimerKeepsTheSenderAwake) {
  constexpr std::size_t kTile = 512 << 10;  // four of them are more than the kernel takes
  auto ends = make_pair_of(1, kTile);
  Link& link = ends[0].link(1);
  const auto tile = random_bytes(kTile, 12);
  const TileHeader header{1, 2, 3, static_cast<std::uint32_t>(tile.size()), 0};
  std::uint64_t taken = 0;
  // Until nothing moves for a while: the queue, both kernel buffers and the window are full.
  for (auto calm = Clock::now(); Clock::now() - calm < std::chrono::milliseconds(100);) {
    if (link.try_send(header, tile)) ++taken, calm = Clock::now();
    if (ends[0].transport->progress()) calm = Clock::now();
  }
  const std::uint64_t sent = link.sent_tiles();
  ASSERT_LT(sent, taken);
  // The timer, once a second, comes before the receiver makes room; the sender looks at neither.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  for (std::uint64_t i = 0; i < sent; ++i) {
    ASSERT_TRUE(drive(ends[1], [&] { return ends[1].link(0).peek() != nullptr; }));
    ends[1].link(0).release();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const bool may_sleep = ends[0].transport->prepare_wait();
  if (link.sent_tiles() != sent) {
    EXPECT_FALSE(may_sleep) << "room was found, and nobody was told";
    ends[0].transport->finish_wait(true);
    EXPECT_TRUE(ends[0].transport->progress());
  }
}

TEST(TcpLink, PeerThatClosesBeforeAnyTrafficIsReported) {
  auto ends = make_pair_of(2, 4096);
  ends[1].destroy();
  expect_failed(ends[0], 1);
  EXPECT_THAT(ends[0].link(1).status().message(), testing::Mentions("rank 1", "closed"));
}

TEST(TcpLink, LinksAndTransportMayOutliveEachOther) {
  auto ends = make_pair_of(2, 4096);
  ends[1].transport.reset();
  EXPECT_EQ(ends[1].link(0).status().code(), StatusCode::aborted);
  EXPECT_FALSE(ends[1].link(0).try_send({}, {}));
  EXPECT_EQ(ends[1].link(0).peek(), nullptr);
  ends[1].links.clear();
  ends[0].links.clear();
  ends[0].transport->progress();
  EXPECT_EQ(ends[0].transport->memory_bytes(), 0U);
}

TEST(TcpLink, TilesBeforeTheEndArriveBeyondRingSize) {
  for (int sockets : {1, 4}) {
    auto ends = make_pair_of(sockets, 4096);
    const auto data = random_bytes(4096, 1);
    std::uint64_t taken = 0;
    for (int refused = 0; refused < 100;) {
      refused = ends[1].link(0).try_send({0, 0, static_cast<std::uint32_t>(taken), 4096, 0}, data) ? 0 : refused + 1;
      taken += refused == 0;
      ends[1].transport->progress();
    }
    const std::uint64_t sent = ends[1].link(0).sent_tiles();
    ASSERT_GT(sent, 10U);
    ends[1].destroy();
    std::uint64_t arrived = 0;
    Link& link = ends[0].link(1);
    EXPECT_TRUE(drive(ends[0], [&] {
      for (; link.peek() != nullptr; ++arrived, link.release()) EXPECT_EQ(link.peek()->header.edge, arrived);
      return !link.status().ok();
    }));
    EXPECT_GE(arrived, sent);
    EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
  }
}

TEST(TcpLink, FullReceiverDetectsTheEndAndKeepsTiles) {
  auto ends = make_pair_of(2, 4096);
  const auto data = random_bytes(4096, 1);
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(drive(ends[1], [&] { return ends[1].link(0).try_send({0, 0, static_cast<std::uint32_t>(i), 4096, 0}, data); }));
  }
  ASSERT_TRUE(drive(ends[1], [&] { return ends[1].link(0).sent_tiles() == 40; }));
  ends[1].destroy();
  Link& link = ends[0].link(1);
  EXPECT_TRUE(drive(ends[0], [&] { return static_cast<void>(link.peek()), !link.status().ok(); }));
  for (std::uint32_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(drive(ends[0], [&] { return link.peek() != nullptr; }));
    EXPECT_EQ(link.peek()->header.edge, i);
    link.release();
  }
  EXPECT_EQ(link.peek(), nullptr);
}

TEST(TcpLink, KilledProcessIsDetectedAtEveryPoint) {
  for (int victims_tiles : {0, 1, 5, 100, 1000}) {
    // The child is forked before any thread exists here, and tells its address through a pipe.
    int up[2];
    int down[2];
    ASSERT_EQ(::pipe(up), 0);
    ASSERT_EQ(::pipe(down), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto transport = make_tcp_transport(options_of(1, 2));
      std::array<char, 1024> text{};
      const std::string mine = (*transport)->address();
      bool ok = ::write(up[1], mine.c_str(), mine.size() + 1) > 0 && ::read(down[0], text.data(), text.size()) > 0;
      End end;
      end.transport = std::move(*transport);
      connect(end, 1, {text.data(), mine}, kTimeLimit);
      const auto data = random_bytes(100'000, 1);
      for (int i = 0; ok && i < victims_tiles; ++i) {
        ok = drive(end, [&] { return end.link(0).try_send({0, 0, static_cast<std::uint32_t>(i), 100'000, 0}, data); });
      }
      ::raise(SIGKILL);
    }
    std::array<char, 1024> theirs{};
    End end;
    end.transport = std::move(*make_tcp_transport(options_of(0, 2)));
    const std::string mine = end.transport->address();
    ASSERT_GT(::read(up[0], theirs.data(), theirs.size()), 0);
    ASSERT_GT(::write(down[1], mine.c_str(), mine.size() + 1), 0);
    connect(end, 0, {mine, theirs.data()}, kTimeLimit);
    ASSERT_TRUE(end.status.ok()) << end.status.to_string();
    const auto data = random_bytes(100'000, 1);
    std::uint32_t arrived = 0;
    bool intact = true;
    Link& link = end.link(1);
    EXPECT_TRUE(drive(end, [&] {
      static_cast<void>(link.try_send({0, 0, 0, 8, 0}, std::span(data).first(8)));
      for (; link.peek() != nullptr; ++arrived, link.release()) {
        intact &= link.peek()->header.edge == arrived &&
                  std::equal(data.begin(), data.end(), link.peek()->data.begin(), link.peek()->data.end());
      }
      return !link.status().ok();
    }));
    EXPECT_TRUE(intact);
    EXPECT_LE(arrived, static_cast<std::uint32_t>(victims_tiles));
    EXPECT_EQ(link.status().code(), StatusCode::peer_failed) << link.status().to_string();
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    for (int fd : {up[0], up[1], down[0], down[1]}) ::close(fd);
  }
}

TEST(TcpLink, ExitOfForkedChildKeepsTheLink) {
  auto ends = make_pair_of(2, 4096);
  const pid_t child = ::fork();
  if (child == 0) {
    for (End& end : ends) end.destroy();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto message = random_bytes(4000, 2);
  EXPECT_TRUE(send_message(ends[0], 1, message, 4000));
  EXPECT_TRUE(receive_message(ends[1], 0, message, 4000));
}

}  // namespace
}  // namespace shoal::tcp_test
