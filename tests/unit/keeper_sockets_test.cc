// Connections between keepers: one between two processes whoever asks, what becomes of a dial, and what a stranger can do.
#include "transports/tcp/keeper_sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/trust/refusals.h"
#include "tests/unit/tcp_support.h"
#include "transports/tcp/address.h"

namespace shoal {
namespace {

using tcp::KeeperSockets;
using Kind = KeeperSockets::Event::Kind;
using tcp_test::Clock;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// The sockets of all processes of a job, in one thread.
class KeeperSocketsTest : public ::testing::Test {
 protected:
  struct Process {
    std::unique_ptr<KeeperSockets> sockets;
    std::optional<int> redirect;
    std::vector<KeeperSockets::Event> events;

    [[nodiscard]] std::size_t count(Kind kind) const {
      return static_cast<std::size_t>(std::ranges::count(events, kind, &KeeperSockets::Event::kind));
    }
  };

  void open(int size, bool encryption = false) {
    std::vector<std::string> addresses;
    for (int rank = 0; rank < size; ++rank) {
      TcpOptions options = tcp_test::options_of(rank, size);
      options.encryption = encryption;
      if (rank == stranger_) options.key = key_from_text("another key");
      auto opened = KeeperSockets::open(options);
      ASSERT_TRUE(opened.ok()) << opened.status().to_string();
      processes_.push_back(std::make_unique<Process>());
      processes_.back()->sockets = std::move(opened).value();
      addresses.push_back(processes_.back()->sockets->address());
    }
    for (auto& process : processes_) {
      Process* const its = process.get();
      ASSERT_TRUE(its->sockets->begin(addresses, [its] { return its->redirect; }).ok());
    }
  }
  Process& process(int rank) { return *processes_[static_cast<std::size_t>(rank)]; }
  void connect(int from, int to) { process(from).sockets->connect(to, Clock::now()); }
  void send(int from, int to, const std::string& text) { process(from).sockets->send(to, bytes_of(text)); }

  /// Lets all processes run until `done`, at most 10 s. Sleeps as their threads would.
  template <typename Done>
  bool run(Done done) {
    for (const auto until = Clock::now() + std::chrono::seconds(10); Clock::now() < until;) {
      std::vector<pollfd> waits;
      auto next = Clock::now() + std::chrono::milliseconds(20);
      for (const auto& each : processes_) {
        if (each->sockets == nullptr) continue;
        each->sockets->step(Clock::now());
        while (auto event = each->sockets->take_event()) each->events.push_back(*std::move(event));
        each->sockets->append_wait_fds(waits, Clock::now());
        next = std::min(next, each->sockets->next_time());
      }
      if (done()) return true;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
      ::poll(waits.data(), waits.size(), static_cast<int>(std::max<long>(left, 0)));
    }
    return false;
  }
  /// What has arrived at `rank`.
  std::string messages(int rank) {
    std::string all;
    for (const auto& event : process(rank).events) {
      if (event.kind == Kind::message)
        all += std::string(reinterpret_cast<const char*>(event.bytes.data()), event.bytes.size()) + " ";
    }
    return all;
  }

