// SHOAL_* variables: defaults, ranges, error messages; and how many cores this process may use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "src/machine/cores.h"
#include "src/settings/settings.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

using testing::Mentions;
using namespace std::chrono_literals;

/// Sets a variable during its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Settings, TableListsEachVariableOnceWithHelp) {
  std::set<std::string> names;
  for (const Setting& one : settings()) {
    EXPECT_EQ(std::string(one.name).rfind("SHOAL_", 0), 0U) << one.name;
    EXPECT_TRUE(names.insert(one.name).second) << one.name << " twice";
    EXPECT_GT(std::string(one.help).size(), 10U) << one.name;
    EXPECT_NE(one.fallback, nullptr) << one.name;
  }
  EXPECT_TRUE(names.contains("SHOAL_TIMEOUT"));
}

TEST(Settings, NonEmptyEnvironmentOverridesDefault) {
  EXPECT_EQ(setting("SHOAL_TIMEOUT"), "300");
  {
    const Variable given("SHOAL_TIMEOUT", "8");
    EXPECT_EQ(setting("SHOAL_TIMEOUT"), "8");
  }
  const Variable empty("SHOAL_TIMEOUT", "");
  EXPECT_EQ(setting("SHOAL_TIMEOUT"), "300");
}

TEST(SettingsDeathTest, UnknownNameAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(static_cast<void>(setting("SHOAL_NO_SUCH_SETTING")), "SHOAL_NO_SUCH_SETTING");
}

/// A bad value as error messages show it.
std::string quoted(const std::string& text) { return "'" + text + "'"; }

