// The store that rank 0 serves: values, waiting, what is in its way.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/store_server.h"

namespace shoal {
namespace {

class TcpStore : public StoreServer {};

/// A second store beside that of the test.
class OtherServer final : public StoreServer {
 public:
  using StoreServer::factory;

 private:
  void TestBody() override {}
};

/// Leaves so few descriptors to this process, for as long as it is there.
class FewDescriptors {
 public:
  explicit FewDescriptors(int free) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<Descriptor> room;
    for (int i = 0; i <= free; ++i) room.emplace_back(::dup(0));
    rlimit tight = before_;
    tight.rlim_cur = static_cast<rlim_t>(room.back().get());
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  }
  ~FewDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST_F(TcpStore, ServesAllThreads) { expect_service_for_all_threads(factory()); }
TEST_F(TcpStore, TimeoutsNameTheKey) { expect_timeouts_to_name_the_key(factory()); }
TEST_F(TcpStore, RanksExchangeAndNameMissingRank) { expect_exchange_and_missing_rank_to_be_named(factory()); }
TEST_F(TcpStore, StepsBringAllValues) { expect_steps_to_bring_all_values(factory()); }
TEST_F(TcpStore, AbortReachesAllRanks) { expect_abort_to_reach_all_ranks(factory()); }
TEST_F(TcpStore, LossReportsItsRootCause) { expect_loss_to_report_its_root_cause(factory()); }
TEST_F(TcpStore, EndedRankIsReportedAtOnce) { expect_ended_rank_to_be_reported_at_once(factory()); }
TEST_F(TcpStore, RankThatEndsBetweenStepsIsNamed) { expect_rank_that_ends_between_steps_to_be_named(factory()); }
TEST_F(TcpStore, IncompatibleRanksAreNamed) {
  OtherServer other;
  expect_incompatible_ranks_to_be_named(factory(), other.factory());
}

TEST_F(TcpStore, TimeoutOfStepNamesMissingRanks) {
  const auto make = factory();
  const auto zero = make();
  const auto two = make();
  Status of_two;
  std::thread other([&] { of_two = two->gather({0, "node", 2, 5, false}, "x", in(milliseconds(300))).status(); });
  const Status of_zero = zero->gather({0, "node", 0, 5, false}, "x", in(milliseconds(300))).status();
  other.join();
  for (const Status& status : {of_zero, of_two}) {
    EXPECT_EQ(status.code(), StatusCode::timeout) << status.to_string();
    EXPECT_THAT(status.message(), Mentions("ranks 1, 3, 4 of 5"));
  }
  ASSERT_TRUE(zero->set("key", "the connection is still in order").ok());
}

// Also of a rank that has given its value; and for a rank that comes after the death.
TEST_F(TcpStore, DeathDuringStepIsReportedAtOnce) {
  const auto make = factory();
  const auto zero = make();
  const auto one = make();
  auto dies = make();
  ASSERT_TRUE(dies->enter(2, 4).ok());
  const auto start = Clock::now();
  Status of_zero;
  std::thread waits([&] { of_zero = zero->gather({0, "node", 0, 4, false}, "x", in(kTimeLimit)).status(); });
  EXPECT_EQ(dies->gather({0, "node", 2, 4, false}, "x", in(milliseconds(50))).status().code(), StatusCode::timeout);
  dies.reset();
  waits.join();
  const Status of_one = one->gather({0, "node", 1, 4, false}, "x", in(kTimeLimit)).status();
  EXPECT_LT(Clock::now() - start, kTimeLimit / 4);
  for (const Status& status : {of_zero, of_one}) {
    EXPECT_EQ(status.code(), StatusCode::peer_failed) << status.to_string();
    EXPECT_THAT(status.message(), Mentions("rank 2"));
  }
}

// The rank that gives the last value learns of the death as well: else it would go on alone, while the others start again.
TEST_F(TcpStore, NoRankGetsValuesAfterOthersWereToldOfADeath) {
  const auto make = factory();
  const auto zero = make();
  const auto one = make();
  auto dies = make();
  ASSERT_TRUE(dies->enter(2, 3).ok());
  Status of_zero;
  std::thread waits([&] { of_zero = zero->gather({0, "ready", 0, 3, true}, "x", in(kTimeLimit)).status(); });
  EXPECT_EQ(dies->gather({0, "ready", 2, 3, true}, "x", in(milliseconds(50))).status().code(), StatusCode::timeout);
  dies.reset();
  waits.join();
  const Status of_one = one->gather({0, "ready", 1, 3, true}, "x", in(kTimeLimit)).status();
  for (const Status& status : {of_zero, of_one}) {
    EXPECT_EQ(status.code(), StatusCode::peer_failed) << status.to_string();
    EXPECT_THAT(status.message(), Mentions("rank 2"));
  }
}

TEST_F(TcpStore, NoRankGetsValuesAfterOthersWereToldOfARefusal) {
  const auto make = factory();
  const auto zero = make();
  const auto one = make();
  const auto refuses = make();
  Status of_zero;
  std::thread waits([&] { of_zero = zero->gather({0, "ready", 0, 3, true}, "x", in(kTimeLimit)).status(); });
  EXPECT_EQ(refuses->gather({0, "ready", 2, 3, true}, "x", in(milliseconds(50))).status().code(), StatusCode::timeout);
  EXPECT_TRUE(refuses->set(Store::kGivenUp, "no memory").ok());
  waits.join();
  const Status of_one = one->gather({0, "ready", 1, 3, true}, "x", in(kTimeLimit)).status();
  for (const Status& status : {of_zero, of_one}) EXPECT_EQ(status.code(), StatusCode::aborted) << status.to_string();
}

// Rank 0, which serves the store, returns from the last step when the connection of rank 1 has ended, and not before.
TEST_F(TcpStore, LastStepKeepsServerForOtherRanks) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const Descriptor socket = dial();
  auto entered = enter(socket, "job", kNoKey);
  ASSERT_TRUE(entered);
  say(socket, entered->sealed('\x06' + number(7) + number(2) + number(1) + number(1) + block("one")));
  const Status late = (*server)->gather({7, "ready", 0, 2, true}, "zero", in(milliseconds(200))).status();
  EXPECT_EQ(late.code(), StatusCode::timeout) << late.to_string();
  EXPECT_THAT(late.message(), Mentions("rank 1 of 2"));
  // A client of the next start-up is not served.
  const Descriptor too_late = dial();
  EXPECT_FALSE(enter(too_late, "job", kNoKey));
}

TEST_F(TcpStore, LastStepEndsWithTheLastConnection) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  Descriptor next = dial();
  auto again = enter(next, "job", kNoKey);
  ASSERT_TRUE(again);
  say(next, again->sealed('\x06' + number(8) + number(2) + number(1) + number(1) + block("one")));
  std::thread leaves([&] {
    std::this_thread::sleep_for(milliseconds(50));
    next.reset();
  });
  const auto start = Clock::now();
  const auto all = (*server)->gather({8, "ready", 0, 2, true}, "zero", in(kTimeLimit));
  EXPECT_GE(Clock::now() - start, milliseconds(25));
  leaves.join();
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  EXPECT_THAT(*all, ::testing::ElementsAre("zero", "one"));
}

