#include "src/communicator/usual_links.h"

#include <array>
#include <cstddef>
#include <set>

#include "src/algorithms/algorithm.h"
#include "src/selector/selector.h"

namespace shoal {
namespace {

// What runs at a small, a medium and a large size differs; between them the same algorithms do.
constexpr std::array<std::size_t, 4> kAllReduceBytes{8, 16 << 10, 1 << 20, 64 << 20};
constexpr std::size_t kBroadcastBytes = 1 << 20;

void add_peers(const Topology& topology, const Collective& collective, int rank, std::string_view forced,
               std::set<int>& peers) {
  const auto choice = select(topology, collective, forced);
  if (!choice.ok()) return;  // the call itself will report why
  const auto program = build_program(*choice->algorithm, topology, collective, rank);
  if (!program.ok()) return;
  for (const Step& step : program->steps) {
    if (step.peer >= 0) peers.insert(step.peer);
  }
}

}  // namespace

std::vector<int> usual_peers(const Topology& topology, int rank, std::string_view all_reduce) {
  Topology placement;
  placement.node_of_rank = topology.node_of_rank;
  std::set<int> peers;
  add_peers(placement, {CollectiveKind::all_reduce, 1, DataType::uint8, ReduceOp::bor, 0}, rank, {}, peers);  // a barrier
  add_peers(placement, {CollectiveKind::broadcast, kBroadcastBytes, DataType::uint8, ReduceOp::sum, 0}, rank, {}, peers);
  for (const std::size_t bytes : kAllReduceBytes) {
    const Collective sum{CollectiveKind::all_reduce, bytes / size_of(DataType::float32), DataType::float32, ReduceOp::sum, 0};
    add_peers(placement, sum, rank, all_reduce, peers);
  }
  return {peers.begin(), peers.end()};
}

}  // namespace shoal
