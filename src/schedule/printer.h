// Printer: a Schedule as text, graph or picture.
#pragma once

#include <string>

#include "src/schedule/program.h"

namespace shoal {

/// Every rank's steps, one a line.
std::string print_text(const Schedule& schedule);

/// A Graphviz digraph: a cluster of steps for every rank, solid edges for messages, dashed ones for order within a rank.
std::string print_dot(const Schedule& schedule);

/// A picture: time runs to the right, every rank is a line, every message an arrow in the slot of timeline(). The colour
/// shows whether a message is folded or copied, and the line width whether it stays in its node. Plain SVG 1.1.
std::string print_svg(const Schedule& schedule);

}  // namespace shoal
