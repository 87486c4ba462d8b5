// Links whose connections are cut, changed and lost: every byte arrives all the same, once, or the peer is named in time.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "src/engine/control.h"
#include "tests/unit/tcp_proxy.h"
#include "tests/unit/tcp_support.h"
#include "transports/tcp/repairs.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp_test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSlowdown = 8;
#else
constexpr std::uint64_t kSlowdown = 1;
#endif
constexpr std::uint64_t kHandshake = 2 * tcp::kHelloBytes;  // each way

Proxy::Judge pass_all() {
  return [](const Passage& passage) { return passage.bytes.size(); };
}

/// Where rank 0 looks for rank 1 when their connections are gone, and finds somebody else. Whoever asks for a connection beyond
/// the `backlog`, which nobody takes out of it, gets no answer: to him the host is silent.
struct Door {
  Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string address;

  explicit Door(int backlog) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof where;
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&where), bytes), 0);
    EXPECT_EQ(::listen(socket.get(), backlog), 0);
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&where), &bytes), 0);
    address = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  }
};

/// Rank 1 reaches rank 0 through a proxy, rank 0 finds rank 1 without, or does not find it where it is told another address.
struct Pair {
  std::vector<End> ends{2};
  std::unique_ptr<Proxy> proxy;

  Pair(int sockets, std::size_t tile_bytes, bool integrity, const Proxy::Judge& judge, bool orderly = false,
       const std::string& host = "127.0.0.1", bool encryption = false, const std::string& address_told = "",
       std::chrono::seconds lost_after = std::chrono::seconds(30)) {
    auto options = options_for(2, sockets, tile_bytes);
    std::vector<std::string> addresses;
    for (std::size_t i = 0; i < 2; ++i) {
      options[i].integrity = integrity;
      options[i].encryption = encryption;
      options[i].lost_after = lost_after;
      options[i].interface_or_address = host;
      ends[i].transport = std::move(*make_tcp_transport(options[i]));
      addresses.push_back(ends[i].transport->address());
    }
    proxy = std::make_unique<Proxy>(addresses[0], judge, orderly, host);
    addresses[0] = proxy->address();
    if (!address_told.empty()) addresses[1] = address_told;
    std::thread other([&] { connect(ends[1], 1, addresses, kPatience); });
    connect(ends[0], 0, addresses, kPatience);
    other.join();
    for (const End& end : ends) EXPECT_TRUE(end.status.ok()) << end.status.to_string();
  }
  ~Pair() {
    for (End& end : ends) end.destroy();
  }
  [[nodiscard]] bool connected() const { return ends[0].status.ok() && ends[1].status.ok(); }

  void pack_if(bool packing) {
    for (End& end : ends) {
      if (packing) end.transport->use_packing();
    }
  }
  /// See exchange_messages().
  std::string exchange(std::span<const std::byte> there, std::span<const std::byte> back, std::size_t tile) {
    return exchange_messages(ends, there, back, tile);
  }
};

TEST(TcpRepair, ACutAtEveryByteOfASmallExchangeLosesNothing) {
  const auto there = random_bytes(300, 1);
  const auto back = random_bytes(170, 2);
  int cuts = 0;
  const auto before = tcp::repairs().connections;
  // Connections 0 and 1 are the first, for tiles and for words; 2 takes the place of the one that was cut, and is cut too.
  constexpr std::uint64_t kMost = kHandshake + 4 * 192;
  for (const bool back_way : {false, true}) {
    for (std::uint64_t at = 0; at < kMost; at += kSlowdown * (back_way ? 3 : 1)) {
      const auto judge = [&](const Passage& passage) {
        const bool first = passage.connection == 0 && at >= kHandshake;
        const bool next = passage.connection == 2;
        const std::uint64_t end = first ? at : (at * 7) % kMost;
        if (passage.back != back_way || !(first || next) || end < passage.offset) return passage.bytes.size();
        return std::min<std::size_t>(passage.bytes.size(), end - passage.offset);
      };
      Pair pair(1, 4096, at % 2 == 0, judge, at % 3 == 0);
      ASSERT_TRUE(pair.connected());
      for (int round = 0; round < 2; ++round) ASSERT_EQ(pair.exchange(there, back, 100), "") << "cut at byte " << at;
      cuts += pair.proxy->cuts();
    }
  }
  const auto repaired = tcp::repairs().connections - before;
  std::printf("%d cuts, %lu connections made anew\n", cuts, static_cast<unsigned long>(repaired));
  EXPECT_GT(cuts, static_cast<int>(1000 / kSlowdown));
  EXPECT_GT(repaired, 1000 / kSlowdown);
}

