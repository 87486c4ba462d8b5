// The ranks of a group meet in a tree: groups of several levels, and errors that all of their ranks report.
#include "transports/shm/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/mentions.h"
#include "transports/shm/message.h"
#include "transports/shm/process_identity.h"
#include "transports/shm/rendezvous_tree.h"

namespace shoal::shm {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kRanks = 40;  // three levels: 1, 16, 23
constexpr int kMiddle = 1;          // has 16 children, the last ones 31 and 32
constexpr int kLeaf = 39;           // below 2
constexpr milliseconds kLong{60'000};

/// What the job's store would tell: the first error of a rank, to those whose parent failed before they connected to it.
class Cause {
 public:
  bool is_told = true;  ///< false: an error must arrive by the connections

  [[nodiscard]] Status get() {
    ++looks_;
    const std::lock_guard lock(mutex_);
    return is_told ? status_ : Status();
  }
  void set(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  /// Returns when ranks have asked so often. Each that waits asks within 0.25 s.
  void await_looks(int wanted) const {
    while (looks_ < wanted) std::this_thread::sleep_for(milliseconds(10));
  }

 private:
  std::atomic<int> looks_ = 0;
  std::mutex mutex_;
  Status status_;
};

/// Ranks of one group, as threads of this process.
class MeetingOfThreads {
 public:
  MeetingOfThreads() : settings(kRanks, {5, {4096, 2}, 4096}), deadlines(kRanks, kLong), processes(kRanks, own_identity()) {
    for (std::size_t i = 0; i < kRanks; ++i) {
      ranks_.push_back(static_cast<int>(i));
      auto listener = Listener::create(ranks_[i], 5);
      EXPECT_TRUE(listener.ok()) << listener.status().to_string();
      listeners_.push_back(std::move(listener).value());
      addresses.push_back(listeners_[i].address());
    }
  }

  /// What each rank's meet() returns; `absent` do not call it.
  std::vector<Result<Group>> run(const std::set<int>& absent = {}) {
    std::vector<Result<Group>> results;
    for (std::size_t i = 0; i < kRanks; ++i) results.emplace_back(Status(StatusCode::internal, "not run"));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kRanks; ++i) {
      if (absent.contains(ranks_[i])) continue;
      threads.emplace_back([&, i] {
        if (i == kLeaf) cause.await_looks(waits_for_looks);
        const RankCard card{{}, processes[i], {}, {}};
        const ConnectDeadline deadline(std::chrono::steady_clock::now() + deadlines[i], [this] { return cause.get(); });
        results[i] = meet(listeners_[i], addresses, settings[i], ranks_, i, card, deadline);
        if (!results[i].ok()) cause.set(results[i].status());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  std::vector<GroupSettings> settings;
  std::vector<milliseconds> deadlines;
  std::vector<std::string> addresses;
  std::vector<ProcessIdentity> processes;
  Cause cause;
  int waits_for_looks = 0;  ///< the last rank begins after so many

 private:
  std::vector<int> ranks_;
  std::vector<Listener> listeners_;
};

/// Checks that all ranks but `absent` report the same error within 10 s.
void expect_all_report(MeetingOfThreads& meeting, const std::set<int>& absent, StatusCode code,
                       const std::vector<std::string>& facts) {
  const auto start = std::chrono::steady_clock::now();
  const auto results = meeting.run(absent);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (std::size_t i = 0; i < kRanks; ++i) {
    if (absent.contains(static_cast<int>(i))) continue;
    ASSERT_FALSE(results[i].ok()) << "rank " << i;
    EXPECT_EQ(results[i].status().code(), code) << "rank " << i << ": " << results[i].status().message();
    EXPECT_THAT(results[i].status().message(), testing::MentionsAll(facts)) << "rank " << i;
  }
}

TEST(ShmRendezvous, AllRanksShareOneSegment) {
  MeetingOfThreads meeting;
  const auto results = meeting.run();
  for (const auto& result : results) ASSERT_TRUE(result.ok()) << result.status().to_string();
  results[kLeaf]->segment.header().closures.store(7);
  for (const auto& result : results) {
    EXPECT_EQ(result->segment.header().closures.load(), 7U);
    for (std::size_t i = 0; i < kRanks; ++i) EXPECT_EQ(result->segment.block(i).card.process.pid, own_identity().pid);
  }
}

TEST(ShmRendezvous, RanksOfSeveralNamespacesGetPidfds) {
  if (!open_own_process().valid()) GTEST_SKIP() << "this kernel has no pidfds";
  MeetingOfThreads meeting;
  // The last rank seems to be in another process namespace.
  ProcessIdentity& last = meeting.processes[kLeaf];
  last.space = ~last.space;
  meeting.addresses[kLeaf].replace(40, sizeof last.space, reinterpret_cast<const char*>(&last.space), sizeof last.space);
  const auto results = meeting.run();
  for (const auto& result : results) ASSERT_TRUE(result.ok()) << result.status().to_string();
  for (std::size_t i = 0; i < kLeaf; ++i) {
    EXPECT_TRUE(results[i]->lives[kLeaf].valid()) << "rank " << i;
    EXPECT_TRUE(results[kLeaf]->lives[i].valid()) << "of rank " << i;
    EXPECT_FALSE(results[i]->lives[(i + 1) % kLeaf].valid()) << "rank " << i << " opens it itself";
  }
}

TEST(ShmRendezvous, AllRanksNameMissingLeaf) {
  MeetingOfThreads meeting;
  meeting.deadlines[5] = milliseconds(300);  // the only rank that does not wait for a minute
  expect_all_report(meeting, {kLeaf}, StatusCode::timeout, {"rank 39", "rank 2"});
}

TEST(ShmRendezvous, AllRanksNameMissingRankWithChildren) {
  MeetingOfThreads meeting;
  for (milliseconds& each : meeting.deadlines) each = milliseconds(300);
  expect_all_report(meeting, {kMiddle}, StatusCode::timeout, {"rank 1"});
}

TEST(ShmRendezvous, AllRanksNameRankWithOtherSettings) {
  MeetingOfThreads meeting;
  meeting.settings[kLeaf].ring.tile_bytes = 8192;
  expect_all_report(meeting, {}, StatusCode::mismatch, {"rank 39", "tile_bytes", "8192", "rank 2", "4096"});
}

TEST(ShmRendezvous, RefusalReachesAllRanksByConnections) {
  MeetingOfThreads meeting;
  meeting.settings[kLeaf].ring.tile_bytes = 8192;
  meeting.cause.is_told = false;
  meeting.waits_for_looks = 4 * static_cast<int>(kRanks);  // all others have connected, and wait
  expect_all_report(meeting, {}, StatusCode::mismatch, {"rank 39", "tile_bytes", "8192", "rank 2", "4096"});
}

TEST(ShmRendezvous, AllRanksNameRankThatEnded) {
  MeetingOfThreads meeting;
  const auto leaf = parse_address(meeting.addresses[2], 2, 5);
  ASSERT_TRUE(leaf.ok());
  // Rank 39 says hello, and ends.
  std::thread ended([&] {
    const auto socket = dial(*leaf, 2, std::chrono::steady_clock::now() + kLong);
    ASSERT_TRUE(socket.ok()) << socket.status().to_string();
    Message hello = make_message(MessageKind::hello);
    hello.secret = leaf->secret;
    hello.rank = kLeaf;
    hello.process = own_identity();
    hello.job_id = 5;
    hello.tile_bytes = 4096;
    hello.slots = 2;
    hello.window_bytes = 4096;
    std::vector<int> ranks;
    for (int i = 0; i < static_cast<int>(kRanks); ++i) ranks.push_back(i);
    hello.ranks_hash = hash_ranks(ranks);
    EXPECT_TRUE(send_message(socket->get(), hello));
  });
  expect_all_report(meeting, {kLeaf}, StatusCode::peer_failed, {"rank 39", "closed"});
  ended.join();
}

TEST(ShmRendezvous, SilentRankIsNamedByItsNeighbours) {
  MeetingOfThreads meeting;
  for (milliseconds& each : meeting.deadlines) each = milliseconds(300);
  const auto parent = parse_address(meeting.addresses[0], 0, 5);
  ASSERT_TRUE(parent.ok());
  const auto silent = dial(*parent, 0, std::chrono::steady_clock::now() + kLong);  // rank 1, stopped before its hello
  ASSERT_TRUE(silent.ok());
  expect_all_report(meeting, {kMiddle}, StatusCode::timeout, {"rank 1"});
}

TEST(RendezvousTree, EveryRankIsChildOfItsParent) {
  for (const std::size_t fan_out : {1U, 2U, 16U, 5000U}) {
    for (const std::size_t ranks : {1U, 2U, 17U, 18U, 273U, 274U, 4096U}) {
      const RendezvousTree tree{ranks, fan_out};
      std::size_t children = 0;
      for (std::size_t i = 0; i < ranks; ++i) {
        EXPECT_LE(tree.children(i).size(), fan_out);
        children += tree.children(i).size();
        ASSERT_TRUE(i == 0 || tree.children(tree.parent(i)).contains(i)) << i << " of " << ranks << " by " << fan_out;
      }
      EXPECT_EQ(children, ranks - 1);
    }
  }
}

TEST(RendezvousTree, HeightAndDepthCountLevels) {
  const RendezvousTree tree{4096, 16};
  EXPECT_EQ(tree.height(0), 3U);
  EXPECT_EQ(tree.height(1), 2U);
  EXPECT_EQ(tree.height(4095), 0U);
  EXPECT_EQ(tree.depth(0), 0U);
  EXPECT_EQ(tree.depth(16), 1U);
  EXPECT_EQ(tree.depth(17), 2U);
  EXPECT_EQ(RendezvousTree{}.height(0), 0U);
}

}  // namespace
}  // namespace shoal::shm
