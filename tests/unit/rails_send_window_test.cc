// SendWindow: room, what counts as sent, and what is sent once more, without a transport.
#include <gtest/gtest.h>

#include <vector>

#include "transports/rails/send_window.h"

namespace shoal::rails {
namespace {

class RailsSendWindow : public ::testing::TestWithParam<std::size_t> {
 protected:
  RailsSendWindow() : memory_(window_.memory_bytes()) { window_.prepare(memory_.data(), nullptr); }
  static LinkShape small(std::size_t rails) {
    LinkShape shape;
    shape.tile_bytes = shape.piece_bytes = 1024;
    shape.stripe_bytes = 1024;
    shape.window = 4;
    shape.rails = rails;
    return shape;
  }
  void push(const std::byte* lent = nullptr) {
    ASSERT_TRUE(window_.has_room());
    OutgoingTile& tile = window_.next();
    tile.header.size_bytes = 1024;
    tile.pieces = 1;
    tile.loan.data = lent;
    window_.push();
  }
  Part& post(std::size_t rail = 0) {
    Part& part = window_.front();
    window_.pop_front();
    part.rail = static_cast<std::uint8_t>(rail);
    part.in_flight = true;
    return part;
  }
  void complete(Part& part) {
    part.in_flight = false;
    --window_.tile_of(part).unfinished;
  }
  std::uint64_t count_sent() {
    window_.count_sent([](const OutgoingTile&) {});
    return window_.sent();
  }
  static Packet report(std::uint64_t released, std::uint64_t arrived, std::uint64_t after = 0) {
    Packet packet;
    packet.released = released;
    packet.arrived = arrived;
    packet.arrived_after = after;
    return packet;
  }

  const LinkShape shape_ = small(GetParam());
  SendWindow window_{shape_};
  std::vector<std::byte> memory_;
};
INSTANTIATE_TEST_SUITE_P(Rails, RailsSendWindow, ::testing::Values(1, 2));

TEST_P(RailsSendWindow, HasRoomForAWindowOfTiles) {
  for (int i = 0; i < 4; ++i) push();
  EXPECT_FALSE(window_.has_room());
  window_.refuse();
  Part& first = post();
  EXPECT_TRUE(window_.acknowledge(report(1, 1)));
  EXPECT_FALSE(window_.has_room()) << "a card may still read the released tile";
  complete(first);
  EXPECT_TRUE(window_.has_room());
  EXPECT_TRUE(window_.end_refusal());
  EXPECT_FALSE(window_.has_refused());
}

TEST_P(RailsSendWindow, TilesCountAsSentInOrder) {
  push();
  push();
  Part& first = post();
  Part& second = post();
  complete(second);
  EXPECT_EQ(count_sent(), 0U);
  complete(first);
  EXPECT_EQ(count_sent(), 2U);
  EXPECT_TRUE(window_.is_idle());
  EXPECT_FALSE(window_.all_arrived());
}

TEST_P(RailsSendWindow, LentTileIsKeptUntilNoRailSendsItAgain) {
  const std::vector<std::byte> lent(1024);
  push(lent.data());
  complete(post());
  EXPECT_EQ(count_sent(), GetParam() == 1 ? 1U : 0U);
  EXPECT_TRUE(window_.acknowledge(report(0, 1)));
  EXPECT_EQ(count_sent(), 1U);
}

TEST_P(RailsSendWindow, InvalidAcknowledgementsChangeNothing) {
  push();
  EXPECT_FALSE(window_.acknowledge(report(2, 0)));
  EXPECT_FALSE(window_.acknowledge(report(0, 2)));
  EXPECT_EQ(window_.released(), 0U);
  EXPECT_FALSE(window_.all_arrived());
}

TEST_P(RailsSendWindow, TileIsResentOnRequest) {
  push();
  Part& part = post();
  window_.resend(0);
  EXPECT_TRUE(part.resend) << "in flight: as soon as it has completed";
  EXPECT_FALSE(window_.has_queued());
  complete(part);
  window_.resend(0);
  EXPECT_TRUE(window_.has_queued());
  window_.resend(0);
  complete(post());
  EXPECT_FALSE(window_.has_queued()) << "queued once";
  EXPECT_TRUE(window_.acknowledge(report(1, 1)));
  window_.resend(0);
  window_.resend(1);
  EXPECT_FALSE(window_.has_queued()) << "it has been released, or was never sent";
}

TEST(RailsSendWindowLoss, PartsOfALostRailAreQueuedUnlessTheyHaveArrived) {
  LinkShape shape;
  shape.tile_bytes = shape.piece_bytes = shape.stripe_bytes = 1024;
  shape.window = 4;
  shape.rails = 2;
  SendWindow window(shape);
  std::vector<std::byte> memory(window.memory_bytes());
  window.prepare(memory.data(), nullptr);
  for (std::size_t i = 0; i < 4; ++i) {
    window.next().pieces = 1;
    window.push();
    Part& part = window.front();
    window.pop_front();
    part.rail = i == 3 ? 0 : 1;
    part.in_flight = true;
  }
  Packet packet;
  packet.arrived_after = 1;  // tile 1, but not tile 0
  ASSERT_TRUE(window.acknowledge(packet));
  int dropped = 0;
  window.drop_in_flight(1, [&](const Part&) { ++dropped; });
  EXPECT_EQ(dropped, 3);
  window.resend_from(1);
  std::vector<std::uint32_t> queued;
  for (; window.has_queued(); window.pop_front()) queued.push_back(window.front().slot);
  EXPECT_EQ(queued, (std::vector<std::uint32_t>{0, 2}));
}

}  // namespace
}  // namespace shoal::rails
