// Orders of the schedules against those written down, step times against closed forms.

#include "src/pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "src/pipeline/drawing.h"
#include "src/pipeline/orders.h"
#include "src/pipeline/replay.h"
#include "src/pipeline/report.h"
#include "tests/mentions.h"
#include "tests/unit/pipeline_support.h"

namespace shoal::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Mentions;

/// The compute actions of all ranks.
std::vector<std::string> orders(const Shape& shape) {
  std::vector<std::string> texts;
  for (const Actions& actions : build(shape, equal_stages(shape.stages(), 1, 2, 0)).ranks) {
    texts.push_back(to_text(shape, actions));
  }
  return texts;
}

constexpr const char* kLastOf1f1b = "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7";

TEST(PipelineOrders, Simple) {
  const std::string all = "F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7";
  EXPECT_THAT(orders(shape_of(ScheduleKind::simple, 4, 8)), ElementsAre(all, all, all, all));
}

TEST(PipelineOrders, OneForwardOneBackward) {
  EXPECT_THAT(orders(shape_of(ScheduleKind::one_f_one_b, 4, 8)),
              ElementsAre("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7", "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
                          "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7", kLastOf1f1b));
}

TEST(PipelineOrders, EagerOneForwardOneBackward) {
  EXPECT_THAT(orders(shape_of(ScheduleKind::eager_1f1b, 4, 8)),
              ElementsAre("F0 F1 F2 F3 F4 F5 F6 B0 F7 B1 B2 B3 B4 B5 B6 B7", "F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 F7 B3 B4 B5 B6 B7",
                          "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7", kLastOf1f1b));
}

TEST(PipelineOrders, InterleavedWithItsUsualCap) {
  EXPECT_THAT(orders(shape_of(ScheduleKind::interleaved, 4, 8)),
              ElementsAre("F0 F1 F2 F3 F4 F5 B0 F6 B1 F7 B2 B3 B4 B5 B6 B7", "F0 F1 F2 F3 F4 F5 B0 B1 F6 B2 F7 B3 B4 B5 B6 B7",
                          "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7", kLastOf1f1b));
}

TEST(PipelineOrders, VirtualStages) {
  EXPECT_THAT(
      orders(shape_of(ScheduleKind::virtual_stages, 4, 8, 2)),
      ElementsAre("0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 0B2 0B3 4B4 4B5 4B6 "
                  "4B7 0B4 0B5 0B6 0B7",
                  "1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 1F4 5B0 1F5 5B1 1F6 5B2 1F7 5B3 5F4 1B0 5F5 1B1 5F6 1B2 5F7 1B3 5B4 5B5 5B6 "
                  "5B7 1B4 1B5 1B6 1B7",
                  "2F0 2F1 2F2 2F3 6F0 6F1 6F2 6B0 6F3 6B1 2F4 6B2 2F5 6B3 2F6 2B0 2F7 2B1 6F4 2B2 6F5 2B3 6F6 6B4 6F7 6B5 6B6 "
                  "6B7 2B4 2B5 2B6 2B7",
                  "3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 7B4 7F5 7B5 7F6 7B6 7F7 "
                  "7B7 3B4 3B5 3B6 3B7"));
}

TEST(PipelineOrders, SplitBackward) {
  EXPECT_THAT(orders(shape_of(ScheduleKind::zb_h1, 4, 8)),
              ElementsAre("F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7",
                          "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7",
                          "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7",
                          "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"));
}

TEST(PipelineOrders, ForwardOnlyAndFewMicrobatches) {
  EXPECT_THAT(orders(shape_of(ScheduleKind::forward_only, 2, 3)), ElementsAre("F0 F1 F2", "F0 F1 F2"));
  EXPECT_THAT(orders(shape_of(ScheduleKind::one_f_one_b, 3, 1)), ElementsAre("F0 B0", "F0 B0", "F0 B0"));
  EXPECT_THAT(orders(shape_of(ScheduleKind::zb_h1, 3, 1)), ElementsAre("F0 I0 W0", "F0 I0 W0", "F0 I0 W0"));
}

TEST(PipelineOrders, TheCapDecidesWhatInterleavedIs) {
  for (const int ranks : {2, 4, 8}) {
    const Shape shape = shape_of(ScheduleKind::interleaved, ranks, 2 * ranks);
    std::vector<int> caps;
    for (int stage = 0; stage < ranks; ++stage) caps.push_back(ranks - stage);
    EXPECT_EQ(list_schedule(shape, equal_stages(ranks, 1, 2, 0), caps),
              compute_orders(shape_of(ScheduleKind::one_f_one_b, ranks, 2 * ranks), {}));
  }
}