TEST_F(TcpStore, TwoProcessesAsRankZeroAreBothNamed) {
  const auto first = make(true);
  ASSERT_TRUE(first.ok() && (*first)->enter(0, 2).ok());
  const auto second = make(true);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  ASSERT_TRUE((*second)->enter(0, 2).ok());
  for (const auto* store : {&first, &second}) {
    const Status told = (**store)->get_from(1, "absent", in(kTimeLimit)).status();
    EXPECT_EQ(told.code(), StatusCode::mismatch) << told.to_string();
    EXPECT_THAT(told.message(), Mentions("rank 0", "process " + std::to_string(::getpid())));
  }
  const auto of_another_job = make(true, "another");
  EXPECT_EQ(of_another_job.status().code(), StatusCode::system_error);
  EXPECT_THAT(of_another_job.status().message(), Mentions("Address already in use", "'job'", "'another'"));
}

TEST_F(TcpStore, EarlyClientWaitsForTheServer) {
  std::unique_ptr<Store> client;
  std::thread early([&] {
    auto made = make(false);
    if (made.ok()) client = std::move(*made);
  });
  std::this_thread::sleep_for(milliseconds(30));  // so that it is refused a few times; the test holds without it as well
  const auto server = make(true);
  early.join();
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  ASSERT_NE(client, nullptr);
  expect_service(**server, *client, "key");
}

