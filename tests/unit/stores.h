// Checks that every kind of store must pass.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <shoal/store.h>

#include "src/join/startup_exchange.h"
#include "tests/mentions.h"

namespace shoal {

using ::testing::HasSubstr;
using testing::Mentions;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline constexpr auto kTimeLimit = std::chrono::seconds(60);  // far longer than needed on any machine

inline Clock::time_point in(Clock::duration time) { return Clock::now() + time; }

/// Makes stores that share their content; the first is the server, if the kind has one.
using StoreFactory = std::function<std::unique_ptr<Store>()>;

inline void expect_service_for_all_threads(const StoreFactory& make) {
  constexpr int kThreads = 6;
  constexpr int kKeys = 40;
  std::vector<std::unique_ptr<Store>> stores;
  for (int t = 0; t < kThreads; ++t) {
    stores.push_back(make());
    ASSERT_NE(stores.back(), nullptr);
  }
  const auto key = [](int t, int k) { return "rank " + std::to_string(t) + "/\xff%.." + std::to_string(k); };
  const auto value = [&key](int t, int k) {
    return std::string(static_cast<std::size_t>(k * 97), static_cast<char>(t)) + '\0' + key(t, k);
  };
  std::vector<std::string> errors(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Store& store = *stores[static_cast<std::size_t>(t)];
      std::string& error = errors[static_cast<std::size_t>(t)];
      for (int k = 0; k < kKeys && error.empty(); ++k) {
        if (const Status status = store.set(key(t, k), value(t, k)); !status.ok()) error = status.to_string();
        // Usually before the other thread has written it, so the reader waits.
        const int other = (t + 1 + k) % kThreads;
        const auto got = store.get(key(other, k), in(kTimeLimit));
        if (!got.ok())
          error = got.status().to_string();
        else if (*got != value(other, k))
          error = "wrong value of " + key(other, k);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

inline void expect_timeouts_to_name_the_key(const StoreFactory& make) {
  const auto one = make();
  const auto other = make();
  ASSERT_TRUE(one != nullptr && other != nullptr);
  for (const milliseconds time_limit : {milliseconds(-1000), milliseconds(0), milliseconds(50)}) {
    const auto start = Clock::now();
    const auto missing = other->get("absent", in(time_limit));
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.status().code(), StatusCode::timeout) << missing.status().to_string();
    EXPECT_THAT(missing.status().message(), Mentions("absent"));
    EXPECT_GE(Clock::now() - start, time_limit);
  }
  // The store still works: answers are not mixed up, even if the missing key is set later.
  ASSERT_TRUE(one->set("absent", "late").ok());
  ASSERT_TRUE(other->set("second", "2").ok());
  for (Store* store : {one.get(), other.get()}) {
    EXPECT_EQ(store->get("second", in(kTimeLimit)).value(), "2");
    EXPECT_EQ(store->get("absent", in(kTimeLimit)).value(), "late");
  }
}

inline void expect_exchange_and_missing_rank_to_be_named(const StoreFactory& make) {
  constexpr int kRanks = 5;
  std::vector<std::unique_ptr<Store>> stores;
  for (int r = 0; r < kRanks; ++r) stores.push_back(make());
  std::vector<std::string> seen(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      StartupExchange exchange(*stores[static_cast<std::size_t>(r)], r, kRanks, in(kTimeLimit));
      const auto all = exchange.all_gather("name", std::string(1, static_cast<char>('a' + r)));
      std::string& text = seen[static_cast<std::size_t>(r)];
      if (!all.ok()) text = all.status().to_string();
      for (int i = 0; all.ok() && i < kRanks; ++i) text += (*all)[static_cast<std::size_t>(i)];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : seen) EXPECT_EQ(text, "abcde");
  const std::unique_ptr<Store> fresh = make();
  StartupExchange alone(*fresh, 0, kRanks + 1, in(milliseconds(20)));
  const auto missing = alone.all_gather("second", "x");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::timeout);
  // A store may still have the values of the other ranks from above.
  EXPECT_THAT(missing.status().message(), Mentions("second", "5 of 6"));
}

// Values larger than a request's limit in sum, and of all bytes; rank 1 comes late to every step.
inline void expect_steps_to_bring_all_values(const StoreFactory& make) {
  constexpr int kRanks = 6;
  constexpr int kSteps = 3;
  const auto value = [](int step, int rank) {
    return std::string(step == 1 ? 900'000 : static_cast<std::size_t>(rank), static_cast<char>(rank)) + std::to_string(step);
  };
  std::vector<std::unique_ptr<Store>> stores;
  for (int r = 0; r < kRanks; ++r) stores.push_back(make());
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      std::string& error = errors[static_cast<std::size_t>(r)];
      for (int s = 0; s < kSteps && error.empty(); ++s) {
        if (r == 1) std::this_thread::sleep_for(milliseconds(5));
        const GatherStep step{s, "name", r, kRanks, s + 1 == kSteps};
        const auto all = stores[static_cast<std::size_t>(r)]->gather(step, value(s, r), in(kTimeLimit));
        if (!all.ok()) error = all.status().to_string();
        for (int from = 0; error.empty() && from < kRanks; ++from) {
          if (all->at(static_cast<std::size_t>(from)) != value(s, from)) error = "wrong value of rank " + std::to_string(from);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Rank 1 aborts after the first step, in which rank 2 is late: both others get the reason, and rank 0, the server, waits for
// them.
inline void expect_abort_to_reach_all_ranks(const StoreFactory& make) {
  std::vector<std::unique_ptr<Store>> stores;
  for (int r = 0; r < 3; ++r) stores.push_back(make());
  std::vector<std::string> seen(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      StartupExchange exchange(*stores[static_cast<std::size_t>(r)], r, 3, in(kTimeLimit));
      if (r == 2) std::this_thread::sleep_for(milliseconds(20));
      Status status = exchange.all_gather("first", "x").status();
      if (r == 1 && status.ok()) {
        status = {StatusCode::system_error, "no memory\x1b[31m for a mapping"};
      } else if (status.ok()) {
        status = exchange.all_gather("second", "y").status();
      }
      seen[static_cast<std::size_t>(r)] = exchange.abort(status).to_string();
      exchange.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int r : {0, 2})
    EXPECT_THAT(seen[static_cast<std::size_t>(r)], Mentions("system_error", "rank 1", "no memory?[31m for a mapping"));
}

// Rank 1 detects the death of rank 2 and aborts. Rank 0 detects only the loss of rank 1, and reports the cause that rank 1
// published.
inline void expect_loss_to_report_its_root_cause(const StoreFactory& make) {
  const auto exchange_of = [&](Store& store, int rank) { return StartupExchange(store, rank, 3, in(kTimeLimit)); };
  const Status first(StatusCode::peer_failed, "rank 2 went away");
  const Status second(StatusCode::peer_failed, "rank 1 went away");
  const std::unique_ptr<Store> store = make();
  EXPECT_EQ(exchange_of(*store, 1).abort(first).message(), first.message());
  EXPECT_THAT(exchange_of(*store, 0).abort(second).message(), Mentions("rank 1", first.message()));
  const Status own(StatusCode::system_error, "no memory");  // a rank with its own error keeps it
  EXPECT_EQ(exchange_of(*store, 0).abort(own).message(), own.message());
  for (const std::string cause : {"", "x", "1", "17 ", "1 -"}) {  // malformed causes
    ASSERT_TRUE(store->set(Store::kGivenUp, cause).ok());
    const Status reported = exchange_of(*store, 0).abort(second);
    EXPECT_THAT(reported.message(), ::testing::AnyOf(Mentions("rank 1"), Mentions("rank 17"))) << cause;
  }
}

inline void expect_ended_rank_to_be_reported_at_once(const StoreFactory& make) {
  const auto waits = make();
  const auto other_waiter = make();
  auto ends = make();
  auto leaves = make();
  ASSERT_TRUE(ends->enter(2, 5).ok());
  ASSERT_TRUE(leaves->enter(3, 5).ok());
  // A live rank is waited for, also after its own call has timed out.
  EXPECT_EQ(ends->get("absent", in(milliseconds(20))).status().code(), StatusCode::timeout);
  ASSERT_TRUE(ends->set("legacy", "x").ok());
  EXPECT_EQ(waits->get_from(2, "absent", in(milliseconds(50))).status().code(), StatusCode::timeout);

  const auto start = Clock::now();
  Status of_the_dead;
  Status of_the_living;
  std::thread first([&] { of_the_dead = waits->get_from(2, "absent", in(kTimeLimit)).status(); });
  std::thread second([&] { of_the_living = other_waiter->get_from(3, "absent", in(milliseconds(400))).status(); });
  std::this_thread::sleep_for(milliseconds(20));
  ends.reset();
  first.join();
  EXPECT_LT(Clock::now() - start, kTimeLimit / 4);
  second.join();
  EXPECT_EQ(of_the_dead.code(), StatusCode::peer_failed) << of_the_dead.to_string();
  EXPECT_THAT(of_the_dead.message(), Mentions("rank 2"));
  EXPECT_EQ(of_the_living.code(), StatusCode::timeout) << of_the_living.to_string();
  EXPECT_EQ(waits->get_from(2, "legacy", in(kTimeLimit)).value(), "x");
  EXPECT_EQ(waits->get_from(2, "second", in(kTimeLimit)).status().code(), StatusCode::peer_failed);
  EXPECT_EQ(waits->get("second", in(milliseconds(50))).status().code(), StatusCode::timeout) << "no rank must set this key";
  EXPECT_EQ(waits->look(in(kTimeLimit)).message(), of_the_dead.message());

  leaves->leave();
  leaves.reset();
  EXPECT_EQ(waits->get_from(3, "absent", in(milliseconds(300))).status().code(), StatusCode::timeout);
  const auto rejoins = make();
  ASSERT_TRUE(rejoins->enter(2, 5).ok());
  ASSERT_TRUE(rejoins->set("third", "x").ok());
  EXPECT_EQ(waits->get_from(2, "absent", in(milliseconds(300))).status().code(), StatusCode::timeout);
  EXPECT_EQ(waits->look(in(kTimeLimit)).to_string(), "ok");

  // A rank that has entered and waits for a key learns that another rank aborts.
  ASSERT_TRUE(waits->enter(4, 5).ok());
  Status of_entered_rank;
  std::thread third([&] { of_entered_rank = waits->get_from(2, "absent", in(kTimeLimit)).status(); });
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_TRUE(rejoins->set(Store::kGivenUp, "why").ok());
  third.join();
  EXPECT_EQ(of_entered_rank.to_string(), "aborted: why");
  EXPECT_EQ(waits->look(in(kTimeLimit)).code(), StatusCode::aborted);
  EXPECT_EQ(waits->get(Store::kGivenUp, in(kTimeLimit)).value(), "why");
  EXPECT_EQ(waits->get("absent", in(milliseconds(50))).status().code(), StatusCode::timeout);
  EXPECT_EQ(other_waiter->get_from(2, "absent", in(milliseconds(50))).status().code(), StatusCode::timeout);
  waits->leave();
  EXPECT_EQ(waits->look(in(kTimeLimit)).to_string(), "ok");
}

// Rank 2 ends after the first step. The others name it, and rank 0 does not wait for it.
inline void expect_rank_that_ends_between_steps_to_be_named(const StoreFactory& make) {
  std::vector<std::unique_ptr<Store>> stores;
  for (int r = 0; r < 3; ++r) stores.push_back(make());
  std::vector<std::string> seen(3);
  Clock::duration leaving_time{};
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      auto& store = stores[static_cast<std::size_t>(r)];
      Status status = store->enter(r, 3);
      StartupExchange exchange(*store, r, 3, in(kTimeLimit));
      if (status.ok()) status = exchange.all_gather("first", "x").status();
      if (r == 2) return store.reset();
      if (status.ok()) status = exchange.all_gather("second", "y").status();
      seen[static_cast<std::size_t>(r)] = exchange.abort(status).to_string();
      const auto start = Clock::now();
      store->leave();
      exchange.leave();
      if (r == 0) leaving_time = Clock::now() - start;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int r : {0, 1}) EXPECT_THAT(seen[static_cast<std::size_t>(r)], Mentions("peer_failed", "second", "rank 2"));
  EXPECT_LT(leaving_time, milliseconds(900));
}

// Two processes with one rank, and ranks with different sizes: every rank that has entered gets the error in its current wait.
inline void expect_incompatible_ranks_to_be_named(const StoreFactory& make, const StoreFactory& make_other) {
  const auto one = make();
  const auto other = make();
  const std::string process = "process " + std::to_string(::getpid()) + " ";
  ASSERT_TRUE(one->enter(1, 3).ok());
  Status of_waiting_rank;
  std::thread waits([&] { of_waiting_rank = one->get_from(2, "absent", in(kTimeLimit)).status(); });
  std::this_thread::sleep_for(milliseconds(20));
  Status of_the_second = other->enter(1, 3);
  if (of_the_second.ok()) of_the_second = other->get_from(0, "absent", in(kTimeLimit)).status();
  waits.join();
  for (const Status& status : {of_waiting_rank, of_the_second}) {
    EXPECT_EQ(status.code(), StatusCode::mismatch) << status.to_string();
    EXPECT_THAT(status.message(), Mentions("rank 1", process));
  }

  const auto two = make_other();
  const auto three = make_other();
  ASSERT_TRUE(two->enter(0, 2).ok());
  ASSERT_TRUE(two->set("key", "value").ok());
  Status of_three = three->enter(2, 3);
  if (of_three.ok()) of_three = three->get_from(0, "absent", in(kTimeLimit)).status();
  for (const Status& status : {of_three, two->get_from(1, "absent", in(kTimeLimit)).status(), two->look(in(kTimeLimit))}) {
    EXPECT_EQ(status.code(), StatusCode::mismatch) << status.to_string();
    EXPECT_THAT(status.message(), Mentions("rank 0", "size 2", "rank 2", "size 3"));
  }
}

}  // namespace shoal
