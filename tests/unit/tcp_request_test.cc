// Links of the TCP transport that are connected on request.
#include "tests/unit/tcp_support.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "src/base/descriptor.h"
#include "src/trust/refusals.h"
#include "tests/mentions.h"
#include "transports/tcp/address.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp_test {
namespace {

using testing::Mentions;

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

/// A group whose ranks connect only the pairs that `only` names, by rank.
std::vector<End> make_group_of(const std::vector<TcpOptions>& options, const std::vector<std::vector<int>>& only = {}) {
  std::vector<End> ends(options.size());
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    ends[i].transport = std::move(*make_tcp_transport(options[i]));
    ends[i].transport->connect_only(only.empty() ? std::vector<int>() : only[i]);
    addresses.push_back(ends[i].transport->address());
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ends.size(); ++i)
    threads.emplace_back([&, i] { connect(ends[i], static_cast<int>(i), addresses, kTimeLimit); });
  for (std::thread& thread : threads) thread.join();
  for (const End& end : ends) EXPECT_TRUE(end.status.ok()) << end.status.to_string();
  return ends;
}

/// Drives all ends from this thread until done() holds; false after `limit`.
bool drive_all(std::vector<End>& ends, const std::function<bool()>& done, std::chrono::milliseconds limit = kTimeLimit) {
  const auto until = Clock::now() + limit;
  while (!done()) {
    bool moved = false;
    for (End& end : ends) moved |= end.transport != nullptr && end.transport->progress();
    if (Clock::now() >= until) return false;
    if (!moved) ::usleep(200);
  }
  return true;
}

bool are_connected(std::vector<End>& ends, int one, int other) {
  return ends[static_cast<std::size_t>(one)].link(other).connected() &&
         ends[static_cast<std::size_t>(other)].link(one).connected();
}

