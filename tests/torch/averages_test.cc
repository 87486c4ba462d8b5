// Which piece goes when, and what happens when one fails or its owner leaves: on a backend whose operations end by hand.
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

TEST(PieceQueue, KeepsTheOrderAndTheWindow) {
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

TEST(PieceQueue, WhatIsHeldComesLastInReverse) {
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

class HandWork final : public c10d::Work {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  const c10::intrusive_ptr<c10::ivalue::Future> future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
};

/// Every all_reduce waits for end() or fail(), in the order of the calls. The words about the share, doubles, end at once
/// unless held.
class ByHand final : public c10d::Backend {
 public:
  ByHand() : c10d::Backend(0, 2) {}
  const std::string getBackendName() const override { return "by-hand"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    if (refuses) throw std::runtime_error("refused");
    if (tensors[0].scalar_type() == at::kDouble) {
      words.push_back(tensors[0]);
      word_ = c10::make_intrusive<HandWork>();
      if (!holds_words) end_word();
      return word_;
    }
    sizes.push_back(static_cast<std::size_t>(tensors[0].numel()));
    auto work = c10::make_intrusive<HandWork>();
    if (at_once) work->future->markCompleted(std::vector<at::Tensor>());
    works_.push_back(work);
    return work;
  }
  void end_word() { word_->future->markCompleted(std::vector<at::Tensor>()); }
  void end() { works_.at(next_++)->future->markCompleted(std::vector<at::Tensor>()); }
  void fail() { works_.at(next_++)->future->setError(std::make_exception_ptr(std::runtime_error("a peer left"))); }

  Numbers sizes;  // elements of each call so far
  std::vector<at::Tensor> words;
  bool holds_words = false;
  bool at_once = false;
  bool refuses = false;

 private:
  std::vector<c10::intrusive_ptr<HandWork>> works_;
  c10::intrusive_ptr<HandWork> word_;
  std::size_t next_ = 0;
};

constexpr std::size_t kPieceBytes = 10 * sizeof(float);
constexpr double kScale = 0.25;

class AveragesByHand : public ::testing::Test {
 protected:
  AveragesByHand() {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 2);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend_);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    group->setGroupName("by-hand");
    group_ = group;
    averages_ = std::make_unique<Averages>(group_, kScale, 2, kPieceBytes, kPieceBytes);
  }
  static at::Tensor bucket(std::int64_t elements) { return at::zeros({elements}); }
  void end(int pieces) {
    for (; pieces > 0; --pieces) backend_->end();
  }

  const c10::intrusive_ptr<ByHand> backend_ = c10::make_intrusive<ByHand>();
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::unique_ptr<Averages> averages_;
};

TEST_F(AveragesByHand, TheEndOfAPieceStartsTheNext) {
  EXPECT_EQ(averages_->add(bucket(42)), 0U);  // 10, 10, 10 | 10, 2
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10}));
  end(1);
  EXPECT_EQ(averages_->add(bucket(11)), 1U);  // 10 | 1
  EXPECT_EQ(averages_->add(bucket(5)), 2U);
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10, 10}));
  end(3);
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10, 10, 10, 5})) << "the second halves are held";
  end(1);
  EXPECT_EQ(averages_->take_finished(true), (Parts{{0, 0, 10}, {0, 10, 10}, {0, 20, 10}, {1, 0, 10}, {2, 0, 5}}));
  EXPECT_EQ(averages_->take_finished(false), Parts());
  averages_->release();
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10, 10, 10, 5, 1, 10})) << "of the last bucket first";
  end(1);
  EXPECT_EQ(averages_->take_finished(false), (Parts{{1, 10, 1}}));
  end(2);
  EXPECT_EQ(averages_->take_finished(true), (Parts{{0, 30, 10}, {0, 40, 2}}));
  averages_->restart();
  EXPECT_EQ(averages_->add(bucket(1)), 0U);
}

TEST_F(AveragesByHand, TheShareIsThatOfRankZeroFromTheNextStepOn) {
  backend_->holds_words = true;
  averages_->add(bucket(80));
  ASSERT_EQ(backend_->words.size(), 1U);
  EXPECT_EQ(backend_->words[0].item<double>(), kFirstShare) << "nothing has been seen yet";
  backend_->words[0].fill_(0.2);  // what the sum says, whatever was given
  backend_->end_word();
  EXPECT_EQ(averages_->backward_fraction(), kFirstShare) << "the ranks learn it at different times within the step";
  averages_->add(bucket(80));
  averages_->release();
  end(16);
  EXPECT_EQ(averages_->take_finished(true).size(), 16U);
  averages_->restart();
  EXPECT_EQ(averages_->backward_fraction(), 0.2);
  averages_->add(bucket(80));
  backend_->end_word();
  end(2);
  EXPECT_EQ(backend_->sizes.size(), 18U) << "two of eight pieces go beside backward";
  EXPECT_EQ(backend_->words.size(), 2U) << "a word a step";
  averages_->release();
  EXPECT_EQ(backend_->sizes.size(), 20U);
}