TEST(PipelineOrders, MessagesGoAroundComputing) {
  const Shape shape = shape_of(ScheduleKind::one_f_one_b, 3, 1);
  const PipelineSchedule schedule = build(shape, {}, true);
  EXPECT_EQ(to_text(shape, schedule.ranks[0], true), "F0 >F0 <B0 B0 R");
  EXPECT_EQ(to_text(shape, schedule.ranks[1], true), "<F0 F0 >F0 <B0 B0 >B0 R");
  EXPECT_EQ(to_text(shape, schedule.ranks[2], true), "<F0 F0 B0 >B0 R");
  const Shape alone = shape_of(ScheduleKind::virtual_stages, 1, 1, 2);
  EXPECT_EQ(to_text(alone, build(alone, {}).ranks[0], true), "0F0 1F0 1B0 0B0");
  const Shape split = shape_of(ScheduleKind::zb_h1, 2, 1);
  EXPECT_EQ(to_text(split, build(split, {}, true).ranks[1], true), "<F0 F0 I0 >B0 W0 R");
}

TEST(PipelineOrders, InterleavedNeedsTimes) {
  const auto found = make_schedule(shape_of(ScheduleKind::interleaved, 2, 2));
  EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(found.status().message(), Mentions("0 stages", "2 stages"));
}

// ---- what they hold ----

TEST(PipelineHeld, IsWhatWasPromised) {
  const auto held = [](const Shape& shape) {
    return most_held_by_rank(shape, compute_orders(shape, equal_stages(shape.stages(), 1, 2, 0)));
  };
  EXPECT_THAT(held(shape_of(ScheduleKind::simple, 4, 8)), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(held(shape_of(ScheduleKind::one_f_one_b, 4, 8)), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(held(shape_of(ScheduleKind::eager_1f1b, 4, 8)), ElementsAre(7, 5, 3, 1));
  EXPECT_THAT(held(shape_of(ScheduleKind::interleaved, 4, 8)), ElementsAre(6, 6, 4, 1));
  Shape wide = shape_of(ScheduleKind::interleaved, 4, 8);
  wide.active_microbatches = 8;
  EXPECT_THAT(held(wide), ElementsAre(8, 7, 4, 1));
  EXPECT_THAT(held(shape_of(ScheduleKind::virtual_stages, 4, 8, 2)), ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(held(shape_of(ScheduleKind::zb_h1, 4, 8)), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(held(shape_of(ScheduleKind::forward_only, 4, 8)), ElementsAre(1, 1, 1, 1));
}

TEST(PipelineHeld, TheBoundOfEachStageHolds) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int microbatches = 1; microbatches <= 12; ++microbatches) {
      for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b,
                                      ScheduleKind::interleaved, ScheduleKind::zb_h1, ScheduleKind::forward_only}) {
        const Shape shape = shape_of(kind, ranks, microbatches);
        const auto bound = held_microbatches(shape);
        const auto held = most_held_by_stage(shape, compute_orders(shape, equal_stages(ranks, 1, 2, 0)));
        if (kind == ScheduleKind::interleaved) {
          for (std::size_t stage = 0; stage < held.size(); ++stage) EXPECT_LE(held[stage], bound[stage]);
        } else {
          EXPECT_EQ(held, bound) << to_string(kind) << " " << ranks << " " << microbatches;
        }
      }
    }
  }
}

// ---- times ----

/// A step in us, with messages of `x` us.
double step(const Shape& shape, double forward, double backward, double x) {
  const StageTimes times = equal_stages(shape.stages(), forward, backward, x);
  const auto played = replay(build(shape, times), times);
  EXPECT_TRUE(played.ok()) << played.status().to_string();
  return played.ok() ? microseconds(played->step_ps) : 0;
}

TEST(PipelineTimes, FourStagesWithMessages) {
  struct Row {
    Shape shape;
    double step_us[4];  // with messages of 0, 0.25, 0.5 and 1 us
  };
  Shape wide = shape_of(ScheduleKind::interleaved, 4, 8);
  wide.active_microbatches = 8;
  const Row rows[] = {
      {shape_of(ScheduleKind::simple, 4, 8), {33, 34.5, 36, 39}},
      {shape_of(ScheduleKind::one_f_one_b, 4, 8), {33, 37, 41, 49}},
      {shape_of(ScheduleKind::eager_1f1b, 4, 8), {33, 34.5, 36, 39}},
      {shape_of(ScheduleKind::interleaved, 4, 8), {33, 34.5, 37, 41}},
      {wide, {33, 34.5, 36, 39}},
      {shape_of(ScheduleKind::zb_h1, 4, 8), {27, 30, 33, 41}},
  };
  constexpr double kMessages[] = {0, 0.25, 0.5, 1};
  for (const Row& row : rows) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(step(row.shape, 1, 2, kMessages[i]), row.step_us[i]) << to_string(row.shape.kind) << " x " << kMessages[i];
    }
  }
  // Chunks of half a stage.
  const Shape chunks = shape_of(ScheduleKind::virtual_stages, 4, 8, 2);
  constexpr double kChunks[] = {28.5, 32, 35.5, 46};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(chunks, 0.5, 1, kMessages[i]), kChunks[i]) << "x " << kMessages[i];
}

