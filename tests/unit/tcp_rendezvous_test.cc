// How TCP transports find each other: strangers, other jobs, differing settings, missing ranks, addresses.
#include "tests/unit/tcp_support.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "src/base/descriptor.h"
#include "src/trust/refusals.h"
#include "tests/mentions.h"
#include "transports/tcp/address.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp_test {
namespace {

using tcp::Hello;
using tcp::HelloKind;
using ::testing::AllOf;
using testing::Mentions;
using ::testing::Not;

Descriptor dial(const std::string& address) {
  const auto where = tcp::parse_address(address);
  Descriptor socket(::socket(where->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), where->raw(), where->length()) != 0) socket.reset();
  return socket;
}

void say(const Descriptor& socket, std::span<const std::byte> bytes) {
  static_cast<void>(!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

// One end that connects to rank 1 of 2, which is played by the test.
End lone_end(int rank, const std::string& other, std::chrono::milliseconds limit, TcpOptions options) {
  End end;
  options.rank = rank;
  auto transport = make_tcp_transport(options);
  EXPECT_TRUE(transport.ok()) << transport.status().to_string();
  end.transport = std::move(*transport);
  std::vector<std::string> addresses(2, other);
  connect(end, rank, addresses, limit);
  return end;
}

TEST(TcpRendezvous, UnauthenticatedConnectionsAreHarmless) {
  std::vector<End> ends(3);
  std::vector<std::string> addresses;
  for (int rank = 0; rank < 3; ++rank) {
    auto transport = make_tcp_transport(options_of(rank, 3));
    ASSERT_TRUE(transport.ok());
    ends[static_cast<std::size_t>(rank)].transport = std::move(*transport);
    addresses.push_back(ends[static_cast<std::size_t>(rank)].transport->address());
  }
  // Before anybody looks: junk, half a record, a scan that closes at once, silence, a web browser, another job, a rank that is
  // not expected, a number of socket that does not exist.
  std::vector<Descriptor> open;
  Hello hello;
  hello.job_id = options_of(0, 3).job_id;
  hello.size = 3;
  hello.sockets = 2;
  hello.tile_bytes = static_cast<std::uint32_t>(options_of(0, 3).tile_bytes);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const std::string& address = addresses[rank];
    hello.to_rank = rank;
    Hello other_job = hello;
    other_job.job_id ^= 1;
    other_job.from_rank = (rank + 1) % 3;
    Hello unexpected = hello;
    unexpected.from_rank = 77;
    Hello too_many = hello;
    too_many.from_rank = (rank + 1) % 3;
    too_many.socket_index = 999;
    say(open.emplace_back(dial(address)), random_bytes(5000, 3));
    say(open.emplace_back(dial(address)), std::as_bytes(std::span("SHOL")));
    dial(address);
    open.push_back(dial(address));
    say(open.emplace_back(dial(address)),
        std::as_bytes(std::span("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n")));
    for (const Hello& wrong : {other_job, unexpected, too_many})
      say(open.emplace_back(dial(address)), tcp::encode(wrong, kKey));
  }
  // And while the ranks connect.
  std::atomic<bool> stop = false;
  std::thread scanner([&] {
    for (int i = 0; !stop && i < 2000; ++i)
      say(dial(addresses[static_cast<std::size_t>(i % 3)]), random_bytes(100, static_cast<std::uint64_t>(i)));
  });
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] { connect(ends[static_cast<std::size_t>(rank)], rank, addresses, kTimeLimit); });
  for (std::thread& thread : ranks) thread.join();
  stop = true;
  scanner.join();
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  const auto message = random_bytes(300'000, 4);
  bool arrived = false;
  std::thread receiver([&] { arrived = receive_message(ends[2], 0, message, 100'000); });
  EXPECT_TRUE(send_message(ends[0], 2, message, 100'000));
  receiver.join();
  EXPECT_TRUE(arrived);
}

TEST(TcpRendezvous, SurplusSilentConnectionsYieldToThePeer) {
  std::vector<End> ends(2);
  std::vector<std::string> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    ends[static_cast<std::size_t>(rank)].transport = std::move(*make_tcp_transport(options_of(rank, 2)));
    addresses.push_back(ends[static_cast<std::size_t>(rank)].transport->address());
  }
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(dial(addresses[0]));
  std::thread other([&] { connect(ends[1], 1, addresses, kTimeLimit); });
  connect(ends[0], 0, addresses, kTimeLimit);
  other.join();
  EXPECT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
  EXPECT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
}

/// A greeting of rank 1 of 2 for rank 0, as somebody who listens has it from another time.
Hello greeting_of_one(std::uint16_t socket_index) {
  Hello hello;
  hello.job_id = options_of(0, 2).job_id;
  hello.from_rank = 1;
  hello.size = 2;
  hello.sockets = static_cast<std::uint16_t>(options_of(0, 2).sockets_per_peer);
  hello.socket_index = socket_index;
  hello.tile_bytes = static_cast<std::uint32_t>(options_of(0, 2).tile_bytes);
  return hello;
}

/// Takes a record; empty where the connection ends first.
std::optional<Hello> hear(const Descriptor& socket, std::string& records) {
  tcp::HelloRecord record;
  if (::recv(socket.get(), record.data(), record.size(), MSG_WAITALL) != static_cast<ssize_t>(record.size())) return {};
  records += as_text(record);
  return tcp::decode_hello(record);
}

/// Rank 1's part of a handshake, behind its greeting; what was in its way.
std::string prove_to_be_one(const Descriptor& socket, Hello hello) {
  std::string records(as_text(tcp::encode(hello, kKey)));
  const auto reply = hear(socket, records);
  if (!reply || reply->kind != HelloKind::reply) return "no reply";
  hello.kind = HelloKind::confirm;
  const auto confirm = tcp::encode(hello, kKey, records);
  say(socket, confirm);
  records += as_text(confirm);
  const auto accept = hear(socket, records);
  return accept && accept->kind == HelloKind::accept ? "" : "not accepted";
}

constexpr int kRoomForOthers = 64;

TEST(TcpRendezvous, PeerWithinAFloodIsAcceptedAtOnce) {
  End end;
  end.transport = std::move(*make_tcp_transport(options_of(0, 2)));
  const std::string address = end.transport->address();
  std::vector<Descriptor> open;
  for (int i = 0; i < 2 * kRoomForOthers; ++i) say(open.emplace_back(dial(address)), tcp::encode(greeting_of_one(0), kKey));
  std::vector<Descriptor> peer;
  for (std::uint16_t index = 0; index < 3; ++index)
    say(peer.emplace_back(dial(address)), tcp::encode(greeting_of_one(index), kKey));
  for (int i = 0; i < kRoomForOthers; ++i) open.push_back(dial(address));
  std::thread rank([&] { connect(end, 0, {address, "127.0.0.1:1"}, kTimeLimit / 6); });
  for (std::uint16_t index = 0; index < 3; ++index)
    EXPECT_EQ(prove_to_be_one(peer[index], greeting_of_one(index)), "") << index;
  rank.join();
  EXPECT_TRUE(end.status.ok()) << end.status.to_string();
}

TEST(TcpRendezvous, PeerConnectsDespiteGreetingsAndAFlood) {
  std::vector<End> ends(2);
  std::vector<std::string> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    ends[static_cast<std::size_t>(rank)].transport = std::move(*make_tcp_transport(options_of(rank, 2)));
    addresses.push_back(ends[static_cast<std::size_t>(rank)].transport->address());
  }
  std::vector<Descriptor> greeted;
  const auto greeting = tcp::encode(greeting_of_one(0), kKey);
  for (int i = 0; i < 2 * kRoomForOthers; ++i) say(greeted.emplace_back(dial(addresses[0])), greeting);
  std::atomic<bool> over = false;
  std::thread flood([&] {
    for (int i = 0; !over; ++i) {
      Descriptor one = dial(addresses[0]);
      if (i % 2 == 0) say(one, greeting);
      greeted[static_cast<std::size_t>(i) % greeted.size()] = std::move(one);
    }
  });
  const auto start = Clock::now();
  std::thread other([&] { connect(ends[1], 1, addresses, kTimeLimit); });
  connect(ends[0], 0, addresses, kTimeLimit);
  over = true;
  flood.join();
  other.join();
  EXPECT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
  EXPECT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
  EXPECT_LT(Clock::now() - start, kTimeLimit / 2);
}

TEST(TcpRendezvous, MissingHigherRankAndRefusalsAreReported) {
  auto transport = make_tcp_transport(options_of(0, 3));
  ASSERT_TRUE(transport.ok());
  const std::string address = (*transport)->address();
  for (int i = 0; i < 3; ++i) say(dial(address), random_bytes(tcp::kHelloBytes, 5));
  const std::vector<int> peers = {2, 1};
  const std::vector<std::string> addresses = {"127.0.0.1:2", "127.0.0.1:1"};
  const auto links = (*transport)->connect(peers, addresses, Clock::now() + std::chrono::milliseconds(300));
  ASSERT_FALSE(links.ok());
  EXPECT_EQ(links.status().code(), StatusCode::timeout);
  EXPECT_THAT(links.status().message(), Mentions("rank 2", "127.0.0.1:2", "rank 1", "127.0.0.1:1", "0.3 s"));
  EXPECT_THAT(links.status().message(), Mentions("3 connections", "protocol")) << "of strangers";
  const auto again = (*transport)->connect(peers, addresses, Clock::now());
  EXPECT_EQ(again.status().code(), StatusCode::invalid_argument);
}

TEST(TcpRendezvous, RefusingLowerRankIsNamedWithSystemError) {
  std::string closed;
  closed = (*make_tcp_transport(options_of(0, 2)))->address();  // destroyed at once: nobody listens there
  const End end = lone_end(1, closed, std::chrono::milliseconds(300), options_of(1, 2));
  EXPECT_EQ(end.status.code(), StatusCode::timeout);
  EXPECT_THAT(end.status.message(), Mentions("rank 0", closed, "0.3 s", "Connection refused"));
}

TEST(TcpRendezvous, RankThatNeverAnswersIsNamed) {
  const auto silent = make_tcp_transport(options_of(0, 2));  // listens, but never calls connect()
  const End end = lone_end(1, (*silent)->address(), std::chrono::milliseconds(300), options_of(1, 2));
  EXPECT_EQ(end.status.code(), StatusCode::timeout);
  EXPECT_THAT(end.status.message(), Mentions("rank 0", (*silent)->address(), "0.3 s"));
  EXPECT_THAT(end.status.message(), Not(Mentions("Connection refused"))) << "it does not answer";
}

TEST(TcpRendezvous, ConnectionOfAnotherJobIsRefused) {
  auto options = options_for(2);
  options[1].job_id = 99;
  const auto ends = make_group(options, std::chrono::milliseconds(500));
  EXPECT_EQ(ends[0].status.code(), StatusCode::timeout);
  EXPECT_THAT(ends[0].status.message(), AllOf(Mentions("rank 1", "job"), Not(Mentions("key"))));
  EXPECT_EQ(ends[1].status.code(), StatusCode::timeout);
  EXPECT_THAT(ends[1].status.message(), Mentions("rank 0"));
}

TEST(TcpRendezvous, ConnectionWithAnotherKeyIsRefused) {
  auto options = options_for(2);
  options[1].key = key_from_text("another key, of the same job by its number");
  const auto before = refusals().count;
  const auto ends = make_group(options, std::chrono::milliseconds(500));
  EXPECT_EQ(ends[0].status.code(), StatusCode::timeout);
  EXPECT_THAT(ends[0].status.message(), Mentions("rank 1", "key"));
  EXPECT_EQ(ends[1].status.code(), StatusCode::timeout);
  EXPECT_THAT(ends[1].status.message(), Mentions("rank 0", "key"));
  EXPECT_GT(refusals().count, before);
  EXPECT_THAT(refusals().last, AllOf(::testing::StartsWith("tcp: "), Mentions("key")));
}

// Sends everything on to where it should go, and keeps it.
class Recorder {
 public:
  explicit Recorder(const std::string& to) : to_(to), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof any;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&any), length), 0);
    EXPECT_EQ(::listen(listener_.get(), 64), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&any), &length), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
    acceptor_ = std::thread([this] {
      for (;;) {
        Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!client.valid()) return;
        relays_.emplace_back([this, client = std::move(client)]() mutable { relay(client); });
      }
    });
  }
  ~Recorder() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& one : relays_) one.join();
  }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] std::vector<std::vector<std::byte>> heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  void relay(const Descriptor& client) {
    const Descriptor server = dial(to_);
    std::size_t mine = 0;
    {
      const std::lock_guard lock(mutex_);
      mine = heard_.size();
      heard_.emplace_back();
    }
    for (;;) {
      pollfd both[2] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
      ::poll(both, 2, 1000);
      for (int from = 0; from < 2; ++from) {
        if (both[from].revents == 0) continue;
        std::byte bytes[4096];
        const ssize_t got = ::recv(both[from].fd, bytes, sizeof bytes, 0);
        if (got <= 0) return;
        if (from == 0) {
          const std::lock_guard lock(mutex_);
          heard_[mine].insert(heard_[mine].end(), bytes, bytes + got);
        }
        say(from == 0 ? server : client, std::span(bytes).first(static_cast<std::size_t>(got)));
      }
    }
  }

  std::string to_;
  Descriptor listener_;
  std::string address_;
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> heard_;
  std::vector<std::thread> relays_;
  std::thread acceptor_;
};

