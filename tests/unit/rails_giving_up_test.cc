// A sender that gives up while rails still read what it has lent them.
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
using testing::HandPeer;

/// A sender whose tiles lie in lasting memory, and that aborts. The rails read the tiles there, and late.
class GivingUp {
 public:
  /// `on_same_host`: the peer is another process of this host, where the rail redirects, or lets it read what was sent by
  /// itself.
  explicit GivingUp(std::size_t rails, bool written = false, bool on_same_host = false, bool redirects = false) {
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
  /// How long that took. The memory is the user's again.
  milliseconds give_up() {
    const auto start = std::chrono::steady_clock::now();
    link->keep_copies();
    const auto passed = std::chrono::steady_clock::now() - start;
    std::ranges::fill(memory_, std::byte{0xee});
    return std::chrono::duration_cast<milliseconds>(passed);
  }
  void let_go() {
    peer->refuses = 0;
    peer->holds = false;
    for (const auto& wire : peer->wires) wire->holds = false;
    peer->complete();
    for (int i = 0; i < 100; ++i) end->progress();
    peer->complete();
  }
  /// Each tile at least once, and nothing else.
  void expect_all_left_as_they_were() const {
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

class RailsGivingUp : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, RailsGivingUp, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "written" : "sent"); });

TEST_P(RailsGivingUp, WhatWaitsLeavesAsItWas) {
  GivingUp sender(1, GetParam());
  sender.peer->refuses = kAgain;
  sender.lend();
  EXPECT_LT(sender.give_up(), milliseconds(100));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.link->status().ok());
  EXPECT_EQ(sender.link->sent_tiles(), GivingUp::kTiles);
}

TEST_P(RailsGivingUp, WhatIsUnderWayGetsAMoment) {
  GivingUp sender(1, GetParam());
  sender.peer->holds = true;
  sender.lend();
  sender.peer->wires[0]->reads = 3;
  EXPECT_LT(sender.give_up(), milliseconds(150));
  EXPECT_TRUE(sender.end->progress()) << "memory became free meanwhile";
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.link->status().ok());
}

// It would be sent as it lies there when the peer looks at last.
TEST_P(RailsGivingUp, WhatIsNeverTakenEndsTheLinkAndIsReadNoMore) {
  GivingUp sender(1, GetParam());
  sender.peer->holds = true;
  sender.lend();
  EXPECT_LT(sender.give_up(), seconds(1));
  sender.let_go();
  EXPECT_TRUE(sender.peer->payloads.empty());
  const auto end = std::chrono::steady_clock::now() + seconds(10);
  while (sender.link->status().ok() && std::chrono::steady_clock::now() < end) sender.end->progress();
  EXPECT_EQ(sender.link->status().code(), StatusCode::peer_failed);
  EXPECT_THAT(sender.link->status().message(), Mentions("rank 1"));
  sender.link.reset();
  const auto start = std::chrono::steady_clock::now();
  sender.end.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(100)) << "nothing is waited for";
}

TEST_P(RailsGivingUp, OfSeveralRailsAnotherTakesTheCopy) {
  GivingUp sender(2, GetParam());
  sender.peer->wires[1]->holds = true;
  sender.lend();
  ASSERT_FALSE(sender.peer->wires[1]->held.empty());
  ::testing::internal::CaptureStderr();
  EXPECT_LT(sender.give_up(), seconds(1));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Mentions("rank 1", "rail 1"));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.peer->wires[0]->open && !sender.peer->wires[1]->open);
  EXPECT_TRUE(sender.link->status().ok());
}

// What it sent may never come: by another rail it would leave once more from where it lies.
TEST_P(RailsGivingUp, WhatHasLeftButNotComeIsKept) {
  GivingUp sender(2, GetParam());
  sender.lend();
  for (int i = 0; i < 10; ++i) sender.end->progress();
  EXPECT_EQ(sender.link->sent_tiles(), 0U) << "the peer has not said that it has come";
  EXPECT_LT(sender.give_up(), milliseconds(100));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  sender.peer->payloads.clear();
  ::testing::internal::CaptureStderr();
  Packet lost;
  lost.kind = PacketKind::rail_lost;
  lost.position = 0;
  sender.peer->send(1, lost);
  sender.let_go();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Mentions("rank 1", "rail 0"));
  EXPECT_FALSE(sender.peer->payloads.empty());
  for (const auto& payload : sender.peer->payloads) EXPECT_NE(payload.front(), std::byte{0xee});
}

// Closing the rail would not keep it from that.
TEST_P(RailsGivingUp, NothingIsLentToAPeerThatReadsByItself) {
  GivingUp sender(1, GetParam(), true);
  sender.peer->holds = true;
  sender.lend();
  EXPECT_LT(sender.give_up(), milliseconds(100));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.link->status().ok());
}

TEST(RailsCopy, ARailThatCanIsToldOfTheCopyByWhoGivesUp) {
  GivingUp sender(1, false, true, true);
  sender.peer->holds = true;
  sender.lend();
  EXPECT_LT(sender.give_up(), milliseconds(100));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.link->status().ok());
}

}  // namespace
}  // namespace shoal::rails
