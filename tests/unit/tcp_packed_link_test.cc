// Links that pack: what is on the wire, frame by frame, and what comes of frames that no link has made.
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tests/mentions.h"
#include "tests/unit/tcp_support.h"
#include "transports/common/checksum.h"
#include "transports/tcp/link.h"
#include "transports/tcp/packing.h"
#include "transports/tcp/reactor.h"

namespace shoal::tcp_test {
namespace {

constexpr std::size_t kTile = 32 << 10;

std::vector<std::byte> floats(std::uint64_t seed, std::size_t bytes = kTile) { return gradient_bytes(bytes, seed); }
std::vector<std::byte> noise(std::uint64_t seed) { return random_bytes(kTile, seed); }

struct Frame {
  tcp::FrameHeader header;
  std::vector<std::byte> payload;  ///< as it travels
};

/// One link with one socket for tiles, whose other end is this test.
struct Bench {
  std::shared_ptr<tcp::Reactor> reactor = std::move(*tcp::Reactor::make());
  Descriptor tiles;
  Descriptor words;
  std::unique_ptr<tcp::TcpLink> link;
  std::uint32_t sent = 0;

  explicit Bench(bool sums = false, bool packing = true) {
    std::vector<tcp::Connection> ours;
    for (Descriptor* theirs : {&tiles, &words}) {
      std::array<int, 2> ends{};
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
      ours.push_back({Descriptor(ends[0]), {}});
      *theirs = Descriptor(ends[1]);
    }
    link = std::move(*tcp::TcpLink::make(reactor, 1, "test", std::move(ours), {kTile, 4, 1, sums, false, 1, packing}));
  }

  /// Has the link send a tile, and says what came of it.
  Frame frame_of(std::span<const std::byte> data, bool lend = false) {
    const TileHeader header{1, 2, sent++, static_cast<std::uint32_t>(data.size()), 0};
    const auto start = [&] { return lend ? link->try_lend(header, data) : link->try_send(header, data); };
    for (const auto until = Clock::now() + kTimeLimit; !start() && Clock::now() < until;) reactor->progress();
    reactor->progress();  // a small one has waited for company
    std::array<std::byte, tcp::kFrameHeaderBytes> begin;
    EXPECT_EQ(::recv(tiles.get(), begin.data(), begin.size(), MSG_WAITALL), static_cast<ssize_t>(begin.size()));
    const auto front = tcp::decode_frame(begin, kTile);
    EXPECT_TRUE(front && front->tile == header);
    Frame frame{*front, std::vector<std::byte>(tcp::frame_bytes(*front) - begin.size())};
    if (!frame.payload.empty()) {
      EXPECT_EQ(::recv(tiles.get(), frame.payload.data(), frame.payload.size(), MSG_WAITALL),
                static_cast<ssize_t>(frame.payload.size()));
    }
    for (std::size_t i = front->wire_bytes(); i < frame.payload.size(); ++i) EXPECT_EQ(frame.payload[i], std::byte{0});
    frame.payload.resize(front->wire_bytes());
    // So that there will be room again.
    std::array<std::byte, tcp::kControlRecordBytes> word;
    tcp::encode({tcp::ControlRecord::Kind::acknowledge, 0, front->position + 1}, word);
    EXPECT_EQ(::send(words.get(), word.data(), word.size(), MSG_NOSIGNAL), static_cast<ssize_t>(word.size()));
    return frame;
  }

