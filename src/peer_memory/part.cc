#include "src/peer_memory/part.h"

#include <algorithm>

#include "src/schedule/layout.h"

namespace shoal {
namespace {

/// Whether windows serve such calls with the same result as the Program.
bool serves(const Collective& collective, std::string_view algorithm, int ranks) {
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return algorithm == "one_shot";
    case CollectiveKind::reduce:
      // The Program folds the inputs of the root's peers, rounds, and then folds in the root's input: with narrow types a
      // single fold gives other bits.
      return (algorithm == "direct" && (size_of(collective.type) >= 4 || !is_floating(collective.type))) || ranks <= 2;
    case CollectiveKind::reduce_scatter:
      return algorithm == "direct" || ranks <= 2;
    case CollectiveKind::all_to_all:
      return collective.counts.empty();  // only the sending rank knows where it keeps the block for this rank
    case CollectiveKind::broadcast:
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
    case CollectiveKind::scatter:
      return true;
    default:
      return false;
  }
}

/// The most bytes that a rank gives.
std::size_t largest_bytes(const Collective& collective, int ranks) {
  const bool gives_share = collective.kind == CollectiveKind::all_gather || collective.kind == CollectiveKind::gather;
  return gives_share && collective.counts.empty() ? collective.input_bytes() : collective.message_bytes(ranks);
}

/// The most bytes that a rank may give. Larger calls that only move data go other ways: copying twice without a pipeline costs
/// more.
std::size_t most_bytes(CollectiveKind kind, const OneShotRoom& room) {
  constexpr std::size_t kMostMoved = 32 << 10;
  return kind == CollectiveKind::all_reduce ? room.large_bytes : std::min(room.large_bytes, kMostMoved);
}

}  // namespace

std::optional<PeerMemoryPart> peer_memory_part(const Collective& collective, std::string_view algorithm, int ranks, int rank,
                                               const OneShotRoom& room) {
  const std::size_t largest = largest_bytes(collective, ranks);
  if (largest > most_bytes(collective.kind, room) || !serves(collective, algorithm, ranks)) return std::nullopt;

  PeerMemoryPart part;
  if (largest > OneShotSlot::kInlineBytes) {
    // With many small places, a rank that waits for no peer may be many calls ahead. Where all ranks wait for all, two places
    // are enough, and stay in the caches better.
    const bool large = collective.kind == CollectiveKind::all_reduce || largest > room.small_bytes;
    part.place = large ? OneShotPlace::large : OneShotPlace::small;
  }
  part.folds = reduces(collective.kind);
  const std::size_t message = collective.message_bytes(ranks);
  const bool at_root = rank == collective.root;
  const auto start_of = [&](int r) { return share_offset_bytes(collective, ranks, r); };
  const auto share_of = [&](int r) { return (r + 1 < ranks ? start_of(r + 1) : message) - start_of(r); };
  const auto take_from_all = [&](auto&& take) {
    for (int r = 0; r < ranks; ++r) {
      part.takes.push_back(take(r));
      part.takes.back().rank = static_cast<std::uint32_t>(r);
    }
  };
  using Take = PeerMemoryPart::Take;
  const auto root = static_cast<std::uint32_t>(collective.root);
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      part.gives_bytes = message;
      take_from_all([&](int) { return Take{0, 0, 0, message}; });
      break;
    case CollectiveKind::reduce_scatter:
      part.gives_bytes = message;
      take_from_all([&](int) { return Take{0, start_of(rank), 0, share_of(rank)}; });
      break;
    case CollectiveKind::all_gather:
      part.gives_bytes = share_of(rank);
      take_from_all([&](int r) { return Take{0, 0, start_of(r), share_of(r)}; });
      break;
    case CollectiveKind::all_to_all:
      part.gives_bytes = message;
      take_from_all([&](int r) { return Take{0, start_of(rank), start_of(r), share_of(r)}; });
      break;
    case CollectiveKind::reduce:
      part.gives_bytes = at_root ? 0 : message;
      if (at_root) {
        take_from_all([&](int) { return Take{0, 0, 0, message}; });
        // The root's own comes last, as in the Program.
        std::rotate(part.takes.begin() + rank, part.takes.begin() + rank + 1, part.takes.end());
      }
      break;
    case CollectiveKind::gather:
      part.gives_bytes = at_root ? 0 : share_of(rank);
      if (at_root) take_from_all([&](int r) { return Take{0, 0, start_of(r), share_of(r)}; });
      break;
    case CollectiveKind::broadcast:
      part.gives_bytes = at_root ? message : 0;
      if (!at_root) part.takes.push_back({root, 0, 0, message});
      break;
    default:  // scatter
      part.gives_bytes = at_root ? message : 0;
      part.takes.push_back({root, start_of(rank), 0, share_of(rank)});
      break;
  }
  for (std::size_t i = 0; i < part.takes.size(); ++i) {
    if (part.takes[i].rank == static_cast<std::uint32_t>(rank)) part.own_take = static_cast<int>(i);
  }
  return part;
}

}  // namespace shoal
