#include "src/communicator/usual_links.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>

#include "src/algorithms/algorithm.h"
#include "src/selector/selector.h"

namespace shoal {
namespace {

// Besides that of a barrier. At most sizes one of these three algorithms runs; each choice takes milliseconds of a core.
constexpr std::array<std::size_t, 2> kAllReduceBytes{64 << 10, 16 << 20};
constexpr std::size_t kBroadcastBytes = 1 << 20;
constexpr std::size_t kForTheProgram = 64;   // descriptors
constexpr std::size_t kMostLinks = 1 << 20;  // where there is no limit

void add_peers(const Topology& topology, const Collective& collective, int rank, std::string_view forced, int most_links,
               std::set<int>& peers) {
  const auto choice = select(topology, collective, forced, nullptr, ChoiceCosts::classes, most_links);
  if (!choice.ok()) return;  // the call itself will report why
  const auto program = build_program(*choice->algorithm, topology, collective, rank);
  if (!program.ok()) return;
  for (const Step& step : program->steps) {
    if (step.peer >= 0) peers.insert(step.peer);
  }
}

}  // namespace

std::vector<int> usual_peers(const Topology& topology, int rank, std::string_view all_reduce, int most_links) {
  Topology placement;
  placement.node_of_rank = topology.node_of_rank;
  std::set<int> peers;
  add_peers(placement, {CollectiveKind::all_reduce, 1, DataType::uint8, ReduceOp::bor, 0}, rank, {}, most_links,
            peers);  // a barrier
  add_peers(placement, {CollectiveKind::broadcast, kBroadcastBytes, DataType::uint8, ReduceOp::sum, 0}, rank, {}, most_links,
            peers);
  for (const std::size_t bytes : kAllReduceBytes) {
    const Collective sum{CollectiveKind::all_reduce, bytes / size_of(DataType::float32), DataType::float32, ReduceOp::sum, 0};
    add_peers(placement, sum, rank, all_reduce, most_links, peers);
  }
  return {peers.begin(), peers.end()};
}

std::size_t link_budget(std::size_t others, std::size_t descriptors) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMostLinks;
  std::error_code error;
  const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd", error), {});
  const std::size_t taken = static_cast<std::size_t>(open) + others + kForTheProgram;
  return taken >= limit.rlim_cur ? 0 : std::min<std::size_t>((limit.rlim_cur - taken) / descriptors, kMostLinks);
}

}  // namespace shoal
