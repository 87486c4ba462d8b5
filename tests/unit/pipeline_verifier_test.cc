// The Verifier of pipelines: schedules that are right or wrong in a known way, and mutations of random ones.

#include "src/pipeline/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "src/pipeline/orders.h"
#include "tests/mentions.h"
#include "tests/seeds.h"
#include "tests/unit/pipeline_support.h"

namespace shoal::pipeline {
namespace {

using testing::Mentions;

std::set<FaultKind> kinds(const std::vector<Fault>& faults) {
  std::set<FaultKind> found;
  for (const Fault& fault : faults) {
    EXPECT_FALSE(fault.message.empty());
    found.insert(fault.kind);
  }
  return found;
}

Shape two_ranks(int microbatches) { return shape_of(ScheduleKind::one_f_one_b, 2, microbatches); }

PipelineSchedule with_orders(const Shape& shape, const std::vector<std::vector<std::pair<ActionOp, int>>>& orders) {
  std::vector<Actions> computes;
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    Actions& actions = computes.emplace_back();
    for (const auto& [op, microbatch] : orders[rank]) actions.push_back({op, static_cast<int>(rank), microbatch});
  }
  return complete(shape, computes, false);
}

constexpr ActionOp kF = ActionOp::forward;
constexpr ActionOp kB = ActionOp::backward;

TEST(PipelineVerifier, NamesBothEndsOfADeadlock) {
  // Rank 0 wants the gradient of microbatch 0 before it computes microbatch 1, rank 1 both forwards before any backward.
  const auto faults =
      verify(with_orders(two_ranks(2), {{{kF, 0}, {kB, 0}, {kF, 1}, {kB, 1}}, {{kF, 0}, {kF, 1}, {kB, 0}, {kB, 1}}}));
  ASSERT_EQ(kinds(faults), std::set{FaultKind::deadlock});
  EXPECT_EQ(faults.size(), 2U);
  EXPECT_THAT(faults[0].message, Mentions("rank 0 action 2 (<B0 of stage 0)", "rank 1", ">B0 of stage 1", "<F1 of stage 1"));
  EXPECT_EQ(to_status(faults).code(), StatusCode::internal);
}

TEST(PipelineVerifier, FindsAForwardBehindItsBackward) {
  const auto faults = verify(with_orders(two_ranks(1), {{{kF, 0}, {kB, 0}}, {{kB, 0}, {kF, 0}}}));
  ASSERT_EQ(kinds(faults), std::set{FaultKind::order});
  EXPECT_EQ(faults.front().rank, 1);
  EXPECT_EQ(faults.front().stage, 1);
}

TEST(PipelineVerifier, FindsStagesOfOneRankInTheWrongOrder) {
  const Shape shape = shape_of(ScheduleKind::virtual_stages, 1, 1, 2);
  PipelineSchedule schedule = build(shape, {});
  EXPECT_TRUE(verify(schedule).empty());
  std::swap(schedule.ranks[0][0], schedule.ranks[0][1]);
  EXPECT_EQ(kinds(verify(schedule)), std::set{FaultKind::order});
}

TEST(PipelineVerifier, FindsMessagesOutOfTurn) {
  PipelineSchedule schedule = build(shape_of(ScheduleKind::simple, 2, 2), {});
  // F0 >F0 F1 >F1 becomes F0 F1 >F1 >F0.
  Actions& actions = schedule.ranks[0];
  actions = {actions[0], actions[2], actions[3], actions[1], actions[4], actions[5], actions[6], actions[7]};
  const auto faults = verify(schedule);
  ASSERT_EQ(kinds(faults), std::set{FaultKind::unmatched});
  EXPECT_THAT(faults.front().message, Mentions(">F1 of stage 0", "microbatch 0"));
}

TEST(PipelineVerifier, BlockingSendsSuitSimpleOnly) {
  VerifyOptions blocking;
  blocking.sends = SendRule::waits;
  for (const int ranks : {2, 4}) {
    for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b,
                                    ScheduleKind::zb_h1, ScheduleKind::virtual_stages}) {
      const Shape shape = shape_of(kind, ranks, 8, kind == ScheduleKind::virtual_stages ? 2 : 1);
      const PipelineSchedule schedule = build(shape, {});
      EXPECT_TRUE(verify(schedule).empty()) << to_string(kind);
      const std::set<FaultKind> expected = kind == ScheduleKind::simple ? std::set<FaultKind>{} : std::set{FaultKind::deadlock};
      EXPECT_EQ(kinds(verify(schedule, blocking)), expected) << to_string(kind) << " on " << ranks;
    }
  }
}

