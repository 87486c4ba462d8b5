#include "src/pipeline/unit_memory.h"

#include <algorithm>
#include <utility>

namespace shoal::pipeline {
namespace {

std::size_t at(int unit) { return static_cast<std::size_t>(unit); }

}  // namespace

UnitMemory::UnitMemory(const std::vector<Unit>& units, const std::vector<UnitRun>& runs) : runs_(runs), stash_(1), kept_(1) {
  std::vector<std::int64_t> alone;
  std::vector<std::int64_t> in_runs;
  auto run = runs_.begin();
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    const Unit& each = units[at(unit)];
    if (run != runs_.end() && unit == run->end) ++run;
    const bool recomputes = run != runs_.end() && unit >= run->first;
    const std::size_t first = at(recomputes ? run->first : unit);
    run_ends_.push_back(recomputes ? run->end : unit);
    stash_.push_back(stash_.back() + each.stash_bytes);
    alone.push_back(stash_.back() + each.workspace_bytes);
    in_runs.push_back(kept_[first] + stash_.back() - stash_[first] + each.workspace_bytes);
    const std::int64_t kept_of_run = recomputes && unit + 1 == run->end ? each.output_bytes : 0;
    kept_.push_back(kept_.back() + (recomputes ? kept_of_run : each.stash_bytes));
  }
  alone_ = RangeMaximum(std::move(alone));
  in_runs_ = RangeMaximum(std::move(in_runs));
}

UnitMemory::Bytes UnitMemory::of(int first, int recompute_end, int end) const {
  Bytes bytes;
  const std::int64_t in_front = kept_[at(recompute_end)] - kept_[at(first)];
  bytes.kept = in_front + stash_[at(end)] - stash_[at(recompute_end)];
  if (recompute_end == end && recomputes(end - 1)) bytes.kept -= kept_[at(end)] - kept_[at(end - 1)];  // it is sent
  // The first run may have begun in front of the stage.
  const int joined = std::min(run_ends_[at(first)], recompute_end);
  if (joined > first) bytes.working = alone_.of(at(first), at(joined)) - stash_[at(first)];
  if (recompute_end > joined) {
    bytes.working = std::max(bytes.working, in_runs_.of(at(joined), at(recompute_end)) - kept_[at(first)]);
  }
  if (end > recompute_end) {
    bytes.working = std::max(bytes.working, in_front + alone_.of(at(recompute_end), at(end)) - stash_[at(recompute_end)]);
  }
  return bytes;
}

UnitMemory::Bytes UnitMemory::of_run(int first, int end) const {
  return {0, alone_.of(at(first), at(end)) - stash_[at(first)]};
}

std::vector<UnitRun> UnitMemory::runs(int first, int end) const {
  std::vector<UnitRun> found;
  for (const UnitRun& run : runs_) {
    const UnitRun part{std::max(run.first, first), std::min(run.end, end)};
    if (part.first < part.end) found.push_back(part);
  }
  return found;
}

}  // namespace shoal::pipeline
