#include "src/schedule/units.h"

#include <algorithm>

namespace shoal {
namespace {

/// Whether an engine may fold `step` together with the steps before it in its lane.
bool joins(const Topology& topology, const Program& program, const std::vector<std::uint32_t>& before, const Step& step) {
  if (before.empty() || step.op != StepOp::recv_reduce || step.source != step.target) return false;
  return std::ranges::all_of(before, [&](std::uint32_t i) {
    const Step& other = program.steps[i];
    return other.op == StepOp::recv_reduce && other.target == step.target && other.peer != step.peer &&
           (program.folds_across_links ||
            topology.link_class(program.rank, other.peer) == topology.link_class(program.rank, step.peer));
  });
}

}  // namespace

std::vector<std::uint32_t> units_of_steps(const Topology& topology, const Program& program) {
  struct Open {
    std::uint32_t unit = 0;
    std::vector<std::uint32_t> steps;
  };
  std::vector<Open> open(program.lanes);  // the last unit of each lane
  std::vector<std::uint32_t> units(program.steps.size());
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
    Open& last = open[program.steps[i].lane];
    if (!joins(topology, program, last.steps, program.steps[i])) {
      last.unit = count++;
      last.steps.clear();
    }
    last.steps.push_back(i);
    units[i] = last.unit;
  }
  return units;
}

}  // namespace shoal
