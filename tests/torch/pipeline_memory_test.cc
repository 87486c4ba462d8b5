// A chain whose training needs more memory than a rank may have: in a pipeline over several ranks it trains.
#include <malloc.h>
#include <sys/resource.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/torch/pipeline_devices.h"
#include "torch_plugin/parallel/chain/chain.h"

namespace shoal::parallel::pipeline_testing {
namespace {

constexpr int kLayers = 8;
constexpr std::int64_t kWidth = 2048;
constexpr std::int64_t kLayerBytes = kWidth * kWidth * 4;
constexpr std::int64_t kNeededBytes = 3 * kLayers * kLayerBytes;  // parameters, gradients, momentum
constexpr std::int64_t kLimitBytes = kNeededBytes * 2 / 3;
constexpr std::int64_t kBatch = 8;

/// Private writable memory of this process, which RLIMIT_DATA limits.
std::int64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) return 1024 * std::stoll(line.substr(7));
  }
  throw std::runtime_error("/proc/self/status has no VmData");
}

/// From now on this process can have `bytes` more. Each parameter gets a mapping of its own, because a heap with holes would
/// need more than the parameters: how much more depends on the processor.
void limit_memory(std::int64_t bytes) {
  check(mallopt(M_MMAP_THRESHOLD, kLayerBytes / 16) == 1, "mallopt(M_MMAP_THRESHOLD)");
  const auto most = static_cast<rlim_t>(data_bytes() + bytes);
  const rlimit limit{most, most};
  check(setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit(RLIMIT_DATA)");
}

/// Trains this rank's part of the chain. Returns the losses of the steps.
std::vector<double> train(Communicator& communicator) {
  const int ranks = communicator.size();
  const int layers = kLayers / ranks;
  std::shared_ptr<Unit> stage;
  {
    ::torch::manual_seed(1);
    nn::Sequential network;
    for (int layer = 0; layer < kLayers; ++layer) network->push_back(nn::Linear(kWidth, kWidth));
    const auto chain = Chain::of(network);
    check(chain.ok(), chain.status().to_string());
    stage = *chain->stage(communicator.rank() * layers, (communicator.rank() + 1) * layers);
  }
  PipelineModel model(stage, communicator, {.schedule = pipeline::ScheduleKind::one_f_one_b, .microbatches = 4});
  ::torch::optim::SGD optimizer(model.parameters(), ::torch::optim::SGDOptions(1).momentum(0.5));
  ::torch::manual_seed(2);
  const at::Tensor images = ::torch::randn({kBatch, kWidth});
  const at::Tensor targets = ::torch::randn({kBatch, kWidth});
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad(/*set_to_none=*/false);
    losses.push_back(model.step(images, targets, square_error).reduce_mean().item<double>());
    optimizer.step();
  }
  return losses;
}

TEST(PipelineMemory, ChainTooLargeForOneRankTrainsOnFour) {
  run_ranks(1, [](Communicator& communicator) {
    limit_memory(kLimitBytes);
    try {
      train(communicator);
    } catch (const std::exception& error) {
      return check(shoal::testing::mentions(error.what(), "memory"),
                   "it fails for lack of memory: " + std::string(error.what()));
    }
    check(false, "one rank has too little memory");
  });
  run_ranks(4, [](Communicator& communicator) {
    limit_memory(kLimitBytes);
    const std::vector<double> losses = train(communicator);
    check(losses[2] < losses[1] && losses[1] < losses[0], "the loss falls");
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
