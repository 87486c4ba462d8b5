// Drawing: a Replay as a time line, in text and as a picture.
#pragma once

#include <string>

#include "src/pipeline/replay.h"

namespace shoal::pipeline {

/// A line for each rank, at most `columns` characters of time. A forward is the last digit of its microbatch, a backward (its
/// first half, too) a letter: `a` for microbatch 0, `b` for 1, ...; `w` is the second half, `.` is idle. An action that is
/// shorter than a column may be hidden by its neighbour.
std::string draw_text(const PipelineSchedule& schedule, const Replay& replay, int columns = 120);

/// The same as SVG 1.1: time runs to the right, a row for each rank, a box for each action; a second chunk has darker boxes.
/// Reductions are thin boxes below.
std::string draw_svg(const PipelineSchedule& schedule, const Replay& replay);

}  // namespace shoal::pipeline
