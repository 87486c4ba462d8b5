// The control plane: a send never waits for a peer.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/diagnosis/straggler_detector.h"
#include "src/progress/control.h"

namespace shoal {
namespace {

using Kind = ControlPlane::Message::Kind;

/// Accepts tiles while `accepts` is set, and reads their memory as late as the contract allows.
class FakeLink final : public Link {
 public:
  struct Tile {
    TileHeader header;
    std::span<const std::byte> data;
  };

  FakeLink(int peer, std::vector<FakeLink*>& all) : peer_(peer) { all.push_back(this); }

  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return 4096; }
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override {
    if (!accepts) return false;
    tiles.push_back({header, data});
    return true;
  }
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return sent; }
  [[nodiscard]] const Arrival* peek() noexcept override { return nullptr; }
  void release() noexcept override {}
  [[nodiscard]] const Status& status() const noexcept override { return status_; }

  /// Kinds and texts of the accepted tiles.
  [[nodiscard]] std::string seen() const {
    std::string text;
    for (const Tile& tile : tiles) {
      text += fmt::format("{}:{} ", tile.header.edge,
                          std::string(reinterpret_cast<const char*>(tile.data.data()), tile.data.size()));
    }
    return text;
  }

  bool accepts = true;
  std::uint64_t sent = 0;
  std::vector<Tile> tiles;

 private:
  int peer_;
  Status status_;
};

class FakeTransport final : public Transport {
 public:
  explicit FakeTransport(int& waits) : waits_(waits) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "fake"; }
  [[nodiscard]] std::string address() const override { return "fake"; }
  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int>, std::span<const std::string>,
                                                     ConnectDeadline) override {
    return Status(StatusCode::unsupported, "fake");
  }
  bool progress() override { return false; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  bool prepare_wait() override { return ++waits_, true; }
  void finish_wait(bool) override {}
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return 0; }

 private:
  int& waits_;
};

class ControlTest : public ::testing::Test {
 protected:
  ControlTest() {
    std::vector<std::unique_ptr<Link>> made;
    for (const int peer : {1, 2}) made.push_back(std::make_unique<FakeLink>(peer, links_));
    control_ = std::make_unique<ControlPlane>(std::make_unique<FakeTransport>(waits_), std::move(made));
  }
  void wait(const std::string& words) { control_->send_wait(group_, both_, std::as_bytes(std::span(words))); }

  int waits_ = 0;
  std::vector<FakeLink*> links_;
  std::unique_ptr<ControlPlane> control_;
  const std::array<int, 2> both_{1, 2};
  const GroupName group_ = GroupName().child(both_, 0);
};

TEST_F(ControlTest, SlowPeerDelaysNoSend) {
  links_[0]->accepts = false;
  for (const char* words : {"one", "two", "three"}) wait(words);
  control_->send_abort(group_, both_, {StatusCode::aborted, "why"});
  EXPECT_EQ(waits_, 0) << "a send waited for the peer";
  EXPECT_EQ(links_[1]->seen(), "5:one 5:two 5:three 1:\5why ");
  EXPECT_TRUE(control_->pending());
  // Of unread waits only the latest is sent.
  links_[0]->accepts = true;
  std::vector<ControlPlane::Message> messages;
  control_->poll(messages);
  EXPECT_EQ(links_[0]->seen(), "5:three 1:\5why ");
  EXPECT_FALSE(control_->pending());
  EXPECT_EQ(links_[1]->tiles.size(), 4U);
  for (FakeLink* link : links_) link->sent = link->tiles.size();
}

TEST_F(ControlTest, QueuesWaitsPerGroup) {
  links_[0]->accepts = false;
  const GroupName other = GroupName().child(both_, 1);
  wait("here");
  control_->send_wait(other, both_, std::as_bytes(std::span("elsewhere", 9)));
  links_[0]->accepts = true;
  std::vector<ControlPlane::Message> messages;
  control_->poll(messages);
  ASSERT_EQ(links_[0]->seen(), "5:here 5:elsewhere ");
  const auto named = [](const TileHeader& header) { return GroupName{header.offset_bytes, header.sequence}; };
  EXPECT_EQ(named(links_[0]->tiles[0].header), group_);
  EXPECT_EQ(named(links_[0]->tiles[1].header), other);
}

TEST_F(ControlTest, PeerThatReadsNothingIsDeclaredDead) {
  links_[0]->accepts = false;
  for (std::uint32_t made = 0; made <= ControlPlane::kMostQueued; ++made)
    control_->send_farewell(GroupName().child(both_, made), both_, {});
  EXPECT_FALSE(control_->pending()) << "the queue is dropped";
  std::vector<ControlPlane::Message> messages;
  control_->poll(messages);
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_EQ(messages[0].kind, Kind::death);
  EXPECT_EQ(messages[0].rank, 1);
  EXPECT_EQ(messages[0].status.code(), StatusCode::peer_failed);
  control_->poll(messages);
  EXPECT_EQ(messages.size(), 1U) << "once";
  EXPECT_EQ(links_[1]->tiles.size(), ControlPlane::kMostQueued + 1);
}

TEST(StragglerBytes, SmallReportsAreShortAndRoundTrip) {
  StragglerDetector::Words words{7, 1, {}, {}, {}};
  words.absent.insert(3);
  words.slow.insert(1);
  EXPECT_LE(StragglerDetector::to_bytes(words).size(), 64U);
  words.slow.insert(4000);
  const auto back = StragglerDetector::parse(StragglerDetector::to_bytes(words));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->sequence, 7U);
  EXPECT_EQ(back->asks, 1U);
  EXPECT_EQ(back->absent, words.absent);
  EXPECT_EQ(back->slow, words.slow);
  auto cut = StragglerDetector::to_bytes(words);
  cut.pop_back();
  EXPECT_FALSE(StragglerDetector::parse(cut));
}

}  // namespace
}  // namespace shoal