struct Wire {
  int sockets;
  bool integrity;
  bool orderly;
  bool encryption = false;
  bool packing = false;
};

class TcpRepairs : public testing::TestWithParam<Wire> {};

TEST_P(TcpRepairs, CutsAtRandomMomentsLoseNothing) {
  const Wire wire = GetParam();
  std::mt19937_64 random(11);
  std::vector<std::uint64_t> left;  // by connection: until it is cut
  const auto judge = [&](const Passage& passage) -> std::size_t {
    const auto at = static_cast<std::size_t>(passage.connection);
    while (left.size() <= at) left.push_back(2 * kHandshake + random() % 2'000'000);
    const std::size_t pass = std::min<std::uint64_t>(passage.bytes.size(), left[at]);
    left[at] -= pass;
    return pass;
  };
  Pair pair(wire.sockets, 32 << 10, wire.integrity, judge, wire.orderly, "127.0.0.1", wire.encryption);
  ASSERT_TRUE(pair.connected());
  pair.pack_if(wire.packing);
  const auto there = wire.packing ? gradient_bytes(24 << 20, 3) : random_bytes(24 << 20, 3);
  const auto back = random_bytes(16 << 20, 4);
  EXPECT_EQ(pair.exchange(there, back, 32 << 10), "");
  std::printf("%d cuts\n", pair.proxy->cuts());
  EXPECT_GT(pair.proxy->cuts(), 10);
}

TEST_P(TcpRepairs, ChangedBitsNeverArrive) {
  const Wire wire = GetParam();
  std::mt19937_64 random(12);
  std::uint64_t next = 100'000;
  std::uint64_t passed = 0;
  int flips = 0;
  const auto judge = [&](const Passage& passage) -> std::size_t {
    // Not in what both say first: a start that is disturbed is another test's.
    const bool start = passage.connection <= wire.sockets && passage.offset < kHandshake;
    passed += passage.bytes.size();
    if (passed > next && !start) {
      passage.bytes[random() % passage.bytes.size()] ^= static_cast<std::byte>(1 << random() % 8);
      next = passed + random() % 600'000;
      ++flips;
    }
    return passage.bytes.size();
  };
  const auto before = tcp::repairs();
  Pair pair(wire.sockets, 32 << 10, wire.integrity, judge, false, "127.0.0.1", wire.encryption);
  ASSERT_TRUE(pair.connected());
  for (End& end : pair.ends) end.transport->use_check_sums();
  pair.pack_if(wire.packing);
  const auto there = wire.packing ? gradient_bytes(16 << 20, 5) : random_bytes(16 << 20, 5);
  const auto back = random_bytes(16 << 20, 6);
  EXPECT_EQ(pair.exchange(there, back, 32 << 10), "");
  const auto after = tcp::repairs();
  std::printf("%d bits flipped, %lu tiles sent again for their check sum, %lu connections made anew\n", flips,
              static_cast<unsigned long>(after.tiles - before.tiles),
              static_cast<unsigned long>(after.connections - before.connections));
  EXPECT_GT(flips, 20);
  EXPECT_GT(after.tiles, before.tiles);
}

