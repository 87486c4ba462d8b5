// A TCP link whose peer the test plays itself, byte by byte.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "src/base/descriptor.h"
#include "tests/mentions.h"
#include "tests/unit/tcp_losses.h"
#include "transports/tcp/address.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp_test {
namespace {

using tcp::Hello;
using testing::Mentions;

struct Played {
  End end;                       // rank 0
  std::vector<Descriptor> peer;  // the sockets of rank 1
};

Played play_peer(int sockets, std::size_t tile_bytes) {
  Played played;
  TcpOptions options = options_of(0, 2);
  options.sockets_per_peer = sockets;
  options.tile_bytes = tile_bytes;
  options.lost_after = std::chrono::seconds(5);
  played.end.transport = std::move(*make_tcp_transport(options));
  const auto where = tcp::parse_address(played.end.transport->address());
  std::thread rank([&] { connect(played.end, 0, {"127.0.0.1:1", "127.0.0.1:1"}, kTimeLimit); });
  Hello hello;
  hello.job_id = options.job_id;
  hello.from_rank = 1;
  hello.size = 2;
  hello.sockets = static_cast<std::uint16_t>(sockets);
  hello.tile_bytes = static_cast<std::uint32_t>(tile_bytes);
  for (int i = 0; i <= sockets; ++i) {  // the last is for words
    Descriptor& socket = played.peer.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), where->raw(), where->length()), 0);
    hello.socket_index = static_cast<std::uint16_t>(i);
    std::string records;  // of this handshake so far
    const auto say = [&](tcp::HelloKind kind) {
      hello.kind = kind;
      const tcp::HelloRecord record = tcp::encode(hello, kKey, records);
      records += as_text(record);
      EXPECT_EQ(::send(socket.get(), record.data(), record.size(), MSG_NOSIGNAL), static_cast<ssize_t>(record.size()));
    };
    const auto hear = [&](tcp::HelloKind kind) {
      tcp::HelloRecord record{};
      EXPECT_EQ(::recv(socket.get(), record.data(), record.size(), MSG_WAITALL), static_cast<ssize_t>(record.size()));
      EXPECT_TRUE(tcp::is_proven(record, kKey, records));
      EXPECT_EQ(tcp::decode_hello(record)->kind, kind);
      records += as_text(record);
    };
    say(tcp::HelloKind::greet);
    hear(tcp::HelloKind::reply);
    say(tcp::HelloKind::confirm);
    hear(tcp::HelloKind::accept);
  }
  rank.join();
  EXPECT_TRUE(played.end.status.ok()) << played.end.status.to_string();
  return played;
}

std::vector<std::byte> frame(std::uint64_t position, std::uint32_t size_bytes, std::uint32_t claimed_bytes) {
  std::vector<std::byte> bytes(tcp::frame_bytes(size_bytes));
  tcp::encode({position, {1, 2, 3, claimed_bytes, 0}, {}}, {},
              std::span<std::byte, tcp::kFrameHeaderBytes>(bytes.data(), tcp::kFrameHeaderBytes));
  return bytes;
}