TEST(PipelineTimes, IdleSharesOfFourStages) {
  const auto bubble = [](const Shape& shape, double part) {
    const StageTimes times = equal_stages(shape.stages(), part, 2 * part, 0);
    return replay(build(shape, times), times)->bubble();
  };
  EXPECT_NEAR(bubble(shape_of(ScheduleKind::simple, 4, 8), 1), 0.273, 0.0005);
  EXPECT_NEAR(bubble(shape_of(ScheduleKind::one_f_one_b, 4, 8), 1), 0.273, 0.0005);
  EXPECT_NEAR(bubble(shape_of(ScheduleKind::virtual_stages, 4, 8, 2), 0.5), 0.158, 0.0005);
  EXPECT_NEAR(bubble(shape_of(ScheduleKind::zb_h1, 4, 8), 1), 0.111, 0.0005);
}

TEST(PipelineTimes, ClosedForms) {
  for (const int p : {2, 4, 8}) {
    for (const int rounds : {1, 2, 4}) {
      const int m = p * rounds;
      for (const double x : {0.0, 0.25, 0.5, 1.0, 3.0}) {
        SCOPED_TRACE(::testing::Message() << "p " << p << ", m " << m << ", x " << x);
        const double compute = (m + p - 1) * 3.0;
        const double through = 2 * (p - 1) * x;
        EXPECT_EQ(step(shape_of(ScheduleKind::simple, p, m), 1, 2, x), compute + through);
        EXPECT_EQ(step(shape_of(ScheduleKind::one_f_one_b, p, m), 1, 2, x),
                  compute + x * (2 * (p - 2) + 2.0 * rounds * (p - 1)));
        if (x <= 1.5) {
          EXPECT_EQ(step(shape_of(ScheduleKind::eager_1f1b, p, m), 1, 2, x), compute + through);
        }
        EXPECT_EQ(step(shape_of(ScheduleKind::forward_only, p, m), 1, 2, x), m + p - 1 + (p - 1) * x);
      }
      EXPECT_EQ(step(shape_of(ScheduleKind::zb_h1, p, m), 1, 2, 0), 3.0 * m + (p - 1));
      for (const int v : {1, 2, 3}) {
        // A stage of 6 us in v chunks; the bubble is that of one chunk.
        EXPECT_EQ(step(shape_of(ScheduleKind::virtual_stages, p, m, v), 6.0 / v, 12.0 / v, 0), 18.0 * m + 18.0 * (p - 1) / v)
            << "p " << p << ", m " << m << ", v " << v;
      }
    }
  }
}

TEST(PipelineTimes, FewerMicrobatchesThanRanks) {
  EXPECT_EQ(step(shape_of(ScheduleKind::one_f_one_b, 4, 1), 1, 2, 0), 12);
  EXPECT_EQ(step(shape_of(ScheduleKind::interleaved, 4, 3), 1, 2, 0), 18);
  EXPECT_EQ(step(shape_of(ScheduleKind::simple, 4, 3), 1, 2, 0), 18);
}

TEST(PipelineTimes, UnequalStages) {
  StageTimes times = equal_stages(4, 1, 2, 0);
  times.stages[1].forward_ps *= 3;
  times.stages[1].input_ps *= 3;
  times.stages[1].weight_ps *= 3;
  const auto step_us = [&](ScheduleKind kind) {
    return microseconds(replay(build(shape_of(kind, 4, 8), times), times)->step_ps);
  };
  EXPECT_EQ(step_us(ScheduleKind::simple), 81);
  EXPECT_EQ(step_us(ScheduleKind::one_f_one_b), 75);
  EXPECT_EQ(step_us(ScheduleKind::interleaved), 78);
}

TEST(PipelineTimes, BoundsOfRandomPipelines) {
  Random random(7);
  for (int i = 0; i < 300; ++i) {
    const RandomPipeline each = random_pipeline(random);
    const auto played = replay(build(each.shape, each.times), each.times);
    ASSERT_TRUE(played.ok()) << played.status().to_string();
    for (std::size_t rank = 0; rank < played->ranks.size(); ++rank) {
      EXPECT_LE(played->ranks[rank].busy_ps, played->step_ps);
      const auto& spans = played->ranks[rank].spans;
      for (std::size_t k = 1; k < spans.size(); ++k) EXPECT_GE(spans[k].begin_ps, spans[k - 1].end_ps);
    }
  }
}