INSTANTIATE_TEST_SUITE_P(Wires, TcpRepairs,
                         testing::Values(Wire{1, false, false}, Wire{1, true, true}, Wire{2, true, false}, Wire{4, false, true},
                                         Wire{1, true, false, true}, Wire{2, false, true, true},
                                         Wire{1, false, false, false, true}, Wire{3, true, true, false, true},
                                         Wire{2, false, false, true, true}),
                         [](const auto& info) {
                           return std::to_string(info.param.sockets) + (info.param.integrity ? "_with_sums" : "_without") +
                                  (info.param.orderly ? "_closed" : "_reset") + (info.param.encryption ? "_encrypted" : "") +
                                  (info.param.packing ? "_packed" : "");
                         });

TEST(TcpRepair, WithoutCheckSumsAChangedPayloadDoesArrive) {
  // What the tests above would not notice otherwise: that the flips reach payloads.
  const auto judge = [](const Passage& passage) {
    if (passage.connection == 0 && !passage.back && passage.offset >= kHandshake && passage.bytes.size() > 5000)
      passage.bytes[2000] ^= std::byte{1};
    return passage.bytes.size();
  };
  Pair pair(1, 32 << 10, false, judge);
  ASSERT_TRUE(pair.connected());
  const auto there = random_bytes(32 << 10, 5);
  EXPECT_NE(pair.exchange(there, {}, 32 << 10), "");
}

TEST(TcpRepair, NothingOfAnEncryptedTileCanBeRead) {
  std::string seen;
  const auto judge = [&](const Passage& passage) {
    seen += as_text(passage.bytes);
    return passage.bytes.size();
  };
  for (const bool encryption : {false, true}) {
    seen.clear();
    const std::string secret = "what nobody on the way may read: " + std::string(3000, '.');
    {
      Pair pair(1, 4096, true, judge, false, "127.0.0.1", encryption);
      ASSERT_TRUE(pair.connected());
      EXPECT_EQ(pair.exchange(std::as_bytes(std::span(secret)), {}, 4096), "");
    }
    EXPECT_GT(seen.size(), secret.size());
    EXPECT_EQ(seen.find("nobody on the way") == std::string::npos, encryption);
    EXPECT_EQ(seen.find("TILS") == std::string::npos, encryption) << "headers too";
  }
}

void expect_lost(End& end, int peer, const std::string& words, std::chrono::milliseconds limit) {
  Link& link = end.link(peer);
  const auto start = Clock::now();
  EXPECT_TRUE(drive(end, [&] { return !link.status().ok(); }));
  EXPECT_LT(Clock::now() - start, limit);
  EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
  EXPECT_NE(link.status().message().find("rank " + std::to_string(peer)), std::string::npos) << link.status().to_string();
  EXPECT_NE(link.status().message().find(words), std::string::npos) << link.status().to_string();
}

TEST(TcpRepair, ATileThatIsWrongEachTimeEndsTheLink) {
  const auto judge = [](const Passage& passage) {
    const bool tiles = !passage.back && passage.offset >= kHandshake && passage.bytes.size() > 1000;
    if (tiles) passage.bytes[500] ^= std::byte{1};
    return passage.bytes.size();
  };
  Pair pair(1, 4096, true, judge);
  ASSERT_TRUE(pair.connected());
  const auto data = random_bytes(4000, 1);
  std::atomic<bool> enough = false;
  std::thread sender([&] {
    End& end = pair.ends[1];
    EXPECT_TRUE(drive(end, [&] { return end.link(0).try_send({0, 0, 0, 4000, 0}, data); }));
    EXPECT_TRUE(drive(end, [&] { return enough || !end.link(0).status().ok(); }));
  });
  expect_lost(pair.ends[0], 1, "wrong check sum", std::chrono::seconds(10));
  EXPECT_EQ(pair.ends[0].link(1).peek(), nullptr);
  pair.ends[0].destroy();
  enough = true;
  sender.join();
}