/// Both directions, between the first rank and the last one.
void expect_data_passes(std::vector<End>& ends) {
  const int last = static_cast<int>(ends.size()) - 1;
  const auto message = random_bytes(300'000, 4);
  const std::size_t tile = std::min<std::size_t>(ends.front().link(last).max_tile_bytes(), 50'000);
  std::thread sender([&] {
    EXPECT_TRUE(send_message(ends.back(), 0, message, tile));
    EXPECT_TRUE(receive_message(ends.back(), 0, message, tile));
  });
  EXPECT_TRUE(receive_message(ends.front(), last, message, tile));
  EXPECT_TRUE(send_message(ends.front(), last, message, tile));
  sender.join();
}

TEST(TcpRequest, UnrequestedLinkHasNoSocket) {
  auto ends = make_group_of(options_for(5));
  const std::ptrdiff_t before = open_descriptors();
  std::size_t memory = 0;
  for (End& end : ends) memory += end.transport->memory_bytes();
  EXPECT_EQ(memory, 0U);
  for (int rank = 0; rank < 5; ++rank) {
    for (int peer = 0; peer < 5; ++peer) {
      if (peer == rank) continue;
      Link& link = ends[static_cast<std::size_t>(rank)].link(peer);
      EXPECT_FALSE(link.connected());
      EXPECT_FALSE(link.try_send({}, {}));
      EXPECT_EQ(link.peek(), nullptr);
      EXPECT_EQ(link.sent_tiles(), 0U);
      EXPECT_TRUE(link.status().ok());
      EXPECT_EQ(link.peer(), peer);
    }
  }
  ends[0].link(4).request(/*peer_too=*/true);
  ends[4].link(0).request(/*peer_too=*/true);
  ASSERT_TRUE(drive_all(ends, [&] { return are_connected(ends, 0, 4); }));
  EXPECT_EQ(open_descriptors() - before, 6) << "both ends of three sockets";
  expect_data_passes(ends);
}

TEST(TcpRequest, OneRankAloneSuffices) {
  for (const bool lower : {false, true}) {
    for (const bool peer_too : {false, true}) {
      auto ends = make_group_of(options_for(2, 1));
      ends[lower ? 0 : 1].link(lower ? 1 : 0).request(peer_too);
      ASSERT_TRUE(drive_all(ends, [&] { return are_connected(ends, 0, 1); })) << lower << peer_too;
      expect_data_passes(ends);
    }
  }
}

TEST(TcpRequest, SleepingPeerIsWoken) {
  for (const bool lower : {false, true}) {
    auto ends = make_group_of(options_for(2, 1));
    End& asks = ends[lower ? 0 : 1];
    End& sleeps = ends[lower ? 1 : 0];
    std::atomic<bool> done = false;
    std::thread peer([&] {
      EXPECT_TRUE(drive(sleeps, [&] { return sleeps.link(lower ? 0 : 1).connected(); }));
      while (!done) {
        sleeps.transport->progress();
        ::usleep(200);
      }
    });
    Link& link = asks.link(lower ? 1 : 0);
    link.request(/*peer_too=*/false);
    EXPECT_TRUE(drive(asks, [&] { return link.connected(); }));
    done = true;
    peer.join();
  }
}

TEST(TcpRequest, PairsOfTheStartAreConnected) {
  auto ends = make_group_of(options_for(3), {{1}, {0}, {}});
  EXPECT_TRUE(are_connected(ends, 0, 1));
  EXPECT_FALSE(ends[0].link(2).connected());
  EXPECT_FALSE(ends[2].link(1).connected());
  for (const int rank : {0, 2}) ends[static_cast<std::size_t>(rank)].link(2 - rank).request(/*peer_too=*/true);
  ASSERT_TRUE(drive_all(ends, [&] { return are_connected(ends, 0, 2); }));
  expect_data_passes(ends);
}

TEST(TcpRequest, AllPairsAtOnce) {
  constexpr int kRanks = 8;
  auto ends = make_group_of(options_for(kRanks, 1, 4096));
  std::mt19937 random(5);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int peer = 0; peer < rank; ++peer) {
      const auto who = random() % 3;  // the one, the other, both
      if (who != 0) ends[static_cast<std::size_t>(rank)].link(peer).request(who == 2);
      if (who != 1) ends[static_cast<std::size_t>(peer)].link(rank).request(who == 2);
    }
  }
  ASSERT_TRUE(drive_all(ends, [&] {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int peer = 0; peer < rank; ++peer) {
        if (!are_connected(ends, rank, peer)) return false;
      }
    }
    return true;
  }));
  expect_data_passes(ends);
}

TEST(TcpRequest, BusyPeerIsWaitedFor) {
  for (const bool lower : {false, true}) {
    auto ends = make_group_of(options_for(2, 1));
    Link& link = ends[lower ? 0 : 1].link(lower ? 1 : 0);
    link.request(/*peer_too=*/false);
    std::vector<End> alone(1);
    alone[0].transport = std::move(ends[lower ? 0 : 1].transport);
    EXPECT_FALSE(drive_all(
        alone, [&] { return link.connected(); }, std::chrono::milliseconds(300)));
    EXPECT_TRUE(link.status().ok()) << link.status().to_string();
    ends[lower ? 0 : 1].transport = std::move(alone[0].transport);
    EXPECT_TRUE(drive_all(ends, [&] { return are_connected(ends, 0, 1); }));
  }
}

TEST(TcpRequest, PeerThatHasEndedIsNamed) {
  for (const std::size_t gone : {std::size_t{0}, std::size_t{1}}) {
    auto ends = make_group_of(options_for(2, 1));
    ends[gone].destroy();
    Link& link = ends[1 - gone].link(static_cast<int>(gone));
    EXPECT_TRUE(link.status().ok());
    link.request(/*peer_too=*/false);
    EXPECT_TRUE(drive_all(ends, [&] { return !link.status().ok(); }));
    EXPECT_EQ(link.status().code(), StatusCode::peer_failed);
    EXPECT_THAT(link.status().message(), Mentions("rank " + std::to_string(gone), "127.0.0.1", "Connection refused"));
    EXPECT_FALSE(link.try_send({}, {}));
    link.request(/*peer_too=*/false);  // has no effect
    EXPECT_EQ(link.peek(), nullptr);
  }
}

