// The board of notices that the ranks of a host share.
#include "src/progress/notice_board.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <shoal/limits.h>

#include "transports/shm/segment.h"

namespace shoal {
namespace {

using Receivers = NoticeBoard::Receivers;

constexpr std::size_t kAreaBytes = shm::SegmentLayout::kNoticeBytesPerRank;

std::size_t memory_bytes(std::size_t ranks) {
  shm::SegmentLayout layout;
  layout.ranks = ranks;
  return layout.notice_bytes();
}

std::string text_of(const NoticeBoard::Notice& notice) {
  return {reinterpret_cast<const char*>(notice.payload.data()), notice.payload.size()};
}

/// Boards of `ranks` ranks over memory that is shared with child processes.
class Boards {
 public:
  explicit Boards(std::size_t ranks) : bytes_(memory_bytes(ranks)), ranks_(ranks) {
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    for (std::size_t rank = 0; rank < ranks; ++rank) boards_.emplace_back(std::span(memory_, bytes_), ranks, rank);
  }
  ~Boards() { ::munmap(memory_, bytes_); }
  Boards(const Boards&) = delete;
  Boards& operator=(const Boards&) = delete;

  NoticeBoard& operator[](std::size_t rank) { return boards_[rank]; }
  [[nodiscard]] std::byte* memory() const { return memory_; }
  [[nodiscard]] std::byte* area(std::size_t rank) const { return memory_ + bytes_ - (ranks_ - rank) * kAreaBytes; }
  [[nodiscard]] Receivers receivers(std::initializer_list<std::size_t> ranks) const {
    Receivers found(ranks_);
    for (const std::size_t rank : ranks) found.insert(rank);
    return found;
  }
  bool write(std::size_t rank, std::initializer_list<std::size_t> to, const std::string& text) {
    return boards_[rank].write(1, {7, 8}, receivers(to), std::as_bytes(std::span(text)));
  }
  /// What `rank` reads now: "WRITER:TEXT " each.
  std::string read(std::size_t rank) {
    NoticeBoard::News news;
    boards_[rank].read(news);
    EXPECT_TRUE(news.malformed.empty());
    std::string all;
    for (const auto& [writer, notice] : news.notices) all += std::to_string(writer) + ":" + text_of(notice) + " ";
    return all;
  }