// What says of which width the words of the first tile are, on a connection that carries tiles, so that it is no packing.
void spoil_first_tile(const Passage& passage) {
  constexpr std::uint64_t kWidth = kHandshake + tcp::kFrameHeaderBytes;
  if (passage.back || passage.connection == 1 || passage.offset > kWidth) return;
  if (const std::uint64_t at = kWidth - passage.offset; at < passage.bytes.size()) passage.bytes[at] = std::byte{5};
}

TEST(TcpRepair, ATileThatCannotBeUnpackedIsSentAgain) {
  const auto judge = [](const Passage& passage) {
    if (passage.connection == 0) spoil_first_tile(passage);
    return passage.bytes.size();
  };
  const auto before = tcp::repairs().tiles;
  Pair pair(1, 32 << 10, false, judge);
  ASSERT_TRUE(pair.connected());
  pair.pack_if(true);
  EXPECT_EQ(pair.exchange(gradient_bytes(1 << 20, 5), {}, 32 << 10), "");
  EXPECT_EQ(tcp::repairs().tiles, before + 1);
}

TEST(TcpRepair, ATileThatCanNeverBeUnpackedEndsTheLink) {
  const auto judge = [](const Passage& passage) {
    spoil_first_tile(passage);
    return passage.bytes.size();
  };
  Pair pair(1, 4096, false, judge);
  ASSERT_TRUE(pair.connected());
  pair.pack_if(true);
  const auto data = gradient_bytes(4000, 1);
  std::atomic<bool> enough = false;
  std::thread sender([&] {
    End& end = pair.ends[1];
    EXPECT_TRUE(drive(end, [&] { return end.link(0).try_send({0, 0, 0, 4000, 0}, data); }));
    EXPECT_TRUE(drive(end, [&] { return enough || !end.link(0).status().ok(); }));
  });
  expect_lost(pair.ends[0], 1, "cannot be unpacked", std::chrono::seconds(10));
  EXPECT_EQ(pair.ends[0].link(1).peek(), nullptr);
  pair.ends[0].destroy();
  enough = true;
  sender.join();
}

TEST(TcpRepair, APeerThatHasEndedIsNotWaitedFor) {
  for (const int ended : {0, 1}) {
    Pair pair(2, 4096, true, pass_all());
    ASSERT_TRUE(pair.connected());
    // Without a goodbye: the proxy takes the sockets away, and the rank is gone before it can come again.
    const int other = 1 - ended;
    pair.proxy.reset();
    pair.ends[static_cast<std::size_t>(ended)].destroy();
    expect_lost(pair.ends[static_cast<std::size_t>(other)], ended, "", std::chrono::seconds(1));
  }
}

