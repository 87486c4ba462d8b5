// Groups on the loopback transport: ranks make calls of overlapping groups in different orders, with seeded delays, refusals
// and small links. No seed may hang.
//
// SHOAL_TEST_SEED=n runs one seed; SHOAL_TEST_SEEDS=n, or first:n, others than the usual ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "src/algorithms/algorithm.h"
#include "src/machine/cores.h"
#include "src/progress/driver_lock.h"
#include "src/progress/progress_thread.h"
#include "src/runtime/executor.h"
#include "src/selector/selector.h"
#include "tests/eventually.h"
#include "tests/seeds.h"
#include "transports/loopback/loopback.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;
using internal::Operation;

/// Forwards to another transport. A test overrides some functions.
class Wrapped : public Transport {
 public:
  explicit Wrapped(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  [[nodiscard]] bool tiles_are_costly() const noexcept override { return inner_->tiles_are_costly(); }
  [[nodiscard]] std::string address() const override { return inner_->address(); }
  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                     ConnectDeadline time_limit) override {
    return inner_->connect(peers, addresses, std::move(time_limit));
  }
  bool progress() override { return inner_->progress(); }
  [[nodiscard]] int wait_fd() const noexcept override { return inner_->wait_fd(); }
  bool prepare_wait() override { return inner_->prepare_wait(); }
  void finish_wait(bool readable) override { inner_->finish_wait(readable); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept override { return inner_->memory_bytes(); }

 private:
  std::unique_ptr<Transport> inner_;
};

/// Reports activity once, when its driver is about to sleep. Counts the driver's attempts to sleep.
class ActiveOnce final : public Wrapped {
 public:
  ActiveOnce(std::unique_ptr<Transport> inner, std::atomic<int>& tries) : Wrapped(std::move(inner)), tries_(tries) {}

  bool prepare_wait() override {
    const bool clear = Wrapped::prepare_wait();
    if (tries_.fetch_add(1) != 0 || !clear) return clear;
    Wrapped::finish_wait(false);
    return false;
  }

 private:
  std::atomic<int>& tries_;
};

/// Calls a function in each progress().
class Observed final : public Wrapped {
 public:
  Observed(std::unique_ptr<Transport> inner, std::function<void()> observe)
      : Wrapped(std::move(inner)), observe_(std::move(observe)) {}

  bool progress() override {
    observe_();
    return Wrapped::progress();
  }

 private:
  std::function<void()> observe_;
};

/// Ranks as threads of this process, each with a ProgressEngine of its own over one hub.
class Job {
 public:
  Job(int ranks, const LoopbackOptions& wire, bool spills_tiles = true,
      std::size_t early_bytes = ProgressEngineParts().early_bytes)
      : ranks_(ranks), spills_tiles_(spills_tiles), early_bytes_(early_bytes) {
    LoopbackOptions quiet;
    quiet.tile_bytes = 4096;
    data_ = std::make_unique<LoopbackHub>(std::move(LoopbackHub::create(ranks, wire)).value());
    control_ = std::make_unique<LoopbackHub>(std::move(LoopbackHub::create(ranks, quiet)).value());
    for (int rank = 0; rank < ranks; ++rank) {
      data_ends_.push_back(std::move(data_->make_transport(rank)).value());
      control_ends_.push_back(std::move(control_->make_transport(rank)).value());
    }
  }

  /// The links of `rank` report activity in the first attempt to sleep. `tries` counts the attempts.
  void make_active_once(int rank, std::atomic<int>& tries) {
    auto& end = data_ends_[static_cast<std::size_t>(rank)];
    end = std::make_unique<ActiveOnce>(std::move(end), tries);
  }

  /// `look` is called in each progress() of the control plane of `rank`.
  void observe_control(int rank, std::function<void()> look) {
    auto& end = control_ends_[static_cast<std::size_t>(rank)];
    end = std::make_unique<Observed>(std::move(end), std::move(look));
  }

