// What a pass and a sleep of the engine cost: they look at the links that the calls in flight use, however large the job is.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "src/algorithms/algorithm.h"
#include "src/plan/plan.h"
#include "src/progress/driver_lock.h"
#include "src/runtime/executor.h"

namespace shoal {
namespace {

struct Counts {
  int looks = 0;  // calls of the links' functions
  int sends = 0;  // tiles taken
};

/// Takes all tiles, never receives any.
class CountedLink final : public Link {
 public:
  CountedLink(int peer, Counts& counts) : peer_(peer), counts_(counts) {}

  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return 1 << 16; }
  bool try_send(const TileHeader&, std::span<const std::byte>) override {
    ++counts_.looks, ++counts_.sends, ++sent_;
    return true;
  }
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return ++counts_.looks, sent_; }
  [[nodiscard]] const Arrival* peek() noexcept override { return ++counts_.looks, nullptr; }
  void release() noexcept override {}
  [[nodiscard]] const Status& status() const noexcept override { return ++counts_.looks, status_; }

 private:
  int peer_;
  Counts& counts_;
  std::uint64_t sent_ = 0;
  Status status_;
};

/// Reports on which links tiles have arrived: on none.
class QuietTransport final : public Transport {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "quiet"; }
  [[nodiscard]] std::string address() const override { return "quiet"; }
  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int>, std::span<const std::string>,
                                                     ConnectDeadline) override {
    return Status(StatusCode::unsupported, "quiet");
  }
  bool progress() override { return false; }
  bool take_active(std::vector<Link*>&) override { return true; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  bool prepare_wait() override { return true; }
  void finish_wait(bool) override {}
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return 0; }
};

std::vector<std::unique_ptr<Link>> links_of(int ranks, Counts& counts) {
  std::vector<std::unique_ptr<Link>> links;
  for (int peer = 1; peer < ranks; ++peer) links.push_back(std::make_unique<CountedLink>(peer, counts));
  return links;
}

/// Rank 0 of a job of `ranks`, in a call of its first `members` ranks; no other rank makes the call.
class LonelyRank {
 public:
  LonelyRank(int ranks, int members) {
    ProgressEngineParts parts;
    parts.topology = Topology::uniform(1, ranks);
    parts.device = &host_device();
    parts.transports.push_back(std::make_unique<QuietTransport>());
    parts.links = links_of(ranks, counts_);
    parts.transport_of_link.assign(parts.links.size(), 0);
    engine_ = std::make_shared<ProgressEngine>(std::move(parts));
    const Group whole = Group::whole(0, engine_->parts().topology);
    executors_.push_back(std::move(Executor::create(engine_, whole)).value());
    std::vector<int> ranks_of_group(static_cast<std::size_t>(members));
    std::iota(ranks_of_group.begin(), ranks_of_group.end(), 0);
    executors_.push_back(std::move(Executor::create(engine_, whole.subset(ranks_of_group, 1))).value());
    lock_ = DriverLock(*engine_);
    start(*executors_.back());
  }
  ~LonelyRank() {
    executors_.back()->close({StatusCode::aborted, "the test has ended"});
    engine_->progress();
    operation_->drop_reference();
    lock_.unlock();
    for (const auto& executor : executors_) executor->shut_down();
  }
  LonelyRank(const LonelyRank&) = delete;
  LonelyRank& operator=(const LonelyRank&) = delete;

  /// Calls of the links' functions in a pass that finds nothing.
  int looks_of_a_pass() {
    return looks([&] { EXPECT_FALSE(engine_->progress()); });
  }
  /// The same for what a driver does before and after a sleep.
  int looks_of_a_sleep() {
    return looks([&] {
      EXPECT_FALSE(engine_->check());
      EXPECT_TRUE(engine_->prepare_wait());
      engine_->finish_wait({});
    });
  }

 private:
  void start(Executor& executor) {
    const Collective collective{CollectiveKind::all_reduce, data_.size(), DataType::float32, ReduceOp::sum, 0};
    const Algorithm* doubling = *find_algorithm("recursive_doubling");
    const auto program = build_program(*doubling, executor.topology(), collective, 0);
    const PlanKey key{.collective = collective, .in_place = true, .algorithm = doubling->name.data()};
    auto plan = std::move(make_plan(executor.plan_context(), key, *program)).value();
    Plan* const raw = plan.get();
    operation_ = executor.acquire(raw, std::move(plan), std::chrono::steady_clock::now() + std::chrono::hours(1), data_.data(),
                                  data_.data());
    executor.post(operation_);  // nobody is woken: this thread has the driver lock
    // The first round's tile, and the signature on each partner's link.
    const int partners = std::countr_zero(static_cast<unsigned>(executor.topology().ranks()));
    while (counts_.sends < partners + 1) engine_->progress(), engine_->check();
  }
  template <typename Action>
  int looks(Action action) {
    counts_.looks = 0;
    action();
    return counts_.looks;
  }

  Counts counts_;
  std::vector<float> data_ = std::vector<float>(64);
  std::shared_ptr<ProgressEngine> engine_;
  std::vector<std::shared_ptr<Executor>> executors_;
  DriverLock lock_;
  internal::Operation* operation_ = nullptr;
};

TEST(LinksInUse, GroupCostsTheSameInLargerJob) {
  LonelyRank small(8, 8);
  LonelyRank large(64, 8);
  EXPECT_GE(small.looks_of_a_pass(), 3) << "each partner's link";
  EXPECT_EQ(large.looks_of_a_pass(), small.looks_of_a_pass());
  EXPECT_EQ(large.looks_of_a_sleep(), small.looks_of_a_sleep());
}

TEST(LinksInUse, CallCostsByItsPartners) {
  LonelyRank three_partners(8, 8);
  LonelyRank six_partners(64, 64);
  EXPECT_EQ(six_partners.looks_of_a_pass(), 2 * three_partners.looks_of_a_pass());
  EXPECT_EQ(six_partners.looks_of_a_sleep(), 2 * three_partners.looks_of_a_sleep());
}

TEST(LinksInUse, ControlPollVisitsNoSilentPeer) {
  Counts counts;
  ControlPlane control(std::make_unique<QuietTransport>(), links_of(64, counts));
  std::vector<ControlPlane::Message> messages;
  EXPECT_FALSE(control.poll(messages));
  EXPECT_EQ(counts.looks, 0);
}

}  // namespace
}  // namespace shoal