  int stranger_ = -1;  // this rank has another key
  std::vector<std::unique_ptr<Process>> processes_;
};

TEST_F(KeeperSocketsTest, MessagesArriveInOrderBothWays) {
  for (const bool encryption : {false, true}) {
    processes_.clear();
    open(2, encryption);
    connect(0, 1);
    ASSERT_TRUE(run([&] { return process(0).count(Kind::connected) == 1 && process(1).count(Kind::connected) == 1; }));
    const std::string large(KeeperSockets::kMostMessageBytes, 'x');
    send(0, 1, "one");
    send(0, 1, large);
    send(0, 1, "two");
    send(1, 0, "answer");
    ASSERT_TRUE(run([&] { return process(1).count(Kind::message) == 3 && process(0).count(Kind::message) == 1; }));
    EXPECT_EQ(messages(1), "one " + large + " two ");
    EXPECT_EQ(messages(0), "answer ");
  }
}

TEST_F(KeeperSocketsTest, TwoDialsMakeOneConnection) {
  const auto refused = refusals().count;
  for (int round = 0; round < 20; ++round) {
    processes_.clear();
    open(2);
    connect(round % 2, 1 - round % 2);
    connect(1 - round % 2, round % 2);
    ASSERT_TRUE(run([&] { return process(0).count(Kind::connected) != 0 && process(1).count(Kind::connected) != 0; }));
    send(0, 1, "a");
    send(1, 0, "b");
    ASSERT_TRUE(run([&] { return process(0).count(Kind::message) == 1 && process(1).count(Kind::message) == 1; }));
    EXPECT_EQ(process(0).count(Kind::connected), 1U);
    EXPECT_EQ(process(1).count(Kind::connected), 1U);
    EXPECT_EQ(process(0).count(Kind::lost) + process(1).count(Kind::lost), 0U);
  }
  EXPECT_EQ(refusals().count, refused) << "the handshake that was given up";
}

TEST_F(KeeperSocketsTest, EndOfPeerIsReported) {
  open(2);
  connect(0, 1);
  ASSERT_TRUE(run([&] { return process(1).count(Kind::connected) == 1; }));
  process(0).sockets.reset();
  ASSERT_TRUE(run([&] { return process(1).count(Kind::lost) == 1; }));
  EXPECT_EQ(process(1).events.back().silent_for, Clock::duration::zero());
}

TEST_F(KeeperSocketsTest, RankThatIsNoKeeperRedirects) {
  open(3);
  process(1).redirect = 2;
  connect(0, 1);
  ASSERT_TRUE(run([&] { return !process(0).events.empty(); }));
  EXPECT_EQ(process(0).events[0].kind, Kind::redirected);
  EXPECT_EQ(process(0).events[0].keeper, 2);
  EXPECT_TRUE(process(1).events.empty());
}

TEST_F(KeeperSocketsTest, EndedProcessRefuses) {
  open(2);
  process(1).sockets.reset();
  connect(0, 1);
  ASSERT_TRUE(run([&] { return !process(0).events.empty(); }));
  EXPECT_EQ(process(0).events[0].kind, Kind::refused);
}

TEST_F(KeeperSocketsTest, StoppedProcessIsUnanswered) {
  open(2);
  connect(0, 1);
  auto stopped = std::move(process(1).sockets);  // it listens, and does not run
  ASSERT_TRUE(run([&] { return !process(0).events.empty(); }));
  EXPECT_EQ(process(0).events[0].kind, Kind::unanswered);
}

TEST_F(KeeperSocketsTest, ProcessWithAnotherKeyIsRefused) {
  stranger_ = 1;
  open(3);
  connect(1, 0);
  connect(0, 1);
  connect(2, 0);
  ASSERT_TRUE(run([&] { return process(0).count(Kind::connected) == 1 && !process(1).events.empty(); }));
  EXPECT_EQ(process(1).count(Kind::connected), 0U);
  for (const auto& event : process(0).events) EXPECT_FALSE(event.kind == Kind::connected && event.rank == 1);
}

TEST_F(KeeperSocketsTest, WhatWasSentArrivesBeforeTheEnd) {
  open(2);
  connect(0, 1);
  ASSERT_TRUE(run([&] { return process(0).count(Kind::connected) == 1 && process(1).count(Kind::connected) == 1; }));
  send(1, 0, "never read in time");
  send(0, 1, "goodbye");
  process(0).sockets->leave(Clock::now());
  ASSERT_TRUE(run([&] { return process(1).count(Kind::lost) == 1; }));
  EXPECT_EQ(messages(1), "goodbye ");
  ASSERT_TRUE(run([&] { return process(0).sockets->has_ended_all(); }));
  connect(1, 0);
  ASSERT_TRUE(run([&] { return process(1).count(Kind::refused) == 1; }));
}

TEST_F(KeeperSocketsTest, JunkEndsOnlyItsConnection) {
  open(2);
  const auto address = tcp::split_addresses(process(0).sockets->address());
  ASSERT_TRUE(address.ok());
  const Descriptor stranger(::socket(address->front().family(), SOCK_STREAM, 0));
  ASSERT_EQ(::connect(stranger.get(), address->front().raw(), address->front().length()), 0);
  const std::string junk(tcp::kHelloBytes, '?');
  ASSERT_EQ(::send(stranger.get(), junk.data(), junk.size(), MSG_NOSIGNAL), static_cast<ssize_t>(junk.size()));
  connect(1, 0);
  ASSERT_TRUE(run([&] { return process(0).count(Kind::connected) == 1 && process(1).count(Kind::connected) == 1; }));
  char byte = 0;
  EXPECT_LE(::recv(stranger.get(), &byte, 1, 0), 0);
}

}  // namespace
}  // namespace shoal
