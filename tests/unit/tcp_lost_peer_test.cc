// Links whose connections cannot be made anew: who is gone is named in time, who is only busy or silent is waited for.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "src/progress/control.h"
#include "tests/unit/tcp_losses.h"

namespace shoal::tcp_test {
namespace {

TEST(TcpLostPeer, EndedPeerIsLostAtOnce) {
  for (const int ended : {0, 1}) {
    Pair pair(2, 4096, true, pass_all());
    ASSERT_TRUE(pair.connected());
    // Without a goodbye: the proxy takes the sockets away, and the rank is gone before it can come again.
    const int other = 1 - ended;
    pair.proxy.reset();
    pair.ends[static_cast<std::size_t>(ended)].destroy();
    expect_lost(pair.ends[static_cast<std::size_t>(other)], ended, {}, std::chrono::seconds(1));
  }
}

// Where a listener goes in the very moment of a knock, the system may leave the knocker with a connection that has no other
// end.
TEST(TcpLostPeer, ConnectionWithoutOtherEndEnds) {
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
  expect_lost(pair.ends[0], 1, {}, std::chrono::seconds(1));
  doorman.join();
  if (!may_vanish) GTEST_SKIP() << "this process may not put sockets under repair (CAP_NET_ADMIN)";
}

TEST(TcpLostPeer, SilentHostIsLostAfterTheConfiguredTime) {
  const SilentDoor door;
  constexpr std::chrono::seconds kLostAfter{7};
  Pair pair(2, 4096, true, pass_all(), false, "127.0.0.1", false, door.address, kLostAfter);
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  pair.ends[1].destroy();
  const auto start = Clock::now();
  expect_lost(pair.ends[0], 1, {}, kLostAfter + std::chrono::seconds(4));  // a try more takes three
  EXPECT_GE(Clock::now() - start, kLostAfter - std::chrono::seconds(1)) << "a flap of the network may last as long";
}

TEST(TcpLostPeer, PeerThatClosesEachConnectionIsLost) {
  const ClosingDoor door(std::chrono::milliseconds(0));
  Pair pair(2, 4096, true, pass_all(), false, "127.0.0.1", false, door.address);
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  pair.ends[1].destroy();
  const auto start = Clock::now();
  expect_lost(pair.ends[0], 1, {}, std::chrono::seconds(6));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(2500))
      << "a host that is starting something anew may be about to answer";
}

// One that is busy takes the connection late, and closes what does not greet later still.
TEST(TcpLostPeer, PeerThatHoldsAConnectionIsAlive) {
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
TEST(TcpLostPeer, EndFoundBySendIsReported) {
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
    control.send_wait({}, peer, std::as_bytes(std::span("waits")));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const bool sleeps = control.prepare_wait();
  control.finish_wait(false);
  EXPECT_TRUE(sleeps) << "the sends did not find the end: this shows nothing";
  EXPECT_TRUE(control.due());
  control.poll(heard);
  EXPECT_FALSE(control.due());
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].kind, ControlPlane::Message::Kind::death);
}

