#include "src/communicator/usual_links.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>

#include "src/algorithms/algorithm.h"
#include "src/join/text_list.h"
#include "src/selector/selector.h"

namespace shoal {
namespace {

constexpr std::size_t kBroadcastBytes = 1 << 20;
constexpr std::size_t kForTheProgram = 64;   // descriptors
constexpr std::size_t kMostLinks = 1 << 20;  // where there is no limit

Collective sum_of(std::size_t bytes) {
  return {CollectiveKind::all_reduce, bytes / sizeof(float), DataType::float32, ReduceOp::sum, 0};
}

/// A barrier, a broadcast from rank 0, and sums of two sizes: at most sizes the algorithm of one of these runs.
const std::array<Collective, 4>& usual_calls() {
  static const std::array<Collective, 4> calls{Collective{CollectiveKind::all_reduce, 1, DataType::uint8, ReduceOp::bor, 0},
                                               {CollectiveKind::broadcast, kBroadcastBytes, DataType::uint8, ReduceOp::sum, 0},
                                               sum_of(64 << 10),
                                               sum_of(16 << 20)};
  return calls;
}
constexpr std::size_t kFirstSum = 2;  // of usual_calls()

}  // namespace

std::string usual_algorithms(const Topology& topology, std::string_view all_reduce, int most_links) {
  Topology placement;
  placement.node_of_rank = topology.node_of_rank;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < usual_calls().size(); ++i) {
    const std::string_view forced = i < kFirstSum ? std::string_view() : all_reduce;
    const auto choice = select(placement, usual_calls()[i], forced, nullptr, ChoiceCosts::classes, most_links);
    names.emplace_back(choice.ok() ? choice->algorithm->name : "");  // the call itself will report why
  }
  return join_texts(names);
}

Result<std::vector<int>> usual_peers(const Topology& topology, int rank, std::string_view algorithms) {
  const auto names = split_texts(algorithms, usual_calls().size());
  if (!names) return Status(StatusCode::internal, "start-up: rank 0 published malformed names of algorithms");
  std::set<int> peers;
  for (std::size_t i = 0; i < names->size(); ++i) {
    const auto algorithm = find_algorithm((*names)[i]);
    if (!algorithm.ok()) continue;
    const auto program = build_program(**algorithm, topology, usual_calls()[i], rank);
    if (!program.ok()) continue;
    for (const Step& step : program->steps) {
      if (step.peer >= 0) peers.insert(step.peer);
    }
  }
  return std::vector<int>(peers.begin(), peers.end());
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
