// The store that rank 0 serves, among strangers: who is let in, and what of it others hear, change or repeat.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/trust/refusals.h"
#include "tests/unit/beside.h"
#include "tests/unit/store_server.h"

namespace shoal {
namespace {

using ::testing::Not;

class StoreTrust : public StoreServer {};

TEST_F(StoreTrust, HostileClientsAreDroppedWhileOthersWork) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const auto client = make(false);
  ASSERT_TRUE(client.ok());
  const std::uint32_t seed = 20240229;
  std::mt19937 random(seed);
  std::string junk(5000, '\0');
  for (char& byte : junk) byte = static_cast<char>(random());
  const std::string to_drop[] = {
      junk,
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "SHST" + number(kStoreVersion) + number(0xffffffff),  // a job name of 4 GiB
      "SHST" + number(kStoreVersion) + number(257),
      hello(kStoreVersion, "another job"),
      hello(kStoreVersion - 1, "job"),
      hello(kStoreVersion, "job") + std::string(32, 'p'),  // no proof at all
      hello(kStoreVersion, "job") + std::string(3000, 'p'),
  };
  const std::string to_drop_of_a_member[] = {
      "\x0c",              // no such request
      "\x0a" + number(1),  // the client is no keeper
      "\x0b" + block("why"),
      '\x09' + number(0) + number(1) + number(0) + number(0),
      '\x08' + number(0) + number(3) + number(1) + number(1) + number(0x7fffffff),
      '\x02' + number(kStoreNoRank) + number(0x80000000),  // a key of 2 GiB
      '\x01' + block("k") + number(0x7fffffff),
      '\x06' + number(0) + number(3) + number(3) + number(0) + block("a rank beyond the size"),
      '\x06' + number(0) + number(0x7fffffff) + number(0) + number(0) + block("a size beyond all limits"),
      '\x06' + number(0) + number(3) + number(0) + number(2) + block("neither last nor not"),
      '\x06' + number(0) + number(3) + number(0) + number(0) + number((1 << 20) + 1),
      '\x01' + block("k") + number((1 << 20) + 1),
      '\x02' + number(kStoreNoRank) + block("absent") + std::string(3 << 20, 'x'),  // far more than any request while it waits
  };
  std::vector<Descriptor> half_open;
  half_open.push_back(dial());  // says nothing
  say(half_open.emplace_back(dial()), "SHS");
  ASSERT_TRUE(enter(half_open.emplace_back(dial()), "job", kNoKey, false));
  auto half = enter(half_open.emplace_back(dial()), "job", kNoKey);
  ASSERT_TRUE(half);
  say(half_open.back(), half->sealed('\x01' + number(4096) + "half a key"));
  const auto before = refusals().count;
  int k = 0;
  for (const bool member : {false, true}) {
    for (const std::string& bytes : member ? std::span<const std::string>(to_drop_of_a_member) : to_drop) {
      const Descriptor stranger = dial();
      std::string said = bytes;
      if (member) {
        auto entered = enter(stranger, "job", kNoKey);
        ASSERT_TRUE(entered);
        said = entered->sealed(bytes);
      }
      std::thread talker([&] { say(stranger, said); });
      expect_service(**server, **client, "key" + std::to_string(k++));
      talker.join();
      EXPECT_TRUE(is_closed(stranger)) << "hostile input " << k << " keeps its connection (seed " << seed << ")";
    }
  }
  EXPECT_EQ(refusals().count - before, std::size(to_drop));
  for (int i = 0; i < 200; ++i) static_cast<void>(dial());  // a port scan
  const auto late = make(false);
  ASSERT_TRUE(late.ok()) << late.status().to_string();
  expect_service(**client, **late, "late");
}

TEST_F(StoreTrust, SurplusSilentConnectionsAreDropped) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_cur < 900) GTEST_SKIP() << "needs 900 file descriptors, " << before.rlim_cur << " are allowed";
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(dial());
  const auto client = make(false);
  ASSERT_TRUE(client.ok()) << client.status().to_string();
  expect_service(**server, **client, "key");
  EXPECT_TRUE(is_closed(silent.front()));
}

/// Connects to the store without waiting for it.
void knock(const Descriptor& socket, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, kHost, &address.sin_addr);
  static_cast<void>(!::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
}

std::vector<Descriptor> sockets(std::size_t count) {
  std::vector<Descriptor> made;
  for (std::size_t i = 0; i < count; ++i) made.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return made;
}

constexpr std::size_t kRoomForStrangers = 256;