TEST(PipelineVerifier, OrderedPairsOfRanksSuitAllKinds) {
  VerifyOptions ordered;
  ordered.pairs_in_order = true;
  for (const int ranks : {2, 4}) {
    for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b,
                                    ScheduleKind::zb_h1, ScheduleKind::virtual_stages}) {
      const Shape shape = shape_of(kind, ranks, 8, kind == ScheduleKind::virtual_stages ? 2 : 1);
      EXPECT_TRUE(verify(build(shape, {}), ordered).empty()) << to_string(kind) << " on " << ranks;
    }
  }
}

TEST(PipelineVerifier, OrderedPairsMindOtherStages) {
  // Rank 0 sends microbatch 1 of stage 0 behind microbatch 0 of stage 2: with tags that is no fault.
  PipelineSchedule schedule = build(shape_of(ScheduleKind::virtual_stages, 2, 2, 2), {});
  Actions& actions = schedule.ranks[0];
  const auto moved = std::ranges::find(actions, Action{ActionOp::send_activation, 0, 1});
  const auto behind = std::ranges::find(actions, Action{ActionOp::send_activation, 2, 0});
  ASSERT_LT(moved, behind);
  std::rotate(moved, std::next(moved), std::next(behind));
  EXPECT_TRUE(verify(schedule).empty());
  VerifyOptions ordered;
  ordered.pairs_in_order = true;
  const auto faults = verify(schedule, ordered);
  ASSERT_EQ(kinds(faults), std::set{FaultKind::unmatched});
  EXPECT_THAT(faults.front().message, Mentions(">F0 of stage 2", "rank 1", "1<F1"));
}

TEST(PipelineVerifier, HoldsTheBoundOfMemory) {
  const PipelineSchedule schedule = build(shape_of(ScheduleKind::one_f_one_b, 4, 8), {});
  EXPECT_TRUE(verify(schedule, {{4, 3, 2, 1}, {}, {}}).empty());
  const auto faults = verify(schedule, {{4, 3, 1, 1}, {}, {}});
  ASSERT_EQ(kinds(faults), std::set{FaultKind::memory});
  EXPECT_EQ(faults.front().rank, 2);
  EXPECT_EQ(faults.front().microbatch, 1);
  EXPECT_THAT(faults.front().message, Mentions("2 microbatches", "1"));
  EXPECT_EQ(kinds(verify(schedule, {{4}, {}, {}})), std::set{FaultKind::malformed});
}

TEST(PipelineVerifier, ReplicasMustAgree) {
  const Shape shape = shape_of(ScheduleKind::one_f_one_b, 2, 4);
  std::vector<PipelineSchedule> replicas(2, build(shape, {}, true));
  EXPECT_TRUE(verify_replicas(replicas).empty());
  replicas[1] = build(shape_of(ScheduleKind::eager_1f1b, 2, 4), {}, true);
  EXPECT_EQ(kinds(verify_replicas(replicas)), std::set{FaultKind::replicas_differ});
  replicas[1] = replicas[0];
  replicas[1].ranks[1].pop_back();  // the reduction
  const auto faults = verify_replicas(replicas);
  ASSERT_EQ(kinds(faults), std::set{FaultKind::replicas_differ});
  EXPECT_EQ(faults.front().rank, 1);
  EXPECT_THAT(faults.front().message, Mentions("replica 1", "nothing", "1R"));
}

