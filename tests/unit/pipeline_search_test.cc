// The partitioner against exhaustive search over random chains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <tuple>

#include "src/pipeline/partitioner.h"
#include "tests/mentions.h"
#include "tests/seeds.h"
#include "tests/unit/pipeline_support.h"

namespace shoal::pipeline {
namespace {

using testing::Mentions;

using Whole = __int128;

/// What the partitioner must find, written from the rules alone and without fractions.
struct Question {
  Profile profile;
  PartitionRequest request;
  std::int64_t latency_us = 0;
  std::int64_t rate = 0;    // bytes a microsecond; 0 = no limit
  std::int64_t tenths = 0;  // of the memory weight
  std::vector<int> listed;  // of each unit, the run of the list in which it recomputes; -1 = none
};

struct Priced {
  Whole time = 0;  // times the rate
  Whole bytes = 0;
  std::vector<int> runs;  // of each unit of the chain, the run in which it recomputes; -1 = none
};

std::int64_t held_of(const Shape& shape, int stage) {
  const int m = shape.microbatches;
  switch (shape.kind) {
    case ScheduleKind::simple:
      return m;
    case ScheduleKind::one_f_one_b:
      return std::min(m, shape.ranks - stage);
    case ScheduleKind::eager_1f1b:
      return std::min(m, 2 * (shape.ranks - stage) - 1);
    case ScheduleKind::zb_h1:
      return std::min(m, shape.ranks);
    default:
      return std::min(m, shape.active_microbatches.value_or(shape.ranks + 2));
  }
}

/// The units first..end-1 as `stage`, some of which recompute in runs.
Priced price_with(const Question& question, int stage, std::size_t first, std::size_t end, const std::vector<int>& runs) {
  const auto& units = question.profile.units;
  const CostRules& rules = question.request.rules;
  const Whole rate = question.rate > 0 ? question.rate : 1;
  const Whole held = held_of(rules.shape, stage);
  Whole compute = 0;
  Whole parameters = 0;
  Whole buffers = 0;
  Whole kept = 0;     // of a microbatch, up to a unit
  Whole in_run = 0;   // stashes of the run
  Whole largest = 0;  // what the microbatch that is computed has
  for (std::size_t unit = first; unit < end; ++unit) {
    const bool repeats = runs[unit] >= 0;
    const bool ends_run = unit + 1 < units.size() && runs[unit + 1] != runs[unit];
    compute += static_cast<Whole>(units[unit].forward_us) * (repeats ? 2 : 1) + static_cast<Whole>(units[unit].backward_us);
    parameters += units[unit].parameter_bytes;
    buffers += units[unit].buffer_bytes;
    in_run += units[unit].stash_bytes;
    largest = std::max<Whole>(largest, kept + in_run + units[unit].workspace_bytes);
    if (repeats && !ends_run) continue;
    if (!repeats) kept += in_run;
    if (repeats && unit + 1 < end) kept += units[unit].output_bytes;
    in_run = 0;
  }
  const Whole received = first > 0 ? units[first - 1].output_bytes : 0;
  const Whole sent = end < units.size() ? units[end - 1].output_bytes : 0;
  const auto message = [&](bool exists, Whole bytes) -> Whole {
    return exists ? question.latency_us * rate + (question.rate > 0 ? bytes : 0) : 0;
  };
  const Whole left = message(first > 0, received);
  const Whole right = message(end < units.size(), sent);
  compute *= rate;
  Priced priced;
  priced.runs = runs;
  priced.time = rules.overlaps ? std::max({compute, left, right}) : compute + 2 * left + 2 * right;
  priced.bytes =
      (2 + rules.optimizer_states) * parameters + buffers + received + sent + held * received + (held - 1) * kept + largest;
  return priced;
}

/// The runs that may be taken, the first one that meets the limit counts.
std::vector<std::vector<int>> choices_of(const Question& question, int stage, std::size_t first, std::size_t end) {
  const CostRules& rules = question.request.rules;
  const std::size_t units = question.profile.units.size();
  const std::vector<int> none(units, -1);
  const std::vector<int> whole(units, held_of(rules.shape, stage) > 1 ? 0 : -1);
  std::vector<std::vector<int>> singles{none};  // as many first units of the stage
  for (std::size_t unit = first; unit < end; ++unit) {
    singles.push_back(singles.back());
    singles.back()[unit] = static_cast<int>(unit);
  }
  if (rules.recompute_units.rule == Recompute::where_needed) return singles;
  if (rules.recompute_units.rule == Recompute::all) return {singles.back()};
  if (rules.recompute_units.any()) return {question.listed};
  if (rules.recompute == Recompute::where_needed) return {none, whole};
  return {rules.recompute == Recompute::all ? whole : none};
}

Priced price(const Question& question, int stage, std::size_t first, std::size_t end) {
  std::optional<Priced> least;
  for (const std::vector<int>& runs : choices_of(question, stage, first, end)) {
    const Priced priced = price_with(question, stage, first, end, runs);
    const auto& limit = question.request.memory_limit_bytes;
    if (!limit || priced.bytes <= *limit) return priced;
    if (!least || priced.bytes < least->bytes) least = priced;
  }
  return *least;
}

/// As a Stage has them.
std::vector<UnitRun> runs_of(const std::vector<int>& runs, int first, int end) {
  std::vector<UnitRun> found;
  for (int unit = first; unit < end; ++unit) {
    const int run = runs[static_cast<std::size_t>(unit)];
    if (run < 0) continue;
    if (unit > first && runs[static_cast<std::size_t>(unit) - 1] == run) {
      ++found.back().end;
    } else {
      found.push_back({unit, unit + 1});
    }
  }
  return found;
}

struct Answer {
  Whole value = 0;
  Whole other = 0;
  Whole cut_bytes = 0;
  std::vector<int> cuts;

