// How the ranks of a group find each other through Unix sockets, and come to share memory.
//
// The ranks form a tree with the lowest rank at its root. Each waits for its children and connects to its parent, so a rank has
// few connections, whatever the size of the group.
//
//   child                                    parent
//   ---------------------------------------------------------------------------
//   hello (rank, settings; pidfd)         ->
//                                         <- welcome (memfd)  when it has the memory itself
//                                         <- member  (pidfd)  for each rank in another namespace
//   ready                                 ->                  the RankCards of its subtree are in the memory
//                                         <- go               when all ranks are ready
//
// Either side may send `late`: the deadline of a rank has passed, so whoever knows which rank is missing says so now. Either
// side may send `refusal` with a reason, which all pass on; then the connection of the whole group fails with that reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "transports/common/connect_deadline.h"
#include "transports/shm/listener.h"
#include "transports/shm/segment.h"

namespace shoal::shm {

/// What every rank holds when the group is complete.
struct Group {
  Segment segment;
  /// Pidfds by position in the sorted list of ranks, of those that this rank cannot open itself; else invalid.
  std::vector<Descriptor> lives;
};

/// The settings that must be the same on all ranks.
struct GroupSettings {
  std::uint64_t job_id = 0;
  RingShape ring;
  std::size_t window_bytes = 0;
};

/// Run by every rank of `ranks` (sorted, all of the group); `position`: of this rank in it. `addresses`: of the listeners of
/// all ranks, by position; its own may be empty. The lowest rank creates the memory. `card`: of this rank; when the group is
/// complete, the segment has the cards of all ranks. Unauthenticated connections are dropped. Thread rule: one thread.
/// Errors: timeout, naming the missing ranks; mismatch, naming the rank with other settings; peer_failed; system_error;
/// invalid_argument for bytes that are no address of the parent. After an error `listener` holds the connections.
Result<Group> meet(Listener& listener, std::span<const std::string> addresses, const GroupSettings& settings,
                   const std::vector<int>& ranks, std::size_t position, const RankCard& card, ConnectDeadline time_limit);

}  // namespace shoal::shm
