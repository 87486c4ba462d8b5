// The memory in the rings of TCP links: how it is counted, returned to the system, and kept below a limit.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/seeds.h"
#include "tests/unit/tcp_support.h"
#include "transports/tcp/link.h"
#include "transports/tcp/mirror_ring.h"
#include "transports/tcp/reactor.h"
#include "transports/tcp/send_window.h"

namespace shoal::tcp_test {
namespace {

using tcp::LinkRings;
using tcp::MirrorRing;
using tcp::RingMemory;
using tcp::SendRange;
using tcp::SendWindow;

const auto kPageBytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

/// Several links between two ranks in one process and one thread.
struct JoinedLinks {
  static constexpr std::uint32_t kTileBytes = 32 << 10;  // 15 of them fill the send memory of a link

  std::array<std::shared_ptr<tcp::Reactor>, 2> reactors;
  std::array<std::vector<std::unique_ptr<tcp::TcpLink>>, 2> links;
  std::vector<std::byte> tile = random_bytes(kTileBytes, 1);

  explicit JoinedLinks(std::size_t limit_bytes, int count = 1) {
    for (auto& reactor : reactors) reactor = std::move(*tcp::Reactor::make(limit_bytes));
    for (int i = 0; i < count; ++i) {
      std::array<std::vector<tcp::Connection>, 2> connections;
      for (int socket = 0; socket < 2; ++socket) {
        std::array<int, 2> pair{};
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
        for (std::size_t end = 0; end < 2; ++end) connections[end].push_back({Descriptor(pair[end]), {}});
      }
      for (std::size_t end = 0; end < 2; ++end) {
        links[end].push_back(std::move(*tcp::TcpLink::make(reactors[end], i, "test", std::move(connections[end]),
                                                           {.tile_bytes = kTileBytes, .tiles_per_socket = 16})));
      }
    }
  }