TEST(PipelineVerifier, ReductionsComeLastInAllStages) {
  PipelineSchedule schedule = build(two_ranks(2), {}, true);
  schedule.ranks[1].pop_back();
  EXPECT_EQ(kinds(verify(schedule)), std::set{FaultKind::missing});
  schedule = build(two_ranks(2), {}, true);
  std::swap(schedule.ranks[0].back(), *std::prev(schedule.ranks[0].end(), 2));
  EXPECT_EQ(kinds(verify(schedule)), std::set{FaultKind::order});
}

TEST(PipelineVerifier, RefusesHeadersThatDoNotFit) {
  PipelineSchedule schedule = build(two_ranks(2), {});
  schedule.ranks.pop_back();
  EXPECT_EQ(kinds(verify(schedule)), std::set{FaultKind::malformed});
  schedule = build(two_ranks(2), {});
  schedule.shape.microbatches = 0;
  EXPECT_EQ(kinds(verify(schedule)), std::set{FaultKind::malformed});
  schedule = build(shape_of(ScheduleKind::zb_h1, 2, 2), {});
  schedule.shape.kind = ScheduleKind::one_f_one_b;
  EXPECT_EQ(kinds(verify(schedule)), std::set{FaultKind::malformed});
}

// ---- mutations ----

/// The positions of the actions of a rank that `wanted` accepts.
std::vector<std::pair<std::size_t, std::size_t>> places(const PipelineSchedule& schedule,
                                                        const std::function<bool(const Action&)>& wanted) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      if (wanted(schedule.ranks[rank][i])) found.emplace_back(rank, i);
    }
  }
  return found;
}

/// Changes a schedule; false where it has nothing to change.
struct Mutation {
  const char* name;
  FaultKind expected;
  std::function<bool(PipelineSchedule&, Random&)> apply;
};

/// A mutation of one action, chosen at random from those that `wanted` accepts.
Mutation change(const char* name, FaultKind expected, const std::function<bool(const Action&)>& wanted,
                const std::function<void(Actions&, std::size_t)>& apply) {
  return {name, expected, [wanted, apply](PipelineSchedule& schedule, Random& random) {
            const auto found = places(schedule, wanted);
            if (found.empty()) return false;
            const auto [rank, at] =
                found[static_cast<std::size_t>(draw(random, 0, static_cast<std::int64_t>(found.size()) - 1))];
            apply(schedule.ranks[rank], at);
            return true;
          }};
}

void erase(Actions& actions, std::size_t at) { actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(at)); }

/// Two ranks that wait for each other: the first receive of an activation waits until all gradients have been sent.
bool receive_too_late(PipelineSchedule& schedule, Random&) {
  if (schedule.shape.kind == ScheduleKind::forward_only || schedule.shape.ranks < 2 || schedule.shape.chunks > 1) return false;
  // The last forward of rank 0 and its message go behind the gradient that rank 1 computes from it.
  Actions& actions = schedule.ranks[0];
  const int last = schedule.shape.microbatches - 1;
  const auto moved = std::ranges::find(actions, Action{ActionOp::send_activation, 0, last});
  const auto behind = std::ranges::find(actions, Action{ActionOp::recv_gradient, 0, last});
  std::rotate(moved, std::next(moved), std::next(behind));
  return true;
}

