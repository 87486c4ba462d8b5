// Links whose connections are cut, changed and made anew: every byte arrives all the same, once.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "tests/slack.h"
#include "tests/unit/tcp_losses.h"
#include "transports/tcp/repairs.h"

namespace shoal::tcp_test {
namespace {

#ifdef SHOAL_SANITIZED
constexpr std::uint64_t kSlowdown = 8;
constexpr std::size_t kMegabyte = 300'000;  // less, so that as many faults come with fewer bytes
#else
constexpr std::uint64_t kSlowdown = 1;
constexpr std::size_t kMegabyte = 1'000'000;
#endif
constexpr std::uint64_t kHandshake = 2 * tcp::kHelloBytes;  // each way

TEST(TcpRepair, CutAtAnyByteLosesNothing) {
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

class TcpRepairs : public ::testing::TestWithParam<Wire> {};

TEST_P(TcpRepairs, RandomCutsLoseNothing) {
  const Wire wire = GetParam();
  std::mt19937_64 random(11);
  std::vector<std::uint64_t> left;  // by connection: until it is cut
  const auto judge = [&](const Passage& passage) -> std::size_t {
    const auto at = static_cast<std::size_t>(passage.connection);
    while (left.size() <= at) left.push_back(2 * kHandshake + random() % (2 * kMegabyte));
    const std::size_t pass = std::min<std::uint64_t>(passage.bytes.size(), left[at]);
    left[at] -= pass;
    return pass;
  };
  Pair pair(wire.sockets, 32 << 10, wire.integrity, judge, wire.orderly, "127.0.0.1", wire.encryption);
  ASSERT_TRUE(pair.connected());
  pair.pack_if(wire.packing);
  const auto there = wire.packing ? gradient_bytes(24 * kMegabyte, 3) : random_bytes(24 * kMegabyte, 3);
  const auto back = random_bytes(16 * kMegabyte, 4);
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
  const auto there = wire.packing ? gradient_bytes(16 * kMegabyte, 5) : random_bytes(16 * kMegabyte, 5);
  const auto back = random_bytes(16 * kMegabyte, 6);
  EXPECT_EQ(pair.exchange(there, back, 32 << 10), "");
  const auto after = tcp::repairs();
  std::printf("%d bits flipped, %lu tiles sent again for their check sum, %lu connections made anew\n", flips,
              static_cast<unsigned long>(after.tiles - before.tiles),
              static_cast<unsigned long>(after.connections - before.connections));
  EXPECT_GT(flips, 20);
  EXPECT_GT(after.tiles, before.tiles);
}

INSTANTIATE_TEST_SUITE_P(Wires, TcpRepairs,
                         ::testing::Values(Wire{1, false, false}, Wire{1, true, true}, Wire{2, true, false},
                                           Wire{4, false, true}, Wire{1, true, false, true}, Wire{2, false, true, true},
                                           Wire{1, false, false, false, true}, Wire{3, true, true, false, true},
                                           Wire{2, false, false, true, true}),
                         [](const auto& info) {
                           return std::to_string(info.param.sockets) + (info.param.integrity ? "_with_sums" : "_without") +
                                  (info.param.orderly ? "_closed" : "_reset") + (info.param.encryption ? "_encrypted" : "") +
                                  (info.param.packing ? "_packed" : "");
                         });

TEST(TcpRepair, WithoutChecksumsChangedPayloadArrives) {
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

TEST(TcpRepair, EncryptedTileRevealsNothing) {
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

TEST(TcpRepair, RepeatedlyDamagedTileEndsTheLink) {
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
  expect_lost(pair.ends[0], 1, {"tile 0"}, std::chrono::seconds(10));
  EXPECT_THAT(pair.ends[0].link(1).status().message(), ::testing::ContainsRegex("check ?sum"));
  EXPECT_EQ(pair.ends[0].link(1).peek(), nullptr);
  pair.ends[0].destroy();
  enough = true;
  sender.join();
}

// Who leaves
// -----------------------------------------------------------------------------------------------------------------

double seconds_of(const std::function<void()>& work) {
  const FairClock clock;
  work();
  return clock.seconds();
}

// Its call has succeeded, and it destroys its end at once; then what it has sent is lost on the way, or changed.
TEST(TcpRepair, LastTileOfLeavingRankArrives) {
  const auto message = random_bytes(4000, 1);
  for (const bool encryption : {false, true}) {
    for (const bool cut : {true, false}) {
      for (const int sender : {0, 1}) {
        const int receiver = 1 - sender;
        std::atomic<bool> done = false;
        const auto judge = [&](const Passage& passage) -> std::size_t {
          const bool tile = passage.back == (sender == 0) && passage.connection == 0 && passage.offset >= kHandshake;
          if (!tile || done.exchange(true)) return passage.bytes.size();
          if (cut) return 0;
          passage.bytes[500] ^= std::byte{1};
          return passage.bytes.size();
        };
        Pair pair(1, 4096, true, judge, false, "127.0.0.1", encryption);
        ASSERT_TRUE(pair.connected());
        bool arrived = false;
        std::thread other(
            [&] { arrived = receive_message(pair.ends[static_cast<std::size_t>(receiver)], sender, message, 4096); });
        EXPECT_TRUE(send_message(pair.ends[static_cast<std::size_t>(sender)], receiver, message, 4096));
        const double seconds = seconds_of([&] { pair.ends[static_cast<std::size_t>(sender)].destroy(); });
        other.join();
        EXPECT_TRUE(done);
        EXPECT_TRUE(arrived) << (cut ? "cut" : "changed") << (encryption ? ", encrypted" : "") << ", sent by rank " << sender;
        EXPECT_LT(seconds, 0.9 * static_cast<double>(kSlowdown)) << "it has waited for nothing";
      }
    }
  }
}

/// Ranks 0, 1 and 2; rank 1 reaches rank 0 by the proxy.
std::vector<End> three_through(std::unique_ptr<Proxy>& proxy) {
  std::vector<End> ends(3);
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < 3; ++i) {
    ends[i].transport = std::move(*make_tcp_transport(options_for(3)[i]));
    addresses.push_back(ends[i].transport->address());
  }
  proxy = std::make_unique<Proxy>(addresses[0], pass_all());
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    auto known = addresses;
    if (i == 1) known[0] = proxy->address();
    threads.emplace_back([&ends, i, known] { connect(ends[static_cast<std::size_t>(i)], i, known, kTimeLimit); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const End& end : ends) EXPECT_TRUE(end.status.ok()) << end.status.to_string();
  return ends;
}

TEST(TcpRepair, LeavingRankSkipsUnreachablePeer) {
  const auto data = random_bytes(4000, 1);
  const auto send = [&](End& end, Link& link) {
    EXPECT_TRUE(drive(end, [&] { return link.try_send({0, 0, 0, 4000, 0}, data); }));
    EXPECT_TRUE(drive(end, [&] { return link.sent_tiles() == 1; }));
  };
  const double limit = 0.04 * static_cast<double>(kSlowdown);
  std::array<std::vector<double>, 2> together;  // with nothing to be told, and with a tile each way
  for (int i = 0; i < 22; ++i) {
    auto ends = make_group(options_for(2));
    if (i % 2 == 1) send(ends[0], ends[0].link(1));
    if (i % 2 == 1) send(ends[1], ends[1].link(0));
    together[static_cast<std::size_t>(i) % 2].push_back(seconds_of([&] { destroy_together(ends); }));
  }
  for (std::vector<double>& times : together) {
    std::sort(times.begin(), times.end());
    std::printf("two that leave together take %.2f ms (%.2f .. %.2f)\n", 1e3 * times[5], 1e3 * times[0], 1e3 * times[10]);
  }
  EXPECT_LT(together[1][5], limit);
  {
    auto ends = make_group(options_for(2));
    send(ends[0], ends[0].link(1));
    ends[0].link(1).keep_copies();
    EXPECT_LT(seconds_of([&] { ends[0].destroy(); }), limit) << "for a call that has been given up";
    send(ends[1], ends[1].link(0));
    EXPECT_LT(seconds_of([&] { ends[1].destroy(); }), limit) << "for one that has left";
  }
  {
    std::unique_ptr<Proxy> proxy;
    auto ends = three_through(proxy);
    send(ends[0], ends[0].link(1));
    send(ends[0], ends[0].link(2));
    proxy.reset();
    ends[1].destroy();
    expect_lost(ends[0], 1, {}, std::chrono::seconds(5));
    EXPECT_LT(seconds_of([&] { ends[0].destroy(); }), limit) << "after a failure";
  }
  auto ends = make_group(options_for(2));
  send(ends[0], ends[0].link(1));
  const double seconds = seconds_of([&] { ends[0].destroy(); });
  std::printf("who does not look is waited for %.1f ms\n", 1e3 * seconds);
  EXPECT_LT(seconds, 0.4 * static_cast<double>(kSlowdown)) << "for one that computes and has everything";
}

// What says of which width the words of the first tile are, on a connection that carries tiles, so that it is no packing.
void spoil_first_tile(const Passage& passage) {
  constexpr std::uint64_t kWidth = kHandshake + tcp::kFrameHeaderBytes;
  if (passage.back || passage.connection == 1 || passage.offset > kWidth) return;
  if (const std::uint64_t at = kWidth - passage.offset; at < passage.bytes.size()) passage.bytes[at] = std::byte{5};
}

TEST(TcpRepair, TileThatCannotBeUnpackedIsResent) {
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

TEST(TcpRepair, TileThatNeverUnpacksEndsTheLink) {
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
  expect_lost(pair.ends[0], 1, {"tile 0"}, std::chrono::seconds(10));
  EXPECT_THAT(pair.ends[0].link(1).status().message(), ::testing::Not(::testing::ContainsRegex("check ?sum")));
  EXPECT_EQ(pair.ends[0].link(1).peek(), nullptr);
  pair.ends[0].destroy();
  enough = true;
  sender.join();
}

// What epoll has reported of a socket counts for that one, although the events before make the rank replace it.
TEST(TcpRepair, EndOfReplacedSocketIsIgnored) {
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

TEST(TcpRepair, Ipv6ConnectionsAreReplaced) {
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
TEST(TcpRepair, PacketLossLosesNoByte) {
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
