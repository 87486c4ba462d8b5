// Which piece goes when, and what happens when one fails or its owner leaves: on a backend whose operations end by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <random>
#include <set>
#include <stdexcept>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "torch_plugin/ddp/averages.h"
#include "torch_plugin/ddp/lane_queue.h"

namespace shoal::ddp {
namespace {

using Piece = LaneQueue::Piece;
using Numbers = std::vector<std::size_t>;

TEST(LaneQueue, KeepsTheOrderAndTheWindowOfALane) {
  LaneQueue queue(1, 2);
  for (const std::size_t id : {7U, 5U, 6U}) queue.add({0, id});
  EXPECT_EQ(queue.next(), (Piece{0, 7}));
  EXPECT_EQ(queue.next(), (Piece{0, 5}));
  EXPECT_EQ(queue.next(), std::nullopt);
  queue.ended(0);
  EXPECT_EQ(queue.next(), (Piece{0, 6}));
  queue.ended(0);
  queue.ended(0);
  EXPECT_EQ(queue.next(), std::nullopt);
}

TEST(LaneQueue, UrgentPiecesOvertakeWhatWaits) {
  LaneQueue queue(2, 1);
  queue.add({1, 0});
  queue.add({1, 1});
  EXPECT_EQ(queue.next(), (Piece{1, 0}));
  queue.add({0, 2});
  queue.add({0, 3});
  EXPECT_EQ(queue.next(), (Piece{0, 2})) << "although the other lane is full";
  queue.ended(1);
  EXPECT_EQ(queue.next(), std::nullopt) << "an urgent one waits";
  queue.ended(0);
  EXPECT_EQ(queue.next(), (Piece{0, 3}));
  queue.ended(0);
  EXPECT_EQ(queue.next(), (Piece{1, 1}));
}

TEST(LaneQueue, RanksNeverWaitForEachOtherInACircle) {
  constexpr std::size_t kRanks = 3;
  constexpr std::size_t kLanes = 3;
  constexpr std::size_t kPieces = 30;
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<LaneQueue> queues(kRanks, LaneQueue(kLanes, 2));
    std::array<std::size_t, kRanks> added{};
    std::array<std::set<std::size_t>, kRanks> started;
    std::set<std::size_t> ended;
    const auto lane_of = [](std::size_t id) { return id % 7 % kLanes; };
    while (ended.size() < kPieces) {
      bool moved = false;
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        for (auto count = random() % 5; count > 0 && added[rank] < kPieces; --count, ++added[rank]) {
          queues[rank].add({lane_of(added[rank]), added[rank]});
        }
        while (const auto piece = queues[rank].next()) started[rank].insert(piece->id);
        moved |= added[rank] < kPieces;
      }
      for (std::size_t id = 0; id < kPieces; ++id) {
        // A piece ends once it has started on all ranks.
        if (ended.contains(id) || !std::ranges::all_of(started, [&](const auto& ids) { return ids.contains(id); })) continue;
        ended.insert(id);
        for (LaneQueue& queue : queues) queue.ended(lane_of(id));
        moved = true;
      }
      ASSERT_TRUE(moved) << "after " << ended.size() << " pieces";
    }
  }
}

class HandWork final : public c10d::Work {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  const c10::intrusive_ptr<c10::ivalue::Future> future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
};

/// Every all_reduce waits for end() or fail(), in the order of the calls.
class ByHand final : public c10d::Backend {
 public:
  ByHand() : c10d::Backend(0, 2) {}
  const std::string getBackendName() const override { return "by-hand"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    if (refuses) throw std::runtime_error("refused");
    sizes.push_back(static_cast<std::size_t>(tensors[0].numel()));
    auto work = c10::make_intrusive<HandWork>();
    if (at_once) work->future->markCompleted(std::vector<at::Tensor>());
    works_.push_back(work);
    return work;
  }
  void end() { works_.at(next_++)->future->markCompleted(std::vector<at::Tensor>()); }
  void fail() { works_.at(next_++)->future->setError(std::make_exception_ptr(std::runtime_error("a peer left"))); }

  Numbers sizes;  // elements of each call so far
  bool at_once = false;
  bool refuses = false;

 private:
  std::vector<c10::intrusive_ptr<HandWork>> works_;
  std::size_t next_ = 0;
};

constexpr std::size_t kPieceBytes = 10 * sizeof(float);

class AveragesOfTwoLanes : public ::testing::Test {
 protected:
  AveragesOfTwoLanes() {
    std::vector<Averages::Group> lanes;
    for (const auto& backend : {urgent_, bulk_}) {
      const auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 2);
      group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
      group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
      group->setGroupName("lane");
      lanes.push_back(group);
    }
    averages_ = std::make_unique<Averages>(lanes, 2, kPieceBytes);
  }
  static at::Tensor bucket(std::int64_t elements) { return at::zeros({elements}); }

  const c10::intrusive_ptr<ByHand> urgent_ = c10::make_intrusive<ByHand>();
  const c10::intrusive_ptr<ByHand> bulk_ = c10::make_intrusive<ByHand>();
  std::unique_ptr<Averages> averages_;
};

TEST_F(AveragesOfTwoLanes, TheEndOfAPieceStartsTheNext) {
  EXPECT_EQ(averages_->add(bucket(35), 1), 0U);
  EXPECT_EQ(bulk_->sizes, (Numbers{10, 10}));
  EXPECT_EQ(averages_->add(bucket(11), 0), 1U);
  EXPECT_EQ(urgent_->sizes, (Numbers{10, 1}));
  bulk_->end();
  bulk_->end();
  urgent_->end();
  urgent_->end();
  EXPECT_EQ(averages_->take_finished(), (Numbers{1}));
  EXPECT_EQ(bulk_->sizes, (Numbers{10, 10, 10, 5}));
  bulk_->end();
  bulk_->end();
  EXPECT_EQ(averages_->take_finished(), (Numbers{0}));
  averages_->restart();
  EXPECT_EQ(averages_->add(bucket(1), 0), 0U);
}

TEST_F(AveragesOfTwoLanes, PiecesMayEndAtOnce) {
  bulk_->at_once = true;
  averages_->add(bucket(95), 1);
  averages_->add(bucket(5), 1);
  EXPECT_EQ(bulk_->sizes.size(), 11U);
  EXPECT_EQ(averages_->take_finished(), (Numbers{0, 1}));
}

TEST_F(AveragesOfTwoLanes, AFailureWakesWhoWaitsAndStays) {
  averages_->add(bucket(100), 1);
  auto waiter = std::async(std::launch::async, [&] { return averages_->take_finished(); });
  bulk_->fail();
  EXPECT_THROW(waiter.get(), std::runtime_error);
  bulk_->end();
  EXPECT_EQ(bulk_->sizes.size(), 2U) << "nothing starts any more";
  EXPECT_THROW(averages_->take_finished(), std::runtime_error);
  averages_->restart();
  EXPECT_THROW(averages_->add(bucket(1), 0), std::runtime_error);
}

TEST_F(AveragesOfTwoLanes, ACallThatIsRefusedIsAFailure) {
  urgent_->refuses = true;
  averages_->add(bucket(1), 0);
  EXPECT_THROW(averages_->take_finished(), std::runtime_error);
}

TEST_F(AveragesOfTwoLanes, NothingStartsAfterTheEnd) {
  averages_->add(bucket(100), 1);
  averages_.reset();
  bulk_->end();
  bulk_->fail();
  EXPECT_EQ(bulk_->sizes.size(), 2U);
}

}  // namespace
}  // namespace shoal::ddp
