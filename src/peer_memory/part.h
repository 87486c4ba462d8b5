// PeerMemoryPart: what a rank gives to a call over the shared windows, and what it takes from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/peer_memory/slots.h"
#include "src/schedule/program.h"

namespace shoal {

/// Every rank writes what it gives into its window; each takes what it needs from the windows of the ranks that it waits for.
struct PeerMemoryPart {
  /// Bytes that a rank gives, and where they go.
  struct Take {
    std::uint32_t rank = 0;
    std::size_t offset_bytes = 0;         ///< in what that rank gives
    std::size_t output_offset_bytes = 0;  ///< in this rank's output
    std::size_t size_bytes = 0;
  };

  OneShotPlace place = OneShotPlace::in_slot;
  bool folds = false;           ///< all that is taken is folded into one result; else each is copied to its place
  std::size_t gives_bytes = 0;  ///< of the own input, from its start; 0 where the peers need nothing of this rank
  /// In the order in which they are folded: by rank, this rank among them where its own input counts; the root's own comes
  /// last. Takes have no bytes where only the signatures matter. This rank does not wait for ranks that do not appear.
  std::vector<Take> takes;
  int own_take = -1;  ///< which of them is this rank's own; -1: none
};

/// The part of `rank` in a call for which a Program of `algorithm` was chosen; nothing where such a call uses the links. All
/// ranks come to the same answer. What is folded is folded in rank order at once, so only calls whose Program does the same
/// are served: the result has the same bits.
[[nodiscard]] std::optional<PeerMemoryPart> peer_memory_part(const Collective& collective, std::string_view algorithm,
                                                             int ranks, int rank, const OneShotRoom& room);

}  // namespace shoal
