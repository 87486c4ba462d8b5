// Profiles and pipelines for the tests of src/pipeline.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "src/pipeline/partitioner.h"
#include "src/pipeline/schedule.h"

namespace shoal::pipeline {

// How many random cases a test has: seconds of a core. tests/long has more.
#ifdef SHOAL_SANITIZED
inline constexpr std::uint64_t kRandomCases = 1'000;
#else
inline constexpr std::uint64_t kRandomCases = 10'000;
#endif

using Random = std::mt19937_64;

inline std::int64_t draw(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

/// Six units with unlike times and bytes. Every question about them in pipeline_partition_test.cc has one answer.
inline Profile worked_example() {
  struct Row {
    double forward_us;
    double backward_us;
    std::int64_t parameter_bytes, stash_bytes, output_bytes;
  };
  constexpr Row kRows[] = {
      {1500, 3000, 72000, 64000, 64000}, {1400, 2800, 36000, 48000, 48000}, {600, 1200, 72000, 32000, 16000},
      {600, 1200, 8000, 64000, 32000},   {800, 1600, 24000, 16000, 8000},   {1300, 2600, 24000, 3000, 1000},
  };
  Profile profile;
  for (const Row& row : kRows) {
    profile.units.push_back({"unit" + std::to_string(profile.units.size()),
                             row.forward_us,
                             row.backward_us,
                             row.parameter_bytes,
                             0,
                             row.stash_bytes,
                             row.output_bytes,
                             {}});
  }
  return profile;
}

/// Of each stage.
inline std::vector<std::int64_t> bytes_of(const Partition& partition) {
  std::vector<std::int64_t> bytes;
  for (const Stage& stage : partition.stages) bytes.push_back(stage.bytes);
  return bytes;
}

inline constexpr std::int64_t kMicrosecond = 1'000'000;  // in picoseconds

inline Shape shape_of(ScheduleKind kind, int ranks, int microbatches, int chunks = 1) {
  return {kind, ranks, chunks, microbatches, {}};
}

/// The schedule of a valid shape.
inline PipelineSchedule build(const Shape& shape, const StageTimes& times, bool reduces = false) {
  auto schedule = make_schedule(shape, times, reduces);
  EXPECT_TRUE(schedule.ok()) << schedule.status().to_string();
  return schedule.ok() ? *std::move(schedule) : PipelineSchedule{};
}

/// A pipeline of any kind with unequal stages.
struct RandomPipeline {
  Shape shape;
  StageTimes times;
};

inline RandomPipeline random_pipeline(Random& random) {
  Shape shape;
  shape.kind = static_cast<ScheduleKind>(draw(random, 0, static_cast<int>(ScheduleKind::forward_only)));
  shape.ranks = static_cast<int>(draw(random, 1, 6));
  shape.microbatches = static_cast<int>(draw(random, 1, 10));
  if (shape.kind == ScheduleKind::virtual_stages) {
    shape.chunks = static_cast<int>(draw(random, 1, 3));
    shape.microbatches = shape.ranks * static_cast<int>(draw(random, 1, 3));
  }
  if (shape.kind == ScheduleKind::interleaved && draw(random, 0, 1) == 1) {
    shape.active_microbatches = static_cast<int>(draw(random, 1, 12));
  }
  StageTimes times = equal_stages(shape.stages(), 0, 0, 0);
  const std::int64_t most = draw(random, 0, 3) == 0 ? 2 : 1000;  // small times make many things happen at once
  for (StageTime& stage : times.stages) stage = {draw(random, 0, most), draw(random, 0, most), draw(random, 0, most), 5};
  for (CutTime& cut : times.cuts) cut = {draw(random, 0, most), draw(random, 0, most), draw(random, 0, most)};
  return {shape, times};
}

}  // namespace shoal::pipeline
