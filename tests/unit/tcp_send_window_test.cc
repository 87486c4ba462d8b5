// The send window of a TCP link: what is taken, pulled, sent, acknowledged, lent and retransmitted.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "transports/tcp/send_window.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {
namespace {

constexpr std::size_t kWindowBytes = 64 << 10;

SendWindow window_of(std::size_t bytes = kWindowBytes) {
  auto window = SendWindow::make(bytes);
  EXPECT_TRUE(window.ok());
  return std::move(*window);
}

// Adds a frame whose bytes all have the value of its number.
void add(SendWindow& window, std::size_t bytes, const std::byte* lent = nullptr) {
  std::memset(window.next_frame(), static_cast<int>(window.taken() % 256), bytes);
  window.add(bytes, true, lent);
}

void send_all(SendWindow& window, SendRange& range) {
  while (!range.empty()) window.count_sent(range, window.due(range).size());
}

TEST(TcpSendWindow, RefusesTilesBeyondItsMemory) {
  SendWindow window = window_of();
  add(window, kWindowBytes - 128);
  EXPECT_TRUE(window.has_room(128));
  EXPECT_FALSE(window.has_room(192));
  SendRange range;
  window.pull(range, 0, SendWindow::kPullBytes);
  send_all(window, range);
  EXPECT_FALSE(window.has_room(192)) << "the peer has not acknowledged it";
  window.acknowledge(0, 1);
  EXPECT_TRUE(window.has_room(kWindowBytes));
}

TEST(TcpSendWindow, RefusesTilesBeyondItsNumbers) {
  SendWindow window = window_of();
  for (std::size_t i = 0; i < SendWindow::kTiles; ++i) {
    ASSERT_TRUE(window.has_room(64));
    add(window, 64);
  }
  EXPECT_FALSE(window.has_room(64));
}

TEST(TcpSendWindow, PullsOneTileOrSeveralSmallOnes) {
  SendWindow window = window_of();
  add(window, 4096);
  for (int i = 0; i < 40; ++i) add(window, 64);
  SendRange first;
  window.pull(first, 0, 1024);
  EXPECT_EQ(first.last - first.first, 1U) << "a tile of any size";
  SendRange second;
  window.pull(second, 1, 1024);
  EXPECT_EQ(second.last - second.first, 1024U / 64);
  EXPECT_EQ(window.due(second).size(), 1024U);
  SendRange third;
  window.pull(third, 2, SendWindow::kPullBytes);
  EXPECT_EQ(third.last - third.first, SendWindow::kPullTiles);
  EXPECT_EQ(window.unpulled(), 41U - 1 - 16 - 16);
}

TEST(TcpSendWindow, CountsSentTilesInOrder) {
  SendWindow window = window_of();
  add(window, 128);
  add(window, 128);
  SendRange first;
  SendRange second;
  window.pull(first, 0, 128);
  window.pull(second, 1, 128);
  send_all(window, second);
  EXPECT_EQ(window.sent(), 0U);
  window.count_sent(first, 100);
  EXPECT_EQ(window.due(first).size(), 28U);
  EXPECT_EQ(window.sent(), 0U);
  window.count_sent(first, 28);
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(window.sent(), 2U);
}

TEST(TcpSendWindow, IgnoresFalseAcknowledgements) {
  SendWindow window = window_of();
  for (int i = 0; i < 3; ++i) add(window, 128);
  SendRange range;
  window.acknowledge(0, 100);
  EXPECT_EQ(window.acknowledged(), 0U) << "nothing is pulled";
  window.pull(range, 0, 256);
  window.count_sent(range, 128);
  window.acknowledge(1, 100);
  EXPECT_EQ(window.acknowledged(), 0U) << "another socket has pulled them";
  window.acknowledge(0, 100);
  EXPECT_EQ(window.acknowledged(), 1U) << "the second is not in the kernel, the third not pulled";
}

TEST(TcpSendWindow, ResendsWhatANewConnectionLacks) {
  SendWindow window = window_of();
  for (int i = 0; i < 6; ++i) add(window, 64);
  std::array<SendRange, 2> ranges;
  for (std::size_t i = 0; i < 6; ++i) {  // in turns
    window.pull(ranges[i % 2], i % 2, 64);
    if (i != 4) send_all(window, ranges[i % 2]);
  }
  SendRange& lost = ranges[0];
  lost.drop();  // tiles 0 and 2 had left, 4 not
  window.acknowledge(0, 1);
  window.start_resending(lost);
  std::vector<std::uint64_t> resent;
  while (window.pull_resend(lost, 0)) {
    resent.push_back(lost.first);
    EXPECT_EQ(window.due(lost).front(), std::byte{static_cast<unsigned char>(lost.first)});
    send_all(window, lost);
  }
  EXPECT_EQ(resent, (std::vector<std::uint64_t>{2, 4}));
  EXPECT_FALSE(lost.resends());
  EXPECT_EQ(window.sent(), 6U);
  window.acknowledge(0, 5);
  window.acknowledge(1, 6);
  EXPECT_EQ(window.acknowledged(), 6U);
}

TEST(TcpSendWindow, FramesStayContiguousAtTheEndOfItsMemory) {
  SendWindow window = window_of();
  SendRange range;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 3; ++k) {
      ASSERT_TRUE(window.has_room(1984));
      add(window, 1984);
    }
    // One tile stays unacknowledged, so that the window never starts again at its first bytes.
    while (window.unpulled() > 0) {
      window.pull(range, 0, 2 * 1984);
      const auto due = window.due(range);
      for (std::size_t at = 0; at < due.size(); ++at)
        ASSERT_EQ(due[at], static_cast<std::byte>((range.first + at / 1984) % 256));
      send_all(window, range);
    }
    window.acknowledge(0, window.taken() - 1);
  }
}

