// What a start-up costs: requests to the store.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <shoal/store.h>

#include "src/join/socket.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTimeLimit = std::chrono::seconds(60);
constexpr const char* kHost = "127.0.0.1";

/// Counts the requests of a rank, apart from the looks of a rank that waits for connections, whose number depends on the load.
class CountingStore final : public Store {
 public:
  explicit CountingStore(std::unique_ptr<Store> store) : store_(std::move(store)) {}
  Status set(std::string_view key, std::string_view value) override { return ++requests_, store_->set(key, value); }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    return ++requests_, store_->get(key, deadline);
  }
  Result<std::vector<std::string>> gather(const GatherStep& step, std::string_view value, Clock::time_point deadline) override {
    return ++requests_, store_->gather(step, value, deadline);
  }
  Status enter(int rank, int size) override { return ++requests_, store_->enter(rank, size); }
  Result<std::string> get_from(int rank, std::string_view key, Clock::time_point deadline) override {
    return ++requests_, store_->get_from(rank, key, deadline);
  }
  Status look(Clock::time_point deadline) override { return store_->look(deadline); }
  void leave() override { store_->leave(); }  // after the last step it sends nothing
  [[nodiscard]] int requests() const noexcept { return requests_; }

 private:
  std::unique_ptr<Store> store_;
  int requests_ = 0;
};

TEST(Start, EachRankMakesFewRequests) {
  const auto port = free_port(kHost);
  ASSERT_TRUE(port.ok()) << port.status().to_string();
  const auto outcomes = testing::run_ranks(8, [&](int rank, int size, const std::string&) -> std::string {
    auto made = make_tcp_store(kHost, *port, rank == 0, "count", Clock::now() + kTimeLimit);
    if (!made.ok()) return made.status().to_string();
    CountingStore store(std::move(*made));
    CommunicatorOptions options;
    options.timeout = kTimeLimit;
    const auto communicator = Communicator::create(store, rank, size, options);
    if (!communicator.ok()) return communicator.status().to_string();
    const Status status = (*communicator)->barrier();
    return status.ok() ? fmt::format("{} requests", store.requests()) : status.to_string();
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(testing::bad_end(outcome), "");
    EXPECT_EQ(outcome.output, "4 requests");  // enter, and the steps node, addresses and ready
  }
}

}  // namespace
}  // namespace shoal
