#include "src/schedule/timeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "src/schedule/dependencies.h"

namespace shoal {
namespace {

/// The state of one rank in its Program.
struct Progress {
  explicit Progress(const Program& program)
      : dependencies(program), done(program.steps.size()), arrived(program.steps.size()) {}

  Dependencies dependencies;
  std::vector<std::optional<int>> done;     // by step: the time when it was done
  std::vector<std::optional<int>> arrived;  // by receiving step: when its message arrived
  std::size_t first_open = 0;               // all steps before it are done

  /// When everything that `step` waits for in its own Program is done; nullopt while some of it is not.
  [[nodiscard]] std::optional<int> ready(std::size_t step) const {
    int latest = 0;
    for (const std::uint32_t other : dependencies.of(step)) {
      if (!done[other]) return std::nullopt;
      latest = std::max(latest, *done[other]);
    }
    return latest;
  }
};

/// Ends every step except sends that can end. A later step depends only on earlier ones, so one pass is enough.
void finish_local_steps(const Program& program, Progress& progress) {
  for (std::size_t i = progress.first_open; i < program.steps.size(); ++i) {
    const StepOp op = program.steps[i].op;
    const bool received = op == StepOp::recv || op == StepOp::recv_reduce;
    if (progress.done[i] || op == StepOp::send || (received && !progress.arrived[i])) continue;
    const auto ready = progress.ready(i);
    if (ready) progress.done[i] = std::max(*ready, progress.arrived[i].value_or(0));
  }
  while (progress.first_open < program.steps.size() && progress.done[progress.first_open]) ++progress.first_open;
}

}  // namespace

std::vector<Message> timeline(const Schedule& schedule) {
  std::vector<Progress> ranks;
  std::map<std::pair<int, int>, std::vector<std::uint32_t>> recvs;  // by link, in order
  std::map<std::pair<int, int>, std::size_t> sent;                  // how many of them are matched
  std::size_t sends = 0;
  for (const Program& program : schedule.programs) {
    ranks.emplace_back(program);
    for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
      const Step& step = program.steps[i];
      if (step.op == StepOp::send) ++sends;
      if (step.op == StepOp::recv || step.op == StepOp::recv_reduce) recvs[{step.peer, program.rank}].push_back(i);
    }
  }
  std::vector<Message> messages;
  // Every slot moves at least one message, unless the remaining steps are in a deadlock.
  for (int slot = 0; messages.size() < sends && static_cast<std::size_t>(slot) <= sends; ++slot) {
    for (std::size_t r = 0; r < ranks.size(); ++r) finish_local_steps(schedule.programs[r], ranks[r]);
    std::vector<bool> receiving(ranks.size(), false);
    const std::size_t before = messages.size();
    for (const Program& program : schedule.programs) {
      Progress& progress = ranks[static_cast<std::size_t>(program.rank)];
      std::vector<bool> blocked(ranks.size(), false);  // links whose oldest message cannot leave yet
      for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
        const Step& step = program.steps[i];
        const auto peer = static_cast<std::size_t>(std::max(step.peer, 0));
        if (step.op != StepOp::send || progress.done[i] || blocked[peer]) continue;
        const auto ready = progress.ready(i);
        const auto& expected = recvs[{program.rank, step.peer}];
        std::size_t& matched = sent[{program.rank, step.peer}];
        blocked[peer] = !ready || *ready > slot || receiving[peer] || matched == expected.size();
        if (blocked[peer]) continue;
        const std::uint32_t recv = expected[matched++];
        messages.push_back({program.rank, step.peer, i, recv, slot});
        progress.done[i] = slot;
        ranks[peer].arrived[recv] = slot + 1;
        receiving[peer] = true;
        break;
      }
    }
    if (messages.size() == before && slot > 0 &&
        std::ranges::none_of(messages, [&](const Message& m) { return m.slot == slot - 1; }))
      break;
  }
  return messages;
}

}  // namespace shoal
