#include "src/peer_memory/moves.h"

#include "src/schedule/layout.h"

namespace shoal {
namespace {

// Sizes of a rank's share. Below the first, synchronizing costs more than copying twice. Above the second, two copies by the
// processes themselves, side by side and tile by tile, are faster than one by the kernel on some processors (Zen 3 and 4: by a
// third) and on others not (Sapphire Rapids: half as fast).
constexpr std::size_t kLeastBytes = 16 << 10;
constexpr std::size_t kMostBytes = 128 << 10;
constexpr double kLeastGain = 1.1;
// Sapphire Rapids, 4 ranks: 4 MiB take 0.75 of the time by tiles, 16 MiB 1.15.
constexpr std::size_t kMostFoldedByMany = 4 << 20;
constexpr std::size_t kPageBytes = 4096;

}  // namespace

bool moves_serve(const Collective& collective, const Topology& topology) noexcept {
  const int ranks = topology.ranks();
  const auto parts = static_cast<std::size_t>(ranks);
  const auto in_range = [&](std::size_t share) {
    return share >= kLeastBytes && (share <= kMostBytes || topology.one_copy_gain >= kLeastGain);
  };
  switch (collective.kind) {
    case CollectiveKind::broadcast:
      return ranks > 1 && in_range(collective.input_bytes() / 2);  // the root copies a part of it
    case CollectiveKind::all_to_all:
      // With counts, only the sending rank knows where it keeps the block for this rank.
      return ranks > 1 && collective.counts.empty() && in_range(collective.input_bytes());
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
    case CollectiveKind::scatter:
      return ranks > 1 && in_range(collective.message_bytes(ranks) / parts);
    default:
      return false;
  }
}

bool fold_reaches_all(const Collective& collective, const Topology& topology) noexcept {
  const std::size_t bytes = collective.input_bytes();
  const bool in_range = bytes / static_cast<std::size_t>(topology.ranks()) >= kLeastBytes &&
                        (topology.ranks() == 2 || bytes <= kMostFoldedByMany);
  return in_range && topology.one_copy_gain >= kLeastGain;
}

std::vector<PeerMemoryMove> peer_memory_moves(const Collective& collective, int ranks, int rank) {
  using Way = PeerMemoryMove::Way;
  std::vector<PeerMemoryMove> moves;
  const auto add = [&](Way way, int peer, std::size_t source, std::size_t target, std::size_t size) {
    if (size > 0) moves.push_back({way, static_cast<std::uint32_t>(peer), source, target, size});
  };
  const std::size_t message = collective.message_bytes(ranks);
  const auto start_of = [&](int r) { return share_offset_bytes(collective, ranks, r); };
  const auto share_of = [&](int r) { return (r + 1 < ranks ? start_of(r + 1) : message) - start_of(r); };
  const int root = collective.root;
  const bool at_root = rank == root;
  // The root copies its part of each run of `size` bytes, one in `parts`, the last one; the rank at the other end copies the
  // rest.
  const auto by_other = [](std::size_t size, int parts) {
    return size - size / static_cast<std::size_t>(parts) / kPageBytes * kPageBytes;
  };
  // Besides its own share, which costs the root half as much as one from another process.
  const auto by_share_owner = [&](std::size_t size) { return by_other(size, 2 * ranks); };

  switch (collective.kind) {
    case CollectiveKind::all_gather:
      add(Way::local, rank, 0, start_of(rank), share_of(rank));
      break;
    case CollectiveKind::all_to_all:
      add(Way::local, rank, start_of(rank), start_of(rank), share_of(rank));
      break;
    case CollectiveKind::gather:
      if (at_root) add(Way::local, rank, 0, start_of(rank), share_of(rank));
      break;
    case CollectiveKind::scatter:
      if (at_root) add(Way::local, rank, start_of(rank), 0, share_of(rank));
      break;
    default:
      break;
  }
  // Each rank begins with a different peer.
  for (int distance = 1; distance < ranks; ++distance) {
    const int peer = (rank + distance) % ranks;
    const int other = at_root ? peer : rank;  // the rank that is not the root
    if (collective.kind == CollectiveKind::all_gather) {
      add(Way::read, peer, 0, start_of(peer), share_of(peer));
    } else if (collective.kind == CollectiveKind::all_to_all) {
      add(Way::read, peer, start_of(rank), start_of(peer), share_of(peer));
    } else if (!at_root && peer != root) {
      continue;
    } else if (collective.kind == CollectiveKind::broadcast) {
      const std::size_t split = by_other(message, ranks);
      at_root ? add(Way::write, peer, split, split, message - split) : add(Way::read, root, 0, 0, split);
    } else if (collective.kind == CollectiveKind::gather) {
      const std::size_t size = share_of(other);
      const std::size_t split = by_share_owner(size);
      at_root ? add(Way::read, peer, split, start_of(other) + split, size - split)
              : add(Way::write, root, 0, start_of(other), split);
    } else {  // scatter
      const std::size_t size = share_of(other);
      const std::size_t split = by_share_owner(size);
      at_root ? add(Way::write, peer, start_of(other) + split, split, size - split)
              : add(Way::read, root, start_of(other), 0, split);
    }
  }
  return moves;
}

}  // namespace shoal
