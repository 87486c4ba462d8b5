// CRC-32C against published values and against one bit at a time.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "transports/common/checksum.h"

namespace shoal::tcp {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// As the definition has it: bit by bit.
std::uint32_t by_definition(std::span<const std::byte> data) {
  std::uint32_t crc = ~0U;
  for (const std::byte byte : data) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937_64 random(count + 1);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32c, HasThePublishedValues) {
  std::array<std::byte, 32> zeros{};
  std::array<std::byte, 32> ones;
  ones.fill(std::byte{0xff});
  std::array<std::byte, 32> rising;
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<std::byte>(i);
  for (const auto sum : {crc32c, crc32c_portable}) {
    EXPECT_EQ(sum({}), 0U);
    EXPECT_EQ(sum(bytes_of("123456789")), 0xe3069283U);
    EXPECT_EQ(sum(zeros), 0x8a9136aaU);
    EXPECT_EQ(sum(ones), 0x62a8ab43U);
    EXPECT_EQ(sum(rising), 0x46dd794eU);
  }
}

TEST(Crc32c, IsTheSameInEveryImplementation) {
  std::printf("by %s\n", crc32c_is_fast() ? "instructions" : "tables");
  // Around the lengths at which strands begin, and some beyond.
  for (const std::size_t size :
       {1, 7, 8, 9, 383, 384, 385, 767, 768, 3071, 3072, 3073, 3456, 6144, 10007, 12288, 12289, 70001}) {
    const auto data = random_bytes(size + 3);
    for (std::size_t start = 0; start < 3; ++start) {
      const auto part = std::span(data).subspan(start, size);
      const std::uint32_t right = by_definition(part);
      EXPECT_EQ(crc32c(part), right) << size << " bytes";
      EXPECT_EQ(crc32c_portable(part), right) << size << " bytes";
      std::vector<std::byte> copy(size + 1, std::byte{0x77});
      EXPECT_EQ(copy_with_crc32c(copy.data(), part), right) << size << " bytes";
      EXPECT_EQ(std::memcmp(copy.data(), part.data(), size), 0);
      EXPECT_EQ(copy[size], std::byte{0x77}) << "wrote beyond";
    }
  }
}

TEST(Crc32c, DetectsAnyChangedBit) {
  auto data = random_bytes(4096);
  const std::uint32_t before = crc32c(data);
  for (std::size_t bit = 0; bit < 8 * data.size(); bit += 5) {
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(crc32c(data), before) << "bit " << bit;
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace shoal::tcp
