// A rail that refuses everything, as one does whose connection cannot be made: the other rails must not wait for it.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/ofi/hand_peer.h"
#include "transports/rails/wire.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HandPeer;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kBytes = 100;

/// A link over two rails by a clock that the test moves; rail 1 refuses everything once the link is up.
class RailsRefusal : public ::testing::Test {
 protected:
  RailsRefusal() {
    options_.size = 2;
    options_.tile_bytes = 4096;
    options_.tiles_per_peer = 8;
    options_.clock = [this] { return now_; };
    RailTraits traits;
    traits.provider = traits.device = "by hand";
    traits.max_message_bytes = 1 << 20;
    traits.receives = 1024;
    peer_ = std::make_unique<HandPeer>(options_, traits, 2);
    auto made = make_transport(options_, peer_->rails());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return;
    end_ = std::move(*made);
    const int rank = 1;
    const std::string address = peer_->address();
    auto links = end_->connect({&rank, 1}, {&address, 1}, Clock::now() + seconds(30));
    EXPECT_TRUE(links.ok()) << links.status().to_string();
    if (links.ok()) link_ = std::move(links->front());
    peer_->wires[1]->refuses = true;
  }
  ~RailsRefusal() override {
    peer_->wires[1]->refuses = false;
    Packet packet;
    packet.kind = PacketKind::close_notice;
    peer_->send(0, packet);  // nobody waits for this end's tiles
  }
  void pass(milliseconds time) {
    now_ += time;
    for (int i = 0; i < 10; ++i) end_->progress();
  }
  /// Rail 0 delivers a tile from the peer, and the caller takes it.
  void receive_tile() {
    Packet packet;
    packet.position = received_;
    packet.tile.sequence = static_cast<std::uint32_t>(received_++);
    packet.tile.size_bytes = kBytes;
    ASSERT_TRUE(peer_->send(0, packet, kBytes));
    for (int i = 0; i < 10; ++i) end_->progress();
    ASSERT_NE(link_->peek(), nullptr);
    link_->release();
  }

  Clock::time_point now_ = Clock::now();
  Options options_;
  std::unique_ptr<HandPeer> peer_;
  std::unique_ptr<Transport> end_;
  std::unique_ptr<Link> link_;
  std::uint64_t received_ = 0;
};

// The tile that the peer does not report makes the link ask for an answer on rail 1, which refuses that.
TEST_F(RailsRefusal, AcknowledgementsTakeTheOtherRail) {
  const std::vector<std::byte> data(kBytes);
  ASSERT_TRUE(link_->try_send({0, 0, 0, kBytes, 0}, data));
  pass(milliseconds(0));
  pass(milliseconds(600));
  const std::uint64_t before = peer_->sent;
  for (int tile = 0; tile < 8; ++tile) receive_tile();  // half of the window: the peer has to learn of it
  EXPECT_GT(peer_->sent, before) << "no packet tells the peer that its tiles have arrived";
}

TEST_F(RailsRefusal, TilesTakeTheOtherRail) {
  const std::vector<std::byte> data(kBytes);
  const std::uint64_t before = peer_->sent;
  for (std::uint32_t tile = 0; tile < 8; ++tile) ASSERT_TRUE(link_->try_send({0, tile, 0, kBytes, 0}, data));
  pass(milliseconds(0));
  EXPECT_EQ(link_->sent_tiles(), 8U);
  EXPECT_GE(peer_->sent, before + 8);
}

}  // namespace
}  // namespace shoal::rails