// Where a listener goes in the very moment of a knock, the system may leave the knocker with a connection that has no other
// end.
TEST(TcpRepair, AKnockThatNobodyWillEverAnswerEnds) {
  Door door(8);
  Pair pair(1, 4096, true, pass_all(), false, "127.0.0.1", false, door.address);
  ASSERT_TRUE(pair.connected());
  bool may_vanish = false;
  std::thread doorman([&] {
    Descriptor knock(::accept4(door.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // A socket that is under repair closes without a word.
    const int on = 1;
    may_vanish = ::setsockopt(knock.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) == 0;
    door.socket.reset();
  });
  pair.proxy.reset();
  pair.ends[1].destroy();
  expect_lost(pair.ends[0], 1, "", std::chrono::seconds(1));
  doorman.join();
  if (!may_vanish) GTEST_SKIP() << "this process may not put sockets under repair (CAP_NET_ADMIN)";
}

TEST(TcpRepair, APeerWhoseHostIsSilentIsWaitedForAsLongAsOneIsTold) {
  Door door(0);
  const auto where = *tcp::parse_address(door.address);
  Descriptor first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(first.get(), where.raw(), where.length()), 0) << "fills the backlog";
  constexpr std::chrono::seconds kLostAfter{7};
  Pair pair(2, 4096, true, pass_all(), false, "127.0.0.1", false, door.address, kLostAfter);
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  pair.ends[1].destroy();
  const auto start = Clock::now();
  expect_lost(pair.ends[0], 1, "", kLostAfter + std::chrono::seconds(4));  // a try more takes three
  EXPECT_GE(Clock::now() - start, kLostAfter - std::chrono::seconds(1)) << "a flap of the network may last as long";
}

TEST(TcpRepair, APeerThatClosesEachConnectionIsLostAfterThreeSeconds) {
  Door door(8);
  Pair pair(2, 4096, true, pass_all(), false, "127.0.0.1", false, door.address);
  ASSERT_TRUE(pair.connected());
  std::thread doorman([&] {
    for (;;) {
      const Descriptor knock(::accept4(door.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!knock.valid()) return;
    }
  });
  pair.proxy.reset();
  pair.ends[1].destroy();
  const auto start = Clock::now();
  expect_lost(pair.ends[0], 1, "", std::chrono::seconds(6));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(2500))
      << "a host that is starting something anew may be about to answer";
  ::shutdown(door.socket.get(), SHUT_RDWR);  // ends the accept
  doorman.join();
}

// A send moves what comes, too: where that is the end of the peer, whoever sleeps on the transport would not be woken for it.
TEST(TcpRepair, WhatASendFindsIsDueToBeRead) {
  Pair pair(1, 4096, true, pass_all());
  ASSERT_TRUE(pair.connected());
  std::vector<std::unique_ptr<Link>> links;
  links.push_back(std::move(pair.ends[0].links[1]));
  ControlPlane control(std::move(pair.ends[0].transport), std::move(links));
  std::vector<ControlPlane::Message> heard;
  control.poll(heard);
  EXPECT_FALSE(control.due());
  pair.proxy.reset();
  pair.ends[1].destroy();
  const std::array<int, 1> peer{1};
  for (int i = 0; i < 20; ++i) {
    control.send_wait(0, peer, std::as_bytes(std::span("waits")));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const bool sleeps = control.transport()->prepare_wait();
  control.transport()->finish_wait(false);
  EXPECT_TRUE(sleeps) << "the sends did not find the end: this shows nothing";
  EXPECT_TRUE(control.due());
  control.poll(heard);
  EXPECT_FALSE(control.due());
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].kind, ControlPlane::Message::Kind::death);
}

TEST(TcpRepair, APeerThatIsBusyIsWaitedFor) {
  std::atomic<bool> cut = false;
  const auto judge = [&](const Passage& passage) -> std::size_t { return cut.exchange(false) ? 0 : passage.bytes.size(); };
  for (const int busy : {0, 1}) {
    Pair pair(1, 4096, true, judge);
    ASSERT_TRUE(pair.connected());
    const int other = 1 - busy;
    End& sender = pair.ends[static_cast<std::size_t>(other)];
    End& receiver = pair.ends[static_cast<std::size_t>(busy)];
    const auto data = random_bytes(3000, 7);
    cut = true;
    ASSERT_TRUE(sender.link(busy).try_send({1, 2, 3, 3000, 0}, data));
    // For longer than any patience with a peer that does not answer.
    const auto until = Clock::now() + std::chrono::milliseconds(3500);
    EXPECT_TRUE(drive(sender, [&] { return Clock::now() >= until || !sender.link(busy).status().ok(); }));
    EXPECT_TRUE(sender.link(busy).status().ok()) << sender.link(busy).status().to_string();
    EXPECT_EQ(pair.proxy->cuts(), 1);
    std::atomic<bool> arrived = false;
    std::thread driver([&] { EXPECT_TRUE(drive(sender, [&] { return arrived || !sender.link(busy).status().ok(); })); });
    EXPECT_TRUE(drive(receiver, [&] { return receiver.link(other).peek() != nullptr || !receiver.link(other).status().ok(); }));
    ASSERT_NE(receiver.link(other).peek(), nullptr) << receiver.link(other).status().to_string();
    EXPECT_EQ(std::memcmp(receiver.link(other).peek()->data.data(), data.data(), data.size()), 0);
    receiver.link(other).release();
    arrived = true;
    driver.join();
  }
}

