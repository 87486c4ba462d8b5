#include "src/pipeline/execution.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace shoal::pipeline {
namespace {

/// A message: the sending stage, its op and the microbatch.
using Tag = std::tuple<int, ActionOp, int>;

Tag tag_of(const Action& action) {
  if (is_send(action.op)) return {action.stage, action.op, action.microbatch};
  const ActionOp sent = action.op == ActionOp::recv_activation ? ActionOp::send_activation : ActionOp::send_gradient;
  return {peer_stage(action), sent, action.microbatch};
}

/// Where the two ends of a message are in their ranks' actions.
struct Ends {
  int sender = -1;
  std::size_t send = 0;
  int receiver = -1;
  std::size_t recv = 0;
};

class Execution {
 public:
  Execution(const PipelineSchedule& schedule, SendRule sends) : schedule_(schedule), sends_(sends), at_(schedule.ranks.size()) {
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      const Actions& actions = schedule.ranks[rank];
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (is_send(actions[i].op)) {
          Ends& ends = messages_[tag_of(actions[i])];
          ends.sender = static_cast<int>(rank);
          ends.send = i;
        } else if (is_recv(actions[i].op)) {
          Ends& ends = messages_[tag_of(actions[i])];
          ends.receiver = static_cast<int>(rank);
          ends.recv = i;
        }
      }
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < at_.size(); ++rank) {
        while (at_[rank] < schedule_.ranks[rank].size() && can_run(rank)) {
          ++at_[rank];
          moved = true;
        }
      }
    }
  }

  void report(Faults& faults) const {
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] == schedule_.ranks[rank].size()) continue;
      const Action& action = schedule_.ranks[rank][at_[rank]];
      const Ends& ends = messages_.at(tag_of(action));
      const bool waits_for_send = is_recv(action.op);
      const int other = waits_for_send ? ends.sender : ends.receiver;
      const std::size_t other_at = waits_for_send ? ends.send : ends.recv;
      const Actions& others = schedule_.ranks[static_cast<std::size_t>(other)];
      const std::size_t reached = at_[static_cast<std::size_t>(other)];
      faults.add(FaultKind::deadlock, static_cast<int>(rank), at_[rank], action,
                 fmt::format("waits for {}, which waits at {}", describe(other, other_at, others[other_at]),
                             describe(other, reached, others[reached])));
    }
  }

 private:
  [[nodiscard]] bool can_run(std::size_t rank) const {
    const Action& action = schedule_.ranks[rank][at_[rank]];
    if (is_recv(action.op)) {
      const Ends& ends = messages_.at(tag_of(action));
      const std::size_t sender_at = at_[static_cast<std::size_t>(ends.sender)];
      return sender_at > ends.send || (sends_ == SendRule::waits && sender_at == ends.send);
    }
    if (is_send(action.op) && sends_ == SendRule::waits) {
      const Ends& ends = messages_.at(tag_of(action));
      return at_[static_cast<std::size_t>(ends.receiver)] >= ends.recv;
    }
    return true;
  }

  const PipelineSchedule& schedule_;
  SendRule sends_;
  std::map<Tag, Ends> messages_;
  std::vector<std::size_t> at_;  // by rank: its next action
};

}  // namespace

void find_deadlock(const PipelineSchedule& schedule, SendRule sends, Faults& faults) {
  Execution execution(schedule, sends);
  execution.run();
  execution.report(faults);
}

}  // namespace shoal::pipeline
