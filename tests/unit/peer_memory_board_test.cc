// The board on which the members of a group agree on a block of windows.
#include "src/peer_memory/board.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "src/peer_memory/slots.h"

namespace shoal {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kWindow = 8192;

/// Zeroed memory that is shared with child processes.
class PeerMemoryBoardTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 4096 + PeerMemoryBoard::kBlocks * kRanks * kWindow;
  PeerMemoryBoardTest() {
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = {static_cast<std::byte*>(memory), kBytes};
  }
  ~PeerMemoryBoardTest() override { ::munmap(memory_.data(), kBytes); }

  std::span<std::byte> memory_;
};

TEST_F(PeerMemoryBoardTest, EachGroupGetsItsOwnBlock) {
  PeerMemoryBoard one(memory_, kRanks);
  PeerMemoryBoard other(memory_, kRanks);
  EXPECT_EQ(one.window_bytes(), kWindow);
  const auto a = one.join(7, 2);
  const auto b = one.join(8, 3);
  ASSERT_TRUE(a && b);
  EXPECT_NE(*a, *b);
  EXPECT_EQ(other.join(8, 3), b);
  EXPECT_EQ(other.join(7, 2), a);
}

TEST_F(PeerMemoryBoardTest, WindowsDoNotOverlap) {
  PeerMemoryBoard board(memory_, kRanks);
  std::byte* end = memory_.data() + 4096;
  for (std::size_t block = 0; block < PeerMemoryBoard::kBlocks; ++block) {
    for (std::size_t member = 0; member < kRanks; ++member) {
      const auto window = board.window(block, member);
      EXPECT_EQ(window.data(), end);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window.data()) % 64, 0U);
      end = window.data() + window.size();
    }
  }
  EXPECT_EQ(end, memory_.data() + memory_.size());
}

TEST_F(PeerMemoryBoardTest, FreedBlockIsReusedAndZero) {
  PeerMemoryBoard board(memory_, kRanks);
  const auto block = board.join(7, 2);
  ASSERT_TRUE(block && board.join(7, 2));
  for (const std::size_t member : {0, 1}) {
    const auto window = board.window(*block, member);
    std::memset(window.data(), 0xFF, window.size());
  }
  board.leave(*block);
  EXPECT_NE(board.join(8, 2), block) << "a member has not left";
  board.leave(*block);
  ASSERT_EQ(board.join(9, 2), block);
  for (const std::size_t member : {0, 1}) {
    const auto window = board.window(*block, member);
    for (std::uint64_t count = 0; count < kOneShotSlots; ++count) EXPECT_EQ(one_shot_slot(window, count).flag.load(), 0U);
    for (const std::uint64_t count : {0, 1}) {
      EXPECT_EQ(meeting_slot(window, count).entered.load(), 0U);
      EXPECT_EQ(meeting_slot(window, count).left.load(), 0U);
      EXPECT_EQ(meeting_slot(window, count).guard.load(), 0U);
    }
  }
}

TEST_F(PeerMemoryBoardTest, MembersAgreeThatNoBlockIsFree) {
  PeerMemoryBoard board(memory_, kRanks);
  for (std::uint64_t key = 1; key <= PeerMemoryBoard::kBlocks; ++key) ASSERT_TRUE(board.join(key, 2));
  EXPECT_EQ(board.join(1000, 2), std::nullopt);
  const auto first = board.join(1, 2);
  ASSERT_TRUE(first) << "members of an existing group still find each other";
  board.leave(*first);
  board.leave(*first);
  EXPECT_EQ(board.join(1000, 2), std::nullopt) << "the first member got no block";
  EXPECT_EQ(board.join(1001, 2), std::nullopt) << "some members may have been refused already";
  EXPECT_TRUE(board.join(2, 2));
}

TEST_F(PeerMemoryBoardTest, TooLittleMemoryGivesNoBlock) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{4095}, std::size_t{4096} + PeerMemoryBoard::kBlocks * kRanks * 1024}) {
    PeerMemoryBoard board(memory_.first(bytes), kRanks);
    EXPECT_EQ(board.window_bytes(), 0U);
    EXPECT_EQ(board.join(1, 2), std::nullopt);
  }
  EXPECT_EQ(PeerMemoryBoard(memory_, kRanks).join(1, kRanks + 1), std::nullopt);
  EXPECT_TRUE(PeerMemoryLease().windows().empty());
}

TEST_F(PeerMemoryBoardTest, LeaseReturnsItsBlockOnce) {
  const PeerMemoryBoard board(memory_, kRanks);
  PeerMemoryLease lease(board, 7, 1);
  ASSERT_EQ(lease.windows().size(), 1U);
  const std::byte* place = lease.windows()[0].data();
  PeerMemoryLease moved = std::move(lease);
  EXPECT_EQ(moved.windows()[0].data(), place);
  moved.leave();
  moved.leave();
  EXPECT_EQ(PeerMemoryLease(board, 8, 1).windows()[0].data(), place) << "leave() returned the block";
  PeerMemoryLease last(board, 9, 1);
  EXPECT_EQ(last.windows()[0].data(), place) << "the destructor returned the block";
  last.abandon();
  PeerMemoryLease after(board, 10, 1);
  EXPECT_NE(after.windows()[0].data(), place) << "abandon() keeps the block";
}

TEST_F(PeerMemoryBoardTest, ThreadsAgreeOnBlocks) {
  constexpr int kRounds = 2000;
  std::vector<std::vector<std::size_t>> blocks(kRanks);
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      PeerMemoryBoard board(memory_, kRanks);
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        // A rank is ahead of the others by at most kBlocks rounds.
        const auto block = board.join(round, kRanks);
        ASSERT_TRUE(block);
        blocks[rank].push_back(*block);
        OneShotSlot& slot = one_shot_slot(board.window(*block, rank), 0);
        ASSERT_EQ(slot.flag.load(), 0U) << "stale value of an earlier group";
        slot.flag.store(round);
        const auto all_have_joined = [&] {
          for (std::size_t each = 0; each < kRanks; ++each) {
            if (one_shot_slot(board.window(*block, each), 0).flag.load() != round) return false;
          }
          return true;
        };
        while (!all_have_joined()) std::this_thread::yield();
        board.leave(*block);
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& each : blocks) EXPECT_EQ(each, blocks[0]);
}

TEST_F(PeerMemoryBoardTest, KilledRankBlocksNoOtherRank) {
  for (int round = 0; round < 40; ++round) {
    const ::pid_t child = ::fork();
    if (child == 0) {
      PeerMemoryBoard board(memory_, kRanks);
      for (std::uint64_t key = 1;; ++key) {
        if (const auto block = board.join(key << 8 | static_cast<std::uint64_t>(round), 1)) board.leave(*block);
      }
    }
    PeerMemoryBoard board(memory_, kRanks);
    for (int i = 0; i < 200 * (round % 5 + 1); ++i) {
      const auto block = board.join(static_cast<std::uint64_t>(i + 1) << 32, 1);
      ASSERT_TRUE(block) << "a dead child keeps at most one block";
      board.leave(*block);
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto block = board.join(1, 1);
    ASSERT_TRUE(block);
    board.leave(*block);
  }
}

}  // namespace
}  // namespace shoal