  [[nodiscard]] RingMemory& memory(std::size_t end) { return reactors[end]->ring_memory(); }
  [[nodiscard]] const SendWindow& sent(std::size_t link) { return links[0][link]->sender().window(); }
  bool send(std::size_t link = 0) { return links[0][link]->try_send({1, 2, 3, kTileBytes, 0}, tile); }
  /// The receiver takes all tiles that have arrived.
  void take() {
    for (auto& link : links[1]) {
      for (; link->peek() != nullptr; link->release()) EXPECT_TRUE(std::ranges::equal(link->peek()->data, tile));
    }
  }
  /// Whatever moves without waiting: more calls than it takes until each end has asked epoll.
  void settle(bool takes) {
    for (int quiet = 0; quiet < 10; ++quiet) {
      if (takes) take();
      for (auto& reactor : reactors) quiet = reactor->progress() ? -1 : quiet;
    }
  }
  /// The receiver takes nothing: fills the memory of both ends.
  void fill() {
    do settle(false);
    while (send());
  }
  /// Drives both ends, and takes all tiles, until done() holds; sleeps where nothing moves. False after kTimeLimit.
  template <typename Done>
  bool drive_until(Done&& done) {
    for (const auto until = Clock::now() + kTimeLimit; Clock::now() < until;) {
      settle(true);
      if (done()) return true;
      std::array<pollfd, 2> waiting{};
      bool sleeps = true;
      for (std::size_t end = 0; end < 2; ++end) {
        waiting[end] = {reactors[end]->wait_fd(), POLLIN, 0};
        sleeps &= reactors[end]->prepare_wait();
      }
      ::poll(waiting.data(), waiting.size(), sleeps ? 1000 : 0);
      for (std::size_t end = 0; end < 2; ++end) reactors[end]->finish_wait(waiting[end].revents != 0);
    }
    return false;
  }
};

TEST(TcpMemory, PartsAreCountedOnceAndGivenBack) {
  RingMemory memory(1 << 20);
  LinkRings rings(memory, nullptr);
  auto ring = MirrorRing::make(130 * kPageBytes, &rings);
  ASSERT_TRUE(ring.ok());
  const std::size_t part = 3 * kPageBytes;
  const std::size_t last = kPageBytes;  // 43 parts, and one that is shorter
  const auto expect_resident = [&](std::size_t bytes) {
    EXPECT_EQ(ring->resident_bytes(), bytes);
    EXPECT_EQ(rings.resident_bytes(), bytes);
    EXPECT_EQ(memory.resident_bytes(), bytes);
  };
  expect_resident(0);
  ring->touch(0, 1);
  expect_resident(part);
  ring->touch(1, part - 1);
  expect_resident(part);
  ring->touch(part - 1, 2);
  expect_resident(2 * part);
  ring->touch(130 * kPageBytes - 1, 2);
  expect_resident(2 * part + last);
  ring->touch(130 * kPageBytes + part, part);
  expect_resident(2 * part + last);
  std::memset(ring->data(), 7, 2 * part);
  ring->give_back(1, 2 * part);
  expect_resident(part + last);
  EXPECT_EQ(ring->data()[part - 1], std::byte{7});
  EXPECT_EQ(ring->data()[part], std::byte{0}) << "the memory is still there";
  EXPECT_EQ(ring->data()[ring->size() + part], std::byte{0}) << "so it is in the mirror";
  ring->touch(part, 1);
  expect_resident(2 * part + last);
  ring->give_back(part, 130 * kPageBytes);
  expect_resident(part);
  ring->touch(0, ring->size());
  expect_resident(ring->size());
  {
    const MirrorRing moved = std::move(*ring);
    EXPECT_EQ(memory.resident_bytes(), moved.size());
  }
  EXPECT_EQ(memory.resident_bytes(), 0U) << "a ring that is gone counts";
}

TEST(TcpMemory, DataSurvivesAtEveryAlignment) {
  for (const std::size_t pages : {3, 65}) {  // parts of one page; of two, and a shorter one
    RingMemory memory(1);
    LinkRings rings(memory, nullptr);
    auto ring = MirrorRing::make(pages * kPageBytes, &rings);
    ASSERT_TRUE(ring.ok());
    const std::size_t size = ring->size();
    const std::size_t part = (pages + MirrorRing::kParts - 1) / MirrorRing::kParts * kPageBytes;
    auto written = random_bytes(size, pages);
    for (std::byte& byte : written) byte |= std::byte{1};  // never that of an empty page
    for (std::size_t begin = 0; begin < 2 * size; begin += kPageBytes / 2 - 64) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kPageBytes - 64, kPageBytes, part + 1, size - 1, size}) {
        std::ranges::copy(written, ring->data());
        ring->touch(begin, size);
        ring->give_back(begin + bytes, begin + size);
        std::size_t kept = 0;
        for (std::size_t from = 0; from < size; from += part) {
          const std::size_t to = std::min(from + part, size);
          // Data lies in [begin, begin + bytes), modulo the size.
          const std::size_t data_from = begin % size;
          const bool has_data = bytes > 0 && ((data_from < to && data_from + bytes > from) || data_from + bytes > from + size);
          if (has_data) kept += to - from;
          const std::byte* mirror = ring->data() + size;
          const bool same = has_data ? std::memcmp(mirror + from, written.data() + from, to - from) == 0
                                     : mirror[from] == std::byte{0} && mirror[to - 1] == std::byte{0};
          ASSERT_TRUE(same) << "part at " << from << ", data from " << begin << ", " << bytes << " bytes";
        }
        ASSERT_EQ(memory.resident_bytes(), kept) << "data from " << begin << ", " << bytes << " bytes";
      }
    }
  }
}

// Tiles that the peer has not acknowledged must be retransmitted unchanged, and lent ones be copied, whatever was given back.
TEST(TcpMemory, UnacknowledgedTilesSurvive) {
  const auto seeds = testing::wanted_seeds({1, 4});
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE("SHOAL_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    RingMemory memory(1);
    LinkRings rings(memory, nullptr);
    auto window = SendWindow::make(65 * kPageBytes, &rings);
    ASSERT_TRUE(window.ok());
    std::array<std::vector<std::byte>, 256> lent;  // by tile
    const auto value_of = [](std::uint64_t tile) { return static_cast<std::byte>(1 + tile % 255); };
    for (int step = 0; step < 400; ++step) {
      const std::uint64_t number = window->taken();
      const std::size_t bytes = 64 * (1 + random() % 300);
      while (!window->has_room(bytes)) window->acknowledge(0, window->acknowledged() + 1 + random() % 8);
      std::byte* frame = window->next_frame();
      if (random() % 4 == 0 && bytes > tcp::kFrameHeaderBytes) {
        std::memset(frame, static_cast<int>(value_of(number)), tcp::kFrameHeaderBytes);
        auto& payload = lent[number % lent.size()];
        payload.assign(bytes - tcp::kFrameHeaderBytes, value_of(number));
        window->add(bytes, false, payload.data());
      } else {
        std::memset(frame, static_cast<int>(value_of(number)), bytes);
        window->add(bytes, false, nullptr);
      }
      window->give_back();
      SendRange range;
      window->pull(range, 0, 0);
      window->count_sent(range, bytes);
      window->copy_sent_lent();
      window->give_back();
      if (random() % 3 == 0) window->acknowledge(0, window->acknowledged() + random() % 4);
      if (random() % 8 == 0) window->acknowledge(0, window->taken());
      window->give_back();
      window->start_resending(range);
      while (window->pull_resend(range, 0)) {
        const auto due = window->due(range);
        ASSERT_TRUE(due.front() == value_of(range.first) && std::memcmp(due.data(), due.data() + 1, due.size() - 1) == 0)
            << "tile " << range.first << " at step " << step;
        window->count_sent(range, due.size());
      }
    }
    window->acknowledge(0, window->taken());
    window->give_back();
    EXPECT_EQ(memory.resident_bytes(), 0U);
  }
}