TEST_F(AveragesByHand, ARestartWaitsForTheWord) {
  backend_->holds_words = true;
  averages_->add(bucket(5));
  averages_->release();
  end(1);
  averages_->take_finished(true);
  auto restart = std::async(std::launch::async, [&] { averages_->restart(); });
  EXPECT_EQ(restart.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  backend_->words[0].fill_(0.5);
  backend_->end_word();
  restart.get();
  EXPECT_EQ(averages_->backward_fraction(), 0.5);
}

TEST(FirstShare, GrowsWhereTheWireWasIdleAndShrinksWithABacklog) {
  // 60 of 100 bytes in 3 s, so that 0.1 s are worth 2 bytes; half of what is missing, and no more than a sixteenth.
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 60, 0, 3, 0.1, 0.2}), 0.61);
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 60, 0, 3, 1, 0.2}), 0.6 + 1.0 / 16);
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 56, 4, 3, 0, 0.2}), 0.58);
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 10, 50, 3, 0, 0.2}), 0.6 - 1.0 / 16);
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 10, 50, 3, 0, 0.05}), 0.6) << "the wire is what limits";
  EXPECT_DOUBLE_EQ(better_share(1, {100, 90, 0, 3, 3, 0.2}), 1);
  EXPECT_DOUBLE_EQ(better_share(0.125, {100, 10, 2, 3, 0, 0.2}), 0.125);
  EXPECT_DOUBLE_EQ(better_share(0.6, {0, 0, 0, 0, 1, 1}), 0.6) << "nothing was sent";
  EXPECT_DOUBLE_EQ(better_share(0.6, {100, 0, 0, 0, 1, 1}), 0.6) << "nothing tells how fast the wire is";
}

TEST(FirstShare, TheWireIsBusyWhileAnythingIsUnderWay) {
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
  EXPECT_EQ(watch.begin(at(20)).bytes, 0) << "a step of its own";
}

TEST_F(AveragesByHand, LargeBucketsGoInLongerPieces) {
  averages_ = std::make_unique<Averages>(group_, kScale, 2, kPieceBytes, 5 * kPieceBytes / 2);
  averages_->add(bucket(40));  // quarters of no more than a piece
  end(2);
  averages_->add(bucket(80));  // quarters
  end(3);
  averages_->add(bucket(4000));  // of quarters no more than the longest
  end(2);
  EXPECT_EQ(backend_->sizes, (Numbers{10, 10, 10, 20, 20, 20, 25, 25, 25})) << "the last of each is held";
}

TEST_F(AveragesByHand, EveryElementIsScaledOnce) {
  at::Tensor values = at::arange(95, at::kFloat);
  averages_->add(values);
  averages_->release();
  EXPECT_TRUE(values.equal(at::arange(95, at::kFloat) * kScale));
}

TEST_F(AveragesByHand, PiecesMayEndAtOnce) {
  backend_->at_once = true;
  averages_->add(bucket(95));
  averages_->add(bucket(5));
  averages_->release();
  EXPECT_EQ(backend_->sizes.size(), 11U);
  EXPECT_EQ(averages_->take_finished(true).size(), 11U);
}

TEST_F(AveragesByHand, AFailureWakesWhoWaitsAndStays) {
  averages_->add(bucket(100));
  auto waiter = std::async(std::launch::async, [&] { return averages_->take_finished(true); });
  backend_->fail();
  EXPECT_THROW(waiter.get(), std::runtime_error);
  backend_->end();
  EXPECT_EQ(backend_->sizes.size(), 2U) << "nothing starts any more";
  EXPECT_THROW(averages_->take_finished(true), std::runtime_error);
  averages_->restart();
  EXPECT_THROW(averages_->add(bucket(1)), std::runtime_error);
}

TEST_F(AveragesByHand, ACallThatIsRefusedIsAFailure) {
  backend_->refuses = true;
  averages_->add(bucket(1));
  EXPECT_THROW(averages_->take_finished(true), std::runtime_error);
}

TEST_F(AveragesByHand, NothingStartsAfterTheEnd) {
  averages_->add(bucket(100));
  averages_.reset();
  backend_->end();
  backend_->fail();
  EXPECT_EQ(backend_->sizes.size(), 2U);
}

}  // namespace
}  // namespace shoal::ddp
