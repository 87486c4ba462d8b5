#include "tests/cuda/stream_ranks.h"

#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

namespace shoal::testing {

bool move_to_node(int node) {
  if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) return false;
  const std::string name = fmt::format("node{}", node);
  return ::sethostname(name.data(), name.size()) == 0;
}

void expect_stream_ranks(const StreamCase& c, const std::function<std::string(StreamRank&)>& body,
                         std::vector<RankOutcome>* outcomes) {
  auto ended = run_ranks(
      c.ranks,
      [&](int rank, int ranks, const std::string& directory) -> std::string {
        if (c.nodes > 1 && !move_to_node(rank * c.nodes / ranks)) return "no UTS namespaces";
        CommunicatorOptions options;
        options.timeout = c.timeout;
        auto host = join(directory, rank, ranks, options);
        if (!host.ok()) return "communicator: " + host.status().to_string();
        FakeCudaOptions fake = c.cuda;
        fake.seed = c.cuda.seed * 100 + static_cast<std::uint64_t>(rank);
        fake.mps = fake.mps || c.cuda.mps_of_rank == rank;
        FakeCuda cuda(fake);
        std::string error;
        {
          auto group = cuda::DeviceGroup::create(cuda, **host, c.streams);
          if (!group.ok()) return "stream communicator: " + group.status().to_string();
          auto streams = cuda::DeviceGroup::wrap(std::move(*group));
          if (!c.route.empty() && streams->route() != c.route) return "the route is " + streams->route();
          const auto stream = cuda.create_stream(false);
          StreamRank own{**host, cuda, *streams, *stream};
          error = body(own);
          if (!error.empty()) return error;
        }
        return cuda.errors(false);
      },
      100);
  if (outcomes != nullptr) {
    *outcomes = std::move(ended);
    return;
  }
  expect_all_well(ended);
}

}  // namespace shoal::testing