TEST_F(TcpStore, RequestInSmallPiecesIsAssembled) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const Descriptor socket = dial();
  auto entered = enter(socket, "job", kNoKey);
  ASSERT_TRUE(entered);
  // Some of it in records of a byte, all of it byte by byte.
  const std::string request = '\x01' + block("slow") + block("but right");
  std::string records;
  for (const char byte : request.substr(0, 8)) records += entered->sealed(std::string(1, byte));
  for (const char byte : records + entered->sealed(request.substr(8))) say(socket, std::string(1, byte));
  EXPECT_EQ((*server)->get("slow", in(kTimeLimit)).value(), "but right");
}

TEST_F(TcpStore, HandshakeAndRequestsInOnePieceAreSplit) {
  StoreTable table{"job", kNoKey, {}};
  StoreSession session(table);
  const Nonce mine{};
  session.receive(store_hello("job", mine));
  Nonce theirs;
  std::memcpy(theirs.data(), session.unsent.data() + 1 + 4 + 3, theirs.size());
  std::string rest(as_text(store_client_proof(kNoKey, "job", mine, theirs)));
  RecordCipher cipher = store_cipher(kNoKey, "job", mine, theirs, true);
  append_sealed(rest, cipher, '\x01' + block("key") + block(std::string(100'000, 'v')) + '\x01' + block("next") + block("w"));
  session.receive(rest);
  EXPECT_EQ(table.values["key"], std::string(100'000, 'v'));
  EXPECT_EQ(table.values["next"], "w");
  EXPECT_FALSE(session.over());
}

TEST_F(TcpStore, ServerWithoutDescriptorsServesWithoutSpinning) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const auto client = make(false);
  ASSERT_TRUE(client.ok());
  // Up to the limit with connections that the kernel makes; the server can accept none of the last ones.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const Descriptor last(::dup(0));
  std::vector<Descriptor> dialled;
  for (int i = 0; i < 8; ++i) dialled.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(dialled.back().get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  ::inet_pton(AF_INET, kHost, &address.sin_addr);
  for (const Descriptor& socket : dialled) {
    static_cast<void>(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  }
  timespec cpu_before{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_before);
  std::this_thread::sleep_for(milliseconds(300));
  timespec cpu_after{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_after);
  const double cpu_s = static_cast<double>(cpu_after.tv_sec - cpu_before.tv_sec) +
                       static_cast<double>(cpu_after.tv_nsec - cpu_before.tv_nsec) / 1e9;
  EXPECT_LT(cpu_s, 0.15) << "the server spins";
  expect_service(**server, **client, "key");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const auto late = make(false);
  ASSERT_TRUE(late.ok()) << late.status().to_string();
  expect_service(**server, **late, "late");
}

TEST_F(TcpStore, LackOfDescriptorsIsOneClearError) {
  constexpr int kNeeded = 5;                             // listener, eventfd, epoll, both ends of the own connection
  for (const std::string host : {kHost, "localhost"}) {  // a name is looked up, which may take more
    for (int free = 0; free <= 6; ++free) {
      SCOPED_TRACE(host + " with " + std::to_string(free) + " descriptors");
      const auto start = Clock::now();
      Result<ServedStore> served = Status(StatusCode::internal, "not run");
      {
        const FewDescriptors few(free);
        served = serve_tcp_store(host, "job", kNoKey, in(kTimeLimit));
      }
      EXPECT_LT(Clock::now() - start, kTimeLimit / 4);
      if (host == kHost) {
        EXPECT_EQ(served.ok(), free >= kNeeded) << served.status().to_string();
      }
      if (served.ok()) {
        EXPECT_GE(free, kNeeded);
        EXPECT_TRUE(served->store->set("key", "value").ok());
        EXPECT_EQ(served->store->get("key", in(kTimeLimit)).value(), "value");
        continue;
      }
      EXPECT_EQ(served.status().code(), StatusCode::system_error);
      EXPECT_THAT(served.status().message(), Mentions("rank 0", "Too many open files", "ulimit -n"));
    }
  }
}

TEST_F(TcpStore, OtherServiceIsReportedAsNoStore) {
  const auto listener = listen_on(kHost, port_);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  const auto client = make(false, "job", milliseconds(100));  // it connects, and nobody answers
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::timeout);
  EXPECT_THAT(client.status().message(), Mentions("127.0.0.1:" + std::to_string(port_)));
  EXPECT_THAT(client.status().message(), ::testing::Not(Mentions("Connection refused")));
}

TEST_F(TcpStore, AbsentServerIsATimeoutWithTheAddress) {
  const auto client = make(false, "job", milliseconds(60));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::timeout);
  EXPECT_THAT(client.status().message(), Mentions("rank 0", "127.0.0.1:" + std::to_string(port_), "Connection refused"));
}

TEST_F(TcpStore, LostServerFailsEveryCallAtOnce) {
  auto server = make(true);
  ASSERT_TRUE(server.ok());
  const auto client = make(false);
  ASSERT_TRUE(client.ok());
  Result<std::string> waiting = Status(StatusCode::internal, "not set");
  std::thread waiter([&] { waiting = (*client)->get("never", in(kTimeLimit)); });
  std::this_thread::sleep_for(milliseconds(20));
  server->reset();
  waiter.join();
  ASSERT_FALSE(waiting.ok());
  EXPECT_NE(waiting.status().code(), StatusCode::timeout);
  EXPECT_THAT(waiting.status().message(), Mentions("never"));
  const auto start = Clock::now();
  EXPECT_FALSE((*client)->set("key", "value").ok());
  EXPECT_FALSE((*client)->get("key", in(kTimeLimit)).ok());
  EXPECT_LT(Clock::now() - start, kTimeLimit / 2);
}

// The client has no connection when the server ends: it gave it up at a timeout.
TEST_F(TcpStore, ServerThatRefusesLaterHasEnded) {
  auto server = make(true);
  ASSERT_TRUE(server.ok());
  const auto client = make(false);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->get("never", in(milliseconds(20))).status().code(), StatusCode::timeout);
  server->reset();
  const auto start = Clock::now();
  EXPECT_EQ((*client)->set("key", "value").code(), StatusCode::peer_failed);
  EXPECT_FALSE((*client)->get("key", in(kTimeLimit)).ok());
  EXPECT_LT(Clock::now() - start, milliseconds(2500)) << "as a server that has not started yet";
}

TEST_F(TcpStore, BadArgumentsAreRefusedBeforeSending) {
  for (const int port : {0, -1, 65536}) {
    const auto store = make_tcp_store(kHost, port, false, "job", in(kTimeLimit));
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(store.status().message(), Mentions(std::to_string(port)));
  }
  EXPECT_FALSE(make(true, std::string(257, 'j')).ok());
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const std::string largest(1 << 20, 'v');
  EXPECT_EQ((*server)->set("key", largest + 'v').code(), StatusCode::invalid_argument);
  EXPECT_EQ((*server)->set(std::string(4097, 'k'), "v").code(), StatusCode::invalid_argument);
  EXPECT_EQ((*server)->get(std::string(4097, 'k'), in(kTimeLimit)).status().code(), StatusCode::invalid_argument);
  ASSERT_TRUE((*server)->set("key", largest).ok());
  EXPECT_EQ((*server)->get("key", in(kTimeLimit)).value(), largest);
}

TEST_F(TcpStore, UnknownHostNameIsNamed) {
  const auto store = make_tcp_store("no-such-host.invalid", port_, false, "job", in(milliseconds(50)));
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(store.status().message(), HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace shoal