TEST(TcpLostPeer, BusyPeerIsWaitedFor) {
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
    // For longer than any time limit with a peer that does not answer.
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

TEST(TcpLostPeer, LostAddressIsReplacedByTheNext) {
  auto options = options_for(2, 1, 4096);
  std::vector<End> ends(2);
  for (std::size_t i = 0; i < 2; ++i) ends[i].transport = std::move(*make_tcp_transport(options[i]));
  auto proxy = std::make_unique<Proxy>(ends[0].transport->address(), pass_all());
  const std::vector<std::string> addresses = {proxy->address() + "," + ends[0].transport->address(),
                                              ends[1].transport->address()};
  std::thread other([&] { connect(ends[0], 0, addresses, kTimeLimit); });
  connect(ends[1], 1, addresses, kTimeLimit);
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
    std::thread other([&] { connect(ends[0], 0, addresses, kTimeLimit); });
    connect(ends[1], 1, addresses, kTimeLimit);
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
TEST(TcpLostPeer, OtherHostAtAnAddressDoesNotEndTheSilentPeer) {
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
    expect_lost(pair.ends[0], 1, {}, kLostAfter + std::chrono::seconds(4));
    EXPECT_GE(Clock::now() - start, kLostAfter - std::chrono::seconds(1)) << "a flap of the network may last as long";
  }
}

TEST(TcpLostPeer, SocketsLostTogetherTryEachAddress) {
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
TEST(TcpLostPeer, RefusalCountsForOneAddressOnly) {
  Pathways pair("224.0.0.1:9");
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  const auto start = Clock::now();
  expect_lost(pair.ends[1], 0, {}, Pathways::kLostAfter + std::chrono::seconds(4));
  EXPECT_GE(Clock::now() - start, Pathways::kLostAfter - std::chrono::seconds(1));
}

TEST(TcpLostPeer, EndedPeerIsLostAtAllItsAddresses) {
  const Door second(Door::kNobodyListens, "127.0.0.2");
  const Door third(Door::kNobodyListens, "127.0.0.3");
  Pathways pair(second.address + "," + third.address);
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  pair.ends[0].destroy();
  expect_lost(pair.ends[1], 0, {}, std::chrono::seconds(1));
}

/// Ranks 0 and 1 with one socket for tiles each, straight.
std::vector<End> straight_pair(std::chrono::seconds lost_after) {
  auto options = options_for(2, 1, 4096);
  for (TcpOptions& one : options) one.lost_after = lost_after;
  auto ends = make_group(options);
  for (const End& end : ends) EXPECT_TRUE(end.status.ok()) << end.status.to_string();
  return ends;
}

// The connections stay silent, the way is open again: a new one need not wait until the system tries the old one.
TEST(TcpLostPeer, SilentConnectionIsReplaced) {
  auto ends = straight_pair(std::chrono::seconds(20));
  silence(sockets_between(ends[0].transport->address(), kAnybody));
  silence(sockets_between(kAnybody, ends[0].transport->address()));
  const auto message = random_bytes(100'000, 8);
  const auto start = Clock::now();
  EXPECT_EQ(exchange_messages(ends, message, message, 4096), "");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(8));
  destroy_together(ends);
}

// Neither can a tile be acknowledged nor a socket be made anew.
TEST(TcpLostPeer, PeerThatCannotBeAcknowledgedIsLost) {
  const Door door(Door::kNobodyListens);
  constexpr std::chrono::seconds kLostAfter{5};
  Pair pair(1, 4096, true, pass_all(), false, "127.0.0.1", false, door.address, kLostAfter);
  ASSERT_TRUE(pair.connected());
  const auto both = sockets_between(pair.ends[0].transport->address(), kAnybody);
  ASSERT_EQ(both.size(), 2U);
  shut({both.back()});
  expect_lost(pair.ends[0], 1, {}, kLostAfter + std::chrono::seconds(2));
}

/// While it lives this process opens nothing.
struct NoDescriptors {
  rlimit before{};
  NoDescriptors() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{3, before.rlim_max};  // those of standard input and output
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0); }
};

