// Two ranks over rails in one process, for the tests of transports/rails.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/ofi/faulty_fabric.h"
#include "tests/ofi/memory_fabric.h"
#include "transports/ofi/ofi.h"

namespace shoal::rails::testing {

/// Runs `scenario` until the time that it returns is below `limit`; false after kAttempts runs. A busy machine delays some
/// runs. Code that waits for a timeout exceeds the limit in each of them.
template <typename Scenario>
bool completes_within(std::chrono::milliseconds limit, Scenario scenario) {
  constexpr int kAttempts = 20;
  for (int i = 0; i < kAttempts && !::testing::Test::HasFailure(); ++i) {
    if (scenario() < limit) return true;
  }
  return false;
}

/// Two ranks of one process over memory.
class Pair {
 public:
  explicit Pair(const MemoryRailOptions& rails = {}, const Faults& faults = {})
      : network(std::make_shared<MemoryNetwork>(rails)), state(std::make_shared<FaultState>(faults)) {
    for (int rank = 0; rank < 2; ++rank) {
      options[rank].rank = rank;
      options[rank].size = 2;
      options[rank].tile_bytes = 4096;
      options[rank].tiles_per_peer = 4;
      options[rank].stripe_bytes = 1024;
      options[rank].write_from_bytes = 1024;
      options[rank].fabric = std::make_shared<FaultyFabric>(std::make_shared<MemoryFabric>(network), state, rank);
    }
  }
  void open() {
    for (int rank = 0; rank < 2; ++rank) {
      auto made = make_ofi_transport(options[rank]);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      ends[rank] = std::move(*made);
    }
  }
  std::array<Status, 2> connect(std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    std::array<std::future<Status>, 2> connecting;
    for (int rank = 0; rank < 2; ++rank) {
      connecting[static_cast<std::size_t>(rank)] = std::async(std::launch::async, [this, rank, limit] {
        const int peer = 1 - rank;
        const std::string address = ends[peer]->address();
        auto made = ends[rank]->connect({&peer, 1}, {&address, 1}, std::chrono::steady_clock::now() + limit);
        if (!made.ok()) return made.status();
        links[rank] = std::move(made->front());
        return Status();
      });
    }
    return {connecting[0].get(), connecting[1].get()};
  }
  void open_and_connect() {
    open();
    for (const Status& status : connect()) ASSERT_TRUE(status.ok()) << status.to_string();
    state->start();
  }
  /// False after a while.
  template <typename Done>
  bool until(Done done, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      for (auto& each : ends) {
        if (each != nullptr) each->progress();
      }
      std::this_thread::yield();
    }
    return true;
  }
  /// Sends `count` tiles from rank 0 to rank 1 and checks them.
  void send(int count, std::size_t bytes) {
    int sent = 0;
    int received = 0;
    std::vector<std::byte> data(bytes);
    const bool all = until([&] {
      if (sent < count) {
        std::fill(data.begin(), data.end(), static_cast<std::byte>(sent));
        sent +=
            links[0]->try_send({0, static_cast<std::uint32_t>(sent), 0, static_cast<std::uint32_t>(bytes), 0}, data) ? 1 : 0;
      }
      if (const Arrival* arrival = links[1]->peek()) {
        EXPECT_EQ(arrival->header.sequence, static_cast<std::uint32_t>(received));
        EXPECT_EQ(arrival->data.size(), bytes);
        for (const std::byte byte : arrival->data) EXPECT_EQ(byte, static_cast<std::byte>(received));
        links[1]->release();
        ++received;
      }
      return received == count || !links[0]->status().ok();
    });
    EXPECT_TRUE(all) << sent << " sent, " << received << " received";
    EXPECT_EQ(received, count) << links[0]->status().to_string();
  }
  ~Pair() {
    // Together: each waits a moment for the other's acknowledgements.
    std::array<std::thread, 2> leaving;
    for (int rank = 0; rank < 2; ++rank) {
      leaving[static_cast<std::size_t>(rank)] = std::thread([this, rank] {
        links[rank].reset();
        ends[rank].reset();
      });
    }
    for (std::thread& each : leaving) each.join();
  }

  std::shared_ptr<MemoryNetwork> network;
  std::shared_ptr<FaultState> state;
  OfiOptions options[2];
  std::unique_ptr<Transport> ends[2];
  std::unique_ptr<Link> links[2];
};

}  // namespace shoal::rails::testing
