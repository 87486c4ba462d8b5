// Averages: the order of pieces, failures, and destruction with pieces in flight, on a backend whose operations the test ends.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "torch_plugin/ddp/averages.h"
#include "torch_plugin/ddp/piece_queue.h"

namespace shoal::ddp {
namespace {

using Numbers = std::vector<std::size_t>;
using Parts = std::vector<Averages::Part>;

Numbers take_all(PieceQueue& queue) {
  Numbers taken;
  while (const auto piece = queue.next()) taken.push_back(*piece);
  return taken;
}

TEST(PieceQueue, PiecesKeepOrderAndWindow) {
  PieceQueue queue(2);
  queue.add({7, 5});
  queue.add({6});
  EXPECT_EQ(take_all(queue), (Numbers{7, 5}));
  queue.ended();
  EXPECT_EQ(take_all(queue), (Numbers{6}));
  queue.ended();
  queue.ended();
  EXPECT_EQ(take_all(queue), Numbers());
}

TEST(PieceQueue, DeferredPiecesComeLastInReverse) {
  PieceQueue queue(10);
  queue.add({0, 1});
  queue.hold({2, 3});
  queue.add({4});
  queue.hold({});
  queue.add({5});
  queue.hold({6});
  EXPECT_EQ(take_all(queue), (Numbers{0, 1, 4, 5}));
  queue.add({7});
  queue.release();
  queue.add({8});
  EXPECT_EQ(take_all(queue), (Numbers{7, 6, 2, 3, 8}));
}

class ManualWork final : public c10d::Work {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  const c10::intrusive_ptr<c10::ivalue::Future> future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
};

/// Every all_reduce ends by end() or fail(), in the order of the calls. Votes for the backward fraction, of type double, end at
/// once unless `holds_votes`.
class ManualBackend final : public c10d::Backend {
 public:
  ManualBackend() : c10d::Backend(0, 2) {}
  const std::string getBackendName() const override { return "manual"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    if (refuses) throw std::runtime_error("refused");
    if (tensors[0].scalar_type() == at::kDouble) {
      votes.push_back(tensors[0]);
      vote_ = c10::make_intrusive<ManualWork>();
      if (!holds_votes) end_vote();
      return vote_;
    }
    sizes.push_back(static_cast<std::size_t>(tensors[0].numel()));
    auto work = c10::make_intrusive<ManualWork>();
    if (at_once) work->future->markCompleted(std::vector<at::Tensor>());
    works_.push_back(work);
    return work;
  }
  void end_vote() { vote_->future->markCompleted(std::vector<at::Tensor>()); }
  void end() { works_.at(next_++)->future->markCompleted(std::vector<at::Tensor>()); }
  void fail() { works_.at(next_++)->future->setError(std::make_exception_ptr(std::runtime_error("a peer left"))); }

  Numbers sizes;  // elements of each call so far
  std::vector<at::Tensor> votes;
  bool holds_votes = false;
  bool at_once = false;
  bool refuses = false;

 private:
  std::vector<c10::intrusive_ptr<ManualWork>> works_;
  c10::intrusive_ptr<ManualWork> vote_;
  std::size_t next_ = 0;
};

constexpr std::size_t kPieceBytes = 10 * sizeof(float);
constexpr double kScale = 0.25;

class ManualAverages : public ::testing::Test {
 protected:
  ManualAverages() {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 2);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend_);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    group->setGroupName("manual");
    group_ = group;
    averages_ = std::make_unique<Averages>(group_, kScale, 2, kPieceBytes, kPieceBytes);
  }
  static at::Tensor bucket(std::int64_t elements) { return at::zeros({elements}); }
  void end(int pieces) {
    for (; pieces > 0; --pieces) backend_->end();
  }

  const c10::intrusive_ptr<ManualBackend> backend_ = c10::make_intrusive<ManualBackend>();
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::unique_ptr<Averages> averages_;
};

TEST_F(ManualAverages, EndOfPieceStartsNextPiece) {
  EXPECT_EQ(averages_->add(bucket(42)), 0U);  // 10, 10, 10 | 10, 2
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10}));
  end(1);
  EXPECT_EQ(averages_->add(bucket(11)), 1U);  // 10 | 1
  EXPECT_EQ(averages_->add(bucket(5)), 2U);
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10, 10}));
  end(3);
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10, 10, 10, 5})) << "the second halves are deferred";
  end(1);
  EXPECT_EQ(averages_->take_finished(true), (Parts{{0, 0, 10}, {0, 10, 10}, {0, 20, 10}, {1, 0, 10}, {2, 0, 5}}));
  EXPECT_EQ(averages_->take_finished(false), Parts());
  averages_->release();
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10, 10, 10, 5, 1, 10})) << "pieces of the last bucket come first";
  end(1);
  EXPECT_EQ(averages_->take_finished(false), (Parts{{1, 10, 1}}));
  end(2);
  EXPECT_EQ(averages_->take_finished(true), (Parts{{0, 30, 10}, {0, 40, 2}}));
  averages_->restart();
  EXPECT_EQ(averages_->add(bucket(1)), 0U);
}