TEST(TcpRequest, LeavingMidwayHarmsNobody) {
  for (int steps = 0; steps < 12; ++steps) {
    auto ends = make_group_of(options_for(3, 1));
    for (const int rank : {0, 2}) ends[static_cast<std::size_t>(rank)].link(2 - rank).request(/*peer_too=*/true);
    for (int i = 0; i < steps; ++i) {
      ends[2].transport->progress();
      ends[0].transport->progress();
    }
    ends[0].destroy();
    EXPECT_TRUE(drive_all(ends, [&] { return !ends[2].link(0).status().ok(); }));
    EXPECT_EQ(ends[2].link(0).status().code(), StatusCode::peer_failed);
    ends[1].link(2).request(/*peer_too=*/false);
    EXPECT_TRUE(drive_all(ends, [&] { return are_connected(ends, 1, 2); }));
  }
}

TEST(TcpRequest, LackOfDescriptorsIsOneClearError) {
  for (const bool lower : {false, true}) {
    auto ends = make_group_of(options_for(2, 1));
    Link& link = ends[lower ? 0 : 1].link(lower ? 1 : 0);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const int lowest_free = ::dup(0);
    ::close(lowest_free);
    rlimit tight = before;
    tight.rlim_cur = static_cast<rlim_t>(lowest_free);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
    link.request(/*peer_too=*/false);
    const bool ended = drive_all(ends, [&] { return !link.status().ok(); });
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_TRUE(ended);
    EXPECT_EQ(link.status().code(), StatusCode::system_error) << link.status().to_string();
    EXPECT_THAT(link.status().message(), Mentions(lower ? "rank 1" : "rank 0", "Too many open files", "ulimit -n"));
  }
}

TEST(TcpRequest, OnlyLowerRanksOfTheJobMayRequest) {
  auto ends = make_group_of(options_for(3, 1));
  tcp::Hello request;
  request.kind = tcp::HelloKind::request;
  request.job_id = options_of(0, 3).job_id;
  request.to_rank = 1;
  request.size = 3;
  const auto before = refusals().count;
  std::vector<Descriptor> open;
  const auto dial_with = [&](const tcp::Hello& hello, const Key& key) {
    const auto where = tcp::parse_address(ends[1].transport->address());
    Descriptor& socket = open.emplace_back(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), where->raw(), where->length()), 0);
    const auto record = tcp::encode(hello, key);
    ASSERT_EQ(::send(socket.get(), record.data(), record.size(), MSG_NOSIGNAL), static_cast<ssize_t>(record.size()));
  };
  for (const std::uint32_t from : {2U, 77U, 1U}) {
    request.from_rank = from;
    dial_with(request, kKey);
  }
  request.from_rank = 0;
  dial_with(request, key_from_text("another"));
  EXPECT_TRUE(drive_all(ends, [&] { return refusals().count >= before + 4; }));
  EXPECT_FALSE(ends[1].link(0).connected());
  EXPECT_FALSE(ends[1].link(2).connected());
  dial_with(request, kKey);  // as rank 0 would
  EXPECT_TRUE(drive_all(ends, [&] { return are_connected(ends, 0, 1); }));
}

TEST(TcpRequest, LaterLinksUseChecksumsAndEncryption) {
  for (const bool encryption : {false, true}) {
    auto options = options_for(2, 2);
    for (TcpOptions& one : options) one.encryption = encryption;
    auto ends = make_group_of(options);
    for (End& end : ends) {
      end.transport->use_check_sums();
      end.transport->use_packing();
    }
    ends[0].link(1).request(/*peer_too=*/false);
    ASSERT_TRUE(drive_all(ends, [&] { return are_connected(ends, 0, 1); }));
    const auto message = gradient_bytes(1 << 20, 3);
    std::thread sender([&] { EXPECT_TRUE(send_message(ends[1], 0, message, 100'000)); });
    EXPECT_TRUE(receive_message(ends[0], 1, message, 100'000));
    sender.join();
  }
}

}  // namespace
}  // namespace shoal::tcp_test