TEST(TcpMemory, OnlyLinksWithMemoryAreVisited) {
  RingMemory memory(1000);
  std::vector<std::unique_ptr<LinkRings>> rings;
  for (int i = 0; i < 4; ++i) rings.push_back(std::make_unique<LinkRings>(memory, nullptr));
  rings[1]->add(10);
  rings[2]->add(10);
  rings[3]->add(10);
  rings[3]->subtract(10);
  std::vector<LinkRings*> visited;
  const auto visit = [&](LinkRings& one) {
    visited.push_back(&one);
    if (&one == rings[1].get()) one.subtract(10);
  };
  memory.visit(visit);
  EXPECT_EQ(visited, (std::vector{rings[1].get(), rings[2].get()}));
  visited.clear();
  memory.visit(visit);
  EXPECT_EQ(visited, std::vector{rings[2].get()});
  visited.clear();
  rings[2]->subtract(10);
  rings[2].reset();
  rings[1]->add(10);
  memory.visit(visit);
  EXPECT_EQ(visited, std::vector{rings[1].get()});
}

TEST(TcpMemory, UrgentVisitsFollowTheTraffic) {
  RingMemory memory(1000);
  LinkRings rings(memory, nullptr);
  rings.add(1000);
  EXPECT_FALSE(memory.is_over());
  rings.add(1000);
  EXPECT_TRUE(memory.is_over());
  EXPECT_FALSE(memory.is_urgent());
  rings.add(1000);
  EXPECT_TRUE(memory.is_urgent());
  memory.visit([](LinkRings&) {});  // all of it holds data
  EXPECT_FALSE(memory.is_urgent());
  rings.add(1000);
  EXPECT_FALSE(memory.is_urgent());
  rings.add(1);
  EXPECT_TRUE(memory.is_urgent());
  memory.visit([](LinkRings& one) { one.subtract(one.resident_bytes()); });
  rings.add(2001);
  EXPECT_TRUE(memory.is_urgent());
  rings.subtract(2001);
}

TEST(TcpMemory, LockedMemoryEndsTheLimit) {
  RingMemory memory(1);
  LinkRings rings(memory, nullptr);
  auto ring = MirrorRing::make(2 * kPageBytes, &rings);
  ASSERT_TRUE(ring.ok());
  // Not by mlock(), which does nothing under sanitizers.
  if (::syscall(SYS_mlock, ring->data(), ring->size()) != 0) GTEST_SKIP() << "this user may lock no memory";
  ring->touch(0, ring->size());
  std::memset(ring->data(), 7, ring->size());
  EXPECT_TRUE(memory.is_urgent());
  ring->give_back(0, ring->size());
  EXPECT_FALSE(memory.is_over());
  EXPECT_FALSE(memory.is_urgent());
  EXPECT_EQ(ring->data()[0], std::byte{7});
}

TEST(TcpMemory, RestingLinkAcknowledgesEverything) {
  JoinedLinks joined(0);
  const auto start = Clock::now();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(joined.send());
  joined.settle(true);
  ASSERT_TRUE(joined.drive_until([&] { return joined.sent(0).acknowledged() > 0; }));
  // Two looks at the link that are about a second apart have found no new tile.
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(900)) << "three tiles cause an acknowledgement";
  EXPECT_EQ(joined.sent(0).acknowledged(), 3U);
}

