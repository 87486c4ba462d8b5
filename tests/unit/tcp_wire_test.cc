// The records of the TCP transport: round trips, the bytes themselves, and refusal of everything else.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "tests/mentions.h"
#include "transports/tcp/address.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {
namespace {

constexpr std::size_t kMaxPayload = 1 << 17;

FrameHeader sample_frame() {
  FrameHeader header;
  header.position = 0x0102030405060708;
  header.tile = {0x11121314, 0x21222324, 0x31323334, 0x00010000, 0x4142434445464748};
  header.payload_sum = 0x51525354;
  header.packed_bytes = 0xc1c2;
  return header;
}

using FrameBytes = std::array<std::byte, kFrameHeaderBytes>;

FrameBytes bytes_of(const FrameHeader& header) {
  FrameBytes bytes;
  encode(header, {}, bytes);
  return bytes;
}

Hello sample_hello() {
  Hello hello;
  hello.kind = HelloKind::reply;
  hello.job_id = 0x1122334455667788;
  hello.from_rank = 3;
  hello.to_rank = 70000;
  hello.size = 100000;
  hello.sockets = 4;
  hello.socket_index = 2;
  hello.tile_bytes = 1 << 20;
  hello.nonce.fill(std::byte{0x5a});
  return hello;
}

TEST(TcpWire, FramesSurviveTheRoundTrip) {
  EXPECT_EQ(decode_frame(bytes_of(sample_frame()), kMaxPayload), sample_frame());
  EXPECT_EQ(decode_frame(bytes_of(FrameHeader{}), kMaxPayload), FrameHeader{});
  FrameHeader without_sum = sample_frame();
  without_sum.payload_sum.reset();
  EXPECT_EQ(decode_frame(bytes_of(without_sum), kMaxPayload), without_sum);
}

TEST(TcpWire, TinyPayloadsAreInTheChecksummedHeader) {
  std::array<std::byte, 24> payload;
  payload.fill(std::byte{0x5a});
  FrameHeader header = sample_frame();
  header.payload_sum.reset();  // such a payload needs none
  header.packed_bytes = 0;     // and cannot be packed
  for (const std::size_t size : {1UL, 7UL, 24UL}) {
    header.tile.size_bytes = static_cast<std::uint32_t>(size);
    FrameBytes bytes;
    encode(header, std::span(payload).first(size), bytes);
    EXPECT_EQ(decode_frame(bytes, kMaxPayload), header);
    EXPECT_EQ(std::memcmp(bytes.data() + payload_offset(size), payload.data(), size), 0);
    for (std::size_t i = payload_offset(size) + size; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], std::byte{0});
    bytes[payload_offset(size)] ^= std::byte{1};
    EXPECT_FALSE(decode_frame(bytes, kMaxPayload).has_value());
  }
}

TEST(TcpWire, FramesAreLittleEndianAtFixedPlaces) {
  const FrameBytes bytes = bytes_of(sample_frame());
  const auto at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(
      std::string({static_cast<char>(at(0)), static_cast<char>(at(1)), static_cast<char>(at(2)), static_cast<char>(at(3))}),
      "TILS");
  FrameHeader without_sum = sample_frame();
  without_sum.payload_sum.reset();
  EXPECT_EQ(bytes_of(without_sum)[3], std::byte{'E'});
  EXPECT_EQ(at(8), 0x08);
  EXPECT_EQ(at(15), 0x01);
  EXPECT_EQ(at(16), 0x14);
  EXPECT_EQ(at(20), 0x24);
  EXPECT_EQ(at(24), 0x34);
  EXPECT_EQ(at(28), 0x00);
  EXPECT_EQ(at(30), 0x01);
  EXPECT_EQ(at(32), 0x48);
  EXPECT_EQ(at(39), 0x41);
  EXPECT_EQ(at(40), 0x54);
  EXPECT_EQ(at(43), 0x51);
  EXPECT_EQ(at(44), 0xc2);
  EXPECT_EQ(at(47), 0x00);
}

TEST(TcpWire, ChangedBitOfAFrameHeaderIsDetected) {
  const FrameBytes good = bytes_of(sample_frame());
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    FrameBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(decode_frame(bad, kMaxPayload)) << "bit " << bit;
    EXPECT_FALSE(describe_bad_frame(bad, kMaxPayload).empty());
  }
}

TEST(TcpWire, PayloadAboveTheTileSizeIsRefused) {
  FrameHeader header = sample_frame();
  header.tile.size_bytes = kMaxPayload;
  EXPECT_TRUE(decode_frame(bytes_of(header), kMaxPayload));
  header.tile.size_bytes = kMaxPayload + 1;
  EXPECT_FALSE(decode_frame(bytes_of(header), kMaxPayload));
  EXPECT_NE(describe_bad_frame(bytes_of(header), kMaxPayload).find("131073"), std::string::npos);
  header.tile.size_bytes = 0xffffffff;
  EXPECT_FALSE(decode_frame(bytes_of(header), kMaxPayload));
}

TEST(TcpWire, PackedPayloadIsSmallerButNotTiny) {
  FrameHeader header = sample_frame();
  for (const std::uint32_t good : {0U, 25U, header.tile.size_bytes - 1}) {
    header.packed_bytes = good;
    EXPECT_EQ(decode_frame(bytes_of(header), kMaxPayload), header) << good;
  }
  for (const std::uint32_t bad : {1U, 24U, header.tile.size_bytes, header.tile.size_bytes + 1, 0xffffffffU}) {
    header.packed_bytes = bad;
    EXPECT_FALSE(decode_frame(bytes_of(header), kMaxPayload)) << bad;
    EXPECT_THAT(describe_bad_frame(bytes_of(header), kMaxPayload), testing::Mentions(std::to_string(bad)));
  }
}