TEST(PipelineTimes, AWireCarriesOneMessageAtATime) {
  StageTimes times = equal_stages(2, 1, 1, 0);
  times.cuts[0] = {500'000, 3'000'000, 640};  // longer than a forward
  const auto played = replay(build(shape_of(ScheduleKind::simple, 2, 2), times), times);
  ASSERT_TRUE(played.ok());
  EXPECT_EQ(played->ranks[1].spans[0].begin_ps, 4'500'000);
  EXPECT_EQ(played->ranks[1].spans[1].begin_ps, 7'500'000);
  EXPECT_EQ(played->ranks[0].sent_bytes, 1280);
  EXPECT_EQ(played->ranks[0].messages, 2);
}

TEST(PipelineTimes, ReductionsHideInTheDrain) {
  StageTimes times = equal_stages(4, 1, 2, 0);
  for (StageTime& stage : times.stages) stage.reduce_ps = 2'000'000;
  const Shape shape = shape_of(ScheduleKind::one_f_one_b, 4, 8);
  // Stage 0 ends last, and only its reduction is exposed.
  EXPECT_EQ(replay(build(shape, times, true), times)->step_ps, 35'000'000);
  for (StageTime& stage : times.stages) stage.reduce_ps = 0;
  times.stages[3].reduce_ps = 6'000'000;
  EXPECT_EQ(replay(build(shape, times, true), times)->step_ps, 33'000'000);
}

TEST(PipelineTimes, LongStepsAreRefused) {
  const Shape shape = shape_of(ScheduleKind::simple, 2, 1'000'000);
  const StageTimes times = equal_stages(2, 1e9, 1e9, 0);
  const auto found = replay(build(shape_of(ScheduleKind::simple, 2, 1), {}), equal_stages(3, 1, 1, 0));
  EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(check(times, shape).code(), StatusCode::invalid_argument);
  EXPECT_THAT(check(times, shape).message(), Mentions("1000000 microbatches"));
}

TEST(PipelineTimes, TooManyActionsAreRefused) {
  const Status status = check(shape_of(ScheduleKind::simple, 4096, 4096));
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), Mentions("4096 ranks", "4096 microbatches"));
}

// ---- drawings and tables ----

TEST(PipelineDrawing, TextHasAColumnForEachUnitOfTime) {
  const Shape shape = shape_of(ScheduleKind::one_f_one_b, 2, 3);
  const StageTimes times = equal_stages(2, 1, 2, 0);
  const PipelineSchedule schedule = build(shape, times);
  const std::string text = draw_text(schedule, *replay(schedule, times));
  EXPECT_THAT(text, HasSubstr("|01..aa2bb.cc|"));
  EXPECT_THAT(text, HasSubstr("|.0aa1bb2cc..|"));
  EXPECT_THAT(text, Mentions("1f1b", "12 us", "25.0 %"));
}

TEST(PipelineDrawing, LongStepsFitTheColumns) {
  const Shape shape = shape_of(ScheduleKind::zb_h1, 4, 64);
  const StageTimes times = equal_stages(4, 1.7, 2.3, 0.1);
  const PipelineSchedule schedule = build(shape, times);
  const std::string text = draw_text(schedule, *replay(schedule, times), 80);
  EXPECT_EQ(text.find("r1 ") - text.find("r0 "), std::string("r0  ||\n").size() + 80);
}

TEST(PipelineDrawing, SvgHasABoxForEachAction) {
  const Shape shape = shape_of(ScheduleKind::virtual_stages, 2, 2, 2);
  const StageTimes times = equal_stages(4, 1, 2, 0.5);
  const PipelineSchedule schedule = build(shape, times, true);
  const std::string svg = draw_svg(schedule, *replay(schedule, times));
  std::size_t boxes = 0;
  for (auto at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++boxes;
  EXPECT_EQ(boxes, 4U * 2 * 2 + 4);
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

TEST(PipelineReport, ShowsStagesAndWhatDecides) {
  PartitionRequest request;
  request.rules = {shape_of(ScheduleKind::one_f_one_b, 3, 4), {100, 50}, false, Recompute::none, 2};
  request.objective = Objective::speed;
  const Profile profile = worked_example();
  const auto found = partition(profile, request);
  ASSERT_TRUE(found.ok());
  const auto prediction = predict(request.rules.shape, found->times);
  ASSERT_TRUE(prediction.ok());
  const std::string table = partition_table(profile, request, *found, *prediction);
  EXPECT_THAT(table, Mentions("unit1", "unit3", "7260.0", "9600.0", "8940.0", "64000", "stage 1", "100.0 us", "50.0 bytes"));
  EXPECT_THAT(rank_table(*prediction), Mentions("bytes sent", "256000", "320000", "64000"));
  EXPECT_THAT(comparison_table(request.rules.shape, found->times), Mentions("-> 1f1b", "simple", "zb_h1", "interleaved"));
}

}  // namespace
}  // namespace shoal::pipeline
