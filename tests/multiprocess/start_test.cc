// What a start-up costs: requests to the store.
//
// SHOAL_TEST_RANKS=256 starts so many ranks on one host, SHOAL_TEST_HOSTS=64 so many hosts with two ranks each.
#include <sched.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <shoal/store.h>

#include "src/join/socket.h"
#include "src/join/tcp_store.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTimeLimit = std::chrono::seconds(240);  // for many ranks on few cores
constexpr const char* kHost = "127.0.0.1";

/// The value of a variable, or `usual` where it is not set.
int wanted(const char* variable, int usual) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : usual;
}

/// Whether this process now has another host name, so that shoal takes it for another host.
bool move_to_host(int host) {
  if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) return false;
  const std::string name = fmt::format("shoal-test-{}", host);
  return ::sethostname(name.data(), name.size()) == 0;
}

/// Starts a job of `hosts` with `local_size` ranks each. Returns the requests to rank 0's store. `meets`: the ranks of a host
/// meet at their keeper.
int requests_of_start(int hosts, int local_size, bool meets) {
  const auto port = free_port(kHost);
  if (!port.ok()) return ADD_FAILURE() << port.status().to_string(), 0;
  const StoreAddress address{kHost, *port, "count", random_key()};
  const auto outcomes = testing::run_ranks(
      hosts * local_size,
      [&](int rank, int size, const std::string&) -> std::string {
        if (hosts > 1 && !move_to_host(rank / local_size)) return "no UTS namespaces";
        std::unique_ptr<TcpStoreServer> server;
        if (rank == 0) {
          auto served = TcpStoreServer::start(kHost, *port, address.job, address.key);
          if (!served.ok()) return served.status().to_string();
          server = std::move(*served);
        }
        const TcpStoreServer* const counts = server.get();
        const auto deadline = Clock::now() + kTimeLimit;
        const auto store =
            open_tcp_store(std::move(server), address, {rank, size, rank % local_size, local_size}, meets, deadline);
        if (!store.ok()) return store.status().to_string();
        CommunicatorOptions options;
        options.timeout = kTimeLimit;
        const auto communicator = Communicator::create(**store, rank, size, options);
        if (!communicator.ok()) return communicator.status().to_string();
        if (const Status status = (*communicator)->barrier(); !status.ok()) return status.to_string();
        return rank == 0 ? std::to_string(counts->requests()) : "";
      },
      std::chrono::duration<double>(kTimeLimit).count());
  int requests = 0;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& outcome = outcomes[rank];
    EXPECT_EQ(testing::bad_end(outcome), "");
    const char* const end = outcome.output.data() + outcome.output.size();
    const bool well = rank == 0 ? std::from_chars(outcome.output.data(), end, requests).ptr == end && !outcome.output.empty()
                                : outcome.output.empty();
    EXPECT_TRUE(well) << "rank " << rank << ": " << outcome.output;
  }
  return requests;
}

// Enter, and the steps node, addresses and ready.
TEST(Start, EachRankMakesFourRequests) { EXPECT_EQ(requests_of_start(1, 8, false), 4 * 8); }

// Of each keeper: 4, and more if the ranks come one after the other on a busy machine.
TEST(Start, RanksOfOneHostMakeFewRequestsInAll) {
  const int ranks = wanted("SHOAL_TEST_RANKS", 8);
  const int requests = requests_of_start(1, ranks, true);
  std::cout << ranks << " ranks made " << requests << " requests\n";
  EXPECT_GE(requests, 4);
  EXPECT_LE(requests, 10);
}

// A step more: the pairs of hosts measure their links together.
TEST(Start, EachHostMakesFewRequests) {
  const int hosts = wanted("SHOAL_TEST_HOSTS", 5);
  if (!testing::run_ranks(1, [](int, int, const std::string&) { return move_to_host(0) ? "" : "no"; })[0].output.empty())
    GTEST_SKIP() << "this process may not make UTS namespaces";
  const int requests = requests_of_start(hosts, 2, true);
  std::cout << hosts << " hosts made " << requests << " requests\n";
  EXPECT_GE(requests, 5 * hosts);
  EXPECT_LE(requests, 8 * hosts);
}

}  // namespace
}  // namespace shoal
