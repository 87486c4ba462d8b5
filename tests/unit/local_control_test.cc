// The control plane between ranks that share memory: order, slow and dead peers, wake-ups.
#include "src/progress/local_control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/progress/control.h"
#include "transports/shm/segment.h"

namespace shoal {
namespace {

using Kind = ControlMessage::Kind;

constexpr std::array<int, 3> kControlRanks{2, 5, 9};  // of a host, in a larger job

/// Says only how its peer has ended.
class EndedLink final : public Link {
 public:
  explicit EndedLink(int peer)
      : peer_(peer), status_(StatusCode::peer_failed, fmt::format("the process of rank {} has ended", peer)) {}
  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return 1; }
  bool try_send(const TileHeader&, std::span<const std::byte>) override { return false; }
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return 0; }
  [[nodiscard]] const Arrival* peek() noexcept override { return nullptr; }
  void release() noexcept override {}
  [[nodiscard]] const Status& status() const noexcept override { return status_; }

 private:
  int peer_;
  Status status_;
};

/// The shared memory of the host, and what one rank asks of its transport.
class FakeShm final : public Transport {
 public:
  explicit FakeShm(std::span<std::byte> memory) : memory_(memory) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "fake"; }
  [[nodiscard]] std::string address() const override { return "fake"; }
  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int>, std::span<const std::string>,
                                                     ConnectDeadline) override {
    return Status(StatusCode::unsupported, "fake");
  }
  bool progress() override { return false; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  bool prepare_wait() override { return true; }
  void finish_wait(bool) override {}
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return 0; }
  [[nodiscard]] std::span<std::byte> notice_memory() noexcept override { return memory_; }
  void wake(std::span<const int> ranks) override { woken.insert(woken.end(), ranks.begin(), ranks.end()); }
  void take_ended(std::vector<Link*>& links, bool) override {
    for (const auto& link : ended) links.push_back(link.get());
    kept_.insert(kept_.end(), std::make_move_iterator(ended.begin()), std::make_move_iterator(ended.end()));
    ended.clear();
  }

  std::vector<int> woken;
  std::vector<std::unique_ptr<Link>> ended;  // reported next

 private:
  std::span<std::byte> memory_;
  std::vector<std::unique_ptr<Link>> kept_;
};

class LocalControlTest : public ::testing::Test {
 protected:
  LocalControlTest() {
    shm::SegmentLayout layout;
    layout.ranks = kControlRanks.size();
    // Lines of 64 bytes, so that the memory is aligned as a page would be.
    memory_.resize(layout.notice_bytes() / sizeof(Line));
    for (const int rank : kControlRanks) {
      transports_.push_back(std::make_unique<FakeShm>(std::as_writable_bytes(std::span(memory_))));
      std::vector<int> peers(kControlRanks.begin(), kControlRanks.end());
      std::erase(peers, rank);
      controls_.push_back(std::make_unique<ControlPlane>());
      controls_.back()->add(std::make_unique<LocalControl>(*transports_.back(), rank, peers));
    }
  }
  static std::size_t at(int rank) {
    return static_cast<std::size_t>(std::ranges::find(kControlRanks, rank) - kControlRanks.begin());
  }
  ControlPlane& control(int rank) { return *controls_[at(rank)]; }
  FakeShm& transport(int rank) { return *transports_[at(rank)]; }
  void abort(int rank, std::initializer_list<int> to, const std::string& why) {
    control(rank).send_abort(group_, std::vector<int>(to), {StatusCode::aborted, why});
  }
  void farewell(int rank, std::initializer_list<int> to, const std::string& text) {
    control(rank).send_farewell(group_, std::vector<int>(to), std::as_bytes(std::span(text)));
  }
  void wait(int rank, std::initializer_list<int> to, const std::string& text) {
    control(rank).send_wait(group_, std::vector<int>(to), std::as_bytes(std::span(text)));
  }
  /// What `rank` reads: "RANK:KIND:TEXT " each.
  std::string read(int rank) {
    std::vector<ControlPlane::Message> messages;
    control(rank).poll(messages);
    std::string all;
    for (const auto& each : messages) {
      all += fmt::format("{}:{}:{}{} ", each.rank, static_cast<int>(each.kind), each.status.message(),
                         std::string(reinterpret_cast<const char*>(each.payload.data()), each.payload.size()));
    }
    return all;
  }

  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  std::vector<Line> memory_;
  std::vector<std::unique_ptr<FakeShm>> transports_;
  std::vector<std::unique_ptr<ControlPlane>> controls_;
  const GroupName group_ = GroupName().child(kControlRanks, 0);
};

TEST_F(LocalControlTest, MessagesReachReceiversAndWakeThem) {
  EXPECT_FALSE(control(9).due());
  abort(2, {2, 9, 77}, "why");
  EXPECT_EQ(transport(2).woken, std::vector<int>{9});
  EXPECT_TRUE(control(9).due());
  EXPECT_EQ(read(9), "2:1:why ");
  EXPECT_FALSE(control(9).due());
  EXPECT_EQ(read(5), "");
  control(5).send_goodbye();
  EXPECT_EQ(transport(5).woken, (std::vector<int>{2, 9}));
  EXPECT_EQ(read(2), "5:3: ");
}

