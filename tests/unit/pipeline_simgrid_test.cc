// Pipelines on SimGrid: the same times as replay() where no messages share a wire.

#include "src/pipeline/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/pipeline/replay.h"
#include "src/simulate/simgrid_engine.h"
#include "tests/unit/pipeline_support.h"

namespace shoal::pipeline {
namespace {

double simgrid_us(const Shape& shape, const StageTimes& times, double bytes_per_us = 0) {
  const auto graph = task_graph(build(shape, times, true), times, bytes_per_us);
  EXPECT_TRUE(graph.ok()) << graph.status().to_string();
  const auto run = run_on_simgrid(*graph);
  EXPECT_TRUE(run.ok()) << run.status().to_string();
  return run.ok() ? run->total_us : 0;
}

TEST(PipelineOnSimGrid, GivesTheClosedForms) {
  for (const int p : {2, 4, 8}) {
    for (const double x : {0.0, 25.0, 100.0}) {
      const int m = 2 * p;
      const StageTimes times = equal_stages(p, 100, 200, x);
      const double compute = (m + p - 1) * 300.0;
      const auto near = [&](ScheduleKind kind, double expected) {
        EXPECT_NEAR(simgrid_us(shape_of(kind, p, m), times), expected, 0.01 * expected)
            << to_string(kind) << " " << p << " " << x;
      };
      near(ScheduleKind::simple, compute + 2 * (p - 1) * x);
      near(ScheduleKind::one_f_one_b, compute + x * (2 * (p - 2) + 4 * (p - 1)));
      near(ScheduleKind::eager_1f1b, compute + 2 * (p - 1) * x);
      if (x == 0) near(ScheduleKind::zb_h1, m * 300.0 + (p - 1) * 100);
    }
    const StageTimes halves = equal_stages(2 * p, 50, 100, 0);
    const double expected = 2 * p * 300.0 + (p - 1) * 150.0;
    EXPECT_NEAR(simgrid_us(shape_of(ScheduleKind::virtual_stages, p, 2 * p, 2), halves), expected, 0.01 * expected);
  }
}

TEST(PipelineOnSimGrid, AgreesWithTheReplayOnRandomPipelines) {
  Random random(3);
  for (int i = 0; i < 30; ++i) {
    RandomPipeline each = random_pipeline(random);
    for (StageTime& stage : each.times.stages) {
      stage = {stage.forward_ps * kMicrosecond, stage.input_ps * kMicrosecond, stage.weight_ps * kMicrosecond,
               5 * kMicrosecond};
    }
    for (CutTime& cut : each.times.cuts) cut = {cut.latency_ps * kMicrosecond, 0, 0};
    const auto played = replay(build(each.shape, each.times, true), each.times);
    ASSERT_TRUE(played.ok());
    const double expected = microseconds(played->step_ps);
    EXPECT_NEAR(simgrid_us(each.shape, each.times), expected, 0.01 * expected + 0.1) << i;
  }
}

TEST(PipelineOnSimGrid, MessagesOfARankShareItsWire) {
  // The middle rank sends an activation and a gradient of each microbatch, 2000 us each: more than its 3000 us of computing.
  StageTimes times = equal_stages(3, 1000, 2000, 0);
  for (CutTime& cut : times.cuts) cut = {0, 2000 * kMicrosecond, 200'000};
  constexpr int kMicrobatches = 24;
  constexpr double kWireUs = kMicrobatches * 4000.0;
  const Shape shape = shape_of(ScheduleKind::simple, 3, kMicrobatches);
  const Shape eager = shape_of(ScheduleKind::eager_1f1b, 3, kMicrobatches);
  EXPECT_LT(microseconds(replay(build(eager, times), times)->step_ps), kWireUs);
  EXPECT_GE(simgrid_us(eager, times, 100), kWireUs);
  // All activations go before all gradients, so none of them meet.
  const double alone = microseconds(replay(build(shape, times), times)->step_ps);
  EXPECT_NEAR(simgrid_us(shape, times, 100), alone, 0.01 * alone);
}

}  // namespace
}  // namespace shoal::pipeline