  /// What the link shows of a frame.
  const Arrival* show(tcp::FrameHeader header, std::span<const std::byte> payload) {
    std::vector<std::byte> bytes(tcp::frame_bytes(payload.size()));
    tcp::encode(header, payload, std::span(bytes).first<tcp::kFrameHeaderBytes>());
    std::ranges::copy(payload, bytes.begin() + tcp::kFrameHeaderBytes);
    EXPECT_EQ(::send(tiles.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    const auto until = Clock::now() + kTimeLimit;
    while (link->peek() == nullptr && link->status().ok() && Clock::now() < until) reactor->progress();
    return link->peek();
  }
};

TEST(TcpPackedLink, OnlyFloatsArePacked) {
  for (const bool sums : {false, true}) {
    Bench bench(sums);
    for (const bool lend : {false, true}) {
      const auto data = floats(1);
      const Frame packed = bench.frame_of(data, lend);
      EXPECT_GT(packed.header.packed_bytes, 0.8 * kTile);
      EXPECT_LE(packed.header.packed_bytes, 0.88 * kTile);
      std::vector<std::byte> back(kTile);
      EXPECT_TRUE(tcp::unpack(packed.payload, back));
      EXPECT_EQ(back, data);
      const Frame plain = bench.frame_of(noise(2), lend);
      EXPECT_EQ(plain.header.packed_bytes, 0U);
      EXPECT_EQ(plain.payload, noise(2));
      EXPECT_EQ(bench.frame_of(floats(3, tcp::kLeastPackable - 4), lend).header.packed_bytes, 0U) << "not worth it";
      EXPECT_EQ(bench.frame_of(floats(3, 8), lend).header.packed_bytes, 0U) << "in the header";
      for (const Frame& frame : {packed, plain}) {
        EXPECT_EQ(frame.header.payload_sum.has_value(), sums);
        if (sums) {
          EXPECT_EQ(frame.header.payload_sum, crc32c(frame.payload)) << "of what travels";
        }
      }
    }
  }
  Bench plain(false, false);
  EXPECT_EQ(plain.frame_of(floats(1)).header.packed_bytes, 0U);
  plain.link->sender().encoder().use_packing();
  EXPECT_GT(plain.frame_of(floats(1)).header.packed_bytes, 0U);
}

TEST(TcpPackedLink, PackedTileFreesItsMemoryAtOnce) {
  Bench bench;
  const auto data = floats(1);
  ASSERT_TRUE(bench.link->try_lend({1, 2, 0, kTile, 0}, data));
  bench.reactor->progress();
  EXPECT_EQ(bench.link->sent_tiles(), 1U) << "it was copied";
  const auto other = noise(2);
  ASSERT_TRUE(bench.link->try_lend({1, 2, 1, kTile, 0}, other));
  bench.reactor->progress();
  EXPECT_EQ(bench.link->sent_tiles(), 1U) << "it lies where it was";
}

TEST(TcpPackedLink, TriesOneOfSixteenAfterSixteenFailures) {
  Bench bench;
  for (std::uint64_t i = 0; i < 16; ++i) EXPECT_EQ(bench.frame_of(noise(i)).header.packed_bytes, 0U);
  for (std::uint64_t i = 0; i < 15; ++i) EXPECT_EQ(bench.frame_of(floats(i)).header.packed_bytes, 0U) << i;
  EXPECT_EQ(bench.frame_of(noise(99)).header.packed_bytes, 0U);
  for (std::uint64_t i = 0; i < 15; ++i) EXPECT_EQ(bench.frame_of(floats(i)).header.packed_bytes, 0U) << i;
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_GT(bench.frame_of(floats(i)).header.packed_bytes, 0U) << i;
}

TEST(TcpPackedLink, PackedTilesArriveUnchanged) {
  Bench from;
  Bench to;
  for (std::uint64_t i = 0; i < 20; ++i) {
    const auto data = i % 3 == 2 ? noise(i) : floats(i, kTile - i);
    const Frame frame = from.frame_of(data);
    EXPECT_EQ(frame.header.packed_bytes > 0, i % 3 != 2);
    const Arrival* arrival = to.show(frame.header, frame.payload);
    ASSERT_NE(arrival, nullptr) << to.link->status().to_string();
    EXPECT_EQ(arrival->header, frame.header.tile);
    EXPECT_TRUE(std::ranges::equal(arrival->data, data));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arrival->data.data()) % 64, 0U);
    to.link->release();
  }
}

TEST(TcpPackedLink, MalformedPackedTileEndsTheLink) {
  const auto data = floats(1);
  const Frame good = Bench().frame_of(data);
  const auto expect_end = [](Frame frame) {
    frame.header.packed_bytes = static_cast<std::uint32_t>(frame.payload.size());
    Bench bench;
    EXPECT_EQ(bench.show(frame.header, frame.payload), nullptr);
    EXPECT_EQ(bench.link->status().code(), StatusCode::peer_failed);
    EXPECT_THAT(bench.link->status().message(),
                ::testing::AllOf(testing::Mentions("tile 0"), ::testing::Not(::testing::ContainsRegex("check ?sum"))));
  };
  Frame width = good;
  width.payload[0] = std::byte{3};
  expect_end(width);
  Frame shorter = good;
  shorter.payload.pop_back();
  expect_end(shorter);
  Frame size = good;
  size.header.tile.size_bytes -= 128;
  expect_end(size);
  Frame any = good;
  any.payload = random_bytes(25, 3);
  expect_end(any);
}

}  // namespace
}  // namespace shoal::tcp_test
