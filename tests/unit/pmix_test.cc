// Start-up under mpirun, over a fake PMIx: what rank 0 publishes, and how the other ranks use it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "src/join/pmix.h"
#include "tests/fuzz/fake_pmix.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::Mentions;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

class Pmix : public ::testing::Test {
 protected:
  Pmix() {
    ::setenv("SHOAL_HOST_ADDRESS", "127.0.0.1", 1);
    fake_pmix_set_status(PMIX_SUCCESS, PMIX_SUCCESS, PMIX_SUCCESS);
  }
  ~Pmix() override { ::unsetenv("SHOAL_HOST_ADDRESS"); }

  static Result<OpenedStore> open(int rank, Clock::duration time_limit = std::chrono::seconds(30), bool has_key = false) {
    const Launch launch{.launcher = "mpirun", .rank = rank, .size = 2, .master_host = {}, .job = "job"};
    return open_pmix_store(launch, {key_from_text("given"), has_key}, Clock::now() + time_limit);
  }
  static void publish(std::string text) {
    static std::string published;
    published = std::move(text);
    fake_pmix_set_value(PMIX_STRING, published.data());
  }
};

TEST_F(Pmix, RanksJoinAtAddressOfRankZero) {
  for (const bool has_key : {false, true}) {
    const auto first = open(0, std::chrono::seconds(30), has_key);
    ASSERT_TRUE(first.ok()) << first.status().to_string();
    EXPECT_THAT(fake_pmix_seen()->put, StartsWith("127.0.0.1 "));
    publish(fake_pmix_seen()->put);
    const auto second = open(1, std::chrono::seconds(30), has_key);
    ASSERT_TRUE(second.ok()) << second.status().to_string();
    EXPECT_EQ(first->key.key.bytes, second->key.key.bytes);
    EXPECT_EQ(first->key.key.bytes == key_from_text("given").bytes, has_key);
    EXPECT_TRUE(first->key.secret && second->key.secret);
    EXPECT_EQ(first->key.told, !has_key);
    EXPECT_EQ(second->key.told, !has_key);
    ASSERT_TRUE(first->store->set("key", "value").ok());
    EXPECT_EQ(second->store->get("key", Clock::now() + std::chrono::seconds(30)).value(), "value");
  }
}

TEST_F(Pmix, WaitsHaveTimeLimits) {
  const auto first = open(0);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  publish(fake_pmix_seen()->put);
  ASSERT_TRUE(open(1).ok());
  for (const int seconds : {fake_pmix_seen()->fence_timeout_s, fake_pmix_seen()->get_timeout_s}) {
    EXPECT_GE(seconds, 1);
    EXPECT_LE(seconds, 30);
  }
  // A deadline in the past still gives a limit: PMIx takes 0 as none.
  publish("!");
  static_cast<void>(open(1, std::chrono::seconds(-5)));
  EXPECT_EQ(fake_pmix_seen()->fence_timeout_s, 1);
  EXPECT_EQ(fake_pmix_seen()->get_timeout_s, 1);
}

TEST_F(Pmix, MissingRankIsATimeout) {
  fake_pmix_set_status(PMIX_SUCCESS, PMIX_ERR_TIMEOUT, PMIX_SUCCESS);
  for (const int rank : {0, 1}) {
    const auto store = open(rank);
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), StatusCode::timeout);
    EXPECT_THAT(store.status().message(), Mentions("2", "SHOAL_TIMEOUT"));
  }
  fake_pmix_set_status(PMIX_SUCCESS, PMIX_SUCCESS, PMIX_ERR_TIMEOUT);
  EXPECT_EQ(open(1).status().code(), StatusCode::timeout);
}

TEST_F(Pmix, StoreFailureOfRankZeroReachesAll) {
  ::setenv("SHOAL_HOST_ADDRESS", "203.0.113.7", 1);  // address of no host
  const auto first = open(0);
  ASSERT_FALSE(first.ok());
  EXPECT_THAT(first.status().message(), Mentions("rank 0", "203.0.113.7:0", "Cannot assign requested address"));
  EXPECT_EQ(fake_pmix_seen()->fences, 1) << "the other ranks wait in the fence for rank 0";
  publish(fake_pmix_seen()->put);
  const auto second = open(1);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::system_error);
  EXPECT_THAT(second.status().message(), HasSubstr(first.status().message()));
  publish("! words\x1b[31m in colour");
  EXPECT_THAT(open(1).status().message(), Mentions("rank 0", "words?[31m in colour"));
}

TEST_F(Pmix, RankZeroEntersFenceIfPutFails) {
  fake_pmix_set_status(PMIX_ERR_NOT_SUPPORTED, PMIX_SUCCESS, PMIX_SUCCESS);
  EXPECT_THAT(open(0).status().message(), Mentions("PMIx_Put"));
  EXPECT_EQ(fake_pmix_seen()->fences, 1);
}

}  // namespace
}  // namespace shoal