TEST(TcpLostPeer, LackOfDescriptorsLosesNoPeer) {
  constexpr std::chrono::seconds kLostAfter{5};
  auto ends = straight_pair(kLostAfter);
  {
    const NoDescriptors none;
    shut(sockets_between(kAnybody, ends[0].transport->address()));
    const auto until = Clock::now() + kLostAfter + std::chrono::seconds(1);
    EXPECT_TRUE(drive(ends[1], [&] { return Clock::now() >= until || !ends[1].link(0).status().ok(); }));
    EXPECT_EQ(::dup(0), -1) << "there were descriptors, so this shows nothing";
  }
  const auto message = random_bytes(100'000, 8);
  EXPECT_EQ(exchange_messages(ends, message, message, 4096), "");
  destroy_together(ends);
}

TEST(TcpLostPeer, UnacceptableConnectionCausesNoSpinning) {
  auto ends = straight_pair(std::chrono::seconds(30));
  const auto where = *tcp::parse_address(ends[0].transport->address());
  const Descriptor stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const NoDescriptors none;
  ASSERT_EQ(::connect(stranger.get(), where.raw(), where.length()), 0);
  int looks = 0;
  const auto until = Clock::now() + std::chrono::milliseconds(500);
  EXPECT_TRUE(drive(ends[0], [&] { return ++looks, Clock::now() >= until; }));
  EXPECT_GT(looks, 5) << "it is tried again";
  EXPECT_LT(looks, 300);
  destroy_together(ends);
}

// A child's copy of the timer is the parent's, who looks after a lost peer by it.
TEST(TcpLostPeer, ExitOfForkedChildKeepsTheTimer) {
  const SilentDoor door;
  Pair pair(1, 4096, true, pass_all(), false, "127.0.0.1", false, door.address);
  ASSERT_TRUE(pair.connected());
  pair.proxy.reset();
  pair.ends[1].destroy();
  const auto drive_for = [&](std::chrono::milliseconds time) {
    const auto until = Clock::now() + time;
    int looks = 0;
    EXPECT_TRUE(drive(pair.ends[0], [&] { return ++looks, Clock::now() >= until; }));
    return looks;
  };
  drive_for(std::chrono::milliseconds(200));
  const pid_t child = ::fork();
  if (child == 0) {
    pair.ends[0].destroy();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_GT(drive_for(std::chrono::milliseconds(1000)), 20) << "the timer ticks once a second";
}

/// As the system does after a quarter of an hour.
void give_up_after(std::chrono::milliseconds time_limit, const std::vector<int>& ones) {
  const auto milliseconds = static_cast<int>(time_limit.count());
  for (const int socket : ones)
    EXPECT_EQ(::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds), 0);
}

// The peer is busy and has not taken the new connections; then its host is gone.
TEST(TcpLostPeer, HostLostDuringHandshakeIsDetected) {
  constexpr std::chrono::seconds kLostAfter{5};
  auto ends = straight_pair(kLostAfter);
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
  expect_lost(ends[1], 0, {}, kLostAfter + std::chrono::seconds(5));
  EXPECT_GE(Clock::now() - start, kLostAfter - std::chrono::seconds(1));
  for (End& end : ends) end.destroy();
}

TEST(TcpLostPeer, KernelTimeoutDoesNotEndThePeer) {
  auto ends = make_group(options_for(2, 1, 4096));
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  const std::string address = ends[0].transport->address();
  silence(sockets_between(address, kAnybody));
  give_up_after(std::chrono::milliseconds(1500), sockets_between(kAnybody, address));
  const auto message = random_bytes(4000, 8);  // no send is left to find the error before a read does
  EXPECT_EQ(exchange_messages(ends, message, {}, 4096), "");
  EXPECT_TRUE(ends[0].link(1).status().ok()) << ends[0].link(1).status().to_string();
  EXPECT_TRUE(ends[1].link(0).status().ok()) << ends[1].link(0).status().to_string();
  for (End& end : ends) end.destroy();
}

// Who computes for long between two looks finds the socket ended by the system, and reads that before the clock is looked at.
TEST(TcpLostPeer, HostSilentDuringComputationIsCalledSilent) {
  constexpr std::chrono::seconds kLostAfter{5};
  auto ends = straight_pair(kLostAfter);
  const std::string address = ends[0].transport->address();
  const auto of_rank_0 = sockets_between(address, kAnybody);
  const auto of_rank_1 = sockets_between(kAnybody, address);
  silence(of_rank_0);
  silence(of_rank_1);
  constexpr std::chrono::milliseconds kTimeLimit{6000};
  for (const std::vector<int>& ones : {of_rank_0, of_rank_1}) give_up_after(kTimeLimit, ones);
  const auto data = random_bytes(4096, 8);
  ASSERT_TRUE(ends[0].link(1).try_send({0, 0, 0, 4096, 0}, data));
  const auto sent = Clock::now() + std::chrono::milliseconds(100);
  EXPECT_TRUE(drive(ends[0], [&] { return Clock::now() >= sent; }));
  std::this_thread::sleep_for(kTimeLimit + std::chrono::milliseconds(1500));
  EXPECT_EQ(ends[0].link(1).peek(), nullptr);  // who looks for something is who reads at once
  expect_lost(ends[0], 1, {}, std::chrono::seconds(1));
  EXPECT_THAT(ends[0].link(1).status().message(), ::testing::ContainsRegex("[0-9][.][0-9] s")) << "for how long it was silent";
  for (End& end : ends) end.destroy();
}

}  // namespace
}  // namespace shoal::tcp_test
