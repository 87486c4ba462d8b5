// What shared memory adds to the contract of transports: whom it wakes, rings that are not polled, its handshake with wrong
// settings and unauthenticated connections, and its options.
#include "transports/shm/shm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <shoal/limits.h>

#include "src/base/descriptor.h"
#include "src/trust/refusals.h"
#include "tests/mentions.h"
#include "transports/shm/arena.h"
#include "transports/shm/message.h"
#include "transports/shm/segment.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::Mentions;
using Links = Result<std::vector<std::unique_ptr<Link>>>;

std::chrono::steady_clock::time_point in_seconds(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

std::unique_ptr<Transport> make(ShmOptions options) {
  auto transport = make_shm_transport(options);
  EXPECT_TRUE(transport.ok()) << transport.status().to_string();
  return std::move(transport).value();
}

/// Connects two ends from two threads; the result of each.
std::pair<Links, Links> connect(Transport& zero, Transport& one, int seconds = 30) {
  const int ranks[2] = {0, 1};
  const std::string addresses[2] = {zero.address(), one.address()};
  Links second = Status(StatusCode::internal, "not run");
  std::thread other(
      [&] { second = one.connect(std::span(ranks).first(1), std::span(addresses).first(1), in_seconds(seconds)); });
  Links first = zero.connect(std::span(ranks).last(1), std::span(addresses).last(1), in_seconds(seconds));
  other.join();
  return {std::move(first), std::move(second)};
}

/// The ends of a group in this process, connected.
struct Ends {
  explicit Ends(int ranks) {
    std::vector<int> all;
    std::vector<std::string> addresses;
    for (int rank = 0; rank < ranks; ++rank) {
      transports.push_back(make({.rank = rank, .job_id = 5}));
      all.push_back(rank);
      addresses.push_back(transports.back()->address());
    }
    links.resize(transports.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        auto peers = all;
        auto others = addresses;
        peers.erase(peers.begin() + rank);
        others.erase(others.begin() + rank);
        auto made = transports[static_cast<std::size_t>(rank)]->connect(peers, others, in_seconds(30));
        if (made.ok()) links[static_cast<std::size_t>(rank)] = std::move(made).value();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  [[nodiscard]] bool connected() const {
    return std::ranges::none_of(links, [](const auto& each) { return each.empty(); });
  }
  Transport& of(int rank) { return *transports[static_cast<std::size_t>(rank)]; }
  Link& link(int rank, int peer) {
    return *links[static_cast<std::size_t>(rank)][static_cast<std::size_t>(peer < rank ? peer : peer - 1)];
  }
  bool send(int from, int to) { return link(from, to).try_send({}, {}); }
  /// Announces that rank 0 sleeps. Precondition: nothing is left for it to do.
  bool sleep() { return of(0).prepare_wait(); }
  /// Whether rank 0 has been woken. Ends its sleep.
  bool woken() {
    pollfd waits{of(0).wait_fd(), POLLIN, 0};
    const bool readable = ::poll(&waits, 1, 0) == 1;
    of(0).finish_wait(readable);
    return readable;
  }
  /// The peers on whose links rank 0 has something to do.
  std::vector<int> active() {
    while (of(0).progress()) continue;
    std::vector<Link*> found;
    EXPECT_TRUE(of(0).take_active(found));
    std::vector<int> peers;
    for (const Link* each : found) peers.push_back(each->peer());
    return peers;
  }

  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::vector<std::unique_ptr<Link>>> links;
};

TEST(Shm, WriterWakesRanksThatAwaitIt) {
  Ends ends(3);
  ASSERT_TRUE(ends.connected());
  ends.active();
  const auto wakes = [&](int awaited, int writer) {
    ends.of(0).await_writer(awaited);
    EXPECT_TRUE(ends.sleep());
    if (writer == 1) ends.of(1).notify_peers();
    if (writer == 2) ends.of(2).notify(std::array{0, 1, 2});
    return ends.woken();
  };
  EXPECT_TRUE(wakes(Transport::kAnyWriter, 1));
  EXPECT_TRUE(wakes(2, 2));
  EXPECT_FALSE(wakes(2, 1));
  EXPECT_TRUE(wakes(1, 1));
  EXPECT_FALSE(wakes(1, 2));
  EXPECT_FALSE(wakes(Transport::kNoWriter, 1));
  EXPECT_FALSE(wakes(Transport::kNoWriter, 2));
}

// Of so many peers rank 0 polls none before it has used a link.
TEST(Shm, TilesOnUnusedLinksAreFound) {
  constexpr int kRanks = 12;
  Ends ends(kRanks);
  ASSERT_TRUE(ends.connected());
  EXPECT_THAT(ends.active(), ::testing::IsEmpty());
  for (const int idle_calls : {0, 1000}) {  // after so many, links are unused again
    for (int call = 0; call < idle_calls; ++call) EXPECT_FALSE(ends.of(0).progress());
    for (int peer = 1; peer < kRanks; ++peer) {
      ASSERT_TRUE(ends.sleep());
      ASSERT_TRUE(ends.send(peer, 0));
      EXPECT_TRUE(ends.woken());
      EXPECT_THAT(ends.active(), ::testing::ElementsAre(peer));
      ASSERT_NE(ends.link(0, peer).peek(), nullptr);
      ASSERT_TRUE(ends.send(peer, 0));
      EXPECT_FALSE(ends.sleep()) << "it has not seen the second tile";
      ends.of(0).finish_wait(false);
      EXPECT_THAT(ends.active(), ::testing::ElementsAre(peer));
      for (int tile = 0; tile < 2; ++tile) {
        ASSERT_NE(ends.link(0, peer).peek(), nullptr);
        ends.link(0, peer).release();
      }
      EXPECT_EQ(ends.link(0, peer).peek(), nullptr);
    }
  }
}

TEST(Shm, OptionsOutOfRangeAreRefusedByName) {
  const auto message = [](ShmOptions options) { return make_shm_transport(options).status().message(); };
  EXPECT_THAT(message({.rank = -1}), HasSubstr("rank -1"));
  EXPECT_THAT(message({.tile_bytes = 0}), HasSubstr("tile_bytes 0"));
  EXPECT_THAT(message({.tile_bytes = std::size_t{65} << 20}), HasSubstr("tile_bytes"));
  EXPECT_THAT(message({.slots = 1}), HasSubstr("slots 1"));
  EXPECT_THAT(message({.window_bytes = std::size_t{2} << 30}), HasSubstr("window_bytes"));
}

TEST(Shm, MoreRanksThanAHostMayHaveAreRefused) {
  std::vector<int> peers(kMaxHostRanks);
  std::iota(peers.begin(), peers.end(), 1);
  const Links links = make({.rank = 0})->connect(peers, std::vector<std::string>(peers.size(), "x"), in_seconds(0));
  ASSERT_FALSE(links.ok());
  EXPECT_EQ(links.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(links.status().message(), Mentions(std::to_string(kMaxHostRanks + 1), std::to_string(kMaxHostRanks)));
}

TEST(Shm, BothRanksNameDifferentSettings) {
  const auto zero = make({.rank = 0, .job_id = 5, .tile_bytes = 4096});
  const auto one = make({.rank = 1, .job_id = 5, .tile_bytes = 8192});
  const auto [first, second] = connect(*zero, *one);
  for (const Links* links : {&first, &second}) {
    ASSERT_FALSE(links->ok());
    EXPECT_EQ(links->status().code(), StatusCode::mismatch);
    EXPECT_THAT(links->status().message(), Mentions("rank 1", "tile_bytes", "8192", "rank 0", "4096"));
  }
}

TEST(Shm, AddressOfAnotherJobIsRefused) {
  const auto zero = make({.rank = 0, .job_id = 5});
  const auto one = make({.rank = 1, .job_id = 6});
  const int peer = 0;
  const std::string address = zero->address();
  const Links links = one->connect(std::span(&peer, 1), std::span(&address, 1), in_seconds(10));
  ASSERT_FALSE(links.ok());
  EXPECT_EQ(links.status().code(), StatusCode::mismatch);
  EXPECT_THAT(links.status().message(), Mentions("rank 0", "job"));
}

TEST(Shm, MalformedAddressIsRefused) {
  for (const std::string& junk : {std::string(), std::string("x"), std::string(41, 'x'), std::string(5000, 'x')}) {
    const auto one = make({.rank = 1});
    const int peer = 0;
    const Links links = one->connect(std::span(&peer, 1), std::span(&junk, 1), in_seconds(10));
    ASSERT_FALSE(links.ok());
    EXPECT_EQ(links.status().code(), StatusCode::invalid_argument);
  }
}

TEST(Shm, EndedLeaderIsReportedAtOnce) {
  const int peer = 0;
  const std::string address = make({.rank = 0, .job_id = 5})->address();
  const auto one = make({.rank = 1, .job_id = 5});
  const Links links = one->connect(std::span(&peer, 1), std::span(&address, 1), in_seconds(60));
  ASSERT_FALSE(links.ok());
  EXPECT_EQ(links.status().code(), StatusCode::peer_failed);
  EXPECT_THAT(links.status().message(), HasSubstr("rank 0"));
}

/// Connects to the socket of an address.
bool dial(const Descriptor& socket, const std::string& address) {
  const std::string name = address.substr(48);  // what precedes the name has a fixed size
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, name.data(), name.size());
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())) == 0;
}

/// A connection to the socket of `address` that does not speak the protocol.
int unauthenticated(const std::string& address) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_TRUE(dial(socket, address));
  return socket.release();
}

