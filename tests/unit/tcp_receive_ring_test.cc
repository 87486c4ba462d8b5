// From a tile to its frame, and what the receiving end accepts: TileEncoder and ReceiveRing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "tests/unit/tcp_support.h"
#include "transports/tcp/packing.h"
#include "transports/tcp/receive_ring.h"
#include "transports/tcp/tile_encoder.h"

namespace shoal::tcp {
namespace {

using Front = ReceiveRing::Front;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kTileBytes = 8192;

ReceiveRing ring_of(std::size_t frames = 2) {
  auto ring = ReceiveRing::make(frames * frame_bytes(kTileBytes), kTileBytes);
  EXPECT_TRUE(ring.ok());
  return std::move(*ring);
}

TileHeader header_of(const Bytes& data) { return {1, 2, 3, static_cast<std::uint32_t>(data.size()), 0}; }

Bytes frame_of(TileEncoder& encoder, std::uint64_t position, const Bytes& data) {
  Bytes frame(frame_bytes(data.size()), std::byte{0xee});
  frame.resize(encoder.encode(frame.data(), position, header_of(data), data, false).frame_bytes);
  return frame;
}

Bytes frame_of(std::uint64_t position, const Bytes& data, bool checksums = true) {
  TileEncoder encoder(checksums, false, 0);
  return frame_of(encoder, position, data);
}

void arrive(ReceiveRing& ring, std::span<const std::byte> bytes) {
  ASSERT_LE(bytes.size(), ring.free_space().size());
  std::ranges::copy(bytes, ring.free_space().begin());
  ring.add(bytes.size());
}

Bytes random_tile(std::size_t bytes, std::uint64_t seed = 1) { return tcp_test::random_bytes(bytes, seed); }

TEST(TcpReceiveRing, ShowsWhatTheEncoderWrites) {
  const Bytes floats = tcp_test::gradient_bytes(kTileBytes, 5);
  for (const bool checksums : {false, true}) {
    for (const bool packs : {false, true}) {
      TileEncoder encoder(checksums, packs, 0);
      ReceiveRing ring = ring_of();
      std::uint64_t position = 0;
      for (const std::size_t size : {0, 1, 24, 25, 64, 4000, 8192}) {
        const Bytes data(floats.begin(), floats.begin() + static_cast<std::ptrdiff_t>(size));
        arrive(ring, frame_of(encoder, position, data));
        ASSERT_EQ(ring.examine(position), Front::whole) << size;
        EXPECT_EQ(ring.front()->tile, header_of(data));
        EXPECT_TRUE(std::ranges::equal(ring.payload(), data)) << size;
        EXPECT_EQ(ring.front()->packed_bytes != 0, packs && size >= kLeastPackable) << size;
        ring.release();
        EXPECT_EQ(ring.filled_bytes(), 0U);
        EXPECT_EQ(ring.received(), ++position);
      }
    }
  }
}

TEST(TcpReceiveRing, WaitsForTheWholeFrame) {
  ReceiveRing ring = ring_of();
  const Bytes frame = frame_of(0, random_tile(1000));
  arrive(ring, std::span(frame).first(kFrameHeaderBytes - 1));
  EXPECT_EQ(ring.examine(0), Front::none);
  EXPECT_EQ(ring.missing_bytes(), 0U) << "not known";
  arrive(ring, std::span(frame).subspan(kFrameHeaderBytes - 1, 101));
  EXPECT_EQ(ring.examine(0), Front::partial);
  EXPECT_EQ(ring.missing_bytes(), frame.size() - kFrameHeaderBytes - 100);
  arrive(ring, std::span(frame).subspan(kFrameHeaderBytes + 100));
  EXPECT_EQ(ring.examine(0), Front::whole);
  EXPECT_EQ(ring.received(), 1U);
}

TEST(TcpReceiveRing, FramesStayContiguousAtItsEnd) {
  ReceiveRing ring = ring_of();
  const Bytes data = random_tile(5000);
  arrive(ring, frame_of(0, data));
  for (std::uint64_t position = 0; position < 50; ++position) {
    arrive(ring, frame_of(position + 1, data));  // one more is always there
    ASSERT_EQ(ring.examine(position), Front::whole);
    ASSERT_TRUE(std::ranges::equal(ring.payload(), data));
    ring.release();
  }
}

TEST(TcpReceiveRing, RejectsDamagedFrames) {
  const Bytes frame = frame_of(7, random_tile(1000));
  ReceiveRing ring = ring_of();
  Bytes damaged = frame;
  damaged[20] ^= std::byte{1};
  arrive(ring, damaged);
  EXPECT_EQ(ring.examine(0), Front::bad_header);
  EXPECT_NE(ring.describe_bad_header(), "");
  ring.cut_short();

  damaged = frame;
  damaged[500] ^= std::byte{1};
  arrive(ring, damaged);
  EXPECT_EQ(ring.examine(0), Front::bad_checksum);
  ring.cut_short();
  EXPECT_EQ(ring.received(), 0U);
  EXPECT_FALSE(ring.front());

  arrive(ring, frame);
  EXPECT_EQ(ring.examine(0), Front::whole) << "retransmitted";
}

TEST(TcpReceiveRing, RejectsWhatCannotBeUnpacked) {
  TileEncoder encoder(false, true, 0);
  Bytes frame = frame_of(encoder, 0, Bytes(4096));
  FrameHeader header{0, header_of(Bytes(4096)), {}, 100};
  encode(header, {}, std::span<std::byte, kFrameHeaderBytes>(frame.data(), kFrameHeaderBytes));
  frame.resize(frame_bytes(header), std::byte{0xff});
  ReceiveRing ring = ring_of();
  arrive(ring, frame);
  EXPECT_EQ(ring.examine(0), Front::bad_packing);
  EXPECT_EQ(ring.received(), 0U);
}

TEST(TcpReceiveRing, RejectsTilesThatHaveArrived) {
  ReceiveRing ring = ring_of();
  arrive(ring, frame_of(5, random_tile(100)));
  ASSERT_EQ(ring.examine(0), Front::whole);
  ring.release();
  arrive(ring, frame_of(5, random_tile(100)));
  EXPECT_EQ(ring.examine(0), Front::repeated);
  ring.cut_short();
  arrive(ring, frame_of(6, random_tile(100)));
  EXPECT_EQ(ring.examine(8), Front::repeated) << "tiles below 8 came by other sockets";
}

TEST(TcpReceiveRing, KeepsAWholeFrontWhenCutShort) {
  ReceiveRing ring = ring_of();
  const Bytes data = random_tile(300);
  arrive(ring, frame_of(0, data));
  arrive(ring, std::span<const std::byte>(frame_of(1, data)).first(100));
  ASSERT_EQ(ring.examine(0), Front::whole);
  ring.cut_short();
  EXPECT_EQ(ring.received(), 1U);
  EXPECT_TRUE(std::ranges::equal(ring.payload(), data));
  ring.release();
  EXPECT_EQ(ring.filled_bytes(), 0U);
}

TEST(TcpTileEncoder, LendsWhereNothingTouchesThePayload) {
  Bytes frame(frame_bytes(kTileBytes));
  const auto lent = [&](TileEncoder encoder, std::size_t size, bool may_lend) {
    const Bytes data = random_tile(size);
    return encoder.encode(frame.data(), 0, header_of(data), data, may_lend).lent;
  };
  EXPECT_TRUE(lent({false, false, 1024}, 1024, true));
  EXPECT_FALSE(lent({false, false, 1024}, 1024, false));
  EXPECT_FALSE(lent({false, false, 1024}, 960, true)) << "too small";
  EXPECT_FALSE(lent({false, false, 1024}, 1030, true)) << "does not fill its frame";
  EXPECT_FALSE(lent({true, false, 1024}, 1024, true)) << "has a checksum";
  EXPECT_TRUE(lent({false, true, 1024}, 4096, true)) << "random bytes cannot be packed";
}

}  // namespace
}  // namespace shoal::tcp