TEST_F(ManualAverages, FractionOfRank0AppliesFromNextStep) {
  backend_->holds_votes = true;
  averages_->add(bucket(80));
  ASSERT_EQ(backend_->votes.size(), 1U);
  EXPECT_EQ(backend_->votes[0].item<double>(), kFirstShare) << "before any measurement";
  backend_->votes[0].fill_(0.2);  // the result of the vote
  backend_->end_vote();
  EXPECT_EQ(averages_->backward_fraction(), kFirstShare)
      << "it applies from the next step, because ranks get it at different times";
  averages_->add(bucket(80));
  averages_->release();
  end(16);
  EXPECT_EQ(averages_->take_finished(true).size(), 16U);
  averages_->restart();
  EXPECT_EQ(averages_->backward_fraction(), 0.2);
  averages_->add(bucket(80));
  backend_->end_vote();
  end(2);
  EXPECT_EQ(backend_->sizes.size(), 18U) << "two of eight pieces start during backward";
  EXPECT_EQ(backend_->votes.size(), 2U) << "one vote in each step";
  averages_->release();
  EXPECT_EQ(backend_->sizes.size(), 20U);
}

TEST_F(ManualAverages, RestartWaitsForFractionVote) {
  backend_->holds_votes = true;
  averages_->add(bucket(5));
  averages_->release();
  end(1);
  averages_->take_finished(true);
  auto restart = std::async(std::launch::async, [&] { averages_->restart(); });
  EXPECT_EQ(restart.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  backend_->votes[0].fill_(0.5);
  backend_->end_vote();
  restart.get();
  EXPECT_EQ(averages_->backward_fraction(), 0.5);
}

TEST(FirstShare, GrowsWithIdleWireAndShrinksWithBacklog) {
  // 60 of 100 bytes took 3 s, so 0.1 s are worth 2 bytes. The fraction changes by half of that, and by at most a sixteenth.
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 60, 0, 3, 0.1, 0.2}), 0.61);
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 60, 0, 3, 1, 0.2}), 0.6 + 1.0 / 16);
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 56, 4, 3, 0, 0.2}), 0.58);
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 10, 50, 3, 0, 0.2}), 0.6 - 1.0 / 16);
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 10, 50, 3, 0, 0.05}), 0.6) << "the wire is the limit";
  EXPECT_DOUBLE_EQ(better_share(1, {100, 90, 0, 3, 3, 0.2}), 1);
  EXPECT_DOUBLE_EQ(better_share(0.125, {100, 10, 2, 3, 0, 0.2}), 0.125);
  EXPECT_DOUBLE_EQ(better_share(0.6, {0, 0, 0, 0, 1, 1}), 0.6) << "nothing was sent";
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 0, 0, 0, 1, 1}), 0.6) << "the rate of the wire is unknown";
}

TEST(FirstShare, WireIsBusyWhileAnyPieceIsInFlight) {
  const auto at = [](int s) { return WireWatch::Time{} + std::chrono::seconds(100 + s); };
  WireWatch watch;
  watch.begin(at(0));
  watch.add(10, 10);
  watch.add(10, 0);
  watch.add(20, 20);
  watch.started(at(1));
  watch.started(at(2));
  watch.ended(at(3), 10);
  watch.ended(at(4), 5);
  watch.started(at(6));
  watch.end_backward(at(8));
  watch.ended(at(11), 20);
  const StepOnWire seen = watch.begin(at(16));
  EXPECT_EQ(seen.bytes, 40);
  EXPECT_EQ(seen.ended_bytes, 15);
  EXPECT_EQ(seen.left_bytes, 15);
  EXPECT_DOUBLE_EQ(seen.busy_s, 5);
  EXPECT_DOUBLE_EQ(seen.idle_s, 3);
  EXPECT_DOUBLE_EQ(seen.spare_share, 0.5);
  EXPECT_EQ(watch.begin(at(20)).bytes, 0) << "a new step begins with 0";
}

TEST_F(ManualAverages, LargeBucketsUseLongerPieces) {
  averages_ = std::make_unique<Averages>(group_, kScale, 2, kPieceBytes, 5 * kPieceBytes / 2);
  averages_->add(bucket(40));  // quarters, at most a piece long
  end(2);
  averages_->add(bucket(80));  // quarters
  end(3);
  averages_->add(bucket(4000));  // at most the longest piece
  end(2);
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10, 10, 20, 20, 20, 25, 25, 25})) << "the last piece of each bucket is deferred";
}

TEST_F(ManualAverages, EveryElementIsScaledOnce) {
  at::Tensor values = at::arange(95, at::kFloat);
  averages_->add(values);
  averages_->release();
  EXPECT_TRUE(values.equal(at::arange(95, at::kFloat) * kScale));
}

TEST_F(ManualAverages, PiecesMayEndInsideOfTheCall) {
  backend_->at_once = true;
  averages_->add(bucket(95));
  averages_->add(bucket(5));
  averages_->release();
  EXPECT_EQ(backend_->sizes.size(), 11U);
  EXPECT_EQ(averages_->take_finished(true).size(), 11U);
}

TEST_F(ManualAverages, FailureWakesWaiterAndPersists) {
  averages_->add(bucket(100));
  auto waiter = std::async(std::launch::async, [&] { return averages_->take_finished(true); });
  backend_->fail();
  EXPECT_THROW(waiter.get(), std::runtime_error);
  backend_->end();
  EXPECT_EQ(backend_->sizes.size(), 2U) << "no piece starts after a failure";
  EXPECT_THROW(averages_->take_finished(true), std::runtime_error);
  averages_->restart();
  EXPECT_THROW(averages_->add(bucket(1)), std::runtime_error);
}

TEST_F(ManualAverages, RefusedCallIsFailure) {
  backend_->refuses = true;
  averages_->add(bucket(1));
  EXPECT_THROW(averages_->take_finished(true), std::runtime_error);
}

TEST_F(ManualAverages, NoPieceStartsAfterDestruction) {
  averages_->add(bucket(100));
  averages_.reset();
  backend_->end();
  backend_->fail();
  EXPECT_EQ(backend_->sizes.size(), 2U);
}

}  // namespace
}  // namespace shoal::ddp
