// Packing of payloads: against a decoder of its own, for every instruction set; how much it saves; bytes that are no packing.
#include "src/device/targets.h"

#include <hwy/targets.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/seeds.h"
#include "transports/tcp/packing.h"
#include "transports/tcp/packing_kernels.h"

namespace shoal::tcp {
namespace {

using Bytes = std::vector<std::byte>;

template <typename ControlRecord>
Bytes bytes_of(std::size_t bytes, const std::function<ControlRecord()>& word) {
  std::vector<ControlRecord> words(bytes / sizeof(ControlRecord) + 1);
  for (ControlRecord& each : words) each = word();
  Bytes all(bytes);
  if (bytes > 0) std::memcpy(all.data(), words.data(), bytes);
  return all;
}

std::uint16_t as_bfloat16(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }

// The layout once more, straight from its description.
std::optional<Bytes> unpack_by_definition(std::span<const std::byte> packed, std::size_t payload_bytes) {
  std::size_t at = 0;
  const auto take = [&] { return std::to_integer<unsigned>(packed[at++]); };
  const std::size_t word_bytes = take();
  if (word_bytes != 2 && word_bytes != 4) return std::nullopt;
  Bytes payload(payload_bytes);
  const std::size_t words = payload_bytes / word_bytes;
  for (std::size_t i = words * word_bytes; i < payload_bytes; ++i) payload[i] = static_cast<std::byte>(take());
  for (std::size_t first = 0; first < words; first += 4096 / word_bytes) {
    const std::size_t n = std::min(4096 / word_bytes, words - first);
    const unsigned base = take();
    const unsigned other = take();
    const std::size_t rests = at;
    const std::size_t planes = rests + n * (word_bytes - 1);
    at = planes + (n + 63) / 64 * 24;
    for (std::size_t i = 0; i < n; ++i) {
      unsigned code = 0;
      for (std::size_t plane = 0; plane < 3; ++plane) {
        const auto byte = std::to_integer<unsigned>(packed[planes + i / 64 * 24 + plane * 8 + i % 64 / 8]);
        code |= (byte >> i % 8 & 1) << plane;
      }
      const unsigned exponent = code == 7 ? other : code == 6 ? take() : (base + code) & 0xff;
      std::uint64_t rotated = std::uint64_t{exponent} << (8 * (word_bytes - 1));
      for (std::size_t k = 0; k + 1 < word_bytes; ++k)
        rotated |= std::to_integer<std::uint64_t>(packed[rests + i * (word_bytes - 1) + k]) << 8 * k;
      const std::uint64_t word = rotated >> 1 | (rotated & 1) << (8 * word_bytes - 1);
      for (std::size_t k = 0; k < word_bytes; ++k)
        payload[(first + i) * word_bytes + k] = static_cast<std::byte>(word >> 8 * k);
    }
  }
  if (at != packed.size()) return std::nullopt;
  return payload;
}

// Packs and unpacks in memory of exactly these sizes at an address with that remainder: a sanitizer sees what goes beyond, and
// guard bytes show it without one. The share that is left; 0 where it does not pack.
double round_trip(std::span<const std::byte> payload, std::size_t misaligned = 0) {
  constexpr std::size_t kGuard = 16;
  constexpr std::byte kMark{0xa5};
  const auto guarded = [&](std::size_t size) { return Bytes(misaligned + size + kGuard, kMark); };
  const auto intact = [&](const Bytes& memory, std::size_t size) {
    for (std::size_t i = 0; i < misaligned; ++i) EXPECT_EQ(memory[i], kMark);
    for (std::size_t i = misaligned + size; i < memory.size(); ++i) ASSERT_EQ(memory[i], kMark) << "behind " << size;
  };
  Bytes in = guarded(payload.size());
  std::copy(payload.begin(), payload.end(), in.begin() + static_cast<std::ptrdiff_t>(misaligned));
  Bytes out = guarded(payload.size());
  const std::size_t bytes =
      pack(std::span(in).subspan(misaligned, payload.size()), std::span(out).subspan(misaligned, payload.size()));
  intact(out, payload.size());
  if (bytes == 0) return 0;
  EXPECT_LE(bytes, payload.size() * 94 / 100);
  // Of its own, so that nothing follows the last byte.
  const Bytes packed(out.begin() + static_cast<std::ptrdiff_t>(misaligned),
                     out.begin() + static_cast<std::ptrdiff_t>(misaligned + bytes));
  const auto right = unpack_by_definition(packed, payload.size());
  EXPECT_TRUE(right && std::ranges::equal(*right, payload)) << payload.size() << " bytes";
  Bytes back = guarded(payload.size());
  EXPECT_TRUE(unpack(packed, std::span(back).subspan(misaligned, payload.size())));
  intact(back, payload.size());
  EXPECT_TRUE(std::ranges::equal(std::span(back).subspan(misaligned, payload.size()), payload)) << payload.size() << " bytes";
  return static_cast<double>(bytes) / static_cast<double>(payload.size());
}

void use_target(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class Packing : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { use_target(GetParam()); }
  void TearDown() override { use_target(0); }
};

TEST_P(Packing, SavesExponentBits) {
  std::mt19937_64 random(1);
  constexpr std::size_t kBytes = 256 << 10;
  for (const float scale : {1e-20F, 1e-4F, 1.0F, 3e9F}) {
    std::normal_distribution<float> normal(0, scale);
    const double floats = round_trip(bytes_of<float>(kBytes, [&] { return normal(random); }));
    EXPECT_GT(floats, 0.8);
    EXPECT_LE(floats, 0.88) << scale;
    const double halves = round_trip(bytes_of<std::uint16_t>(kBytes, [&] { return as_bfloat16(normal(random)); }));
    EXPECT_GT(halves, 0.6);
    EXPECT_LE(halves, 0.76) << scale;
  }
  // As gradients are: layers of different scales, tails longer than normal ones.
  std::exponential_distribution<float> size(1);
  float scale = 1;
  std::size_t left = 0;
  const double gradients = round_trip(bytes_of<float>(kBytes, [&] {
    if (left-- == 0) left = 1000 + random() % 5000, scale = std::exp(-static_cast<float>(random() % 20));
    return (random() % 2 == 0 ? -1.0F : 1.0F) * scale * size(random);
  }));
  EXPECT_GT(gradients, 0.8);
  EXPECT_LE(gradients, 0.88);
}

TEST_P(Packing, ZerosCostNoMoreThanOtherNumbers) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal(0, 1e-3F);
  for (const unsigned zeros_of_eight : {1U, 4U, 7U, 8U}) {
    const double left =
        round_trip(bytes_of<float>(64 << 10, [&] { return random() % 8 < zeros_of_eight ? 0.0F : normal(random); }));
    EXPECT_GT(left, 0) << zeros_of_eight;
    EXPECT_LE(left, 0.87) << zeros_of_eight;
  }
}

TEST_P(Packing, DoesNotPackDataWithoutExponents) {
  std::mt19937_64 random(3);
  EXPECT_EQ(round_trip(bytes_of<std::uint64_t>(256 << 10, [&] { return random(); })), 0);
  // What looks like floats in the sample only: given up on the way.
  std::normal_distribution<float> normal;
  Bytes half = bytes_of<std::uint64_t>(256 << 10, [&] { return random(); });
  for (std::size_t place = 0; place < half.size(); place += half.size() / 16) {
    const Bytes floats = bytes_of<float>(std::min<std::size_t>(1024, half.size() - place), [&] { return normal(random); });
    std::ranges::copy(floats, half.begin() + static_cast<std::ptrdiff_t>(place));
  }
  EXPECT_EQ(round_trip(half), 0);
  EXPECT_EQ(round_trip(bytes_of<float>(kLeastPackable - 1, [&] { return normal(random); })), 0) << "too small";
  EXPECT_EQ(round_trip({}), 0);
}

TEST_P(Packing, RoundTripKeepsEveryBit) {
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  const auto any = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random())); };
  const float infinity = std::numeric_limits<float>::infinity();
  // Rarities among normal numbers: NaNs with payloads, both infinities, denormals, both zeros.
  const std::vector<std::function<float()>> rare = {
      [&] { return std::bit_cast<float>(0x7f800000U | static_cast<std::uint32_t>(random() & 0x807fffff)); },
      [&] { return random() % 2 == 0 ? infinity : -infinity; },
      [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random() & 0x807fffff)); },
      [&] { return random() % 2 == 0 ? 0.0F : -0.0F; }, any};
  for (const auto& strange : rare) {
    const double left = round_trip(bytes_of<float>(50'000, [&] { return random() % 20 == 0 ? strange() : normal(random); }));
    EXPECT_GT(left, 0.8);
    if (&strange != &rare.back()) round_trip(bytes_of<float>(50'000, strange));
  }
  // Every exponent as the least of a window, so that windows go round.
  for (unsigned base = 0; base < 256; ++base) {
    const double left = round_trip(bytes_of<std::uint32_t>(4096, [&] {
      const auto exponent = static_cast<std::uint32_t>((base + random() % 6) & 0xff);
      return exponent << 23 | static_cast<std::uint32_t>(random() & 0x807fffff);
    }));
    EXPECT_GT(left, 0.8) << base;
  }
  EXPECT_GT(round_trip(bytes_of<std::int32_t>(50'000, [&] { return static_cast<int>(random() % 1000); })), 0)
      << "small integers";
  EXPECT_GT(round_trip(bytes_of<std::int16_t>(50'000, [&] { return static_cast<std::int16_t>(random() % 1000); })), 0);
}

TEST_P(Packing, HandlesEveryLengthAndAlignment) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  const Bytes floats = bytes_of<float>(13'000, [&] { return normal(random); });
  const Bytes halves = bytes_of<std::uint16_t>(13'000, [&] { return as_bfloat16(normal(random)); });
  for (const Bytes* all : {&floats, &halves}) {
    for (std::size_t size = 0; size <= 5000; ++size) {
      const double left = round_trip(std::span(*all).first(size), size % 67);
      ASSERT_EQ(left > 0, size >= kLeastPackable) << size;
    }
    // Words that begin in the middle of a number.
    for (std::size_t start = 0; start < 9; ++start) round_trip(std::span(*all).subspan(start, 12'345 + start), start);
  }
}

TEST_P(Packing, RefusesOtherBytesHarmlessly) {
  // Memory of its own for each, so that a sanitizer sees every byte beyond.
  const auto try_it = [](std::span<const std::byte> bytes, std::size_t payload_bytes) {
    const auto packed = std::make_unique<std::byte[]>(bytes.size());
    std::ranges::copy(bytes, packed.get());
    const auto payload = std::make_unique<std::byte[]>(payload_bytes + 1);
    payload[payload_bytes] = std::byte{0xa5};
    const bool good = unpack({packed.get(), bytes.size()}, {payload.get(), payload_bytes});
    EXPECT_EQ(payload[payload_bytes], std::byte{0xa5});
    return good;
  };
  const auto seeds = testing::wanted_seeds({6, 1});
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE("SHOAL_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (const bool wide : {true, false}) {
      constexpr std::size_t kSize = 10'007;
      const Bytes payload =
          wide ? bytes_of<float>(kSize, [&] { return random() % 10 == 0 ? 1e-30F : normal(random); })
               : bytes_of<std::uint16_t>(kSize, [&] { return as_bfloat16(random() % 10 == 0 ? 1e-30F : normal(random)); });
      Bytes packed(kSize);
      packed.resize(pack(payload, packed));
      ASSERT_GT(packed.size(), 0U);
      ASSERT_TRUE(try_it(packed, kSize));
      for (std::size_t size = 0; size < packed.size(); size += 1 + random() % 7)
        ASSERT_FALSE(try_it(std::span(packed).first(size), kSize)) << size;
      Bytes longer = packed;
      longer.push_back({});
      EXPECT_FALSE(try_it(longer, kSize));
      for (const std::size_t other : {std::size_t{0}, std::size_t{1}, kSize - 64, kSize + 64, 3 * kSize})
        EXPECT_FALSE(try_it(packed, other)) << other;
      int refused = 0;
      for (int i = 0; i < 3000; ++i) {
        Bytes changed = packed;
        for (std::uint64_t k = 0; k <= random() % 4; ++k)
          changed[random() % changed.size()] ^= static_cast<std::byte>(1 << random() % 8);
        refused += !try_it(changed, kSize);
      }
      EXPECT_GT(refused, 0);
    }
    for (int i = 0; i < 3000; ++i) {
      Bytes any = bytes_of<std::uint8_t>(random() % 3000, [&] { return static_cast<std::uint8_t>(random()); });
      if (!any.empty()) any[0] = std::byte{static_cast<std::uint8_t>(random() % 2 == 0 ? 2 : 4)};
      const std::size_t size = 16 + random() % 4000;
      EXPECT_TRUE(!try_it(any, size) || any.size() > size / 2) << "no packing is so small";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Target, Packing, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

// The suite above would prove little if every parameter ran the same code.
TEST(PackingDispatch, EveryTargetHasItsOwnKernels) {
  std::set<const PackingKernels*> seen;
  const auto targets = hwy::SupportedAndGeneratedTargets();
  for (const std::int64_t target : targets) {
    use_target(target);
    seen.insert(&packing_kernels());
  }
  use_target(0);
  EXPECT_EQ(seen.size(), targets.size());
}

}  // namespace
}  // namespace shoal::tcp