TEST_F(LocalControlTest, LastMessageComesBeforeTheDeath) {
  abort(5, {2, 9}, "the cause");
  transport(9).ended.push_back(std::make_unique<EndedLink>(5));
  EXPECT_TRUE(control(9).due());
  EXPECT_EQ(read(9), "5:1:the cause 5:4:the process of rank 5 has ended ");
  EXPECT_EQ(read(9), "") << "once";
}

TEST_F(LocalControlTest, EndAfterGoodbyeIsNoDeath) {
  control(5).send_goodbye();
  transport(9).ended.push_back(std::make_unique<EndedLink>(5));
  EXPECT_EQ(read(9), "5:3: ");
}

TEST_F(LocalControlTest, StoppedPeerDelaysNoOther) {
  std::string expected;
  std::string received;
  for (int i = 0; i < 2000; ++i) {
    farewell(2, {5, 9}, fmt::format("{:060}", i));
    expected += fmt::format("2:2:{:060} ", i);
    received += read(9);
    if (i == 1000) wait(2, {5, 9}, "old"), read(9);
  }
  EXPECT_EQ(received, expected);
  EXPECT_TRUE(control(2).pending());
  wait(2, {5}, "new");
  // It goes on: it gets all of them in order, of the waits the newest.
  std::string late = read(5);
  for (int i = 0; i < 100 && (control(2).pending() || control(5).due()); ++i) {
    read(2);
    late += read(5);
  }
  EXPECT_FALSE(control(2).pending());
  const std::size_t newest = late.find("2:5:new ");
  ASSERT_NE(newest, std::string::npos);
  EXPECT_EQ(late.erase(newest, 8), expected);
  farewell(2, {5}, "as before");
  EXPECT_EQ(read(5), "2:2:as before ");
}

TEST_F(LocalControlTest, PeerThatReadsNothingIsDead) {
  int sent = 0;
  std::string end;
  for (; end.empty() && sent < 20'000; ++sent) {
    farewell(2, {5, 9}, "left");
    read(9);
    if (control(2).due()) end = read(2);
  }
  EXPECT_GT(sent, static_cast<int>(ControlPlane::kMostQueued));
  EXPECT_EQ(end, "5:4:rank 5 has left 4096 control messages unread; is its process stopped? ");
  EXPECT_FALSE(control(2).pending());
  farewell(2, {5, 9}, "the last");
  EXPECT_EQ(read(9), "2:2:the last ");
}

TEST_F(LocalControlTest, DeadPeerIsNotInTheWay) {
  transport(2).ended.push_back(std::make_unique<EndedLink>(5));
  EXPECT_EQ(read(2), "5:4:the process of rank 5 has ended ");
  for (int i = 0; i < 5000; ++i) {
    farewell(2, {5, 9}, "left");
    ASSERT_EQ(read(9), "2:2:left ");
  }
  EXPECT_FALSE(control(2).pending());
}

TEST_F(LocalControlTest, CorruptPeerCountsAsDead) {
  abort(5, {2, 9}, "why");
  const auto bytes = std::as_writable_bytes(std::span(memory_));
  std::ranges::fill(bytes.subspan(bytes.size() - 2 * shm::SegmentLayout::kNoticeBytesPerRank, 8), std::byte{0xAB});
  EXPECT_EQ(read(9), "5:4:rank 5 wrote a malformed control message into the shared memory; its memory is corrupt ");
  EXPECT_EQ(read(9), "");
}

TEST_F(LocalControlTest, ChildOfForkWritesNothing) {
  control(2).leave_to_parent();
  abort(2, {5, 9}, "of the child");
  control(2).send_goodbye();
  control(2).finish();
  EXPECT_TRUE(transport(2).woken.empty());
  EXPECT_EQ(read(5), "");
}

TEST_F(LocalControlTest, StoppedPeerReadsLastMessages) {
  for (int i = 0; i < 2000; ++i) {
    farewell(2, {9}, std::string(60, 'x'));
    read(9);
  }
  abort(2, {5, 9}, "why");
  control(2).send_goodbye();
  EXPECT_TRUE(control(2).pending());
  const auto start = std::chrono::steady_clock::now();
  control(2).finish();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(90)) << "there is room for them";
  transport(5).ended.push_back(std::make_unique<EndedLink>(2));
  EXPECT_EQ(read(5), "2:1:why 2:3: ");
}

TEST_F(LocalControlTest, FinishWaitsShortlyForSlowPeer) {
  const std::string text(300, 'x');
  for (int i = 0; i < 500; ++i) {
    farewell(2, {5, 9}, text);
    read(9);
  }
  const auto start = std::chrono::steady_clock::now();
  control(2).finish();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(90));
  EXPECT_FALSE(control(2).pending());
}

}  // namespace
}  // namespace shoal