TEST(TcpMemory, BurstFallsBelowTheLimit) {
  constexpr std::size_t kLimit = 300 << 10;
  JoinedLinks joined(kLimit);
  joined.fill();
  for (const std::size_t end : {0, 1}) {
    EXPECT_TRUE(joined.memory(end).is_over()) << joined.memory(end).resident_bytes();
    EXPECT_LE(joined.memory(end).resident_bytes(), 2 * kLimit) << "this is to test the regular visits";
  }
  EXPECT_TRUE(joined.drive_until([&] { return !joined.memory(0).is_over() && !joined.memory(1).is_over(); }))
      << joined.memory(0).resident_bytes() << " and " << joined.memory(1).resident_bytes() << " bytes";
  EXPECT_TRUE(joined.links[0][0]->status().ok());
  // The memory comes back when it is needed.
  ASSERT_TRUE(joined.send());
  joined.settle(true);
  EXPECT_GE(joined.memory(0).resident_bytes(), JoinedLinks::kTileBytes);
}

TEST(TcpMemory, TwiceTheLimitIsGivenBackAtOnce) {
  constexpr std::size_t kLimit = 128 << 10;
  constexpr std::size_t kLinks = 12;
  JoinedLinks joined(kLimit, kLinks);
  for (std::size_t link = 0; link < kLinks; ++link) {
    ASSERT_TRUE(joined.send(link));
    joined.settle(true);
    // No data is in the rings, and each of them has used a tile's memory.
    EXPECT_LE(joined.memory(1).resident_bytes(), 2 * kLimit) << "after link " << link;
  }
}

TEST(TcpMemory, RankOverTheLimitAcknowledgesSooner) {
  // Of 32 tiles, after how many nothing is left to acknowledge.
  const auto acknowledged_at_once = [](std::size_t limit_bytes) {
    JoinedLinks joined(limit_bytes);
    int count = 0;
    for (int i = 0; i < 32; ++i) {
      EXPECT_TRUE(joined.send());
      joined.settle(true);
      count += joined.sent(0).acknowledged() == joined.sent(0).taken() ? 1 : 0;
    }
    return count;
  };
  EXPECT_GE(acknowledged_at_once(1), 16);
  EXPECT_LE(acknowledged_at_once(0), 8) << "half of the window is 8 tiles";
}

TEST(TcpMemory, TrafficOverTheLimitArrives) {
  for (const bool encrypted : {false, true}) {
    auto options = options_for(2, 3, 32 << 10);
    for (TcpOptions& one : options) {
      one.link_memory_bytes = 100 << 10;
      one.tiles_per_socket = 16;
      one.encryption = encrypted;
      one.packing = !encrypted;
    }
    auto ends = make_group(options);
    ASSERT_TRUE(ends[0].status.ok()) << ends[0].status.to_string();
    ASSERT_TRUE(ends[1].status.ok()) << ends[1].status.to_string();
    EXPECT_EQ(exchange_messages(ends, gradient_bytes(16 << 20, 1), random_bytes(16 << 20, 2), 30'000), "");
    for (const int own : {0, 1}) {
      auto& link = static_cast<tcp::TcpLink&>(ends[static_cast<std::size_t>(own)].link(1 - own));
      EXPECT_TRUE(link.sockets().reactor().ring_memory().has_limit()) << "the system has refused to take memory back";
    }
    destroy_together(ends);
  }
}

TEST(TcpMemory, WithoutLimitNothingIsGivenBack) {
  RingMemory memory(0);
  LinkRings rings(memory, nullptr);
  for (LinkRings* counted : {&rings, static_cast<LinkRings*>(nullptr)}) {
    auto window = SendWindow::make(65 * kPageBytes, counted);
    ASSERT_TRUE(window.ok());
    std::memset(window->next_frame(), 7, 64 * kPageBytes);
    window->add(64 * kPageBytes, false, nullptr);
    SendRange range;
    window->pull(range, 0, 0);
    window->count_sent(range, 64 * kPageBytes);
    window->acknowledge(0, 1);
    window->give_back();
    EXPECT_EQ(memory.resident_bytes(), 0U);
    EXPECT_FALSE(memory.is_over());
    EXPECT_FALSE(memory.is_urgent());
    const std::byte* frame = window->next_frame();
    EXPECT_TRUE(std::all_of(frame, frame + 64 * kPageBytes, [](std::byte byte) { return byte == std::byte{7}; }));
  }
}

}  // namespace
}  // namespace shoal::tcp_test