TEST(Settings, IntegersMustBeInRange) {
  for (const auto& [text, value] : {std::pair{"1", 1}, {"16", 16}, {"007", 7}}) {
    const Variable given("SHOAL_SOCKETS_PER_PEER", text);
    const auto number = integer_setting("SHOAL_SOCKETS_PER_PEER", 1, 16);
    ASSERT_TRUE(number.ok()) << text << ": " << number.status().to_string();
    EXPECT_EQ(*number, value);
  }
  for (const char* text : {"0", "17", "-1", "two", "2x", " 2", "2 ", "2.0", "1e1", "99999999999999999999", "0x2"}) {
    const Variable given("SHOAL_SOCKETS_PER_PEER", text);
    const auto number = integer_setting("SHOAL_SOCKETS_PER_PEER", 1, 16);
    ASSERT_FALSE(number.ok()) << text;
    EXPECT_EQ(number.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(number.status().message(), Mentions("SHOAL_SOCKETS_PER_PEER", quoted(text), "1", "16"));
  }
}

TEST(Settings, SecondsArePositiveAndFitTheClock) {
  const auto fallback = time_setting("SHOAL_TIMEOUT");
  ASSERT_TRUE(fallback.ok());
  EXPECT_EQ(*fallback, 300s);
  for (const auto& [text, value] : {std::pair{"5", 5000ms}, {"0.25", 250ms}, {"1e-9", 1ms}, {"1e9", 1'000'000'000'000ms}}) {
    const Variable given("SHOAL_TIMEOUT", text);
    const auto time = time_setting("SHOAL_TIMEOUT");
    ASSERT_TRUE(time.ok()) << text << ": " << time.status().to_string();
    EXPECT_EQ(*time, value);
  }
  for (const char* text : {"0", "-3", "soon", "5s", "5 ", "inf", "nan", "1e300", "1.1e9"}) {
    const Variable given("SHOAL_TIMEOUT", text);
    const auto time = time_setting("SHOAL_TIMEOUT");
    ASSERT_FALSE(time.ok()) << text << " was taken as " << time->count() << " ms";
    EXPECT_EQ(time.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(time.status().message(), Mentions("SHOAL_TIMEOUT", quoted(text)));
  }
}

TEST(Settings, SizesUsePowersOf1024) {
  const std::uint64_t k = 1024;
  const std::pair<const char*, std::uint64_t> sizes[] = {
      {"0", 0},
      {"65536", 65536},
      {"7B", 7},
      {"64K", 64 * k},
      {"64k", 64 * k},
      {"64KiB", 64 * k},
      {"4M", 4 * k * k},
      {"4MiB", 4 * k * k},
      {"1G", k * k * k},
      {"3GiB", 3 * k * k * k},
      {"18446744073709551615", ~std::uint64_t{0}},
  };
  for (const auto& [text, bytes] : sizes) {
    const auto parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().to_string();
    EXPECT_EQ(*parsed, bytes) << text;
  }
  for (const char* text :
       {"", "K", "-1", "+1", "4.5M", "4 K", " 4K", "4KB", "4Kx", "4T", "18446744073709551616", "17179869184G"}) {
    const auto parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok()) << text << " was taken as " << *parsed;
    EXPECT_EQ(parsed.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(parsed.status().message(), Mentions(quoted(text)));
  }
}

TEST(Settings, SizesOutOfRangeAreNamed) {
  const std::uint64_t low = 1 << 20;
  const std::uint64_t high = std::uint64_t{1} << 40;
  for (const auto& [text, bytes] : {std::pair<const char*, std::uint64_t>{"1M", low}, {"1024G", high}, {"", 256 << 20}}) {
    const Variable given("SHOAL_LINK_MEMORY", text);
    const auto size = bytes_setting("SHOAL_LINK_MEMORY", low, high);
    ASSERT_TRUE(size.ok()) << text << ": " << size.status().to_string();
    EXPECT_EQ(*size, bytes);
  }
  for (const char* text : {"0", "1023K", "1025G", "-1", "much"}) {
    const Variable given("SHOAL_LINK_MEMORY", text);
    const auto size = bytes_setting("SHOAL_LINK_MEMORY", low, high);
    ASSERT_FALSE(size.ok()) << text << " was taken as " << *size;
    EXPECT_EQ(size.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(size.status().message(), Mentions("SHOAL_LINK_MEMORY", quoted(text), "1 MiB", "1024 GiB"));
  }
}

/// A folder like that of a cgroup, removed at the end of its lifetime.
class FakeCgroup {
 public:
  FakeCgroup() {
    char pattern[] = "/tmp/shoal-test-XXXXXX";
    root_ = ::mkdtemp(pattern);
  }
  ~FakeCgroup() { std::filesystem::remove_all(root_); }
  FakeCgroup(const FakeCgroup&) = delete;
  FakeCgroup& operator=(const FakeCgroup&) = delete;

  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(root_) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] int cores() const { return allowed_cores(root_); }

 private:
  std::string root_;
};

TEST(AllowedCores, AffinityMaskAppliesWithoutQuota) {
  const int all = allowed_cores("/no/such/folder");
  EXPECT_GE(all, 1);
  for (const char* text : {"max 100000\n", "max\n", "", "rubbish 100000\n", "100000 rubbish\n", "-1 100000\n", "100000 0\n",
                           "9999999999999999999999 1\n", "9000000000000000000 1\n"}) {
    const FakeCgroup group;
    group.write("cpu.max", text);
    EXPECT_EQ(group.cores(), all) << text;
  }
  const FakeCgroup unlimited;
  unlimited.write("cpu/cpu.cfs_quota_us", "-1\n");
  unlimited.write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(unlimited.cores(), all);
}

TEST(AllowedCores, QuotaLeavesAtLeastOne) {
  const int all = allowed_cores("/no/such/folder");
  const std::tuple<const char*, const char*, int> quotas[] = {
      {"100000", "100000", 1}, {"50000", "100000", 1}, {"1", "1000000", 1}, {"200000", "100000", 2}, {"350000", "100000", 3}};
  for (const auto& [quota, period, cores] : quotas) {
    const FakeCgroup two;
    two.write("cpu.max", std::string(quota) + " " + period + "\n");
    EXPECT_EQ(two.cores(), std::min(all, cores)) << quota << " of " << period;
    const FakeCgroup one;
    one.write("cpu/cpu.cfs_quota_us", std::string(quota) + "\n");
    one.write("cpu/cpu.cfs_period_us", std::string(period) + "\n");
    EXPECT_EQ(one.cores(), std::min(all, cores)) << quota << " of " << period;
  }
}

TEST(ProgressCore, InvalidPolicyListsValidOnes) {
  EXPECT_TRUE(check_progress_cores().ok());
  for (const char* text : {"last", "off", "11,23"}) {
    const Variable given("SHOAL_PROGRESS_CORES", text);
    EXPECT_TRUE(check_progress_cores().ok()) << text;
  }
  for (const char* text : {"far", "3-", " "}) {
    const Variable given("SHOAL_PROGRESS_CORES", text);
    EXPECT_THAT(check_progress_cores().message(), Mentions("SHOAL_PROGRESS_CORES", quoted(text), "near", "last", "off"));
  }
}

}  // namespace
}  // namespace shoal
