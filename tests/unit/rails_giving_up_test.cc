// A sender that aborts while rails still read tiles that it has lent to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/mentions.h"
#include "tests/ofi/hand_peer.h"
#include "tests/unit/rails_support.h"
#include "transports/rails/wire.h"

namespace shoal::rails {
namespace {

using shoal::testing::Mentions;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::completes_within;
using testing::HandPeer;

/// A sender whose tiles lie in lasting memory, and that aborts. The rails read the tiles there, and late.
class AbortingSender {
 public:
  /// `on_same_host`: the peer is another process of this host, where the rail redirects, or lets it read what was sent by
  /// itself.
  explicit AbortingSender(std::size_t rails, bool written = false, bool on_same_host = false, bool redirects = false) {
    memory_.resize(kTiles * kBytes);
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(1 + i / kBytes);
    options_.size = 2;
    options_.tile_bytes = 4096;
    options_.tiles_per_peer = 4;
    options_.write_from_bytes = written ? 512 : 0;
    options_.lasting_memory = memory_;
    options_.lend_from_bytes = 64;
    RailTraits traits;
    traits.provider = traits.device = "by hand";
    traits.max_message_bytes = traits.max_write_bytes = 1 << 20;
    traits.receives = 1024;
    traits.local_registration = !redirects;
    traits.local_peers_read = on_same_host && !redirects;
    peer = std::make_unique<HandPeer>(options_, traits, rails);
    peer->on_same_host = on_same_host;
    peer->redirects = redirects;
    auto made = make_transport(options_, peer->rails());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return;
    end = std::move(*made);
    const int rank = 1;
    const std::string address = peer->address();
    auto links = end->connect({&rank, 1}, {&address, 1}, std::chrono::steady_clock::now() + seconds(30));
    EXPECT_TRUE(links.ok()) << links.status().to_string();
    if (links.ok()) link = std::move(links->front());
    peer->remembers = true;
  }
  void lend() {
    for (std::uint32_t i = 0; i < kTiles; ++i)
      ASSERT_TRUE(link->try_lend({0, i, 0, kBytes, 0}, std::span(memory_).subspan(i * kBytes, kBytes)));
  }
  /// Returns how long the abort took. From then on the caller may change the memory.
  milliseconds abort() {
    const auto start = std::chrono::steady_clock::now();
    link->keep_copies();
    const auto passed = std::chrono::steady_clock::now() - start;
    std::ranges::fill(memory_, std::byte{0xee});
    return std::chrono::duration_cast<milliseconds>(passed);
  }
  void let_all_leave() {
    peer->refuses = 0;
    peer->holds = false;
    for (const auto& wire : peer->wires) wire->holds = false;
    peer->complete();
    for (int i = 0; i < 100; ++i) end->progress();
    peer->complete();
  }
  void await_failure() {
    const auto limit = std::chrono::steady_clock::now() + seconds(10);
    while (link->status().ok() && std::chrono::steady_clock::now() < limit) end->progress();
  }
  /// Each tile has left at least once, and nothing else.
  void expect_all_left_unchanged() const {
    std::vector<int> times(kTiles);
    for (const auto& payload : peer->payloads) {
      ASSERT_EQ(payload.size(), kBytes);
      const auto first = static_cast<std::size_t>(payload.front());
      ASSERT_TRUE(first >= 1 && first <= kTiles && payload == std::vector<std::byte>(kBytes, payload.front()))
          << "it begins with " << first;
      ++times[first - 1];
    }
    EXPECT_THAT(times, ::testing::Each(::testing::Ge(1)));
  }
  static constexpr std::uint32_t kTiles = 3;
  static constexpr std::uint32_t kBytes = 1000;

 private:
  std::vector<std::byte> memory_;
  Options options_;

 public:
  std::unique_ptr<HandPeer> peer;
  std::unique_ptr<Transport> end;
  std::unique_ptr<Link> link;
};

class RailsAbort : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, RailsAbort, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "written" : "sent"); });

TEST_P(RailsAbort, QueuedTilesLeaveUnchanged) {
  EXPECT_TRUE(completes_within(milliseconds(100), [] {
    AbortingSender sender(1, GetParam());
    sender.peer->refuses = kAgain;
    sender.lend();
    const milliseconds passed = sender.abort();
    sender.let_all_leave();
    sender.expect_all_left_unchanged();
    EXPECT_TRUE(sender.link->status().ok());
    EXPECT_EQ(sender.link->sent_tiles(), AbortingSender::kTiles);
    return passed;
  }));
}