  /// Runs `body` on every rank with the executor of all ranks; joins.
  void run(const std::function<void(int rank, Executor& world)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        const auto world = join(rank);
        body(rank, *world);
        world->shut_down();
      });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  std::shared_ptr<Executor> join(int rank) {
    std::vector<int> peers;
    std::vector<std::string> addresses;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank) continue;
      peers.push_back(peer);
      addresses.push_back(fmt::format("loopback:{}", peer));
    }
    ProgressEngineParts parts;
    parts.rank = rank;
    parts.topology = Topology::uniform(1, ranks_);
    parts.device = &host_device();
    parts.spills_tiles = spills_tiles_;
    parts.early_bytes = early_bytes_;
    const auto at = static_cast<std::size_t>(rank);
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    auto links = data_ends_[at]->connect(peers, addresses, deadline);
    auto control = control_ends_[at]->connect(peers, addresses, deadline);
    EXPECT_TRUE(links.ok() && control.ok());
    parts.links = std::move(links).value();
    parts.transport_of_link.assign(parts.links.size(), 0);
    parts.transports.push_back(std::move(data_ends_[at]));
    parts.control = std::make_unique<ControlPlane>(std::move(control_ends_[at]), std::move(control).value());
    auto engine = std::make_shared<ProgressEngine>(std::move(parts));
    EXPECT_TRUE(ProgressThread::instance().add(engine, {{}, allowed_cores() >= 2 * ranks_, 0}).ok());
    return std::move(Executor::create(engine, Group::whole(engine->parts().rank, engine->parts().topology))).value();
  }

  int ranks_;
  bool spills_tiles_;
  std::size_t early_bytes_;
  std::unique_ptr<LoopbackHub> data_;
  std::unique_ptr<LoopbackHub> control_;
  std::vector<std::unique_ptr<Transport>> data_ends_;
  std::vector<std::unique_ptr<Transport>> control_ends_;
};

std::shared_ptr<Executor> make_group(Executor& parent, const std::vector<int>& ranks, std::uint32_t made_before) {
  auto made = Executor::create(parent.engine(), parent.group().subset(ranks, made_before));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(made).value();
}

/// One call of a group. The buffer is input and output.
struct Call {
  Operation* operation = nullptr;
  std::vector<std::int32_t> buffer;

  void post(Executor& executor, const Collective& collective, const char* algorithm, std::int32_t value,
            Clock::time_point deadline) {
    buffer.assign(collective.count, value);
    const PlanKey key{
        .collective = collective, .in_place = collective.kind == CollectiveKind::all_reduce, .algorithm = algorithm};
    const auto program = build_program(**find_algorithm(algorithm), executor.topology(), collective, executor.rank());
    auto plan = std::move(make_plan(executor.plan_context(), key, *program)).value();
    Plan* raw = plan.get();
    operation = executor.acquire(raw, std::move(plan), deadline, buffer.data(), buffer.data());
    executor.post(operation);
  }
  Status wait() {
    executor_of(*operation).wait(operation, Clock::time_point::max());
    Status outcome = operation->outcome();
    operation->drop_reference();
    return outcome;
  }
};

Collective sum_of(std::size_t count) { return {CollectiveKind::all_reduce, count, DataType::int32, ReduceOp::sum, 0}; }