TEST(TcpWire, FramesAreWholeCacheLines) {
  EXPECT_EQ(frame_bytes(0), 64U);
  EXPECT_EQ(frame_bytes(24), 64U) << "in the header";
  EXPECT_EQ(frame_bytes(25), 128U);
  EXPECT_EQ(frame_bytes(64), 128U);
  EXPECT_EQ(frame_bytes(65), 192U);
  FrameHeader packed = sample_frame();
  packed.packed_bytes = 65;
  EXPECT_EQ(frame_bytes(packed), 192U);
  packed.packed_bytes = 0;
  EXPECT_EQ(frame_bytes(packed), frame_bytes(packed.tile.size_bytes));
}

TEST(TcpWire, HelloRoundTripsAndDetectsChangedBits) {
  const Key key = key_from_text("one key");
  const HelloRecord good = encode(sample_hello(), key, "before");
  EXPECT_EQ(decode_hello(good), sample_hello());
  EXPECT_TRUE(is_proven(good, key, "before"));
  EXPECT_FALSE(is_proven(good, key, "befor"));
  EXPECT_FALSE(is_proven(good, key_from_text("another"), "before"));
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    HelloRecord bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    // The check sum covers the fields, the proof covers all.
    EXPECT_FALSE(is_proven(bad, key, "before")) << "bit " << bit;
    EXPECT_TRUE(bit >= 8 * 64 || !decode_hello(bad)) << "bit " << bit;
  }
}

TEST(TcpWire, HelloHasNonceOrReceivedCount) {
  const Key key = key_from_text("one key");
  for (const HelloKind kind : {HelloKind::greet, HelloKind::reply, HelloKind::confirm, HelloKind::accept, HelloKind::request}) {
    Hello hello = sample_hello();
    hello.kind = kind;
    hello.integrity = 1;
    if (kind == HelloKind::greet || kind == HelloKind::reply) {
      hello.received = 0;
    } else {
      hello.nonce = {};
      hello.received = 0x0102030405060708;
    }
    EXPECT_EQ(decode_hello(encode(hello, key)), hello);
  }
}

TEST(TcpWire, ControlRecordsRoundTripAndDetectChangedBits) {
  for (const ControlRecord& word :
       {ControlRecord{ControlRecord::Kind::acknowledge, 7, 0x0102030405060708},
        ControlRecord{ControlRecord::Kind::close_notice, 0, 0}, ControlRecord{ControlRecord::Kind::flush, 0, 0}}) {
    std::array<std::byte, kControlRecordBytes> good;
    encode(word, good);
    EXPECT_EQ(decode_control_record(good), word);
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
      auto bad = good;
      bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_FALSE(decode_control_record(bad)) << "bit " << bit;
    }
  }
}

TEST(TcpWire, RandomBytesAreNoRecord) {
  std::mt19937_64 random(42);
  for (int i = 0; i < 100'000; ++i) {
    FrameBytes bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    ASSERT_FALSE(decode_frame(bytes, kMaxPayload));
    HelloRecord record;
    for (std::byte& byte : record) byte = static_cast<std::byte>(random());
    ASSERT_FALSE(decode_hello(record));
  }
}

TEST(TcpAddress, ListsSurviveTheRoundTrip) {
  const std::string text = "10.0.0.3:4711,[fd00::3]:4711,127.0.0.1:1";
  const auto addresses = split_addresses(text);
  ASSERT_TRUE(addresses.ok()) << addresses.status().to_string();
  EXPECT_EQ(addresses->size(), 3U);
  EXPECT_EQ((*addresses)[1].family(), AF_INET6);
  EXPECT_EQ((*addresses)[0].port(), 4711);
  EXPECT_EQ(join_addresses(*addresses), text);
}

TEST(TcpAddress, MalformedAddressIsRefused) {
  for (const char* text :
       {"", ",", ":", "10.0.0.3", "10.0.0.3:", "10.0.0.3:0", "10.0.0.3:65536", "10.0.0.3:-1", "10.0.0.3:12x", "fd00::3:12",
        "[10.0.0.3]:12", "[fd00::3]", "[]:12", "[:12", "]:12", "localhost:80", "10.0.0.3:1,", "10.0.0.3:1,,10.0.0.3:1",
        "1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1,1.1.1.1:1"}) {
    EXPECT_FALSE(split_addresses(text).ok()) << text;
  }
  EXPECT_FALSE(split_addresses(std::string_view("10.0.0.3\0:12", 12)).ok()) << "a zero byte within";
}

TEST(TcpAddress, UnknownInterfaceErrorListsTheKnownOnes) {
  const auto none = local_addresses("nosuchinterface0");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(none.status().message().find("nosuchinterface0"), std::string::npos);
  EXPECT_NE(none.status().message().find("lo 127.0.0.1"), std::string::npos) << none.status().message();
}

TEST(TcpAddress, InterfaceAndWildcardHaveAddresses) {
  const auto loopback = local_addresses("lo");
  ASSERT_TRUE(loopback.ok()) << loopback.status().to_string();
  EXPECT_EQ(loopback->front().to_string(), "127.0.0.1:0");
  const auto all = local_addresses("");
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  EXPECT_FALSE(all->empty());
  EXPECT_LE(all->size(), kMaxAdvertised);
}

}  // namespace
}  // namespace shoal::tcp
