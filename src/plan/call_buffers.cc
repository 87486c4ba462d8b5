#include "src/plan/call_buffers.h"

#include <numeric>

#include "src/schedule/layout.h"

namespace shoal {

CallBuffers call_buffers(const Collective& collective, int ranks, int rank) {
  const std::size_t message = collective.message_bytes(ranks);
  const bool at_root = rank == collective.root;
  const std::size_t share = collective.counts.empty()
                                ? collective.input_bytes()
                                : collective.counts[static_cast<std::size_t>(rank)] * size_of(collective.type);
  // Where this rank's share lies in the message, and so the smaller buffer in the larger one.
  const auto own = static_cast<std::ptrdiff_t>(share_offset_bytes(collective, ranks, rank));
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return {message, message, true, 0};
    case CollectiveKind::all_gather:
      return {share, message, true, own};
    case CollectiveKind::reduce_scatter:
      return {message, share, true, -own};
    case CollectiveKind::reduce:
      return {message, at_root ? message : 0, true, 0};
    case CollectiveKind::gather:
      return {share, at_root ? message : 0, true, own};
    case CollectiveKind::scatter:
      return {at_root ? message : 0, share, true, -own};
    case CollectiveKind::all_to_all: {
      if (collective.counts.empty()) return {message, message};
      const auto receives = collective.counts.subspan(static_cast<std::size_t>(ranks));
      return {message, std::accumulate(receives.begin(), receives.end(), std::size_t{0}) * size_of(collective.type)};
    }
    default:
      return {0, message};
  }
}

}  // namespace shoal