// Rank 1 folds tiles of ranks 0 and 2, which send in opposite orders. So each link has a tile of the other call in front.
Status crossed_folds(bool spills_tiles) {
  LoopbackOptions wire;
  wire.tile_bytes = 4096;
  wire.capacity_tiles = 2;
  Job job(3, wire, spills_tiles);
  std::array<Status, 3> outcomes;
  job.run([&](int rank, Executor& world) {
    const auto first = make_group(world, {0, 1, 2}, 0);
    const auto second = make_group(world, {0, 1, 2}, 1);
    const auto deadline = Clock::now() + std::chrono::seconds(spills_tiles ? 30 : 1);
    Call calls[2];
    for (const int which : {rank == 2 ? 1 : 0, rank == 2 ? 0 : 1}) {
      calls[which].post(which == 0 ? *first : *second, sum_of(900), "direct", rank, deadline);
      // Sends as much as possible before the other call is made.
      const DriverLock lock(*world.engine());
      while (world.engine()->progress()) {
      }
    }
    for (Call& call : calls) {
      Status status = call.wait();
      auto& outcome = outcomes[static_cast<std::size_t>(rank)];
      if (outcome.ok()) outcome = status;
      if (!status.ok()) continue;
      for (const std::int32_t value : call.buffer) EXPECT_EQ(value, 3);
    }
    first->shut_down();
    second->shut_down();
  });
  for (const Status& outcome : outcomes) {
    if (!outcome.ok()) return outcome;
  }
  return {};
}

TEST(Groups, CrossedFoldsNeedSpilledTiles) {
  const Status with = crossed_folds(true);
  EXPECT_TRUE(with.ok()) << with.to_string();
  // Without spilling each link's first tile waits for a tile behind the first one of the other link.
  EXPECT_EQ(crossed_folds(false).code(), StatusCode::timeout);
}

/// Sums `count` ones of every rank in `group`, and checks the result.
Status sum_in(Executor& group, std::size_t count, Clock::time_point deadline) {
  Call call;
  call.post(group, sum_of(count), "one_shot", 1, deadline);
  Status status = call.wait();
  const auto right = std::ranges::count(call.buffer, static_cast<std::int32_t>(group.group().members.size()));
  if (status.ok() && right != static_cast<std::ptrdiff_t>(count)) return {StatusCode::internal, "a wrong sum"};
  return status;
}

// Two groups with the same 31-bit FNV-1a hash, which earlier versions used as the group's number. Both are alive; then the
// first one has ended. Rank 1 is in one of them only.
TEST(Groups, EqualHashesDoNotConfuseGroups) {
  struct Pair {
    std::vector<int> first;
    std::uint32_t first_made;
    std::vector<int> second;
    std::uint32_t second_made;
  };
  for (const Pair& pair : {Pair{{0, 1, 2}, 14807, {0, 2}, 17473}, Pair{{0, 2}, 2373, {0, 1, 2}, 20396}}) {
    for (const bool retired : {false, true}) {
      Job job(3, {});
      job.run([&](int rank, Executor& world) {
        const auto deadline = Clock::now() + std::chrono::seconds(20);
        const auto is_in = [&](const std::vector<int>& members) { return std::ranges::count(members, rank) != 0; };
        std::shared_ptr<Executor> first;
        std::shared_ptr<Executor> second;
        if (is_in(pair.first)) first = make_group(world, pair.first, pair.first_made);
        if (first != nullptr && retired) {
          EXPECT_TRUE(sum_in(*first, 100, deadline).ok());
          first->shut_down();
        }
        if (is_in(pair.second)) second = make_group(world, pair.second, pair.second_made);
        if (second != nullptr) {
          EXPECT_EQ(to_string(sum_in(*second, 2000, deadline).code()), "ok");
        }
        if (first != nullptr && !retired) {
          EXPECT_EQ(to_string(sum_in(*first, 2000, deadline).code()), "ok");
        }
        EXPECT_TRUE(sum_in(world, 10, deadline).ok());
        if (first != nullptr && !retired) first->shut_down();
        if (second != nullptr) second->shut_down();
      });
    }
  }
}

TEST(Groups, ManyGroupsHaveDistinctNames) {
  std::unordered_set<GroupName, GroupName::Hash> names;
  constexpr std::uint32_t kMany = 100'000;
  const std::vector<std::vector<int>> lists{{0, 1}, {1, 0}, {0, 1, 2}, {0}};
  for (std::uint32_t made = 0; made < kMany; ++made) {
    for (const auto& list : lists) names.insert(GroupName().child(list, made));
  }
  EXPECT_EQ(names.size(), std::size_t{kMany} * lists.size());
  EXPECT_FALSE(names.contains(GroupName()));
}