void play(const Descriptor& socket, std::span<const std::byte> bytes) {
  ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// Plays one good tile, then `bytes` on socket 0, and expects the good one, then an error that says `why`.
void expect_refused(const std::vector<std::byte>& bytes, const ::testing::Matcher<const std::string&>& why) {
  Played played = play_peer(1, 4096);
  play(played.peer[0], frame(0, 100, 100));
  play(played.peer[0], bytes);
  Link& link = played.end.link(1);
  EXPECT_TRUE(drive(played.end, [&] { return link.peek() != nullptr; }));
  EXPECT_EQ(link.peek()->data.size(), 100U);
  link.release();
  EXPECT_TRUE(drive(played.end, [&] { return !link.status().ok(); }));
  EXPECT_EQ(link.peek(), nullptr);
  EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
  EXPECT_THAT(link.status().message(), ::testing::AllOf(Mentions("rank 1"), why));
  EXPECT_FALSE(link.try_send({}, {}));
}

TEST(TcpPlayedPeer, HostileHeadersBreakOnlyTheLink) {
  expect_refused(random_bytes(5000, 3), Mentions("magic"));
  auto flipped = frame(1, 100, 100);
  flipped[35] ^= std::byte{4};
  expect_refused(flipped, ::testing::ContainsRegex("check ?sum"));
  expect_refused(frame(1, 100, 4097), Mentions("4097", "4096"));
  expect_refused(frame(1, 100, 0xffffffff), Mentions("4294967295", "4096"));
  expect_refused(frame(0, 100, 100), Mentions("tile 0"));
  expect_refused(frame(7, 100, 100), Mentions("tile 1"));
}

TEST(TcpPlayedPeer, FrameReceivedByteByByteIsOneTile) {
  Played played = play_peer(1, 4096);
  const auto bytes = frame(0, 200, 200);
  Link& link = played.end.link(1);
  for (const std::byte& byte : bytes) {
    EXPECT_EQ(link.peek(), nullptr);
    play(played.peer[0], std::span(&byte, 1));
    played.end.transport->progress();
  }
  EXPECT_TRUE(drive(played.end, [&] { return link.peek() != nullptr; }));
  EXPECT_EQ(link.peek()->data.size(), 200U);
  link.release();
}

// A socket reports when the rest of the tile at its head can have come; that rest shrinks whenever somebody looks in between.
TEST(TcpPlayedPeer, LastBytesOfATileWakeTheReceiver) {
  constexpr std::uint32_t kTile = 100'000;
  Played played = play_peer(1, kTile);
  Transport& transport = *played.end.transport;
  Link& link = played.end.link(1);
  const auto bytes = frame(0, kTile, kTile);
  const std::span<const std::byte> all(bytes);
  const auto announce_sleep = [&] {
    while (!transport.prepare_wait()) {
      transport.finish_wait(true);
      transport.progress();
    }
  };
  // Read because somebody wants a tile, not because the socket has reported.
  const auto read = [&](std::span<const std::byte> part) {
    play(played.peer[0], part);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(link.peek(), nullptr);
      transport.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  read(all.first(30'000));
  announce_sleep();
  transport.finish_wait(true);
  read(all.subspan(30'000, bytes.size() - 31'000));
  announce_sleep();
  play(played.peer[0], all.last(1000));
  // Nobody wants a tile from here on. A timer wakes as well, once a second, and looks no further than the socket says.
  const auto start = Clock::now();
  bool news = false;
  for (int i = 0; i < 3 && !news; ++i) {
    pollfd waiting{transport.wait_fd(), POLLIN, 0};
    ::poll(&waiting, 1, 10'000);
    transport.finish_wait(true);
    transport.progress();
    news = !transport.prepare_wait();
    transport.finish_wait(true);
  }
  EXPECT_TRUE(news) << "after " << std::chrono::duration<double>(Clock::now() - start).count() << " s";
  EXPECT_NE(link.peek(), nullptr);
}

TEST(TcpPlayedPeer, PartialTileIsNeverReturned) {
  Played played = play_peer(1, 4096);
  const auto bytes = frame(0, 200, 200);
  play(played.peer[0], std::span(bytes).first(bytes.size() - 1));
  played.peer.clear();
  expect_failed(played.end, 1);
  EXPECT_EQ(played.end.link(1).peek(), nullptr);
}

// Says goodbye on the socket for words, and closes all.
void leave(Played& played) {
  std::array<std::byte, tcp::kControlRecordBytes> goodbye;
  tcp::encode({tcp::ControlRecord::Kind::close_notice, 0, 0}, goodbye);
  play(played.peer.back(), goodbye);
  played.peer.clear();
}

void drive_for(End& end, std::chrono::milliseconds time) {
  const auto until = Clock::now() + time;
  EXPECT_TRUE(drive(end, [&] { return static_cast<void>(end.link(1).peek()), Clock::now() >= until; }));
}

// The peer is done with everything and leaves; one of its sockets has brought all, the other cannot yet.
TEST(TcpPlayedPeer, BusyReceiverLosesNoTileOfLeavingPeer) {
  Played played = play_peer(2, 4096);
  constexpr std::uint64_t kTiles = 61;
  const int room = 1 << 20;
  ::setsockopt(played.peer[1].get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  for (std::uint64_t i = 0; i < kTiles; ++i) {
    const auto bytes = frame(i, 4000, 4000);
    const int socket = played.peer[i == 0 ? 0 : 1].get();
    ASSERT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT), static_cast<ssize_t>(bytes.size()));
  }
  drive_for(played.end, std::chrono::milliseconds(100));
  int under_way = 0;
  ASSERT_EQ(::ioctl(played.peer[1].get(), SIOCOUTQ, &under_way), 0);
  ASSERT_GT(under_way, 0) << "all of it has come, so this shows nothing";
  leave(played);
  drive_for(played.end, std::chrono::milliseconds(1000));
  Link& link = played.end.link(1);
  EXPECT_TRUE(link.status().ok()) << link.status().to_string();
  std::uint64_t arrived = 0;
  EXPECT_TRUE(drive(played.end, [&] {
    for (; link.peek() != nullptr; ++arrived) link.release();
    return !link.status().ok();
  }));
  EXPECT_EQ(arrived, kTiles);
}

/// The network is down when the peer leaves, for longer than it takes to send a lost packet again once. Whether its last tile
/// has arrived then; `why_not`: the state of the link.
bool last_tile_arrives_after_silence(std::string& why_not) {
  Played played = play_peer(2, 4096);
  const auto receiver = sockets_between(played.end.transport->address(), name_of(played.peer[1].get()));
  if (receiver.size() != 1) return false;
  play(played.peer[0], frame(0, 100, 100));
  silence(receiver);
  play(played.peer[1], frame(1, 100, 100));
  leave(played);
  drive_for(played.end, std::chrono::milliseconds(1000));
  hear_again(receiver);
  Link& link = played.end.link(1);
  if (link.peek() == nullptr) return false;
  link.release();
  const bool ended = drive(played.end, [&] { return link.peek() != nullptr || !link.status().ok(); });
  why_not = link.status().to_string();
  return ended && link.peek() != nullptr;
}

// On a busy machine the network may be down for so long that the kernel sends the packet again only after the link has given
// up.
TEST(TcpPlayedPeer, TilesLostAsThePeerLeavesAreResent) {
  std::string why_not;
  bool arrives = false;
  for (int tries = 0; tries < 5 && !arrives; ++tries) arrives = last_tile_arrives_after_silence(why_not);
  EXPECT_TRUE(arrives) << why_not;
}

TEST(TcpPlayedPeer, EndOfOneSocketBreaksLinkAfterArrivedTiles) {
  Played played = play_peer(2, 4096);
  play(played.peer[1], frame(0, 200, 200));
  play(played.peer[1], frame(1, 200, 200));
  played.peer[0].reset();
  Link& link = played.end.link(1);
  EXPECT_TRUE(drive(played.end, [&] { return !link.status().ok(); }));
  EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
  for (int i = 0; i < 2; ++i) {
    ASSERT_NE(link.peek(), nullptr);
    link.release();
  }
  EXPECT_EQ(link.peek(), nullptr);
}

}  // namespace
}  // namespace shoal::tcp_test