TEST(TcpRepair, AnAddressThatIsGoneIsLeftForTheNext) {
  auto options = options_for(2, 1, 4096);
  std::vector<End> ends(2);
  for (std::size_t i = 0; i < 2; ++i) ends[i].transport = std::move(*make_tcp_transport(options[i]));
  auto proxy = std::make_unique<Proxy>(ends[0].transport->address(), pass_all());
  const std::vector<std::string> addresses = {proxy->address() + "," + ends[0].transport->address(),
                                              ends[1].transport->address()};
  std::thread other([&] { connect(ends[0], 0, addresses, kPatience); });
  connect(ends[1], 1, addresses, kPatience);
  other.join();
  ASSERT_TRUE(ends[0].status.ok() && ends[1].status.ok());
  const auto message = random_bytes(1 << 20, 8);
  const auto move = [&] {
    bool arrived = false;
    std::thread receiver([&] { arrived = receive_message(ends[0], 1, message, 4096); });
    EXPECT_TRUE(send_message(ends[1], 0, message, 4096));
    receiver.join();
    return arrived;
  };
  EXPECT_TRUE(move());
  EXPECT_EQ(proxy->connections(), 2);
  proxy.reset();
  EXPECT_TRUE(move()) << ends[0].link(1).status().to_string() << ends[1].link(0).status().to_string();
}

TEST(TcpRepair, Ipv6ConnectionsAreMadeAnewToo) {
  TcpOptions probe = options_of(0, 2);
  probe.interface_or_address = "::1";
  if (!make_tcp_transport(probe).ok()) GTEST_SKIP() << "this machine has no IPv6 loopback address";
  int cut = 0;
  const auto judge = [&](const Passage& passage) -> std::size_t {
    return passage.offset > 100'000 && cut < 3 ? ++cut, 0 : passage.bytes.size();
  };
  Pair pair(1, 4096, true, judge, false, "::1");
  ASSERT_TRUE(pair.connected());
  const auto message = random_bytes(4 << 20, 9);
  EXPECT_EQ(pair.exchange(message, message, 4096), "");
  EXPECT_EQ(pair.proxy->cuts(), 3);
}

// In a network of its own whose wire loses one packet in a hundred.
TEST(TcpRepair, AWireThatLosesPacketsLosesNoByte) {
  constexpr int kNotPermitted = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    // Where the kernel cannot lose one in a hundred, a queue that is too short for a burst loses some at its end.
    const char* set_up =
        "ip link set lo mtu 1500 up && (tc qdisc add dev lo root netem loss 1% || "
        "tc qdisc add dev lo root tbf rate 200mbit burst 20kb limit 24kb) 2>/dev/null";
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(kNotPermitted);
    if (std::system(set_up) != 0) ::_exit(kNotPermitted);
    int wrong = 0;
    {
      Pair pair(2, 32 << 10, true, pass_all());
      const auto message = random_bytes(8 << 20, 10);
      wrong = !pair.connected() || !pair.exchange(message, message, 32 << 10).empty();
    }
    std::fflush(stdout);
    if (std::system("tc -s qdisc show dev lo | grep -Eo '^qdisc [a-z]+|dropped [1-9][0-9]*' | tr '\\n' ' '; echo;"
                    "tc -s qdisc show dev lo | grep -q 'dropped [1-9]'") != 0)
      wrong = 1;  // nothing was lost
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "no network namespace with netem (tc) here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace shoal::tcp_test