TEST(Shm, UnauthenticatedConnectionsAreHarmless) {
  const auto zero = make({.rank = 0, .job_id = 5});
  const auto one = make({.rank = 1, .job_id = 5});
  std::vector<int> connections;
  for (int i = 0; i < 100; ++i) {
    connections.push_back(unauthenticated(zero->address()));
    const std::string junk(static_cast<std::size_t>(i) * 50, 'j');
    if (i % 2 == 0) {
      EXPECT_EQ(::send(connections.back(), junk.data(), junk.size(), MSG_NOSIGNAL), static_cast<ssize_t>(junk.size()));
    }
  }
  const auto [first, second] = connect(*zero, *one);
  EXPECT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_TRUE(second.ok()) << second.status().to_string();
  for (const int fd : connections) ::close(fd);
}

TEST(Shm, UnauthenticatedConnectionsKeepDeadline) {
  const auto zero = make({.rank = 0, .job_id = 5});
  // The backlog must not delay the deadline: connections may arrive faster than they are read.
  constexpr int kConnections = 100;
  for (int i = 0; i < kConnections; ++i) ::close(unauthenticated(zero->address()));
  const auto before = refusals().count;
  const int peer = 1;
  const std::string nowhere(50, 'x');
  const Links links = zero->connect(std::span(&peer, 1), std::span(&nowhere, 1), in_seconds(0));
  EXPECT_EQ(links.status().code(), StatusCode::timeout);
  EXPECT_THAT(links.status().message(), Mentions("rank 1", "rank 0"));
  EXPECT_LT(refusals().count - before, kConnections / 2U) << "the whole backlog was read first";
}

