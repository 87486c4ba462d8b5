// Links whose connections are cut, changed and lost: every byte arrives all the same, once, or the peer is named in time.
#include <linux/filter.h>
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
/// the `backlog`, which nobody takes out of it, gets no answer: to him the host is silent. With kNobodyListens he is refused.
struct Door {
  static constexpr int kNobodyListens = -1;
  Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string address;

  explicit Door(int backlog, const std::string& host = "127.0.0.1") {
    auto where = *tcp::parse_host(host);
    socklen_t bytes = where.length();
    EXPECT_EQ(::bind(socket.get(), where.raw(), bytes), 0);
    if (backlog != kNobodyListens) {
      EXPECT_EQ(::listen(socket.get(), backlog), 0);
    }
    EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&where.storage), &bytes), 0);
    address = where.to_string();
  }
};

/// One behind which everything is silent.
struct SilentDoor : Door {
  Descriptor first{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

  SilentDoor() : Door(0) {
    const auto where = *tcp::parse_address(address);
    EXPECT_EQ(::connect(first.get(), where.raw(), where.length()), 0) << "fills the backlog";
  }
};

/// One behind which each connection is taken, and closed after that time.
struct ClosingDoor : Door {
  std::thread doorman;

  explicit ClosingDoor(std::chrono::milliseconds after, const std::string& host = "127.0.0.1") : Door(8, host) {
    doorman = std::thread([this, after] {
      for (;;) {
        const Descriptor knock(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!knock.valid()) return;
        pollfd end{socket.get(), 0, 0};
        ::poll(&end, 1, static_cast<int>(after.count()));
      }
    });
  }
  ClosingDoor(const ClosingDoor&) = delete;
  ClosingDoor& operator=(const ClosingDoor&) = delete;
  ~ClosingDoor() {
    ::shutdown(socket.get(), SHUT_RDWR);  // ends the accept
    doorman.join();
  }
};

constexpr const char* kAnybody = "*";
constexpr const char* kNobody = "";

/// The sockets of this process at `here` that are connected to `there`; those of listeners are so to nobody.
std::vector<int> sockets_between(const std::string& here, const std::string& there) {
  constexpr int kMostDescriptors = 1024;
  std::vector<int> found;
  for (int number = 0; number < kMostDescriptors; ++number) {
    tcp::SocketAddress own;
    tcp::SocketAddress other;
    socklen_t length = sizeof own.storage;
    if (::getsockname(number, reinterpret_cast<sockaddr*>(&own.storage), &length) != 0 || own.family() != AF_INET) continue;
    length = sizeof other.storage;
    const bool connected = ::getpeername(number, reinterpret_cast<sockaddr*>(&other.storage), &length) == 0;
    if (here != kAnybody && here != own.to_string()) continue;
    if (there == kAnybody ? connected : there == (connected ? other.to_string() : kNobody)) found.push_back(number);
  }
  return found;
}

/// From now on nothing arrives at them: neither data nor acknowledgements nor new connections.
void silence(const std::vector<int>& ones) {
  EXPECT_FALSE(ones.empty());
  sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program = {1, &nothing};
  for (const int socket : ones) EXPECT_EQ(::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

void shut(const std::vector<int>& ones) {
  EXPECT_FALSE(ones.empty());
  for (const int socket : ones) EXPECT_EQ(::shutdown(socket, SHUT_RDWR), 0);
}

int option_of(int socket, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(socket, level, name, &value, &length), 0);
  return value;
}

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
  const SilentDoor door;
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
  const ClosingDoor door(std::chrono::milliseconds(0));
  Pair pair(2, 4096, true, pass_all(), false, "127.0.0.1", false, door.address);
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  pair.ends[1].destroy();
  const auto start = Clock::now();
  expect_lost(pair.ends[0], 1, "", std::chrono::seconds(6));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(2500))
      << "a host that is starting something anew may be about to answer";
}

