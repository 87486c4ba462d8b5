// The cache of registrations: shared, bounded, and never stale.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/ofi/memory_fabric.h"
#include "transports/rails/registrations.h"

namespace shoal::rails {
namespace {

constexpr std::size_t kBlock = RegistrationCache::kBlockBytes;

class Registrations : public ::testing::Test {
 protected:
  Registrations() {
    auto rails = testing::MemoryFabric(std::make_shared<testing::MemoryNetwork>(testing::MemoryRailOptions{})).open({});
    rail_ = std::move(rails->front());
  }
  std::vector<std::byte> memory_ = std::vector<std::byte>(8 * kBlock + 100);
  std::unique_ptr<Rail> rail_;
};

TEST_F(Registrations, AdjacentBuffersShareABlock) {
  RegistrationCache cache(*rail_, memory_, {});
  auto* const first = cache.acquire(memory_.data() + 10, 1000, 0);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(cache.acquire(memory_.data() + 5000, 1000, 0), first);
  EXPECT_EQ(cache.entries(), 1U);
  EXPECT_EQ(cache.bytes(), kBlock);
  auto* const across = cache.acquire(memory_.data() + kBlock - 10, 20, 0);
  ASSERT_NE(across, nullptr);
  EXPECT_EQ(across->memory.size(), 2 * kBlock);
  auto* const last = cache.acquire(memory_.data() + memory_.size() - 1, 1, 0);
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->memory.size(), 100U);
  cache.clear();
  EXPECT_EQ(cache.bytes(), 0U);
}

TEST_F(Registrations, OtherMemoryHasNoBlock) {
  RegistrationCache cache(*rail_, std::span(memory_).subspan(kBlock, kBlock), {});
  EXPECT_EQ(cache.acquire(memory_.data(), 10, 0), nullptr);
  EXPECT_EQ(cache.acquire(memory_.data() + kBlock - 1, 10, 0), nullptr);
  EXPECT_EQ(cache.acquire(memory_.data() + 2 * kBlock - 1, 2, 0), nullptr);
  EXPECT_EQ(cache.acquire(memory_.data() + 2 * kBlock, 0, 0), nullptr);
  EXPECT_NE(cache.acquire(memory_.data() + 2 * kBlock - 1, 1, 0), nullptr);
  cache.clear();
}

TEST_F(Registrations, EvictsLeastRecentlyUsedWithinBounds) {
  for (const RegistrationLimits limits : {RegistrationLimits{2 * kBlock, 100}, RegistrationLimits{100 * kBlock, 2}}) {
    RegistrationCache cache(*rail_, memory_, limits);
    const auto acquire = [&](std::size_t block) { return cache.acquire(memory_.data() + block * kBlock, 100, 0); };
    auto* const zero = acquire(0);
    auto* const one = acquire(1);
    EXPECT_EQ(acquire(2), nullptr) << "both are in use";
    cache.release(*zero);
    cache.release(*one);
    EXPECT_EQ(acquire(0), zero);  // used again: now the other is older
    cache.release(*zero);
    auto* const two = acquire(2);
    ASSERT_NE(two, nullptr);
    EXPECT_EQ(cache.entries(), 2U);
    EXPECT_EQ(acquire(0), zero);
    EXPECT_LE(cache.bytes(), limits.bytes);
    cache.clear();
  }
}

TEST_F(Registrations, ReleasedPagesDropAllRegistrations) {
  RegistrationCache cache(*rail_, memory_, {});
  auto* const used = cache.acquire(memory_.data(), 100, 0);
  auto* const idle = cache.acquire(memory_.data() + kBlock, 100, 0);
  cache.release(*idle);
  const std::uint64_t old_key = used->registration.key;
  auto* const anew = cache.acquire(memory_.data(), 100, 1);
  ASSERT_NE(anew, nullptr);
  EXPECT_NE(anew->registration.key, old_key);
  EXPECT_EQ(cache.entries(), 2U) << "the idle one has gone, the used one waits for its user";
  cache.release(*used);
  EXPECT_EQ(cache.entries(), 1U);
  cache.clear();
}

}  // namespace
}  // namespace shoal::rails
