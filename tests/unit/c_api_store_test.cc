// The C API with several ranks: threads that join through a user-supplied store.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <shoal/shoal.h>

#include "tests/mentions.h"

namespace {

/// A user's store: a dictionary behind two C functions.
class Dictionary {
 public:
  shoal_store callbacks() { return {this, &Dictionary::set, &Dictionary::get}; }

 private:
  static shoal_status set(void* context, const char* key, const void* value, std::size_t value_bytes) {
    auto& self = *static_cast<Dictionary*>(context);
    const std::scoped_lock lock(self.mutex_);
    self.values_.emplace(key, std::string(static_cast<const char*>(value), value_bytes));
    self.changed_.notify_all();
    return SHOAL_OK;
  }
  static shoal_status get(void* context, const char* key, std::int64_t timeout_ms, void* value, std::size_t capacity_bytes,
                          std::size_t* value_bytes) {
    auto& self = *static_cast<Dictionary*>(context);
    std::unique_lock lock(self.mutex_);
    const auto present = [&] { return self.values_.contains(key); };
    if (!self.changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), present)) return SHOAL_TIMEOUT;
    const std::string& found = self.values_[key];
    *value_bytes = found.size();
    if (found.size() <= capacity_bytes) std::memcpy(value, found.data(), found.size());
    return SHOAL_OK;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// Runs `body(rank, comm)` on `size` ranks, one thread each, and destroys the communicators when all have returned.
void run_ranks(int size, const std::function<void(int, shoal_comm_t)>& body) {
  Dictionary dictionary;
  const shoal_store store = dictionary.callbacks();
  std::vector<shoal_comm_t> comms(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      shoal_config config = SHOAL_CONFIG_INITIALIZER;
      config.timeout_ms = 30000;
      shoal_comm_t& comm = comms[static_cast<std::size_t>(rank)];
      ASSERT_EQ(shoal_comm_create_with_store(&store, rank, size, &config, &comm), SHOAL_OK) << shoal_last_error_message();
      body(rank, comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (shoal_comm_t comm : comms) shoal_comm_destroy(comm);
}

TEST(CApi, RanksJoinThroughUserStore) {
  run_ranks(2, [](int rank, shoal_comm_t comm) {
    int number = -1;
    EXPECT_EQ(shoal_comm_rank(comm, &number), SHOAL_OK);
    EXPECT_EQ(number, rank);
    EXPECT_EQ(shoal_comm_size(comm, &number), SHOAL_OK);
    EXPECT_EQ(number, 2);

    std::vector<std::int32_t> values(1000, rank + 1);
    EXPECT_EQ(shoal_all_reduce(comm, values.data(), values.data(), values.size(), SHOAL_INT32, SHOAL_SUM), SHOAL_OK);
    EXPECT_EQ(values, std::vector<std::int32_t>(1000, 3));

    std::vector<std::int64_t> one(5, rank == 1 ? 42 : 0);
    EXPECT_EQ(shoal_broadcast(comm, one.data(), one.size(), SHOAL_INT64, 1), SHOAL_OK);
    EXPECT_EQ(one, std::vector<std::int64_t>(5, 42));

    const std::uint16_t mine = static_cast<std::uint16_t>(100 + rank);
    std::vector<std::uint16_t> all(2);
    EXPECT_EQ(shoal_all_gather(comm, &mine, all.data(), 1, SHOAL_UINT16), SHOAL_OK);
    EXPECT_EQ(all, (std::vector<std::uint16_t>{100, 101}));
    EXPECT_EQ(shoal_barrier(comm), SHOAL_OK);
  });
}

TEST(CApi, ManyOperationsAreInFlight) {
  run_ranks(2, [](int rank, shoal_comm_t comm) {
    constexpr std::size_t kCalls = 20;
    std::vector<std::vector<float>> buffers(kCalls);
    std::vector<shoal_work_t> works(kCalls);
    for (std::size_t i = 0; i < kCalls; ++i) {
      buffers[i].assign(i * 100 + 1, static_cast<float>(rank) + static_cast<float>(i));
      ASSERT_EQ(shoal_all_reduce_async(comm, buffers[i].data(), buffers[i].data(), buffers[i].size(), SHOAL_FLOAT32, SHOAL_SUM,
                                       &works[i]),
                SHOAL_OK)
          << shoal_last_error_message();
    }
    for (std::size_t i = 0; i < kCalls; ++i) {
      EXPECT_EQ(shoal_work_wait(works[i]), SHOAL_OK) << shoal_last_error_message();
      int completed = 0;
      EXPECT_EQ(shoal_work_test(works[i], &completed), SHOAL_OK);
      EXPECT_EQ(completed, 1);
      shoal_work_free(works[i]);
      EXPECT_EQ(buffers[i], std::vector<float>(i * 100 + 1, 1 + 2 * static_cast<float>(i)));
    }
  });
}

TEST(CApi, OperationWaitsForOtherRank) {
  std::atomic<bool> release{false};
  run_ranks(2, [&](int rank, shoal_comm_t comm) {
    if (rank == 1) {
      while (!release) std::this_thread::yield();
      EXPECT_EQ(shoal_barrier(comm), SHOAL_OK);
      return;
    }
    shoal_work_t work = nullptr;
    ASSERT_EQ(shoal_barrier_async(comm, &work), SHOAL_OK);
    int completed = -1;
    EXPECT_EQ(shoal_work_test(work, &completed), SHOAL_OK);
    EXPECT_EQ(completed, 0);
    EXPECT_EQ(shoal_work_wait_for(work, 1), SHOAL_TIMEOUT);
    EXPECT_STRNE(shoal_last_error_message(), "");
    release = true;
    EXPECT_EQ(shoal_work_wait(work), SHOAL_OK);  // the timed-out wait did not end the operation
    shoal_work_free(work);
  });
}

TEST(CApi, ErrorMessageIsPerThread) {
  EXPECT_EQ(shoal_barrier(nullptr), SHOAL_INVALID_ARGUMENT);
  EXPECT_THAT(shoal_last_error_message(), shoal::testing::Mentions("shoal_barrier", "comm", "NULL"));
  std::thread([] { EXPECT_STREQ(shoal_last_error_message(), ""); }).join();
}

TEST(CApi, WorkOutlivesItsCommunicator) {
  shoal_work_t work = nullptr;
  run_ranks(2, [&](int rank, shoal_comm_t comm) {
    if (rank == 0) {
      EXPECT_EQ(shoal_barrier_async(comm, &work), SHOAL_OK);  // rank 1 never enters it
    }
  });
  ASSERT_NE(work, nullptr);
  const shoal_status outcome = shoal_work_wait(work);
  EXPECT_TRUE(outcome == SHOAL_ABORTED || outcome == SHOAL_PEER_FAILED) << shoal_status_string(outcome);
  shoal_work_free(work);
}

TEST(CApi, StoreExceptionsBecomeStatus) {
  shoal_store store{nullptr, [](void*, const char*, const void*, std::size_t) -> shoal_status { throw 7; },
                    [](void*, const char*, std::int64_t, void*, std::size_t, std::size_t*) -> shoal_status { throw 7; }};
  shoal_comm_t comm = nullptr;
  EXPECT_EQ(shoal_comm_create_with_store(&store, 0, 2, nullptr, &comm), SHOAL_INTERNAL);
  EXPECT_EQ(comm, nullptr);
  EXPECT_THAT(shoal_last_error_message(), shoal::testing::Mentions("shoal_comm_create_with_store", "std::exception"));
}

}  // namespace
