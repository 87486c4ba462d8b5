// Control messages between hosts that a rank does not read.
#include "src/communicator/overlay/overlay_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/mentions.h"
#include "tests/unit/tcp_support.h"
#include "transports/tcp/keeper_sockets.h"

namespace shoal {
namespace {

using tcp_test::Clock;
using ControlKind = ControlMessage::Kind;

/// Two ranks, each the keeper of a host of its own.
class OverlayControlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<std::unique_ptr<tcp::KeeperSockets>, 2> sockets;
    std::vector<std::string> addresses;
    for (int rank = 0; rank < 2; ++rank) {
      auto opened = tcp::KeeperSockets::open(tcp_test::options_of(rank, 2));
      ASSERT_TRUE(opened.ok()) << opened.status().to_string();
      addresses.push_back((*opened)->address());
      sockets[static_cast<std::size_t>(rank)] = std::move(opened).value();
    }
    const std::array<int, 2> host_of_rank{0, 1};
    for (std::size_t rank = 0; rank < 2; ++rank) {
      auto started = OverlayControl::start(HostTable(host_of_rank), static_cast<int>(rank), std::chrono::seconds(30),
                                           std::move(sockets[rank]), addresses, nullptr);
      ASSERT_TRUE(started.ok()) << started.status().to_string();
      ranks_[rank] = std::move(started).value();
    }
    for (const auto& rank : ranks_) {
      const Status status = rank->wait_connected(Clock::now() + tcp_test::kTimeLimit);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }

  /// Rank 0 reports to rank 1 that it waits.
  void send(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    const int receiver = 1;
    const std::span<const int> receivers(&receiver, 1);
    ranks_[0]->send(&receivers,
                    {ControlKind::waits, {}, std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end())});
  }
  /// All that rank 0 has sent arrives, and its connection ends.
  void finish_rank_0() { ranks_[0]->finish(Clock::now() + tcp_test::kTimeLimit); }

  std::array<std::unique_ptr<OverlayControl>, 2> ranks_;
};

TEST_F(OverlayControlTest, DriverThatReadsNothingLosesOtherHosts) {
  for (std::size_t i = 0; i < OverlayControl::kMostUnread + 100; ++i) send("one of many");
  finish_rank_0();
  ranks_[1]->read_now();  // after its thread, which may still deliver the last ones
  std::vector<ControlMessage> messages;
  EXPECT_TRUE(ranks_[1]->poll(messages));
  ASSERT_EQ(messages.size(), OverlayControl::kMostUnread + 1);
  const ControlMessage& last = messages.back();
  EXPECT_EQ(last.kind, ControlKind::death);
  EXPECT_EQ(last.rank, 0);
  EXPECT_EQ(last.status.code(), StatusCode::peer_failed);
  EXPECT_THAT(last.status.message(), testing::Mentions("rank 1", "65536", "unread"));
}

}  // namespace
}  // namespace shoal
