// Admission: which connections are accepted, which make room for others, and what is reported of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "src/trust/admission.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

using testing::Mentions;

struct Connection {
  int number = 0;
  bool has_greeted = false;
  Descriptor socket{};
  [[nodiscard]] bool greeted() const { return has_greeted; }
};

std::vector<int> numbers(const Admission<Connection>& admission) {
  std::vector<int> result;
  for (const Connection& connection : admission.unproven) result.push_back(connection.number);
  return result;
}

TEST(Admission, OldestMakesRoomAtTheLimit) {
  const auto before = refusals().count;
  Admission<Connection> admission("test", 2);
  admission.raise_limit(1);
  for (int i = 0; i < 5; ++i) admission.add({i});
  EXPECT_EQ(numbers(admission), (std::vector{2, 3, 4}));
  EXPECT_EQ(refusals().count, before + 2);
  EXPECT_THAT(refusals().last, Mentions("test", "too many connections"));
}

TEST(Admission, MoreNumerousKindMakesRoom) {
  Admission<Connection> admission("test", 5);
  admission.add({0, true});
  for (int i = 1; i < 4; ++i) admission.add({i});
  admission.add({4, true});
  admission.add({5});  // instead of the oldest silent one, although a greeted one is older
  EXPECT_EQ(numbers(admission), (std::vector{0, 2, 3, 4, 5}));
  admission.unproven.back().has_greeted = true;
  admission.add({6});
  EXPECT_EQ(numbers(admission), (std::vector{2, 3, 4, 5, 6}));
}

TEST(Admission, FloodOfOneKindSparesTheOther) {
  Admission<Connection> admission("test", 8);
  admission.add({-1});
  for (int i = 0; i < 100; ++i) admission.add({i, true});
  EXPECT_EQ(numbers(admission).front(), -1);
  Admission<Connection> reverse("test", 8);
  reverse.add({-1, true});
  for (int i = 0; i < 100; ++i) reverse.add({i});
  EXPECT_EQ(numbers(reverse).front(), -1);
}

TEST(Admission, DropWithoutConnectionsIsNoRefusal) {
  Admission<Connection> admission("test", 1);
  admission.drop_one();
  EXPECT_EQ(admission.to_text(), "");
}

TEST(Admission, RefusalsAreReported) {
  Admission<Connection> admission("test", 1);
  admission.refuse("it closed");
  EXPECT_THAT(admission.to_text(), Mentions("dropped 1 connection of", "it closed"));
  admission.refuse("it sent nothing");
  EXPECT_THAT(admission.to_text(), Mentions("dropped 2 connections of", "it sent nothing"));
}

// A listening Unix socket with a name that the kernel chooses.
struct UnixListener {
  UnixListener() {
    sockaddr_un any{};
    any.sun_family = AF_UNIX;
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(sa_family_t)), 0);
    EXPECT_EQ(::listen(socket.get(), 8), 0);
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
  }
  void dial(const Descriptor& client) const {
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&name), length), 0);
  }
  Descriptor socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  sockaddr_un name{};
  socklen_t length = sizeof name;
};

TEST(Admission, EmptyQueueIsNoShortage) {
  const UnixListener listener;
  const Descriptor client(::socket(AF_UNIX, SOCK_STREAM, 0));
  listener.dial(client);
  Admission<Connection> admission("test", 1);
  EXPECT_TRUE(admission.accept(listener.socket.get()).valid());
  EXPECT_FALSE(admission.accept(listener.socket.get()).valid());
  EXPECT_EQ(admission.shortage(), 0);
}

TEST(Admission, ShortageKeepsTheConnectionInTheQueue) {
  const UnixListener listener;
  const Descriptor client(::socket(AF_UNIX, SOCK_STREAM, 0));
  listener.dial(client);
  Admission<Connection> admission("test", 2);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(Descriptor(::dup(client.get())).get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const bool accepted = admission.accept(listener.socket.get()).valid();
  const bool stuck = admission.is_stuck(listener.socket.get());
  admission.add({1});
  const bool stuck_with_a_connection = admission.is_stuck(listener.socket.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(accepted);
  EXPECT_EQ(admission.shortage(), EMFILE);
  EXPECT_TRUE(stuck);
  EXPECT_FALSE(stuck_with_a_connection) << "dropping it makes room";
  EXPECT_THAT(admission.to_text(), Mentions("accept", "Too many open files", "ulimit -n"));
  admission.pause();
  EXPECT_GT(admission.accept_again(), std::chrono::steady_clock::now());
  EXPECT_TRUE(admission.accept(listener.socket.get()).valid());
  EXPECT_EQ(admission.shortage(), 0);
}

}  // namespace
}  // namespace shoal