  [[nodiscard]] auto key() const { return std::tie(value, other, cut_bytes, cuts); }
};

/// The whole model as one stage that holds one microbatch.
Priced whole_of(Question question) {
  question.request.rules.shape = shape_of(ScheduleKind::one_f_one_b, 1, 1);
  question.request.rules.recompute = Recompute::none;
  question.request.rules.recompute_units = {};
  question.request.memory_limit_bytes.reset();
  return price(question, 0, 0, question.profile.units.size());
}

/// Asks for every list of cuts in rising order.
std::optional<Answer> search_all(const Question& question, Whole* smallest_largest) {
  const auto& units = question.profile.units;
  const Shape& shape = question.request.rules.shape;
  const auto stages = static_cast<std::size_t>(shape.ranks);
  const Priced whole = whole_of(question);
  std::optional<Answer> best;
  std::vector<int> cuts;
  std::optional<Whole> least;
  const std::function<void(std::size_t, std::size_t, Answer, Whole)> extend = [&](std::size_t stage, std::size_t first,
                                                                                  const Answer& so_far, Whole largest) {
    const bool last = stage + 1 == stages;
    for (std::size_t end = last ? units.size() : first + 1; end + (stages - 1 - stage) <= units.size(); ++end) {
      const Priced priced = price(question, static_cast<int>(stage), first, end);
      Answer answer = so_far;
      const Whole mixed = question.tenths * priced.bytes * whole.time + (10 - question.tenths) * priced.time * whole.bytes;
      const Objective objective = question.request.effective_objective();
      const bool speed = objective == Objective::speed;
      answer.value = std::max(answer.value, speed ? priced.time : objective == Objective::memory ? priced.bytes : mixed);
      answer.other = std::max(answer.other, speed ? priced.bytes : priced.time);
      const Whole most = std::max(largest, priced.bytes);
      if (!last) {
        answer.cut_bytes += units[end - 1].output_bytes;
        answer.cuts.push_back(static_cast<int>(end));
        extend(stage + 1, end, answer, most);
        continue;
      }
      if (!least || most < *least) least = most;
      if (question.request.memory_limit_bytes && most > *question.request.memory_limit_bytes) continue;
      if (!best || answer.key() < best->key()) best = answer;
    }
  };
  extend(0, 0, {}, 0);
  *smallest_largest = *least;
  return best;
}

/// A list of runs, in which some units are.
void list_units(Question& question, Random& random) {
  const auto units = static_cast<int>(question.profile.units.size());
  question.listed.assign(static_cast<std::size_t>(units), -1);
  for (int unit = static_cast<int>(draw(random, 0, 2)); unit < units;) {
    const auto end = static_cast<int>(draw(random, unit + 1, std::min(units, unit + 4)));
    question.request.rules.recompute_units.list.push_back(std::to_string(unit) + ".." + std::to_string(end - 1));
    for (; unit < end; ++unit) question.listed[static_cast<std::size_t>(unit)] = end;
    unit += static_cast<int>(draw(random, 0, 2));
  }
}

Question random_question(std::uint64_t seed) {
  Random random(seed);
  Question question;
  const auto units = static_cast<std::size_t>(draw(random, 1, 12));
  // Few different values make ties.
  const std::int64_t most_us = draw(random, 0, 1) == 0 ? 3 : 5000;
  const std::int64_t most_bytes = draw(random, 0, 1) == 0 ? 3 : 100000;
  for (std::size_t i = 0; i < units; ++i) {
    question.profile.units.push_back({std::to_string(i),
                                      static_cast<double>(draw(random, 0, most_us)),
                                      static_cast<double>(draw(random, 0, 2 * most_us)),
                                      draw(random, 0, most_bytes),
                                      draw(random, 0, 1),
                                      draw(random, 0, most_bytes),
                                      draw(random, 0, most_bytes),
                                      {},
                                      draw(random, 0, 3 * most_bytes)});
  }
  CostRules& rules = question.request.rules;
  constexpr ScheduleKind kKinds[] = {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b,
                                     ScheduleKind::interleaved, ScheduleKind::zb_h1};
  const auto ranks = static_cast<int>(draw(random, 1, std::min<std::int64_t>(6, static_cast<std::int64_t>(units))));
  rules.shape = shape_of(kKinds[draw(random, 0, 4)], ranks, static_cast<int>(draw(random, 1, 10)));
  if (rules.shape.kind == ScheduleKind::interleaved && draw(random, 0, 1) == 1) {
    rules.shape.active_microbatches = static_cast<int>(draw(random, 1, 12));
  }
  if (draw(random, 0, 2) > 0) {
    question.latency_us = draw(random, 0, most_us);
    question.rate = draw(random, 0, 1) == 0 ? 0 : draw(random, 1, 70);
    rules.link.latency_us = static_cast<double>(question.latency_us);
    if (question.rate > 0) rules.link.bytes_per_us = static_cast<double>(question.rate);
  }
  rules.overlaps = draw(random, 0, 1) == 1;
  rules.recompute = draw(random, 0, 2) == 0 ? Recompute::all : Recompute::none;
  rules.optimizer_states = static_cast<int>(draw(random, 0, 2));
  question.request.objective = static_cast<Objective>(draw(random, 0, 2));
  question.tenths = draw(random, 0, 10);
  question.request.memory_weight = static_cast<double>(question.tenths) / 10;
  return question;
}

TEST(PipelineSearch, EveryRandomChainHasTheBestAnswer) {
  const auto seeds = testing::wanted_seeds({0, kRandomCases});
  bool some_but_not_all = false;        // of the stages of a partition recompute
  bool some_but_not_all_units = false;  // of a stage
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "SHOAL_TEST_SEED=" << seed);
    Question question = random_question(seed);
    CostRules& rules = question.request.rules;
    if (seed % 5 == 1) {
      rules.recompute = Recompute::none;
      Random random(seed);
      if (seed % 2 == 0) list_units(question, random);
      if (seed % 2 == 1) rules.recompute_units.rule = Recompute::all;
    }
    Whole smallest_largest = 0;
    std::optional<Answer> expected = search_all(question, &smallest_largest);
    if (seed % 5 == 0) {  // a limit between the largest stages that all and none of them need, or just outside
      question.request.rules.recompute = Recompute::none;
      Whole without = 0;
      search_all(question, &without);
      question.request.rules.recompute = Recompute::all;
      search_all(question, &smallest_largest);
      Random random(seed);
      question.request.memory_limit_bytes =
          draw(random, static_cast<std::int64_t>(smallest_largest) - 1, static_cast<std::int64_t>(without) + 1);
      question.request.rules.recompute = Recompute::where_needed;
      Whole ignored = 0;  // smallest_largest is that of the error
      expected = search_all(question, &ignored);
    } else if (seed % 5 == 2) {  // likewise, where units need it
      rules.recompute = Recompute::none;
      Whole without = 0;
      search_all(question, &without);
      rules.recompute_units.rule = Recompute::where_needed;
      question.request.memory_limit_bytes = 0;  // takes the fewest bytes
      search_all(question, &smallest_largest);
      Random random(seed);
      question.request.memory_limit_bytes =
          draw(random, static_cast<std::int64_t>(smallest_largest) - 1, static_cast<std::int64_t>(without) + 1);
      Whole ignored = 0;
      expected = search_all(question, &ignored);
    } else if (seed % 3 == 0) {  // with a limit near the smallest possible one, sometimes below it
      question.request.memory_limit_bytes =
          static_cast<std::int64_t>(smallest_largest) + static_cast<std::int64_t>(seed % 7) - 1;
      expected = search_all(question, &smallest_largest);
    }
    const auto found = partition(question.profile, question.request);
    const Priced whole = whole_of(question);
    if (question.request.effective_objective() == Objective::weighted && (whole.time == 0 || whole.bytes == 0)) {
      ASSERT_THAT(found.status().message(), Mentions("weighted"));  // shares of nothing
      continue;
    }
    if (!expected) {
      ASSERT_EQ(found.status().code(), StatusCode::invalid_argument);
      ASSERT_THAT(found.status().message(), Mentions(std::to_string(static_cast<std::int64_t>(smallest_largest))));
      continue;
    }
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    ASSERT_EQ(found->cuts(), expected->cuts);
    for (std::size_t stage = 0; stage < found->stages.size(); ++stage) {
      const Stage& each = found->stages[stage];
      const Priced priced =
          price(question, static_cast<int>(stage), static_cast<std::size_t>(each.first), static_cast<std::size_t>(each.end));
      const double rate = question.rate > 0 ? static_cast<double>(question.rate) : 1;
      ASSERT_NEAR(each.time_us, static_cast<double>(priced.time) / rate, 1e-9 * each.time_us);
      ASSERT_EQ(each.bytes, static_cast<std::int64_t>(priced.bytes));
      const bool by_units = rules.recompute_units.any();
      const auto runs = runs_of(priced.runs, each.first, each.end);
      ASSERT_EQ(each.recomputes, !by_units && !runs.empty());
      if (by_units) {
        ASSERT_EQ(each.recomputed_units, runs);
        some_but_not_all_units = some_but_not_all_units || (rules.recompute_units.rule == Recompute::where_needed &&
                                                            !runs.empty() && runs.back().end < each.end);
      }
      some_but_not_all = some_but_not_all || (each.recomputes != found->stages.front().recomputes &&
                                              question.request.rules.recompute == Recompute::where_needed &&
                                              question.request.rules.shape.kind == ScheduleKind::simple);
    }
  }
  if (seeds.end() - seeds.first >= kRandomCases) {
    EXPECT_TRUE(some_but_not_all) << "no case in which the limit decides by stage";
    EXPECT_TRUE(some_but_not_all_units) << "no case in which the limit decides by unit";
  }
}

TEST(PipelineSearch, ADeepModelTakesFewEvaluations) {
  Random random(121);
  Profile profile;
  for (int unit = 0; unit < 64; ++unit) {
    profile.units.push_back({"layer" + std::to_string(unit),
                             static_cast<double>(draw(random, 100, 900)),
                             static_cast<double>(draw(random, 200, 1800)),
                             draw(random, 1000, 90000),
                             0,
                             draw(random, 1000, 90000),
                             draw(random, 1000, 90000),
                             {}});
  }
  PartitionRequest request;
  request.rules = {shape_of(ScheduleKind::one_f_one_b, 4, 8), {100, 50}, false, Recompute::none, 2};
  request.objective = Objective::weighted;
  request.memory_weight = 0.5;
  const auto begin = std::chrono::steady_clock::now();
  const auto found = partition(profile, request);
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  std::printf("64 units in 4 stages: %lld evaluations, %.2f ms\n", static_cast<long long>(found->evaluations), taken.count());
  constexpr std::int64_t kRuns = 4 * 64 * 65 / 2;  // of units, for each of the stages
  EXPECT_GT(found->evaluations, 0);
  EXPECT_LE(found->evaluations, 3 * kRuns);
}

}  // namespace
}  // namespace shoal::pipeline