// One that is busy takes the connection late, and closes what does not greet later still.
TEST(TcpRepair, APeerThatKeepsAConnectionForLongLives) {
  const ClosingDoor door(std::chrono::milliseconds(3500));
  Pair pair(2, 4096, true, pass_all(), false, "127.0.0.1", false, door.address);
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  pair.ends[1].destroy();
  const Link& link = pair.ends[0].link(1);
  const auto until = Clock::now() + std::chrono::milliseconds(4000);
  EXPECT_TRUE(drive(pair.ends[0], [&] { return Clock::now() >= until || !link.status().ok(); }));
  EXPECT_TRUE(link.status().ok()) << link.status().to_string();
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

/// Ranks 0 and 1 with one socket for tiles each. Rank 1 reaches rank 0 through a proxy at the first of its addresses.
struct Pathways {
  static constexpr std::chrono::seconds kLostAfter{5};
  std::vector<End> ends{2};
  std::unique_ptr<Proxy> proxy;

  explicit Pathways(const std::string& more_addresses_of_0 = "") {
    auto options = options_for(2, 1, 4096);
    for (std::size_t i = 0; i < 2; ++i) {
      options[i].lost_after = kLostAfter;
      ends[i].transport = std::move(*make_tcp_transport(options[i]));
    }
    proxy = std::make_unique<Proxy>(address(0), pass_all());
    const std::vector<std::string> addresses = {
        proxy->address() + "," + (more_addresses_of_0.empty() ? address(0) : more_addresses_of_0), address(1)};
    std::thread other([&] { connect(ends[0], 0, addresses, kPatience); });
    connect(ends[1], 1, addresses, kPatience);
    other.join();
    for (const End& end : ends) EXPECT_TRUE(end.status.ok()) << end.status.to_string();
  }
  ~Pathways() {
    for (End& end : ends) end.destroy();
  }
  [[nodiscard]] bool connected() const { return ends[0].status.ok() && ends[1].status.ok(); }
  [[nodiscard]] std::string address(std::size_t rank) const { return ends[rank].transport->address(); }
};

// Bridges of containers have the same address on many hosts, and on this one.
TEST(TcpRepair, WhoAnswersAtAnotherAddressDoesNotEndAPeerWhoseHostIsSilent) {
  const SilentDoor silent;
  const Door refusing(Door::kNobodyListens, "127.0.0.2");
  const ClosingDoor closing(std::chrono::milliseconds(0), "127.0.0.2");
  constexpr std::chrono::seconds kLostAfter{5};
  for (const Door* other : {&refusing, static_cast<const Door*>(&closing)}) {
    const std::string both = silent.address + "," + other->address;
    Pair pair(2, 4096, true, pass_all(), false, "127.0.0.1", false, both, kLostAfter);
    ASSERT_TRUE(pair.connected());
    pair.proxy.reset();
    pair.ends[1].destroy();
    const auto start = Clock::now();
    expect_lost(pair.ends[0], 1, "", kLostAfter + std::chrono::seconds(4));
    EXPECT_GE(Clock::now() - start, kLostAfter - std::chrono::seconds(1)) << "a flap of the network may last as long";
  }
}

TEST(TcpRepair, SocketsThatAreLostTogetherTryEachAddress) {
  Pathways pair;
  ASSERT_TRUE(pair.connected());
  const std::string first = pair.proxy->address();
  ASSERT_EQ(sockets_between(kAnybody, first).size(), 2U);
  silence(sockets_between(first, kNobody));
  silence(sockets_between(first, kAnybody));
  shut(sockets_between(kAnybody, first));
  const auto message = random_bytes(1 << 20, 8);
  EXPECT_EQ(exchange_messages(pair.ends, message, message, 4096), "");
  const auto anew = sockets_between(kAnybody, pair.address(0));
  EXPECT_GE(anew.size(), 2U);
  for (const int socket : anew) EXPECT_EQ(option_of(socket, IPPROTO_TCP, TCP_USER_TIMEOUT), 0) << "would end a slow peer";
}

// No way leads to a multicast group.
TEST(TcpRepair, ARefusalAtOneAddressIsNoneAtTheOther) {
  Pathways pair("224.0.0.1:9");
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  const auto start = Clock::now();
  expect_lost(pair.ends[1], 0, "", Pathways::kLostAfter + std::chrono::seconds(4));
  EXPECT_GE(Clock::now() - start, Pathways::kLostAfter - std::chrono::seconds(1));
}

TEST(TcpRepair, APeerThatHasEndedIsNotWaitedForAtAnyOfItsAddresses) {
  const Door second(Door::kNobodyListens, "127.0.0.2");
  const Door third(Door::kNobodyListens, "127.0.0.3");
  Pathways pair(second.address + "," + third.address);
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  pair.ends[0].destroy();
  expect_lost(pair.ends[1], 0, "", std::chrono::seconds(1));
}

// The peer is busy and has not taken the new connections; then its host is gone.
TEST(TcpRepair, AHostThatVanishesDuringTheHandshakeIsNoticed) {
  constexpr std::chrono::seconds kLostAfter{5};
  auto options = options_for(2, 1, 4096);
  for (TcpOptions& one : options) one.lost_after = kLostAfter;
  auto ends = make_group(options);
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  const std::string address = ends[0].transport->address();
  const auto old = sockets_between(address, kAnybody);
  shut(sockets_between(kAnybody, address));
  const auto greeted = Clock::now() + std::chrono::milliseconds(300);
  EXPECT_TRUE(drive(ends[1], [&] { return Clock::now() >= greeted; }));
  const auto handshakes = sockets_between(kAnybody, address);
  ASSERT_EQ(handshakes.size(), 2U);
  silence(handshakes);
  silence(sockets_between(address, kNobody));
  silence(old);
  const auto start = Clock::now();
  expect_lost(ends[1], 0, "", kLostAfter + std::chrono::seconds(5));
  EXPECT_GE(Clock::now() - start, kLostAfter - std::chrono::seconds(1));
  for (End& end : ends) end.destroy();
}

TEST(TcpRepair, ASystemThatGivesUpEarlierThanOneIsToldDoesNotEndThePeer) {
  auto ends = make_group(options_for(2, 1, 4096));
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  const std::string address = ends[0].transport->address();
  silence(sockets_between(address, kAnybody));
  const int patience_ms = 1500;  // in place of a quarter of an hour
  for (const int socket : sockets_between(kAnybody, address))
    ASSERT_EQ(::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms), 0);
  const auto message = random_bytes(4000, 8);  // no send is left to find the error before a read does
  EXPECT_EQ(exchange_messages(ends, message, {}, 4096), "");
  EXPECT_TRUE(ends[0].link(1).status().ok()) << ends[0].link(1).status().to_string();
  EXPECT_TRUE(ends[1].link(0).status().ok()) << ends[1].link(0).status().to_string();
  for (End& end : ends) end.destroy();
}