TEST_F(StoreTrust, ClientWithinAFloodIsAcceptedAtOnce) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_cur < 900) GTEST_SKIP() << "needs 900 file descriptors, " << before.rlim_cur << " are allowed";
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  std::vector<Descriptor> greeted;  // for which nobody needs the key
  for (std::size_t i = 0; i < kRoomForStrangers; ++i) ASSERT_TRUE(enter(greeted.emplace_back(dial()), "job", kNoKey, false));
  // The server can accept nobody while a crowd gathers before its door, and the client within.
  const std::vector<Descriptor> first = sockets(10);
  const std::vector<Descriptor> last = sockets(100);
  const std::vector<Descriptor> client = sockets(1);
  bool heard = false;
  testing::Beside introduction([&] {
    auto entered = enter(client[0], "job", kNoKey);
    heard = entered.has_value();
    if (entered) say(client[0], entered->sealed('\x01' + block("key") + block("from the middle")));
  });
  const Descriptor next(::dup(0));
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  for (const Descriptor& one : first) knock(one, port_);
  knock(client[0], port_);
  introduction.begin();
  std::this_thread::sleep_for(milliseconds(50));  // so that it has greeted; the test holds without it as well
  for (const Descriptor& one : last) knock(one, port_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  introduction.end();
  ASSERT_TRUE(heard) << "it was thrown out before it was heard";
  EXPECT_EQ((*server)->get("key", in(kTimeLimit)).value(), "from the middle");
}

TEST_F(StoreTrust, ClientsConnectDespiteGreetingsAndAFlood) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_cur < 900) GTEST_SKIP() << "needs 900 file descriptors, " << before.rlim_cur << " are allowed";
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  std::vector<Descriptor> greeted;
  for (std::size_t i = 0; i < kRoomForStrangers; ++i) ASSERT_TRUE(enter(greeted.emplace_back(dial()), "job", kNoKey, false));
  std::atomic<bool> over = false;
  std::thread flood([&] {
    const std::string words = hello(kStoreVersion, "job");
    for (std::vector<Descriptor> held; !over;) {
      held = sockets(100);
      for (const Descriptor& one : held) knock(one, port_);
      for (std::size_t i = 0; i < held.size(); i += 2)  // every other one greets, too
        static_cast<void>(!::send(held[i].get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    }
  });
  const auto start = Clock::now();
  for (int i = 0; i < 10; ++i) {
    const auto client = make(false);
    EXPECT_TRUE(client.ok()) << client.status().to_string();
    if (client.ok()) expect_service(**server, **client, "key" + std::to_string(i));
  }
  over = true;
  flood.join();
  EXPECT_LT(Clock::now() - start, kTimeLimit / 2);
}

TEST_F(StoreTrust, TwoJobsOnOnePortAreSeparate) {
  const auto first = make(true, "first");
  ASSERT_TRUE(first.ok());
  const auto second_server = make(true, "second");
  ASSERT_FALSE(second_server.ok());
  EXPECT_EQ(second_server.status().code(), StatusCode::system_error);
  EXPECT_THAT(second_server.status().message(),
              Mentions("rank 0", "127.0.0.1:" + std::to_string(port_), "Address already in use"));
  const auto second_client = make(false, "second");
  ASSERT_FALSE(second_client.ok());
  EXPECT_EQ(second_client.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(second_client.status().message(), Mentions("first", "second", std::to_string(port_)));
}

TEST_F(StoreTrust, AnotherKeyIsRefusedOnBothSides) {
  const auto server = make_tcp_store(kHost, port_, true, "job", key_from_text("the right key"), in(kTimeLimit));
  ASSERT_TRUE(server.ok());
  const auto before = refusals().count;
  const auto client = make_tcp_store(kHost, port_, false, "job", key_from_text("a wrong key"), in(kTimeLimit));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::mismatch);
  EXPECT_THAT(client.status().message(), Mentions("127.0.0.1:" + std::to_string(port_), "SHOAL_JOB_KEY", "SHOAL_JOB_KEY_FILE"));
  // One that does not look at the server's proof gets no further.
  const Descriptor socket = dial();
  auto entered = enter(socket, "job", key_from_text("a wrong key"));
  ASSERT_TRUE(entered);
  say(socket, entered->sealed('\x01' + block("key") + block("smuggled")));
  EXPECT_TRUE(is_closed(socket));
  EXPECT_EQ((*server)->get("key", in(milliseconds(20))).status().code(), StatusCode::timeout);
  EXPECT_EQ(refusals().count - before, 2U);
  EXPECT_THAT(refusals().last, ::testing::AllOf(::testing::StartsWith("store: "), Mentions("key")));
}

TEST_F(StoreTrust, ReplayedHandshakeIsRefused) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  auto recorded = enter(dial(), "job", kNoKey);
  ASSERT_TRUE(recorded);
  const std::string words = recorded->said + recorded->sealed('\x01' + block("key") + block("smuggled"));
  for (int i = 0; i < 20; ++i) {
    const Descriptor socket = dial();
    say(socket, words);
    EXPECT_TRUE(is_closed(socket));
  }
  EXPECT_EQ((*server)->get("key", in(milliseconds(20))).status().code(), StatusCode::timeout);
}