 private:
  std::size_t bytes_;
  std::size_t ranks_;
  std::byte* memory_ = nullptr;
  std::vector<NoticeBoard> boards_;
};

TEST(NoticeBoard, ReceiversReadEachNoticeOnce) {
  Boards boards(3);
  EXPECT_FALSE(boards[1].has_news());
  ASSERT_TRUE(boards.write(0, {1, 2}, "both"));
  ASSERT_TRUE(boards.write(0, {2}, ""));
  ASSERT_TRUE(boards.write(2, {0, 1}, "seventeen letters"));
  EXPECT_TRUE(boards[1].has_news());
  EXPECT_EQ(boards.read(1), "0:both 2:seventeen letters ");
  EXPECT_FALSE(boards[1].has_news());
  EXPECT_EQ(boards.read(1), "");
  EXPECT_EQ(boards.read(2), "0:both 0: ");
  EXPECT_EQ(boards.read(0), "2:seventeen letters ");
}

TEST(NoticeBoard, NoticeKeepsKindAndGroup) {
  Boards boards(2);
  const GroupName group{0x123456789abcdef0, GroupName::kCheckLimit - 1};
  ASSERT_TRUE(boards[0].write(6, group, boards.receivers({1}), {}));
  NoticeBoard::News news;
  boards[1].read(news);
  ASSERT_EQ(news.notices.size(), 1U);
  EXPECT_EQ(news.notices[0].notice.kind, 6U);
  EXPECT_EQ(news.notices[0].notice.group, group);
}

TEST(NoticeBoard, OwnNoticeIsNoNews) {
  Boards boards(2);
  ASSERT_TRUE(boards.write(0, {1}, "x"));
  EXPECT_FALSE(boards[0].has_news());
  ASSERT_TRUE(boards.write(1, {0}, "y"));
  ASSERT_TRUE(boards.write(0, {1}, "x"));
  EXPECT_TRUE(boards[0].has_news());
  EXPECT_EQ(boards.read(0), "1:y ");
}

TEST(NoticeBoard, SegmentHasRoomForAnyNumberOfRanks) {
  for (const std::size_t ranks : std::initializer_list<std::size_t>{2, 63, 64, 65, 128, kMaxHostRanks}) {
    EXPECT_TRUE(Boards(ranks)[ranks - 1].usable()) << ranks;
  }
  std::vector<std::byte> little(4096);
  EXPECT_FALSE(NoticeBoard(little, 2, 0).usable());
  EXPECT_FALSE(NoticeBoard({}, 2, 0).usable());
}

TEST(NoticeBoard, LongestNoticeWrapsAroundTheRing) {
  Boards boards(2);
  for (int i = 0; i < 100; ++i) {
    const std::string text(NoticeBoard::kMostBytes - static_cast<std::size_t>(i), static_cast<char>('a' + i % 26));
    ASSERT_TRUE(boards.write(0, {1}, text));
    ASSERT_EQ(boards.read(1), "0:" + text + " ");
  }
}

TEST(NoticeBoard, UnreadNoticesAreNotOverwritten) {
  Boards boards(3);
  int written = 0;
  while (boards.write(0, {1}, std::to_string(written))) ++written;
  EXPECT_GT(written, 1000);
  EXPECT_NE(boards.read(1), "");
  EXPECT_FALSE(boards.write(0, {1}, "more")) << "rank 2 has to pass them as well";
  EXPECT_EQ(boards[0].slowest(), 2U);
  EXPECT_EQ(boards.read(2), "");
  EXPECT_TRUE(boards.write(0, {1}, "more"));
  EXPECT_EQ(boards.read(1), "0:more ");
}

TEST(NoticeBoard, TakenBackNoticesAreReadByNobody) {
  Boards boards(3);
  ASSERT_TRUE(boards.write(0, {1, 2}, "read"));
  EXPECT_EQ(boards.read(1), "0:read ");
  ASSERT_TRUE(boards.write(0, {1, 2}, "both"));
  ASSERT_TRUE(boards.write(0, {2}, "other"));
  ASSERT_TRUE(boards.write(0, {1}, "last"));
  const auto unread = boards[0].take_back(1);
  ASSERT_TRUE(unread);
  ASSERT_EQ(unread->size(), 2U);
  EXPECT_EQ(text_of((*unread)[0]) + text_of((*unread)[1]), "bothlast");
  for (int i = 0; i < 5000; ++i) {  // without the slow rank
    ASSERT_TRUE(boards.write(0, {2}, "any"));
    boards.read(2);
  }
  EXPECT_TRUE(boards[0].is_taken_back(1));
  EXPECT_FALSE(boards[0].returns(1));
}

TEST(NoticeBoard, ReturningReaderIsAdmitted) {
  Boards boards(3);
  ASSERT_TRUE(boards.write(0, {1}, "early"));
  ASSERT_TRUE(boards[0].take_back(1));
  NoticeBoard::News news;
  boards[1].read(news);
  EXPECT_TRUE(news.notices.empty());
  EXPECT_EQ(news.writers_waiting, std::vector<std::size_t>{0});
  EXPECT_TRUE(boards[0].has_news()) << "the return";
  EXPECT_TRUE(boards[0].returns(1));
  boards[0].admit(1);
  ASSERT_TRUE(boards.write(0, {1}, "early"));
  EXPECT_EQ(boards.read(1), "0:early ");
}

TEST(NoticeBoard, WaitingWriterLearnsOfReads) {
  Boards boards(2);
  boards[0].set_waiting(true);
  ASSERT_TRUE(boards.write(0, {1}, "x"));
  NoticeBoard::News news;
  boards[1].read(news);
  EXPECT_EQ(news.writers_waiting, std::vector<std::size_t>{0});
  EXPECT_TRUE(boards[0].has_news());
  boards.read(0);
  boards[0].set_waiting(false);
  ASSERT_TRUE(boards.write(0, {1}, "x"));
  boards.read(1);
  EXPECT_FALSE(boards[0].has_news());
}

TEST(NoticeBoard, MoreNoticesThanTheLogHolds) {
  Boards boards(4);
  std::string expected;
  for (int i = 0; i < 1500; ++i) {
    if (i == 3) {
      ASSERT_TRUE(boards.write(3, {0}, "late"));
    }
    ASSERT_TRUE(boards.write(1, {2}, ""));
    boards.read(2);
    boards.read(3);
    if (i % 400 == 0) {
      ASSERT_TRUE(boards.write(2, {0}, std::to_string(i)));
      expected += "2:" + std::to_string(i) + " ";
    }
  }
  EXPECT_EQ(boards.read(0), expected + "3:late ");
}

TEST(NoticeBoard, NoticeOfWriterThatDiedIsFound) {
  Boards boards(2);
  std::uint64_t before = 0;
  std::memcpy(&before, boards.memory(), sizeof before);
  ASSERT_TRUE(boards.write(0, {1}, "my last words"));
  std::memcpy(boards.memory(), &before, sizeof before);  // as though it had died before the announcement
  EXPECT_EQ(boards.read(1), "");
  NoticeBoard::News news;
  boards[1].read_from(0, news);
  ASSERT_EQ(news.notices.size(), 1U);
  EXPECT_EQ(text_of(news.notices[0].notice), "my last words");
}

TEST(NoticeBoard, CorruptMemoryIsNamedOnce) {
  std::mt19937_64 random(7);
  int named = 0;
  for (int round = 0; round < 300; ++round) {
    Boards boards(3);
    ASSERT_TRUE(boards.write(0, {1}, "some words"));
    ASSERT_TRUE(boards.write(2, {1}, "whole"));
    // The words written, or words in the ring.
    const bool ring = round % 2 != 0;
    std::uint64_t junk = random();
    for (std::size_t at = 0; at < (ring ? 8U : 1U); ++at, junk = random() >> (random() % 64))
      std::memcpy(boards.area(0) + (ring ? 128 + 8 * at : 0), &junk, sizeof junk);
    NoticeBoard::News news;
    boards[1].read(news);
    boards[1].read_from(0, news);
    ASSERT_LE(news.malformed.size(), 1U);
    named += static_cast<int>(news.malformed.size());
    EXPECT_TRUE(std::ranges::any_of(news.notices, [](const auto& each) { return text_of(each.notice) == "whole"; }));
  }
  EXPECT_GT(named, 200);
}

TEST(NoticeBoard, CorruptCursorIsNotFollowed) {
  for (const std::uint64_t cursor : {std::uint64_t{1} << 40, std::uint64_t{1}, std::uint64_t{1} << 63}) {
    Boards boards(2);
    ASSERT_TRUE(boards.write(0, {1}, "words"));
    std::memcpy(boards.area(1) + 64, &cursor, sizeof cursor);
    NoticeBoard::News news;
    boards[1].read(news);
    EXPECT_EQ(news.malformed.size(), 1U) << cursor;
    EXPECT_EQ(boards[0].take_back(1), std::nullopt) << cursor;
  }
}

// Rank 0 reads nothing for a while, and is left behind now and then. Nobody loses a notice or gets one twice.
TEST(NoticeBoard, ThreadsLoseNoNotice) {
  constexpr std::size_t kRanks = 4;
  constexpr std::uint64_t kNotices = 3000;
  Boards boards(kRanks);
  std::array<std::string, kRanks> wrong;
  std::atomic<bool> failed = false;  // the others would wait for ever
  std::atomic<std::size_t> ready = 0;
  const auto body = [&](std::size_t rank) {
    std::array<std::uint64_t, kRanks> expected{};  // next number of each writer
    std::vector<std::uint64_t> kept;               // of this rank's, for rank 0, in order
    std::uint64_t next = 0;
    std::mt19937 random(static_cast<unsigned>(rank));
    const auto receive = [&] {
      NoticeBoard::News news;
      boards[rank].read(news);
      for (const auto& [writer, notice] : news.notices) {
        std::uint64_t number = 0;
        std::memcpy(&number, notice.payload.data(), std::min(notice.payload.size(), sizeof number));
        if (number != expected[writer])
          wrong[rank] = fmt::format("rank {} got notice {} of rank {}, not {}", rank, number, writer, expected[writer]);
        ++expected[writer];
      }
      if (!news.malformed.empty()) wrong[rank] = "malformed";
      if (!wrong[rank].empty()) failed = true;
    };
    const auto put = [&](std::uint64_t number, const Receivers& to) {
      std::vector<std::byte> payload(8 + random() % 200);
      std::memcpy(payload.data(), &number, sizeof number);
      return boards[rank].write(1, {}, to, payload);
    };
    const auto give_back = [&] {
      if (boards[rank].is_taken_back(0)) {
        if (!boards[rank].returns(0)) return;
        boards[rank].admit(0);
      }
      while (!kept.empty() && put(kept.front(), boards.receivers({0}))) kept.erase(kept.begin());
    };
    const auto take_back = [&](std::size_t slow) {
      const auto unread = boards[rank].take_back(slow);
      if (!unread) return wrong[rank] = "malformed", failed = true, void();
      std::vector<std::uint64_t> older;
      for (const auto& notice : *unread) std::memcpy(&older.emplace_back(), notice.payload.data(), 8);
      kept.insert(kept.begin(), older.begin(), older.end());
    };
    bool done = false;
    while (!failed && ready < kRanks) {  // a rank that stops reading would block the writers
      if (!done && next == kNotices && kept.empty() && std::ranges::count(expected, kNotices) == kRanks - 1) {
        done = true;
        ++ready;
      }
      if (rank != 0 || random() % 64 == 0 || next == kNotices) receive();
      give_back();
      if (next == kNotices) {
        std::this_thread::yield();
        continue;
      }
      Receivers to = boards.receivers({0, 1, 2, 3});
      const bool behind = rank != 0 && (boards[rank].is_taken_back(0) || !kept.empty());
      if (behind) to.erase(0);
      if (put(next, to)) {
        if (behind) kept.push_back(next);
        ++next;
      } else if (boards[rank].slowest() == 0U) {
        take_back(0);
      } else {
        receive();
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kRanks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : wrong) EXPECT_EQ(each, "");
}

// Three processes write, one of them is killed on the way. The others read all that it has announced.
TEST(NoticeBoard, ProcessesReadWhatKilledOneWrote) {
  constexpr std::uint64_t kNotices = 400;
  Boards boards(3);
  std::vector<pid_t> children;
  for (const std::size_t rank : {1U, 2U}) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (std::uint64_t number = 0;; ++number) {
      if (number >= kNotices && rank == 1) ::_exit(0);
      boards.read(rank);
      while (!boards[rank].write(1, {}, boards.receivers({0}), std::as_bytes(std::span(&number, 1)))) {
        boards.read(rank);
        std::this_thread::yield();
      }
    }
  }
  std::array<std::uint64_t, 3> expected{};
  bool killed = false;
  const auto receive = [&] {
    NoticeBoard::News news;
    boards[0].read(news);
    if (killed) boards[0].read_from(2, news);
    EXPECT_TRUE(news.malformed.empty());
    for (const auto& [writer, notice] : news.notices) {
      std::uint64_t number = 0;
      ASSERT_EQ(notice.payload.size(), sizeof number);
      std::memcpy(&number, notice.payload.data(), sizeof number);
      ASSERT_EQ(number, expected[writer]++);
    }
  };
  while (expected[1] < kNotices || expected[2] < kNotices) {
    receive();
    if (HasFailure()) break;
    std::this_thread::yield();
  }
  ::kill(children[1], SIGKILL);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  killed = true;
  receive();
  EXPECT_FALSE(boards[0].has_news());
  EXPECT_TRUE(boards.write(0, {1, 2}, "alone")) << "dead readers are not in the way yet";
}

}  // namespace
}  // namespace shoal
