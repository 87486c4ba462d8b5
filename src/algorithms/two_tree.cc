#include "src/algorithms/position.h"
#include "src/algorithms/registry.h"

namespace shoal {
namespace {

/// The parent and the children of a place in a binary tree over the places 1..n, numbered in order; 0 = none. Even places are
/// inner nodes of the tree, odd ones leaves.
struct Neighbours {
  std::size_t parent = 0;
  std::size_t left = 0;
  std::size_t right = 0;
};

Neighbours neighbours_of(std::size_t place, std::size_t n) {
  // Descends from the root, which is the largest power of two; the subtree below `at` spans [low, high].
  Neighbours found;
  std::size_t low = 1;
  std::size_t high = n;
  std::size_t at = std::bit_floor(n);
  const auto middle = [](std::size_t first, std::size_t last) {
    return first > last ? 0 : first - 1 + std::bit_floor(last - first + 1);
  };
  while (at != place) {
    found.parent = at;
    (place < at ? high : low) = place < at ? at - 1 : at + 1;
    at = middle(low, high);
  }
  found.left = middle(low, at - 1);
  found.right = middle(at + 1, high);
  return found;
}

}  // namespace

void two_tree_all_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard) {
  const Position me(program, members);
  if (!me.is_member() || members.size() < 2) return;
  const std::size_t n = members.size();
  // In the second tree all places shift by one, which turns the leaves of the first tree into inner members and vice versa.
  Neighbours in_tree[2];
  for (std::size_t tree = 0; tree < 2; ++tree) in_tree[tree] = neighbours_of((me.index() + tree) % n + 1, n);
  const auto member_at = [&](std::size_t place, std::size_t tree) { return members[(place - 1 + n - tree) % n]; };
  const auto part = [&](std::uint32_t i) { return Shard{shard.lane, shard.first + i, 1}; };

  for (std::uint32_t i = 0; i < shard.count; ++i) {
    const std::size_t tree = i % 2;
    const auto& [parent, left, right] = in_tree[tree];
    for (const std::size_t child : {left, right}) {
      if (child != 0) program.recv_reduce(member_at(child, tree), part(i));
    }
    if (parent != 0) program.send(member_at(parent, tree), part(i));
  }
  // All parts go up before any goes down: each direction alone fills the ports.
  for (std::uint32_t i = 0; i < shard.count; ++i) {
    const std::size_t tree = i % 2;
    const auto& [parent, left, right] = in_tree[tree];
    if (parent != 0) program.recv(member_at(parent, tree), part(i));
    for (const std::size_t child : {left, right}) {
      if (child != 0) program.send(member_at(child, tree), part(i));
    }
  }
}

int two_tree_hidden_hops(int members) {
  return std::max(0, 2 * static_cast<int>(std::bit_width(static_cast<unsigned>(members))) - 4);
}

}  // namespace shoal