TEST(TcpRendezvous, ReplayedHandshakeIsRefused) {
  std::vector<std::vector<std::byte>> recorded;
  {
    std::vector<End> ends(2);
    for (int rank = 0; rank < 2; ++rank)
      ends[static_cast<std::size_t>(rank)].transport = std::move(*make_tcp_transport(options_of(rank, 2)));
    Recorder recorder(ends[0].transport->address());
    const std::vector<std::string> addresses = {recorder.address(), ends[1].transport->address()};
    std::thread other([&] { connect(ends[1], 1, addresses, kTimeLimit); });
    connect(ends[0], 0, addresses, kTimeLimit);
    other.join();
    ASSERT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
    ASSERT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
    recorded = recorder.heard();
    ends.clear();  // ends the relays
  }
  ASSERT_EQ(recorded.size(), 3U) << "two sockets for tiles and one for words";
  for (const auto& one : recorded) ASSERT_GE(one.size(), 2 * tcp::kHelloBytes);
  // The same job with the same key once more: the recording comes before the rank itself, many times, whole and in part.
  std::vector<End> ends(2);
  std::vector<std::string> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    ends[static_cast<std::size_t>(rank)].transport = std::move(*make_tcp_transport(options_of(rank, 2)));
    addresses.push_back(ends[static_cast<std::size_t>(rank)].transport->address());
  }
  const auto before = refusals().count;
  std::vector<Descriptor> open;
  for (int i = 0; i < 100; ++i) {
    for (const auto& one : recorded) {
      const std::span<const std::byte> whole(one);
      say(open.emplace_back(dial(addresses[0])), whole);
      say(open.emplace_back(dial(addresses[0])), whole.first(tcp::kHelloBytes));
    }
  }
  std::thread other([&] { connect(ends[1], 1, addresses, kTimeLimit); });
  connect(ends[0], 0, addresses, kTimeLimit);
  other.join();
  ASSERT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
  ASSERT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
  EXPECT_GE(refusals().count - before, 100U);
  const auto message = random_bytes(100'000, 4);
  std::thread sender([&] { EXPECT_TRUE(send_message(ends[1], 0, message, 10'000)); });
  EXPECT_TRUE(receive_message(ends[0], 1, message, 10'000));
  sender.join();
}

TEST(TcpRendezvous, BothRanksNameDifferentSettings) {
  const auto expect_mismatch = [](const std::vector<TcpOptions>& options, const std::string& what, const std::string& zero,
                                  const std::string& one) {
    const auto start = Clock::now();
    const auto ends = make_group(options);
    EXPECT_LT(Clock::now() - start, kTimeLimit);
    for (const End& end : ends) {
      EXPECT_EQ(end.status.code(), StatusCode::mismatch) << end.status.to_string();
      EXPECT_THAT(end.status.message(), Mentions(what, zero, one, "rank 0", "rank 1"));
    }
  };
  auto tiles = options_for(2);
  tiles[1].tile_bytes = 65536;
  expect_mismatch(tiles, "tile", "131072", "65536");
  auto sockets = options_for(2);
  sockets[0].sockets_per_peer = 7;
  expect_mismatch(sockets, "sockets", "7", "2");
  auto sums = options_for(2);
  sums[1].integrity = true;
  expect_mismatch(sums, "SHOAL_INTEGRITY", "1", "0");
  auto encryption = options_for(2);
  encryption[0].encryption = true;
  expect_mismatch(encryption, "SHOAL_ENCRYPTION", "1", "0");
  auto sizes = options_for(2);
  sizes[1].size = 5;
  expect_mismatch(sizes, "job", "2", "5");
}

TEST(TcpRendezvous, AnotherWireVersionIsAMismatch) {
  auto transport = make_tcp_transport(options_of(0, 2));
  Hello hello;
  hello.version = tcp::kWireVersion + 1;
  hello.job_id = options_of(0, 2).job_id;
  hello.from_rank = 1;
  const Descriptor peer = dial((*transport)->address());
  say(peer, tcp::encode(hello, kKey));
  const std::vector<int> peers = {1};
  const std::vector<std::string> addresses = {"127.0.0.1:1"};
  const auto links = (*transport)->connect(peers, addresses, Clock::now() + kTimeLimit);
  EXPECT_EQ(links.status().code(), StatusCode::mismatch);
  EXPECT_THAT(links.status().message(), Mentions("rank 0", "rank 1", "version"));
}

TEST(TcpRendezvous, LateRankIsWaitedFor) {
  std::vector<End> ends(2);
  ends[0].transport = std::move(*make_tcp_transport(options_of(0, 2)));
  ends[1].transport = std::move(*make_tcp_transport(options_of(1, 2)));
  const std::vector<std::string> addresses = {ends[0].transport->address(), ends[1].transport->address()};
  std::thread early([&] { connect(ends[1], 1, addresses, kTimeLimit); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  connect(ends[0], 0, addresses, kTimeLimit);
  early.join();
  EXPECT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
  EXPECT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
}

TEST(TcpRendezvous, UnansweredAddressIsReplacedByTheNext) {
  std::vector<End> ends(2);
  ends[0].transport = std::move(*make_tcp_transport(options_of(0, 2)));
  ends[1].transport = std::move(*make_tcp_transport(options_of(1, 2)));
  // A stranger that accepts and says nothing, one that refuses, then the rank itself.
  const auto silent = make_tcp_transport(options_of(0, 2));
  const std::string refused = (*make_tcp_transport(options_of(0, 2)))->address();
  const std::vector<std::string> addresses = {refused + "," + (*silent)->address() + "," + ends[0].transport->address(),
                                              ends[1].transport->address()};
  std::thread other([&] { connect(ends[0], 0, addresses, kTimeLimit); });
  connect(ends[1], 1, addresses, kTimeLimit);
  other.join();
  EXPECT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
  EXPECT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
}

TEST(TcpRendezvous, SixteenRanksConnectPairwise) {
  auto ends = make_group(options_for(16, 1, 4096));
  for (const End& end : ends) ASSERT_TRUE(end.status.ok()) << end.status.to_string();
  const auto message = random_bytes(1000, 9);
  for (int from = 0; from < 16; from += 5) {
    for (int to = 0; to < 16; to += 3) {
      if (from == to) continue;
      EXPECT_TRUE(send_message(ends[static_cast<std::size_t>(from)], to, message, 1000));
      EXPECT_TRUE(receive_message(ends[static_cast<std::size_t>(to)], from, message, 1000));
    }
  }
}

TEST(TcpRendezvous, Ipv6AndWildcardAddressesWork) {
  for (const char* where : {"::1", "", "lo"}) {
    auto options = options_for(2);
    for (TcpOptions& one : options) one.interface_or_address = where;
    if (std::string_view(where) == "::1" && !make_tcp_transport(options[0]).ok()) {
      std::printf("this machine has no IPv6 loopback address\n");
      continue;
    }
    auto ends = make_group(options);
    ASSERT_TRUE(ends[0].status.ok()) << where << ": " << ends[0].status.to_string();
    ASSERT_TRUE(ends[1].status.ok()) << where << ": " << ends[1].status.to_string();
    EXPECT_LE(ends[0].transport->address().size(), 1024U);
    const auto message = random_bytes(5000, 9);
    EXPECT_TRUE(send_message(ends[0], 1, message, 5000));
    EXPECT_TRUE(receive_message(ends[1], 0, message, 5000));
  }
}

TEST(TcpRendezvous, SingleRankConnectsToNoPeer) {
  auto transport = make_tcp_transport(options_of(0, 1));
  ASSERT_TRUE(transport.ok());
  const auto links = (*transport)->connect({}, {}, Clock::now());
  ASSERT_TRUE(links.ok());
  EXPECT_TRUE(links->empty());
  EXPECT_FALSE((*transport)->progress());
}

TEST(TcpOptionsCheck, BadOptionsAreRefused) {
  const auto code_of = [](auto change) {
    TcpOptions options = options_of(0, 2);
    change(options);
    return make_tcp_transport(options).status().code();
  };
  EXPECT_EQ(code_of([](TcpOptions& o) { o.rank = 2; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.rank = -1; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.size = 0; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.sockets_per_peer = 0; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.sockets_per_peer = 17; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.tile_bytes = 63; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.tile_bytes = (16 << 20) + 1; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.tiles_per_socket = 0; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.lost_after = std::chrono::milliseconds(4999); }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.lost_after = std::chrono::hours(241); }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.interface_or_address = "nosuch0"; }), StatusCode::invalid_argument);
  EXPECT_EQ(code_of([](TcpOptions& o) { o.interface_or_address = "192.0.2.1"; }), StatusCode::system_error);
}

TEST(TcpOptionsCheck, PortInUseIsNamed) {
  const auto first = make_tcp_transport(options_of(0, 2));
  ASSERT_TRUE(first.ok());
  TcpOptions options = options_of(1, 2);
  options.port = tcp::parse_address((*first)->address())->port();
  const auto second = make_tcp_transport(options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), Mentions((*first)->address(), "Address already in use"));
}

TEST(TcpOptionsCheck, InvalidPeersAndAddressesAreRefused) {
  const auto error_of = [](std::vector<int> peers, std::vector<std::string> addresses) {
    auto transport = make_tcp_transport(options_of(0, 4));
    const auto links = (*transport)->connect(peers, addresses, Clock::now() + std::chrono::milliseconds(10));
    EXPECT_EQ(links.status().code(), StatusCode::invalid_argument) << links.status().to_string();
    return links.status().message();
  };
  EXPECT_THAT(error_of({1}, {}), Mentions("1", "0"));
  EXPECT_THAT(error_of({0}, {"127.0.0.1:1"}), Mentions("rank 0"));
  EXPECT_THAT(error_of({4}, {"127.0.0.1:1"}), Mentions("rank 4"));
  EXPECT_THAT(error_of({1, 1}, {"127.0.0.1:1", "127.0.0.1:1"}), Mentions("rank 1", "twice"));
  EXPECT_THAT(error_of({1}, {"shm:xyz"}), Mentions("rank 1", "shm:xyz"));
  EXPECT_THAT(error_of({1}, {""}), Mentions("rank 1", "address"));
}

TEST(TcpOptionsCheck, LackOfDescriptorsIsOneClearError) {
  const auto listening = make_tcp_transport(options_of(0, 2));
  auto transport = make_tcp_transport(options_of(1, 2));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = ::dup(0);
  ::close(lowest_free);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(lowest_free);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const std::vector<int> peers = {0};
  const std::vector<std::string> addresses = {(*listening)->address()};
  const auto links = (*transport)->connect(peers, addresses, Clock::now() + kTimeLimit);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(links.status().code(), StatusCode::system_error);
  EXPECT_THAT(links.status().message(), Mentions("rank 0", "Too many open files"));
}

}  // namespace
}  // namespace shoal::tcp_test