TEST(Shm, LeaderWithoutDescriptorsFailsWithoutSpinning) {
  const auto zero = make({.rank = 0, .job_id = 5});
  const std::string name = zero->address();
  const Descriptor waiting(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto start = std::chrono::steady_clock::now();
  const int peer = 1;
  const std::string nowhere(50, 'x');
  Links links = Status(StatusCode::internal, "not run");
  std::chrono::nanoseconds cpu{};
  std::thread leader([&] {
    links = zero->connect(std::span(&peer, 1), std::span(&nowhere, 1), start + std::chrono::minutes(1));
    timespec used{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    cpu = std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  });
  const Descriptor first(unauthenticated(name));
  char byte = 0;
  EXPECT_EQ(::send(first.get(), &byte, 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(::recv(first.get(), &byte, 1, 0), 0);  // the leader is in its loop
  rlimit before{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  {
    const Descriptor next(::dup(0));
    tight.rlim_cur = static_cast<rlim_t>(next.get());
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  EXPECT_TRUE(dial(waiting, name));
  leader.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << "the leader waited until the deadline";
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(links.status().code(), StatusCode::system_error);
  EXPECT_THAT(links.status().message(), Mentions("rank 1", "accept", "Too many open files", "ulimit -n"));
  EXPECT_LT(cpu, std::chrono::milliseconds(300)) << "the leader spun";
}

/// With too few free descriptors, the kernel delivers the message without them (MSG_CTRUNC).
TEST(Shm, MessageWithLostDescriptorsIsNotJunk) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor sender(ends[0]);
  const Descriptor receiver(ends[1]);
  shm::Message hello = shm::make_message(shm::MessageKind::hello);
  hello.rank = 3;
  ASSERT_TRUE(shm::send_message(sender.get(), hello, 0));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(Descriptor(::dup(0)).get());  // none is free
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const shm::Received received = shm::receive_message(receiver.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(received.outcome, shm::ReceiveOutcome::no_room);
  EXPECT_EQ(received.message.rank, 3);
  EXPECT_TRUE(received.descriptors.empty());
}

/// How many descriptors of this process are files of arenas.
int open_arenas() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += static_cast<int>(std::filesystem::read_symlink(entry, gone).string().find("shoal-arena") != std::string::npos);
  }
  return count;
}

TEST(Shm, ArenasOfPeersNeedNoDescriptor) {
  ASSERT_NE(shm::Arena::instance(), nullptr);
  EXPECT_EQ(open_arenas(), 1);
  const auto zero = make({.rank = 0, .job_id = 6});
  const auto one = make({.rank = 1, .job_id = 6});
  const auto [first, second] = connect(*zero, *one);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(open_arenas(), 1);
  const auto data = shm::Arena::instance()->offset_of(shm::Arena::instance()->base(), 64);
  EXPECT_NE(zero->shared_memory(1, *data, 64), nullptr) << "it is mapped";
}

// Shared memory that is lent is mapped by the peers later: not where their address space may be too small for it.
TEST(Shm, LimitedAddressSpaceMeansCopies) {
#ifdef SHOAL_SANITIZED
  GTEST_SKIP() << "the sanitizer needs address space";
#endif
  shm::Arena* const arena = shm::Arena::instance();
  ASSERT_NE(arena, nullptr);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = arena->size_bytes() + (std::size_t{4} << 30);  // of twice the size
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  Ends ends(2);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_TRUE(ends.connected());
  EXPECT_FALSE(ends.of(0).shared_offset(arena->base(), 64).has_value());
  ASSERT_TRUE(ends.link(0, 1).try_lend({0, 0, 0, 8192, 0}, {arena->base(), 8192}));
  EXPECT_EQ(ends.link(0, 1).sent_tiles(), 1U) << "copied: its memory is free at once";
  while (ends.link(1, 0).peek() == nullptr) static_cast<void>(ends.of(1).progress());
  EXPECT_FALSE(ends.link(1, 0).peek()->lent);
}

TEST(Shm, SurplusConnectionsAreCounted) {
  const auto zero = make({.rank = 0, .job_id = 5});
  const auto one = make({.rank = 1, .job_id = 5});
  const auto before = refusals().count;
  std::vector<int> connections;
  for (int i = 0; i < 20; ++i) connections.push_back(unauthenticated(zero->address()));
  const auto [first, second] = connect(*zero, *one);
  EXPECT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(refusals().count - before, 20U);
  for (const int fd : connections) ::close(fd);
}

TEST(Shm, RefusalTextIsPrintable) {
  const Status refusal(StatusCode::mismatch, "one\n\x1b[2J\x7ftwo");
  const Status received = shm::refusal_status(shm::make_refusal(refusal));
  EXPECT_EQ(received.code(), StatusCode::mismatch);
  EXPECT_EQ(received.message(), "one??[2J?two");
}

// The kernel first reports that the peer closed without reading everything.
TEST(Shm, RefusalBeforeCloseIsReceived) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor ours(ends[0]);
  {
    const Descriptor theirs(ends[1]);
    ASSERT_TRUE(shm::send_message(ours.get(), shm::make_message(shm::MessageKind::ready)));
    ASSERT_TRUE(shm::send_message(theirs.get(), shm::make_refusal(Status(StatusCode::mismatch, "why"))));
  }
  const shm::Received received = shm::receive_message(ours.get());
  ASSERT_EQ(received.outcome, shm::ReceiveOutcome::message);
  EXPECT_EQ(shm::refusal_status(received.message).message(), "why");
  EXPECT_EQ(shm::receive_message(ours.get()).outcome, shm::ReceiveOutcome::closed);
}

TEST(Shm, NothingOfItLiesInDevShm) {
  const auto zero = make({.rank = 0});
  const auto one = make({.rank = 1});
  const auto [first, second] = connect(*zero, *one);
  ASSERT_TRUE(first.ok());
  // What this process has mapped, not what the folder holds: other tests use it too.
  std::ifstream maps("/proc/self/maps");
  bool any = false;
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find("/dev/shm"), std::string::npos) << line;
    any |= line.find("/memfd:") != std::string::npos;
  }
  EXPECT_TRUE(any) << "the segment has no name";
}

TEST(Shm, SingleRankHasWindowButNoLinks) {
  const auto zero = make({.rank = 3, .window_bytes = 100});
  const Links links = zero->connect({}, {}, in_seconds(10));
  ASSERT_TRUE(links.ok()) << links.status().to_string();
  EXPECT_TRUE(links->empty());
  EXPECT_EQ(zero->shared_window(3).size(), 4096U);
  EXPECT_FALSE(zero->progress());
}

TEST(Shm, LinksMayOutliveTheirTransport) {
  auto zero = make({.rank = 0});
  auto one = make({.rank = 1});
  auto [first, second] = connect(*zero, *one);
  ASSERT_TRUE(first.ok() && second.ok());
  const std::byte data[8] = {std::byte{42}};
  ASSERT_TRUE((*first)[0]->try_send({0, 0, 0, 8, 0}, data));
  zero.reset();
  one.reset();
  const Arrival* arrival = (*second)[0]->peek();
  ASSERT_NE(arrival, nullptr);
  EXPECT_EQ(arrival->data[0], std::byte{42});
}

TEST(ShmSegment, PartsDoNotOverlapAndEndWithTheSegment) {
  for (const std::size_t ranks : {1, 2, 3, 8, 600}) {
    const shm::SegmentLayout layout{ranks, {1000, 3}, 4096};
    EXPECT_GE(layout.block_offset(0), sizeof(shm::SegmentHeader));
    EXPECT_EQ(layout.set_bytes(), ranks <= 512 ? 64U : 128U) << "grows with the ranks";
    EXPECT_EQ(layout.polls_offset(0), layout.block_offset(0) + sizeof(shm::RankBlock));
    EXPECT_EQ(layout.rang_offset(0), layout.polls_offset(0) + layout.set_bytes());
    EXPECT_EQ(layout.block_offset(1), layout.rang_offset(0) + layout.set_bytes());
    EXPECT_GE(layout.window_offset(0), layout.block_offset(ranks));
    std::size_t end = layout.window_offset(ranks - 1) + layout.window_bytes;
    for (std::size_t from = 0; from < ranks; ++from) {
      for (std::size_t to = 0; to < ranks; ++to) {
        if (from == to) continue;
        EXPECT_EQ(layout.ring_offset(from, to), end);
        EXPECT_EQ(layout.ring_offset(from, to) % 64, 0U);
        end += layout.ring.ring_bytes();
      }
    }
    EXPECT_GE(layout.common_offset(), end);
    EXPECT_LT(layout.common_offset(), end + 4096);
    EXPECT_EQ(layout.notice_offset(), layout.common_offset() + layout.common_bytes());
    EXPECT_EQ(layout.notice_offset() % shm::SegmentLayout::kPageBytes, 0U);
    EXPECT_EQ(layout.keeper_offset(), layout.notice_offset() + layout.notice_bytes());
    EXPECT_EQ(layout.keeper_offset() % shm::SegmentLayout::kPageBytes, 0U);
    EXPECT_EQ(layout.segment_bytes(), layout.keeper_offset() + layout.keeper_bytes());
  }
}

TEST(ShmSegment, FileOfAnotherJobIsRefused) {
  const shm::SegmentLayout layout{2, {1000, 3}, 4096};
  Descriptor file;
  ASSERT_TRUE(shm::Segment::create(layout, 7, &file).ok());
  EXPECT_TRUE(shm::Segment::attach(layout, 7, file).ok());
  EXPECT_EQ(shm::Segment::attach(layout, 8, file).status().code(), StatusCode::mismatch);
  const shm::SegmentLayout other{2, {1000, 4}, 4096};
  EXPECT_EQ(shm::Segment::attach(other, 7, file).status().code(), StatusCode::mismatch);
  EXPECT_NE(::ftruncate(file.get(), 0), 0) << "ranks that map the file rely on its size";
}

}  // namespace
}  // namespace shoal
