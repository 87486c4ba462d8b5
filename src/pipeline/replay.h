// Replay: when each action of a PipelineSchedule runs, if every action takes exactly its time.
#pragma once

#include <cstdint>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/action.h"
#include "src/pipeline/stage_times.h"

namespace shoal::pipeline {

/// An action that takes time on its rank.
struct Span {
  Action action;
  std::int64_t begin_ps = 0;
  std::int64_t end_ps = 0;
};

/// What a rank did in a step.
struct RankReplay {
  std::vector<Span> spans;  ///< compute actions and reductions, in order of their begin
  std::int64_t busy_ps = 0;
  int most_held = 0;  ///< microbatches of all its stages
  std::int64_t messages = 0;
  std::int64_t sent_bytes = 0;
};

struct Replay {
  std::vector<RankReplay> ranks;
  std::int64_t step_ps = 0;

  /// The part of all ranks' time in which they compute nothing.
  [[nodiscard]] double bubble() const;
};

/// Plays one step. A rank computes one action at a time and waits for its input only: messages travel beside the computing,
/// those of one stage in one direction one after the other (CutTime). A reduction begins at its place and runs beside what
/// follows. Errors: those of check(times, shape); internal if ranks wait forever (verify() reports why). Pure.
Result<Replay> replay(const PipelineSchedule& schedule, const StageTimes& times);

/// How long a compute action or a reduction takes.
std::int64_t duration_ps(const Action& action, const StageTimes& times);

}  // namespace shoal::pipeline