// Rank 0 aborts its groups, more than 1,024 (under a sanitizer fewer), before rank 1 has made them.
TEST(Groups, ControlMessagesBeforeGroupCreationAreKept) {
#ifdef SHOAL_SANITIZED
  constexpr std::uint32_t kGroups = 200;
#else
  constexpr std::uint32_t kGroups = 1500;
#endif
  Job job(2, {});
  job.run([&](int rank, Executor& world) {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    std::vector<std::shared_ptr<Executor>> groups;
    if (rank == 0) {
      for (std::uint32_t made = 0; made < kGroups; ++made) {
        groups.push_back(make_group(world, {0, 1}, made));
        groups.back()->close({StatusCode::aborted, "by the test"});
      }
    }
    EXPECT_TRUE(sum_in(world, 10, deadline).ok());
    if (rank == 1) {
      for (const std::uint32_t made : {0U, kGroups - 1}) {
        groups.push_back(make_group(world, {0, 1}, made));
        EXPECT_EQ(to_string(sum_in(*groups.back(), 10, Clock::now() + std::chrono::seconds(5)).code()), "aborted") << made;
      }
    }
    EXPECT_TRUE(sum_in(world, 10, deadline).ok());
    for (const auto& group : groups) group->shut_down();
  });
}

// Tiles for groups that rank 1 has not made fill the buffer for them: some of those groups fail, and no other group waits.
TEST(Groups, OverflowForUnmadeGroupsFailsOnlyThose) {
  constexpr std::uint32_t kGroups = 40;
  LoopbackOptions wire;
  wire.tile_bytes = 4096;
  wire.capacity_tiles = 2;
  Job job(2, wire, true, 16 << 10);
  job.run([&](int rank, Executor& world) {
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    std::vector<std::shared_ptr<Executor>> groups;
    std::vector<Call> calls(kGroups);
    for (std::uint32_t made = 0; rank == 0 && made < kGroups; ++made) {
      groups.push_back(make_group(world, {0, 1}, made));
      calls[made].post(*groups.back(), sum_of(900), "direct", 1, deadline);
    }
    for (int k = 0; k < 50; ++k) EXPECT_EQ(to_string(sum_in(world, 900, deadline).code()), "ok");
    if (rank == 1) {
      for (std::uint32_t made = 0; made < kGroups; ++made) {
        groups.push_back(make_group(world, {0, 1}, made));
        calls[made].post(*groups.back(), sum_of(900), "direct", 1, deadline);
      }
    }
    std::size_t refused = 0;
    for (Call& call : calls) {
      const Status status = call.wait();
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::unsupported) << status.to_string();
      if (status.code() != StatusCode::unsupported) continue;
      ++refused;
      EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.message();
    }
    EXPECT_GT(refused, 0U);
    EXPECT_LT(refused, kGroups);
    EXPECT_EQ(to_string(sum_in(world, 10, deadline).code()), "ok");
    for (const auto& group : groups) group->shut_down();
  });
}

// One thread adds a hook while another thread closes the communicator: the hook is called exactly once.
TEST(CloseHooks, HookAddedDuringCloseIsCalledOnce) {
  Job job(2, {});
  std::atomic<Executor*> closing{nullptr};
  std::atomic<int> calls{0};
  std::latch closed(1);  // rank 1 stays until then, so that rank 0 sends it the abort
  job.observe_control(0, [&] {
    // The communicator is closed, but close() has not called the hooks yet.
    Executor* const executor = closing.load();
    if (executor == nullptr || !executor->closed() || closing.exchange(nullptr) == nullptr) return;
    std::thread([&] { executor->on_close(&calls, [&](const Status&) { ++calls; }); }).join();
  });
  job.run([&](int rank, Executor& world) {
    EXPECT_TRUE(sum_in(world, 10, Clock::now() + std::chrono::seconds(20)).ok());
    if (rank == 1) return closed.wait();
    int before = 0;
    const int owner = 0;
    world.on_close(&owner, [&](const Status&) { ++before; });
    closing.store(&world);
    world.close({StatusCode::aborted, "by the test"});
    // Where another thread drives at the moment, that one tends to the closed communicator, a little later.
    EXPECT_TRUE(testing::eventually([&] { return calls.load() == 1; })) << "the hook was not added";
    closed.count_down();
    EXPECT_EQ(before, 1);
    world.close({StatusCode::aborted, "again"});
    world.on_close(&owner, [&](const Status&) { before += 100; });
    EXPECT_EQ(before, 101) << "a hook of a closed communicator is called at once";
    world.on_close(&owner, {});
    EXPECT_EQ(calls.load(), 1);
  });
}