TEST_P(RailsAbort, TilesInFlightHaveTimeToComplete) {
  EXPECT_TRUE(completes_within(milliseconds(150), [] {
    AbortingSender sender(1, GetParam());
    sender.peer->holds = true;
    sender.lend();
    sender.peer->wires[0]->reads = 3;
    const milliseconds passed = sender.abort();
    EXPECT_TRUE(sender.end->progress()) << "memory became free meanwhile";
    if (passed >= milliseconds(150)) return passed;  // the machine was busy: the rail may have been closed
    sender.let_all_leave();
    sender.expect_all_left_unchanged();
    return passed;
  }));
}

// The rail would send the memory's later contents when the peer receives at last.
TEST_P(RailsAbort, TilesThatNeverCompleteEndTheLinkAndAreReadNoMore) {
  AbortingSender sender(1, GetParam());
  sender.peer->holds = true;
  sender.lend();
  sender.abort();
  sender.let_all_leave();
  EXPECT_TRUE(sender.peer->payloads.empty());
  sender.await_failure();
  EXPECT_EQ(sender.link->status().code(), StatusCode::peer_failed);
  EXPECT_THAT(sender.link->status().message(), Mentions("rank 1"));
}

TEST_P(RailsAbort, TilesThatNeverCompleteAreGivenUpInTime) {
  milliseconds leaving{0};
  const auto abort_and_leave = [&] {
    AbortingSender sender(1, GetParam());
    sender.peer->holds = true;
    sender.lend();
    const milliseconds passed = sender.abort();
    sender.await_failure();
    sender.link.reset();
    const auto start = std::chrono::steady_clock::now();
    sender.end.reset();
    leaving = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
    return passed;
  };
  EXPECT_TRUE(completes_within(seconds(1), abort_and_leave));
  EXPECT_TRUE(completes_within(milliseconds(100), [&] { return abort_and_leave(), leaving; })) << "nothing is waited for";
}

TEST_P(RailsAbort, AnotherRailSendsTheCopy) {
  EXPECT_TRUE(completes_within(seconds(1), [] {
    AbortingSender sender(2, GetParam());
    sender.peer->wires[1]->holds = true;
    sender.lend();
    EXPECT_FALSE(sender.peer->wires[1]->held.empty());
    ::testing::internal::CaptureStderr();
    const milliseconds passed = sender.abort();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), Mentions("rank 1", "rail 1"));
    sender.let_all_leave();
    sender.expect_all_left_unchanged();
    EXPECT_TRUE(sender.peer->wires[0]->open && !sender.peer->wires[1]->open);
    EXPECT_TRUE(sender.link->status().ok());
    return passed;
  }));
}

// Tiles that have left may be lost: another rail would retransmit them from the caller's memory.
TEST_P(RailsAbort, TilesThatLeftButDidNotArriveAreCopied) {
  EXPECT_TRUE(completes_within(milliseconds(100), [] {
    AbortingSender sender(2, GetParam());
    sender.lend();
    for (int i = 0; i < 10; ++i) sender.end->progress();
    EXPECT_EQ(sender.link->sent_tiles(), 0U) << "the peer has not acknowledged them";
    const milliseconds passed = sender.abort();
    sender.let_all_leave();
    sender.expect_all_left_unchanged();
    sender.peer->payloads.clear();
    ::testing::internal::CaptureStderr();
    Packet lost;
    lost.kind = PacketKind::rail_lost;
    lost.position = 0;
    sender.peer->send(1, lost);
    sender.let_all_leave();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), Mentions("rank 1", "rail 0"));
    EXPECT_FALSE(sender.peer->payloads.empty());
    for (const auto& payload : sender.peer->payloads) EXPECT_NE(payload.front(), std::byte{0xee});
    return passed;
  }));
}

// Such a peer could go on reading after the rail is closed.
TEST_P(RailsAbort, NothingIsLentToAPeerThatReadsTheMemoryItself) {
  EXPECT_TRUE(completes_within(milliseconds(100), [] {
    AbortingSender sender(1, GetParam(), true);
    sender.peer->holds = true;
    sender.lend();
    const milliseconds passed = sender.abort();
    sender.let_all_leave();
    sender.expect_all_left_unchanged();
    EXPECT_TRUE(sender.link->status().ok());
    return passed;
  }));
}

TEST(RailsAbortCopy, RailIsRedirectedToTheCopy) {
  EXPECT_TRUE(completes_within(milliseconds(100), [] {
    AbortingSender sender(1, false, true, true);
    sender.peer->holds = true;
    sender.lend();
    const milliseconds passed = sender.abort();
    sender.let_all_leave();
    sender.expect_all_left_unchanged();
    EXPECT_TRUE(sender.link->status().ok());
    return passed;
  }));
}

}  // namespace
}  // namespace shoal::rails
