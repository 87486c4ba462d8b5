// Ranks that meet at the keeper of their host: the store's common cases, deaths at each step, and sockets that are in the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <shoal/communicator.h>

#include "src/join/keeper_socket.h"
#include "src/join/socket.h"
#include "src/join/tcp_store.h"
#include "src/trust/refusals.h"
#include "tests/multiprocess/ranks.h"
#include "tests/slack.h"
#include "tests/unit/stores.h"

namespace shoal {
namespace {

constexpr const char* kHost = "127.0.0.1";

StoreAddress free_address() { return {kHost, free_port(kHost).value(), "keeper", random_key()}; }

class Keeper : public ::testing::Test {
 protected:
  [[nodiscard]] Result<std::unique_ptr<Store>> open(const LocalRanks& ranks, Clock::duration time_limit = kTimeLimit) const {
    return make_tcp_store(address_, ranks.rank == 0, ranks, true, in(time_limit));
  }
  /// Each store is that of the next rank of one host.
  [[nodiscard]] StoreFactory factory(int size = 6) {
    return [this, size] {
      auto store = open({next_, size, next_, size});
      ++next_;
      EXPECT_TRUE(store.ok()) << store.status().to_string();
      return store.ok() ? std::move(*store) : nullptr;
    };
  }

  const StoreAddress address_ = free_address();
  int next_ = 0;
};

TEST_F(Keeper, ServesAllThreads) { expect_service_for_all_threads(factory()); }
TEST_F(Keeper, TimeoutsNameTheKey) { expect_timeouts_to_name_the_key(factory()); }
TEST_F(Keeper, RanksExchangeAndNameMissingRank) { expect_exchange_and_missing_rank_to_be_named(factory()); }
TEST_F(Keeper, StepsBringAllValues) { expect_steps_to_bring_all_values(factory()); }
TEST_F(Keeper, AbortReachesAllRanks) { expect_abort_to_reach_all_ranks(factory()); }
TEST_F(Keeper, LossReportsItsRootCause) { expect_loss_to_report_its_root_cause(factory()); }
TEST_F(Keeper, RankThatEndsBetweenStepsIsNamed) { expect_rank_that_ends_between_steps_to_be_named(factory(3)); }

/// Calls `body(rank)` in a thread for each rank.
void in_threads(const std::vector<int>& ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (const int rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

// Rank 4 is of another keeper's group; ranks 1 and 3 never come.
TEST_F(Keeper, TimeoutOfStepNamesMissingRanks) {
  std::vector<Status> seen(5);
  std::vector<std::unique_ptr<Store>> stores(5);  // until all have the answer
  in_threads({0, 2, 4}, [&](int rank) {
    auto opened = open({rank, 5, rank == 4 ? kMostKept : rank, kMostKept + 1});
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    auto& store = stores[static_cast<std::size_t>(rank)];
    store = std::move(*opened);
    Status& status = seen[static_cast<std::size_t>(rank)];
    status = store->enter(rank, 5);
    if (status.ok()) status = store->gather({0, "node", rank, 5, false}, "x", in(milliseconds(1500))).status();
    store->leave();
  });
  for (const int rank : {0, 2, 4}) {
    const Status& status = seen[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), StatusCode::timeout) << status.to_string();
    EXPECT_THAT(status.message(), Mentions("ranks 1, 3 of 5"));
  }
}

TEST_F(Keeper, KeepersPassOnSeveralRanksAtATime) {
  constexpr int kRanks = 12;
  auto served = TcpStoreServer::start(kHost, address_.port, address_.job, address_.key);
  ASSERT_TRUE(served.ok()) << served.status().to_string();
  std::unique_ptr<TcpStoreServer> server = std::move(*served);
  const TcpStoreServer* const counts = server.get();
  std::uint64_t requests = 0;
  std::vector<int> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(rank);
  in_threads(ranks, [&](int rank) {
    // Odd ranks are the last 6 of a large host.
    const int local = rank % 2 == 0 ? rank / 2 : kMostKept + rank / 2;
    auto store = open_tcp_store(rank == 0 ? std::move(server) : nullptr, address_, {rank, kRanks, local, kMostKept + 6}, true,
                                in(kTimeLimit));
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    ASSERT_TRUE((*store)->enter(rank, kRanks).ok());
    for (int step = 0; step < 3; ++step) {
      const auto all = (*store)->gather({step, "name", rank, kRanks, step == 2}, std::to_string(rank), in(kTimeLimit));
      ASSERT_TRUE(all.ok()) << all.status().to_string();
      for (int other = 0; other < kRanks; ++other) EXPECT_EQ(all->at(static_cast<std::size_t>(other)), std::to_string(other));
    }
    if (rank == 0) requests = counts->requests();
  });
  EXPECT_GE(requests, 8U);   // of each keeper: keep, three steps
  EXPECT_LE(requests, 14U);  // the first step in several parts, on a busy machine
}

TEST_F(Keeper, TwoProcessesAsOneRankAreBothNamed) {
  std::vector<Status> seen(3);
  const auto zero = open({0, 3, 0, 3});
  ASSERT_TRUE(zero.ok() && (*zero)->enter(0, 3).ok());
  in_threads({0, 1, 2}, [&](int k) {
    const auto other = k == 0 ? nullptr : std::move(open({1, 3, k, 3})).value();
    Store& store = k == 0 ? **zero : *other;
    Status& status = seen[static_cast<std::size_t>(k)];
    if (k > 0) status = store.enter(1, 3);
    if (status.ok()) status = store.gather({0, "node", k == 0 ? 0 : 1, 3, false}, "x", in(kTimeLimit)).status();
    store.leave();
  });
  for (const Status& status : seen) {
    EXPECT_EQ(status.code(), StatusCode::mismatch) << status.to_string();
    EXPECT_THAT(status.message(), Mentions("rank 1", "process " + std::to_string(::getpid())));
  }
}

TEST_F(Keeper, AbsentRankZeroIsNamedByAllRanks) {
  in_threads({1, 2, 3}, [&](int rank) {
    const auto store = open({rank, 4, rank, 4}, milliseconds(800));
    EXPECT_EQ(store.status().code(), StatusCode::timeout) << store.status().to_string();
    EXPECT_THAT(store.status().message(), Mentions("rank 0", std::to_string(address_.port), "Connection refused"));
  });
}

// Neither rank 0 nor a keeper has a connection to each of them.
TEST_F(Keeper, FewDescriptorsServeManyRanks) {
  constexpr int kRanks = 2 * kMostKept + 2;
  constexpr rlim_t kDescriptors = kMostKept + 40;
  const auto outcomes = testing::run_ranks(kRanks, [&](int rank, int size, const std::string&) -> std::string {
    const rlimit few{kDescriptors, kDescriptors};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return "no limit";
    const auto store = open({rank, size, rank, size});
    if (!store.ok()) return store.status().to_string();
    Status status = (*store)->enter(rank, size);
    if (status.ok()) status = (*store)->gather({0, "ready", rank, size, true}, "x", in(kTimeLimit)).status();
    return status.ok() ? "" : status.to_string();
  });
  testing::expect_all_well(outcomes);
}

/// Binds the socket at which the ranks of `address` would meet.
Descriptor squat(const StoreAddress& address, bool listens) {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::size_t length = keeper_socket_name(address, 0).copy(name.sun_path + 1, sizeof name.sun_path - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), size), 0);
  if (listens) {
    EXPECT_EQ(::listen(socket.get(), 8), 0);
  }
  return socket;
}

/// Two ranks of a host whose socket is taken: they start all the same.
void expect_start_by_store(const StoreAddress& address, Clock::duration time_limit) {
  in_threads({0, 1}, [&](int rank) {
    const auto store = make_tcp_store(address, rank == 0, {rank, 2, rank, 2}, true, in(time_limit));
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    ASSERT_TRUE((*store)->enter(rank, 2).ok());
    const auto all = (*store)->gather({0, "ready", rank, 2, true}, std::to_string(rank), in(kTimeLimit));
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    EXPECT_THAT(*all, ::testing::ElementsAre("0", "1"));
  });
}

TEST_F(Keeper, SocketThatDoesNotListenIsPassedBy) {
  const Descriptor taken = squat(address_, false);
  expect_start_by_store(address_, kTimeLimit);
}

TEST_F(Keeper, SilentSocketIsPassedByAfterHalfTheTime) {
  const Descriptor taken = squat(address_, true);
  expect_start_by_store(address_, std::chrono::seconds(3));
}

TEST_F(Keeper, SocketWithoutTheKeyIsPassedBy) {
  Descriptor taken = squat(address_, true);
  std::thread impostor([listener = std::move(taken)] {
    for (int k = 0; k < 2; ++k) {
      const Descriptor client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::string answer = "\x03";
      append_block(answer, "keeper");
      answer += std::string(sizeof(Nonce) + sizeof(Proof), 'p');
      static_cast<void>(send_all(client.get(), answer.data(), answer.size(), in(kTimeLimit)));
    }
  });
  expect_start_by_store(address_, kTimeLimit);
  impostor.join();
}

TEST_F(Keeper, SocketOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    const StoreAddress address = address_;  // a name that the stranger has read in /proc/net/unix
    Descriptor taken;
    const std::string name = keeper_socket_name(address, 0);
    if (::setuid(65534) != 0) ::_exit(1);
    taken = Descriptor(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    const std::size_t length = name.copy(where.sun_path + 1, sizeof where.sun_path - 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
    if (::bind(taken.get(), reinterpret_cast<const sockaddr*>(&where), size) != 0 || ::listen(taken.get(), 8) != 0) ::_exit(1);
    static_cast<void>(!::write(ready[1], "x", 1));
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto before = refusals().count;
  const FairClock clock;
  expect_start_by_store(address_, kTimeLimit);
  EXPECT_LT(clock.seconds(), 5 * kSlack);
  EXPECT_EQ(refusals().count, before + 2);
  EXPECT_THAT(refusals().last, Mentions("another user"));
  ::kill(stranger, SIGKILL);
  ::waitpid(stranger, nullptr, 0);
  for (const int end : ready) ::close(end);
}

/// Dies in step `at`, before it gives its value, or while it waits for those of the others, of which one is late.
class DyingStore final : public Store {
 public:
  enum class Role { dies, dies_waiting, late, other };
  DyingStore(std::unique_ptr<Store> store, int at, Role role) : store_(std::move(store)), at_(at), role_(role) {}
  Status set(std::string_view key, std::string_view value) override { return store_->set(key, value); }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override { return store_->get(key, deadline); }
  Result<std::string> get_from(int rank, std::string_view key, Clock::time_point deadline) override {
    return store_->get_from(rank, key, deadline);
  }
  Status enter(int rank, int size) override { return store_->enter(rank, size); }
  void leave() override { store_->leave(); }
  Status look(Clock::time_point deadline) override { return store_->look(deadline); }
  Status refuse(const GatherStep& step, std::string_view why) override { return store_->refuse(step, why); }
  Result<std::vector<std::string>> gather(const GatherStep& step, std::string_view value, Clock::time_point deadline) override {
    const Role role = step.number == at_ ? role_ : Role::other;
    if (role == Role::dies) ::raise(SIGKILL);
    if (role == Role::dies_waiting) {
      std::thread([] {
        std::this_thread::sleep_for(milliseconds(100));
        ::raise(SIGKILL);
      }).detach();
    }
    // It gives no value before the other rank has died.
    if (role == Role::late) std::this_thread::sleep_for(milliseconds(400));
    return store_->gather(step, value, deadline);
  }

 private:
  std::unique_ptr<Store> store_;
  const int at_;
  const Role role_;
};

void await_file(const std::string& path) {
  while (::access(path.c_str(), F_OK) != 0) ::usleep(1000);
}

/// Ranks 0, 1 and 2 meet at `keeper`; rank 3 is as on another host. `victim` dies in a step. What the others report.
void expect_death_to_be_named(int keeper, int victim, int step, bool waits) {
  SCOPED_TRACE(fmt::format("keeper {}, victim {}, step {}, {}", keeper, victim, step, waits ? "waits" : "before its value"));
  const StoreAddress address = free_address();
  const auto outcomes = testing::run_ranks(4, [&](int rank, int size, const std::string& directory) -> std::string {
    ::setenv("SHOAL_PROBE", "0", 1);
    std::unique_ptr<TcpStoreServer> server;
    if (rank == 0) {
      auto served = TcpStoreServer::start(kHost, address.port, address.job, address.key);
      if (!served.ok()) return served.status().to_string();
      server = std::move(*served);
    }
    const auto opened_by = [&](int one) { return fmt::format("{}/{}", directory, one); };
    if (rank != keeper && rank != 3) await_file(opened_by(keeper));
    auto opened = open_tcp_store(std::move(server), address, {rank, size, rank, 3}, rank != 3, in(kTimeLimit));
    if (!opened.ok()) return opened.status().to_string();
    std::ofstream(opened_by(rank)) << "x";
    for (int other = 0; other < size; ++other) await_file(opened_by(other));
    const FairClock clock;
    using Role = DyingStore::Role;
    DyingStore store(std::move(*opened), step,
                     rank == victim       ? (waits ? Role::dies_waiting : Role::dies)
                     : rank == 3 && waits ? Role::late
                                          : Role::other);
    CommunicatorOptions options;
    options.transports = "shm,tcp";
    options.timeout = kTimeLimit;
    const auto made = Communicator::create(store, rank, size, options);
    // The late rank may complete the last step, and then fails in its first call.
    const Status status = made.ok() ? (*made)->barrier() : made.status();
    return clock.seconds() < 10 * kSlack ? status.to_string() : "late: " + status.to_string();
  });
  for (int rank = 0; rank < 4; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    if (rank == victim) {
      EXPECT_TRUE(outcome.killed) << outcome.output;
    } else {
      EXPECT_THAT(outcome.output, Mentions("peer_failed", fmt::format("rank {}", victim))) << "rank " << rank;
    }
  }
}

class KeeperDeath : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(InStep, KeeperDeath, ::testing::Values(0, 1, 2),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(KeeperDeath, KeeperIsNamedByAllRanks) {
  for (const bool waits : {false, true}) expect_death_to_be_named(1, 1, GetParam(), waits);
}
TEST_P(KeeperDeath, MemberIsNamedByAllRanks) {
  for (const bool waits : {false, true}) expect_death_to_be_named(1, 2, GetParam(), waits);
}
TEST_P(KeeperDeath, RankZeroIsNamedByAllRanks) {
  expect_death_to_be_named(0, 0, GetParam(), true);
  expect_death_to_be_named(1, 0, GetParam(), false);
}

}  // namespace
}  // namespace shoal