TEST(Groups, LinkActivityDoesNotPreventSleep) {
  Job job(2, {});
  std::atomic<int> tries{0};
  job.make_active_once(0, tries);
  job.run([&](int rank, Executor& world) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Call call;
    call.post(world, sum_of(900), "ring", 1, Clock::now() + std::chrono::seconds(30));
    EXPECT_TRUE(call.wait().ok());
  });
  EXPECT_GT(tries, 1);
  EXPECT_LT(tries, 1000);  // a driver that cannot sleep tries a hundred times in a millisecond
}

TEST(Groups, SpilledBytesAreBounded) {
  LoopbackOptions wire;
  wire.tile_bytes = 4096;
  wire.capacity_tiles = 4;
  constexpr std::size_t kCount = 1 << 20;  // 1024 tiles
  // The limit, the tiles that the sender sends before it handles the request to pause, and the tiles in flight.
  constexpr std::size_t kBound = (SpillQueue::kPauseAt + 32 + 2 * 16 + 2 * 4) * 4096;
  Job job(2, wire);
  job.run([&](int rank, Executor& world) {
    const auto large = make_group(world, {0, 1}, 0);
    const auto small = make_group(world, {0, 1}, 1);
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    const Collective message{CollectiveKind::broadcast, kCount, DataType::int32, ReduceOp::sum, 0};
    Call late;
    if (rank == 0) late.post(*large, message, "tree", 5, deadline);
    std::size_t most = 0;
    for (int k = 0; k < 100; ++k) {
      Call call;
      call.post(*small, sum_of(10), "direct", 1, deadline);
      const Status status = call.wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_EQ(call.buffer[9], 2);
      most = std::max(most, large->spilled_bytes());
    }
    if (rank == 1) {
      EXPECT_GT(most, 0U) << "no tile was spilled, so nothing was tested";
      EXPECT_LE(most, kBound);
      late.post(*large, message, "tree", 0, deadline);
    }
    const Status status = late.wait();
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(std::count(late.buffer.begin(), late.buffer.end(), 5), static_cast<std::ptrdiff_t>(kCount));
    EXPECT_EQ(large->spilled_bytes(), 0U);
    large->shut_down();
    small->shut_down();
  });
}

struct Scenario {
  int ranks = 0;
  LoopbackOptions wire;
  std::vector<std::vector<int>> groups;
  struct Step {
    std::size_t group = 0;
    Collective collective;
    const char* algorithm = nullptr;
  };
  std::vector<Step> steps;
  bool made_late = false;  ///< a rank makes a group just before its first call in it
};

