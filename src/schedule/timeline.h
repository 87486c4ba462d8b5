// Timeline: the messages of a Schedule in the order in which they could flow, for drawings.
#pragma once

#include <cstdint>
#include <vector>

#include "src/schedule/program.h"

namespace shoal {

/// One message: a send and the step that receives it.
struct Message {
  int from = 0;
  int to = 0;
  std::uint32_t send_step = 0;
  std::uint32_t recv_step = 0;
  int slot = 0;  ///< leaves at time `slot`, arrives at `slot` + 1
};

/// All messages, if each takes one unit of time and a rank sends one and receives one at a time, as early as their
/// dependencies allow; sorted by slot, then by sender. Messages in a deadlock (see verify()) are left out. Precondition:
/// slices are in range and peers exist.
std::vector<Message> timeline(const Schedule& schedule);

}  // namespace shoal
