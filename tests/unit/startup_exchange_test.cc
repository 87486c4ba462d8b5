// The exchange at start-up over a user's store, which reports neither deaths nor aborts: how many requests it takes, large
// contributions, missing ranks and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <shoal/store.h>

#include "src/join/startup_exchange.h"
#include "src/join/text_list.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

using testing::Mentions;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// What all ranks of a job share, in this process.
class UserStore final : public Store {
 public:
  Status set(std::string_view key, std::string_view value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++requests_;
    largest_ = std::max(largest_, value.size());
    values_[std::string(key)] = value;
    changed_.notify_all();
    return {};
  }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    std::unique_lock<std::mutex> lock(mutex_);
    ++requests_;
    const auto is_there = [&] { return values_.contains(std::string(key)); };
    if (!changed_.wait_until(lock, deadline, is_there)) return Status(StatusCode::timeout, "no key " + std::string(key));
    return values_[std::string(key)];
  }
  [[nodiscard]] int requests() const { return requests_; }
  [[nodiscard]] std::size_t largest() const { return largest_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  int requests_ = 0;
  std::size_t largest_ = 0;
};

/// Calls `body(exchange, rank)` in a thread for each of `ranks` of a job of `size`.
void run_exchanges(UserStore& store, const std::vector<int>& ranks, int size, Clock::duration time_limit,
                   const std::function<void(StartupExchange&, int)>& body) {
  const auto deadline = Clock::now() + time_limit;
  std::vector<std::thread> threads;
  for (const int rank : ranks) {
    threads.emplace_back([&, rank] {
      StartupExchange exchange(store, rank, size, deadline);
      body(exchange, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
std::vector<int> first_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

constexpr auto kTimeLimit = std::chrono::seconds(60);

TEST(StartupExchange, RequestsOfStepGrowWithRanksNotWithPairs) {
  for (const int size : {2, 8, 32}) {
    UserStore store;
    std::vector<std::vector<std::string>> seen(static_cast<std::size_t>(size));
    run_exchanges(store, first_ranks(size), size, kTimeLimit, [&](StartupExchange& exchange, int rank) {
      const auto all = exchange.all_gather("names", "rank " + std::to_string(rank));
      if (all.ok()) seen[static_cast<std::size_t>(rank)] = *all;
    });
    for (const auto& texts : seen) {
      ASSERT_EQ(texts.size(), static_cast<std::size_t>(size));
      for (int rank = 0; rank < size; ++rank) EXPECT_EQ(texts[static_cast<std::size_t>(rank)], "rank " + std::to_string(rank));
    }
    EXPECT_LE(store.requests(), 3 * size);
  }
}

TEST(StartupExchange, ContributionsLargerThanOneValueArriveWhole) {
  constexpr int kRanks = 5;
  constexpr std::size_t kBytes = 700'000;  // a store's value has at most 1 MiB
  UserStore store;
  std::vector<int> right(kRanks);
  run_exchanges(store, first_ranks(kRanks), kRanks, kTimeLimit, [&](StartupExchange& exchange, int rank) {
    const auto all = exchange.all_gather("large", std::string(kBytes, static_cast<char>(rank)));
    for (int i = 0; all.ok() && i < kRanks; ++i) {
      const bool same = (*all)[static_cast<std::size_t>(i)] == std::string(kBytes, static_cast<char>(i));
      right[static_cast<std::size_t>(rank)] += static_cast<int>(same);
    }
  });
  EXPECT_THAT(right, ::testing::Each(kRanks));
  EXPECT_LE(store.largest(), std::size_t{1} << 20);
}

TEST(StartupExchange, AllRanksNameMissingRank) {
  UserStore store;
  std::vector<std::string> seen(4);
  run_exchanges(store, {0, 1, 3}, 4, milliseconds(1500), [&](StartupExchange& exchange, int rank) {
    const Status status = exchange.all_gather("names", "x").status();
    seen[static_cast<std::size_t>(rank)] = exchange.abort(status).to_string();
  });
  for (const int rank : {0, 1, 3})
    EXPECT_THAT(seen[static_cast<std::size_t>(rank)], Mentions("timeout", "names", "rank 2 of 4"));
}

// Rank 2 aborts before its contribution, rank 0 before it has collected them.
TEST(StartupExchange, RefusalsReachAllRanks) {
  for (const int refuses : {0, 2}) {
    UserStore store;
    std::vector<std::string> seen(4);
    run_exchanges(store, first_ranks(4), 4, kTimeLimit, [&](StartupExchange& exchange, int rank) {
      Status status = exchange.all_gather("first", "x").status();
      if (status.ok()) {
        status = rank == refuses ? Status(StatusCode::unsupported, "no mapping") : exchange.all_gather("second", "y").status();
      }
      seen[static_cast<std::size_t>(rank)] = exchange.abort(status).to_string();
      exchange.leave();
    });
    for (int rank = 0; rank < 4; ++rank) {
      const std::string& text = seen[static_cast<std::size_t>(rank)];
      EXPECT_THAT(text, Mentions("unsupported", "no mapping"));
      if (rank != refuses) {
        EXPECT_THAT(text, Mentions("rank " + std::to_string(refuses)));
      }
    }
  }
}

TEST(StartupExchange, MalformedRefusalsAreNotParsed) {
  for (const std::string_view text : {"", "-3 xno", "3", "3 ", "x xno", "99999999999 xno"}) {
    EXPECT_FALSE(parse_refusal(text)) << text;
  }
  EXPECT_THAT(parse_refusal("3 \x01no")->message(), Mentions("rank 3", "no"));
}

TEST(TextList, SplitsWhatWasJoinedAndNothingElse) {
  const std::vector<std::string> texts{"", std::string("\0:1", 3), "plain", "12:x"};
  const std::string joined = join_texts(texts);
  EXPECT_EQ(split_texts(joined, texts.size()), texts);
  EXPECT_EQ(split_texts("", 0), std::vector<std::string>());
  for (const std::size_t count : {std::size_t{3}, std::size_t{5}}) EXPECT_FALSE(split_texts(joined, count)) << count;
  for (std::size_t length = 0; length < joined.size(); ++length)
    EXPECT_FALSE(split_texts(joined.substr(0, length), 4)) << length;
  EXPECT_FALSE(split_texts("99999999999999999999:x", 1));
  EXPECT_FALSE(split_texts("-1:x", 1));
}

}  // namespace
}  // namespace shoal