Scenario make_scenario(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::uint64_t low, std::uint64_t high) { return low + random() % (high - low + 1); };
  Scenario scenario;
  scenario.ranks = static_cast<int>(pick(2, 5));
  scenario.wire.seed = seed;
  scenario.wire.tile_bytes = std::size_t{1} << pick(12, 14);
  scenario.wire.capacity_tiles = static_cast<int>(pick(2, 5));
  scenario.wire.mean_delay = std::chrono::microseconds(pick(0, 2) * 20);
  scenario.wire.refuse_probability = static_cast<double>(pick(0, 2)) * 0.2;
  scenario.wire.late_copy = pick(0, 1) == 1;
  if (seed % 2 == 1) {  // small calls of groups use windows
    scenario.wire.window_bytes = 8192;
    scenario.wire.common_bytes = std::size_t{1} << 20;
  }
  scenario.made_late = pick(0, 1) == 1;
  const std::uint64_t groups = pick(2, 6);
  for (std::uint64_t g = 0; g < groups; ++g) {
    std::vector<int> all(static_cast<std::size_t>(scenario.ranks));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(pick(2, all.size()));
    scenario.groups.push_back(all);
  }
  const std::uint64_t steps = pick(4, 14);
  while (scenario.steps.size() < steps) {
    Scenario::Step step;
    step.group = pick(0, groups - 1);
    const std::size_t counts[] = {0, 1, 100, 5000, 40000};
    step.collective = sum_of(counts[pick(0, 4)]);
    const auto ranks = static_cast<std::uint64_t>(scenario.groups[step.group].size());
    if (pick(0, 2) == 0) {
      step.collective.kind = CollectiveKind::broadcast;
      step.collective.root = static_cast<int>(pick(0, ranks - 1));
    }
    const auto known = algorithms();
    const Algorithm& algorithm = known[pick(0, known.size() - 1)];
    if (!build_program(algorithm, Topology::uniform(1, static_cast<int>(ranks)), step.collective, 0).ok()) continue;
    step.algorithm = algorithm.name.data();
    scenario.steps.push_back(step);
  }
  return scenario;
}

void run_seed(std::uint64_t seed) {
  const Scenario scenario = make_scenario(seed);
  Job job(scenario.ranks, scenario.wire);
  const auto start = Clock::now();
  job.run([&](int rank, Executor& world) {
    // This rank's order: its own shuffle of the groups' queues.
    std::mt19937_64 random(seed * 31 + static_cast<std::uint64_t>(rank));
    std::vector<std::vector<std::size_t>> queues(scenario.groups.size());
    for (std::size_t k = 0; k < scenario.steps.size(); ++k) {
      const auto& members = scenario.groups[scenario.steps[k].group];
      if (std::find(members.begin(), members.end(), rank) != members.end()) queues[scenario.steps[k].group].push_back(k);
    }
    std::vector<std::shared_ptr<Executor>> groups(scenario.groups.size());
    const auto group = [&](std::size_t g) {
      const auto made_before = static_cast<std::uint32_t>(g);
      if (groups[g] == nullptr) groups[g] = make_group(world, scenario.groups[g], made_before);
      return groups[g];
    };
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!scenario.made_late && !queues[g].empty()) group(g);
    }
    std::vector<Call> calls(scenario.steps.size());
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    for (;;) {
      std::vector<std::size_t> ready;
      for (std::size_t g = 0; g < queues.size(); ++g) {
        if (!queues[g].empty()) ready.push_back(g);
      }
      if (ready.empty()) break;
      const std::size_t g = ready[random() % ready.size()];
      const std::size_t k = queues[g].front();
      queues[g].erase(queues[g].begin());
      calls[k].post(*group(g), scenario.steps[k].collective, scenario.steps[k].algorithm, rank + 1, deadline);
    }
    for (std::size_t k = 0; k < calls.size(); ++k) {
      if (calls[k].operation == nullptr) continue;
      const auto& step = scenario.steps[k];
      const auto& members = scenario.groups[step.group];
      const Status status = calls[k].wait();
      EXPECT_TRUE(status.ok()) << "seed " << seed << " rank " << rank << ": " << status.to_string();
      std::int32_t expected = members[static_cast<std::size_t>(step.collective.root)] + 1;
      if (step.collective.kind == CollectiveKind::all_reduce) {
        expected = 0;
        for (const int member : members) expected += member + 1;
      }
      const auto right = std::count(calls[k].buffer.begin(), calls[k].buffer.end(), expected);
      EXPECT_EQ(right, static_cast<std::ptrdiff_t>(step.collective.count))
          << "seed " << seed << " rank " << rank << " call " << k << " (" << to_string(step.collective) << " by "
          << step.algorithm << ")";
    }
    // No rank leaves a group before its peers are done: a call of all ranks comes first.
    Call last;
    last.post(world, sum_of(1), "one_shot", 1, deadline);
    EXPECT_TRUE(last.wait().ok()) << "seed " << seed;
    for (const auto& each : groups) {
      if (each != nullptr) each->shut_down();
    }
  });
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 15) << "seed " << seed << " ended at its deadline";
}