std::vector<Mutation> mutations() {
  const auto computes = [](const Action& action) { return is_compute(action.op); };
  const auto sends = [](const Action& action) { return is_send(action.op); };
  const auto recvs = [](const Action& action) { return is_recv(action.op); };
  const auto backwards = [](const Action& action) {
    return action.op == ActionOp::backward || action.op == ActionOp::backward_input;
  };
  const auto any = [](const Action&) { return true; };
  return {
      change("a stage that does not exist", FaultKind::malformed, any, [](Actions& a, std::size_t at) { a[at].stage += 100; }),
      change("a microbatch that does not exist", FaultKind::malformed, any,
             [](Actions& a, std::size_t at) { a[at].microbatch = -1; }),
      change("an op that does not exist", FaultKind::malformed, any,
             [](Actions& a, std::size_t at) { a[at].op = static_cast<ActionOp>(77); }),
      {"an action of another rank", FaultKind::malformed,
       [](PipelineSchedule& schedule, Random&) {
         if (schedule.shape.ranks < 2) return false;
         schedule.ranks[0].push_back(schedule.ranks[1].front());
         return true;
       }},
      change("a compute action is missing", FaultKind::missing, computes, erase),
      change("a compute action comes twice", FaultKind::twice, computes,
             [](Actions& a, std::size_t at) { a.push_back(Action(a[at])); }),
      change("a message is sent twice", FaultKind::twice, sends,
             [](Actions& a, std::size_t at) { a.push_back(Action(a[at])); }),
      change("a backward comes first", FaultKind::order, backwards,
             [](Actions& a, std::size_t at) {
               std::rotate(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(at),
                           a.begin() + static_cast<std::ptrdiff_t>(at) + 1);
             }),
      change("a message is sent first", FaultKind::order, sends,
             [](Actions& a, std::size_t at) {
               std::rotate(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(at),
                           a.begin() + static_cast<std::ptrdiff_t>(at) + 1);
             }),
      change("a message is received last", FaultKind::order, recvs,
             [](Actions& a, std::size_t at) {
               std::rotate(a.begin() + static_cast<std::ptrdiff_t>(at), a.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                           a.end());
             }),
      change("a message is not sent", FaultKind::unmatched, sends, erase),
      change("a message is not received", FaultKind::unmatched, recvs, erase),
      {"ranks wait for each other", FaultKind::deadlock, receive_too_late},
  };
}

TEST(PipelineMutations, RandomSchedulesAreProvenAndMutationsFound) {
  const auto all = mutations();
  std::vector<std::size_t> applied(all.size());
  const auto seeds = testing::wanted_seeds({0, kRandomCases});
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "SHOAL_TEST_SEED=" << seed);
    Random random(seed);
    const RandomPipeline each = random_pipeline(random);
    const bool reduces = draw(random, 0, 1) == 1 && each.shape.kind != ScheduleKind::forward_only;
    const PipelineSchedule schedule = build(each.shape, each.times, reduces);
    VerifyOptions options{most_held_by_rank(each.shape, schedule.ranks), {}, {}};
    const auto faults = verify(schedule, options);
    ASSERT_TRUE(faults.empty()) << to_status(faults).to_string();
    const auto bound = held_microbatches(each.shape);
    for (std::size_t rank = 0; each.shape.chunks == 1 && rank < bound.size(); ++rank) {
      ASSERT_LE(options.held_bound[rank], bound[rank]);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      PipelineSchedule mutant = schedule;
      if (!all[i].apply(mutant, random)) continue;
      ++applied[i];
      ASSERT_TRUE(kinds(verify(mutant)).contains(all[i].expected)) << all[i].name;
    }
    auto& tight = options.held_bound[static_cast<std::size_t>(draw(random, 0, each.shape.ranks - 1))];
    --tight;
    ASSERT_TRUE(kinds(verify(schedule, options)).contains(FaultKind::memory));
    std::vector<PipelineSchedule> replicas(2, schedule);
    std::swap(replicas[1].ranks[0].front(), replicas[1].ranks[0].back());
    ASSERT_EQ(kinds(verify_replicas(replicas)).contains(FaultKind::replicas_differ), replicas[0] != replicas[1]);
  }
  if (seeds.count < 100) return;
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_GT(applied[i], 0U) << all[i].name;
}

}  // namespace
}  // namespace shoal::pipeline