/// Between a client and the server: hears all, and may change or repeat it.
class Listener {
 public:
  /// What becomes of bytes on the way: `change(to_server, heard_before, bytes)`.
  using Change = std::function<void(bool, const std::string&, std::string&)>;

  Listener(int server_port, Change change)
      : listening_(listen_on(kHost, 0).value()),
        port_(port_of(listening_).value()),
        change_(std::move(change)),
        thread_([=, this] {
          pollfd waiting{listening_.get(), POLLIN, 0};
          if (::poll(&waiting, 1, 60'000) != 1) return;
          const Descriptor client(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
          const Descriptor server = connect_to(kHost, server_port, in(kTimeLimit)).value();
          while (forward(client, server)) {
          }
        }) {}
  ~Listener() { thread_.join(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  [[nodiscard]] int port() const { return port_; }
  /// What went to the server and what came from it.
  [[nodiscard]] std::string heard(bool to_server) const {
    const std::scoped_lock lock(mutex_);
    return heard_[to_server ? 0 : 1];
  }

 private:
  bool forward(const Descriptor& client, const Descriptor& server) {
    pollfd ready[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
    if (::poll(ready, 2, 60'000) <= 0) return false;
    for (const bool to_server : {true, false}) {
      if (ready[to_server ? 0 : 1].revents == 0) continue;
      std::string bytes(1 << 16, '\0');
      const ssize_t got = ::recv((to_server ? client : server).get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes.resize(static_cast<std::size_t>(got));
      const std::string before = heard(to_server);
      {
        const std::scoped_lock lock(mutex_);
        heard_[to_server ? 0 : 1] += bytes;
      }
      change_(to_server, before, bytes);
      if (!send_all((to_server ? server : client).get(), bytes.data(), bytes.size(), in(kTimeLimit)).ok()) return false;
    }
    return true;
  }

  const Descriptor listening_;
  const int port_;
  const Change change_;
  mutable std::mutex mutex_;
  std::array<std::string, 2> heard_;
  std::thread thread_;  // last: starts when everything else is there
};

// By the first bytes of each direction: hello and proof, challenge.
constexpr std::size_t kToServerHandshake = 4 + 4 + 4 + 3 + 16 + 32;
constexpr std::size_t kFromServerHandshake = 1 + 4 + 3 + 16 + 32;

TEST_F(StoreTrust, EavesdropperSeesNoKeysAndNoValues) {
  const Key key = key_from_text("the job's key");
  const auto server = make_tcp_store(kHost, port_, true, "job", key, in(kTimeLimit));
  ASSERT_TRUE(server.ok());
  const Listener listener(port_, [](bool, const std::string&, std::string&) {});
  {
    const auto client = make_tcp_store(kHost, listener.port(), false, "job", key, in(kTimeLimit));
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    ASSERT_TRUE((*client)->set("a key of some length", "a value of some length").ok());
    ASSERT_TRUE((*server)->set("another key of some length", "another value of some length").ok());
    EXPECT_EQ((*client)->get("another key of some length", in(kTimeLimit)).value(), "another value of some length");
    EXPECT_EQ((*server)->get("a key of some length", in(kTimeLimit)).value(), "a value of some length");
  }
  EXPECT_THAT(listener.heard(true), HasSubstr("job"));  // it did hear
  for (const bool to_server : {true, false}) {
    EXPECT_GT(listener.heard(to_server).size(), to_server ? kToServerHandshake : kFromServerHandshake);
    EXPECT_THAT(listener.heard(to_server), Not(HasSubstr("key of some")));
    EXPECT_THAT(listener.heard(to_server), Not(HasSubstr("value of some")));
  }
}

TEST_F(StoreTrust, ChangedByteEndsTheConnection) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  ASSERT_TRUE((*server)->set("known", "right").ok());
  // Each byte of a request and of an answer.
  const std::size_t request_bytes = 1 + 4 + 3 + 4 + 5 + RecordCipher::kOverheadBytes;
  const std::size_t answer_bytes = 4 + 5 + RecordCipher::kOverheadBytes;
  for (std::size_t i = 0; i < request_bytes + answer_bytes; ++i) {
    const bool request = i < request_bytes;
    const std::size_t at = request ? kToServerHandshake + i : kFromServerHandshake + i - request_bytes;
    const auto before = refusals().count;
    const Listener listener(port_, [&](bool to_server, const std::string& heard, std::string& bytes) {
      if (to_server == request && at >= heard.size() && at - heard.size() < bytes.size()) bytes[at - heard.size()] ^= 1;
    });
    const auto client = make_tcp_store(kHost, listener.port(), false, "job", in(kTimeLimit));
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    // A record that has become longer is waited for in vain.
    const bool longer = (request ? i : i - request_bytes) == 1;
    if (request) {
      if (longer) continue;
      EXPECT_FALSE((*client)->set("key", "value").ok()) << i;
      EXPECT_THAT(refusals().last, ::testing::AllOf(::testing::StartsWith("store: "), Mentions("record")));
    } else {
      const auto got = (*client)->get("known", in(longer ? milliseconds(100) : milliseconds(60'000)));
      ASSERT_FALSE(got.ok()) << i << ": " << *got;
      if (longer) continue;
      EXPECT_EQ(got.status().code(), StatusCode::system_error) << "not: the connection is closed";
      EXPECT_THAT(got.status().message(), Mentions("known"));
    }
    EXPECT_EQ(refusals().count, before + 1) << i;
    EXPECT_FALSE((*client)->get("known", in(kTimeLimit)).ok()) << "a connection that was tampered with is used again";
  }
  EXPECT_EQ((*server)->get("key", in(milliseconds(20))).status().code(), StatusCode::timeout);
}

TEST(StoreEncryption, KeysDifferPerConnection) {
  Nonce other{};
  other[0] = std::byte{1};
  const auto opens = [](RecordCipher reader) {
    RecordCipher writer = store_cipher(kNoKey, "job", Nonce{}, Nonce{}, true);
    std::string record;
    append_sealed(record, writer, "text");
    std::memcpy(reader.room().data(), record.data(), record.size());
    reader.arrived(record.size());
    std::array<std::byte, 4> text;
    return reader.waiting_bytes() == text.size() && reader.open(text.data());
  };
  EXPECT_TRUE(opens(store_cipher(kNoKey, "job", Nonce{}, Nonce{}, false)));
  EXPECT_FALSE(opens(store_cipher(key_from_text("another"), "job", Nonce{}, Nonce{}, false)));
  EXPECT_FALSE(opens(store_cipher(kNoKey, "other", Nonce{}, Nonce{}, false)));
  EXPECT_FALSE(opens(store_cipher(kNoKey, "job", other, Nonce{}, false)));
  EXPECT_FALSE(opens(store_cipher(kNoKey, "job", Nonce{}, other, false)));
  EXPECT_FALSE(opens(store_cipher(kNoKey, "job", Nonce{}, Nonce{}, true)));
}

TEST_F(StoreTrust, ReplayedRequestsAreRefused) {
  const auto server = make(true);
  ASSERT_TRUE(server.ok());
  const Descriptor socket = dial();
  auto entered = enter(socket, "job", kNoKey);
  ASSERT_TRUE(entered);
  const auto before = refusals().count;
  const std::string first = entered->sealed('\x01' + block("key") + block("first"));
  const std::string second = entered->sealed('\x01' + block("key") + block("second"));
  say(socket, first + second + first);
  EXPECT_TRUE(is_closed(socket));
  EXPECT_EQ((*server)->get("key", in(kTimeLimit)).value(), "second");
  EXPECT_EQ(refusals().count, before + 1);
  // Nor in the open, where the first bytes are taken for a length, and the rest for a record.
  const Descriptor open = dial();
  ASSERT_TRUE(enter(open, "job", kNoKey));
  say(open, '\x01' + block("key") + block("third") + std::string(1000, '\0'));
  EXPECT_TRUE(is_closed(open));
  EXPECT_EQ((*server)->get("key", in(kTimeLimit)).value(), "second");
  EXPECT_EQ(refusals().count, before + 2);
}

}  // namespace
}  // namespace shoal