// Who computes for long between two looks finds the socket ended by the system, and reads that before the clock is looked at.
TEST(TcpRepair, AHostThatWasSilentWhileNobodyLookedIsCalledThat) {
  constexpr std::chrono::seconds kLostAfter{5};
  auto options = options_for(2, 1, 4096);
  for (TcpOptions& one : options) one.lost_after = kLostAfter;
  auto ends = make_group(options);
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  const std::string address = ends[0].transport->address();
  const auto of_rank_0 = sockets_between(address, kAnybody);
  const auto of_rank_1 = sockets_between(kAnybody, address);
  silence(of_rank_0);
  silence(of_rank_1);
  const int patience_ms = 6000;  // in place of a quarter of an hour
  for (const std::vector<int>& ones : {of_rank_0, of_rank_1}) {
    for (const int socket : ones)
      ASSERT_EQ(::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms), 0);
  }
  const auto data = random_bytes(4096, 8);
  ASSERT_TRUE(ends[0].link(1).try_send({0, 0, 0, 4096, 0}, data));
  const auto sent = Clock::now() + std::chrono::milliseconds(100);
  EXPECT_TRUE(drive(ends[0], [&] { return Clock::now() >= sent; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(patience_ms + 1500));
  EXPECT_EQ(ends[0].link(1).peek(), nullptr);  // who looks for something is who reads at once
  expect_lost(ends[0], 1, "has not answered for", std::chrono::seconds(1));
  for (End& end : ends) end.destroy();
}

// What epoll has reported of a socket counts for that one, although the events before make the rank replace it.
TEST(TcpRepair, TheEndOfASocketThatIsReplacedIsNotThatOfTheNewOne) {
  auto ends = make_group(options_for(2, 1, 4096));
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  const std::string address = ends[0].transport->address();
  const std::string address_of_1 = ends[1].transport->address();
  const auto look = [](End& end) {
    static_cast<void>(end.transport->prepare_wait());
    end.transport->finish_wait(true);
  };
  int knocks = 0;
  const auto let_go_on = [&](End& end) {
    const auto until = Clock::now() + std::chrono::milliseconds(60);  // the timer ticks three times
    while (Clock::now() < until) {
      end.transport->progress();
      look(end);
      knocks += static_cast<int>(sockets_between(kAnybody, address_of_1).size());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  let_go_on(ends[0]);
  let_go_on(ends[1]);
  // Rank 1 loses its sockets, of which rank 0 hears nothing, and comes again.
  const auto old = sockets_between(address, kAnybody);
  silence(old);
  shut(sockets_between(kAnybody, address));
  let_go_on(ends[1]);  // greets
  let_go_on(ends[0]);  // replies
  let_go_on(ends[1]);  // confirms
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  shut(old);  // behind the timer
  const auto before = tcp::repairs().connections;
  look(ends[0]);
  EXPECT_EQ(tcp::repairs().connections, before + 2) << "not in one call: this shows nothing";
  for (int i = 0; i < 3; ++i) {
    for (End& end : ends) let_go_on(end);
  }
  EXPECT_EQ(knocks, 0) << "rank 0 makes sure that rank 1 lives, without a reason";
  const auto message = random_bytes(100'000, 8);
  EXPECT_EQ(exchange_messages(ends, message, message, 4096), "");
  for (End& end : ends) end.destroy();
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