// The algorithm of a group depends on the group's shape, not on the job's.
TEST(Groups, SelectorUsesShapeOfGroup) {
  Group job{0, 0, {0, 1, 2, 3, 4, 5, 6, 7}, Topology::uniform(4, 2), {}};  // ranks 0 and 1 on the first node, and so on
  const Collective large{CollectiveKind::all_reduce, 16 << 20, DataType::float32, ReduceOp::sum, 0};
  struct Case {
    std::vector<int> members;
    std::vector<int> node_of_rank;
    bool hierarchical;
  };
  for (const auto& [members, node_of_rank, hierarchical] : {Case{{4, 5}, {0, 0}, false},                   // on one node
                                                            Case{{0, 3, 4, 7}, {0, 1, 2, 3}, false},       // one on each
                                                            Case{{0, 1, 2, 3}, {0, 0, 1, 1}, true},        // even
                                                            Case{{0, 1, 2, 6, 7}, {0, 0, 1, 2, 2}, true},  // ragged
                                                            Case{{7, 2, 6, 3}, {0, 1, 0, 1}, true}}) {     // in any order
    job.rank = members.front();
    const Group group = job.subset(members, 0);
    EXPECT_EQ(group.rank, 0);
    EXPECT_EQ(group.topology.node_of_rank, node_of_rank);
    const auto choice = select(group.topology, large);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(choice->algorithm->name.starts_with("hierarchical"), hierarchical) << group.topology.shape();
    Topology same = Topology::uniform(1, 1);
    same.node_of_rank = node_of_rank;
    EXPECT_EQ(choice->algorithm, select(same, large)->algorithm) << group.topology.shape();
  }
}

TEST(Groups, GroupsHaveWindowsIfJobHas) {
  for (const bool windows : {false, true}) {
    LoopbackOptions wire;
    wire.window_bytes = windows ? 8192 : 0;
    wire.common_bytes = windows ? std::size_t{2} << 20 : 0;
    Job job(3, wire);
    job.run([&](int rank, Executor& world) {
      const auto alone = make_group(world, {rank}, 0);
      EXPECT_EQ(alone->plan_context().window_room.large_bytes, 0U);
      alone->shut_down();
      if (rank == 1) return;
      const auto pair = make_group(world, {2, 0}, 0);
      EXPECT_EQ(pair->plan_context().window_room.large_bytes > 4096 / 2, windows);
      const auto again = make_group(*pair, {1, 0}, 0);
      EXPECT_EQ(again->plan_context().window_room.large_bytes > 4096 / 2, windows);
      const auto deadline = Clock::now() + std::chrono::seconds(20);
      Call calls[3];
      for (Call& call : calls) call.post(*again, sum_of(100), "one_shot", rank + 1, deadline);
      for (Call& call : calls) {
        EXPECT_TRUE(call.wait().ok());
        EXPECT_EQ(std::count(call.buffer.begin(), call.buffer.end(), 4), 100);
      }
      again->shut_down();
      pair->shut_down();
    });
  }
}

TEST(Groups, EverySeedCompletesCorrectly) {
#ifdef SHOAL_SANITIZED
  constexpr std::uint64_t kSeeds = 60;
#else
  constexpr std::uint64_t kSeeds = 200;
#endif
  const testing::Seeds seeds = testing::wanted_seeds({0, kSeeds});
  for (std::uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) run_seed(seed);
}

}  // namespace
}  // namespace shoal
