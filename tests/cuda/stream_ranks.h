// Ranks for tests of StreamCommunicator: forked processes, each with its own fake CUDA.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <shoal/cuda.h>

#include "src/cuda/device_group.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/multiprocess/ranks.h"

namespace shoal::testing {

/// The objects that the body of a rank uses.
struct StreamRank {
  Communicator& host;
  FakeCuda& cuda;
  StreamCommunicator& group;
  cuda::Stream stream;

  [[nodiscard]] int rank() const { return host.rank(); }
  [[nodiscard]] int size() const { return host.size(); }
};

struct StreamCase {
  int ranks = 2;
  int nodes = 1;  ///< consecutive ranks share a node
  FakeCudaOptions cuda;
  StreamOptions streams{std::size_t{64} << 10, 4, false};
  std::chrono::milliseconds timeout{30000};
  std::string route;  ///< expected route; empty: any
};

/// Gives this process the host name of its node. False if that is not permitted.
bool move_to_node(int node);

/// Runs `body` on every rank of `c`; "" is success. With `outcomes` null, expects all ranks to succeed.
void expect_stream_ranks(const StreamCase& c, const std::function<std::string(StreamRank&)>& body,
                         std::vector<RankOutcome>* outcomes = nullptr);

}  // namespace shoal::testing