class TcpLentTile : public ::testing::Test {
 protected:
  TcpLentTile() : payload_(512) {
    std::memset(payload_.data(), 0x77, payload_.size());
    add(window_, 64);
    add(window_, kFrameHeaderBytes + payload_.size(), payload_.data());
    add(window_, 64);
    window_.pull(range_, 0, SendWindow::kPullBytes);
  }

  std::vector<std::byte> payload_;
  SendWindow window_ = window_of();
  SendRange range_;
  std::array<iovec, 2> parts_{};
};

TEST_F(TcpLentTile, LeavesFromTheCallersMemory) {
  ASSERT_EQ(window_.gather_due(range_, parts_), 2U);
  EXPECT_EQ(parts_[0].iov_len, 64U + kFrameHeaderBytes);
  EXPECT_EQ(parts_[1].iov_base, payload_.data());
  EXPECT_EQ(parts_[1].iov_len, payload_.size());
  window_.count_sent(range_, 64 + kFrameHeaderBytes + 100);
  ASSERT_EQ(window_.gather_due(range_, parts_), 1U);
  EXPECT_EQ(parts_[0].iov_base, payload_.data() + 100);
  window_.count_sent(range_, payload_.size() - 100);
  ASSERT_EQ(window_.gather_due(range_, parts_), 1U) << "the tile behind it";
  EXPECT_EQ(parts_[0].iov_len, 64U);
}

TEST_F(TcpLentTile, CountsAsSentOnceAcknowledged) {
  window_.count_sent(range_, 64 + kFrameHeaderBytes + payload_.size() + 64);
  EXPECT_EQ(window_.sent(), 1U);
  window_.acknowledge(0, 2);
  EXPECT_FALSE(window_.has_lent());
  EXPECT_EQ(window_.sent(), 3U);
  EXPECT_EQ(window_.acknowledged(), 2U);
}

TEST_F(TcpLentTile, IsCopiedWhereNothingElseIsToBeDone) {
  EXPECT_FALSE(window_.copy_sent_lent()) << "not before the kernel has it";
  EXPECT_TRUE(window_.has_lent());
  window_.count_sent(range_, 64 + kFrameHeaderBytes + payload_.size() + 64);
  EXPECT_TRUE(window_.copy_sent_lent());
  EXPECT_EQ(window_.sent(), 3U);
  std::memset(payload_.data(), 0, payload_.size());
  range_.drop();
  window_.start_resending(range_);
  ASSERT_TRUE(window_.pull_resend(range_, 0));
  ASSERT_TRUE(window_.pull_resend(range_, 0));
  EXPECT_EQ(window_.due(range_).back(), std::byte{0x77}) << "from the copy";
}

TEST_F(TcpLentTile, IsCopiedAtOnceForACallerThatAborts) {
  window_.count_sent(range_, 10);
  window_.copy_all_lent();
  EXPECT_FALSE(window_.has_lent());
  EXPECT_EQ(window_.sent(), 0U);
  EXPECT_EQ(window_.due(range_).size(), 64 + kFrameHeaderBytes + payload_.size() + 64 - 10);
}

}  // namespace
}  // namespace shoal::tcp
