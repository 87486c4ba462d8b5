// A model in a pipeline over all ranks of a job. The lines of guide.md in torch_plugin/parallel are in here.
#include <cstdio>
#include <exception>

#include <shoal/parallel.h>
#include <torch/torch.h>

using namespace shoal;

namespace {

constexpr int kSteps = 5;

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

void train() {
  torch::manual_seed(3);
  at::set_num_threads(1);
  torch::nn::Sequential model(torch::nn::Conv2d(3, 8, 3), torch::nn::ReLU(), torch::nn::Conv2d(8, 8, 3), torch::nn::ReLU(),
                              torch::nn::Conv2d(8, 4, 3), torch::nn::Flatten(), torch::nn::Linear(4 * 4, 10));
  const at::Tensor images = torch::randn({6, 3, 8, 8});
  const at::Tensor targets = torch::randint(10, {6}, torch::kLong);
  const int kMicrobatches = 3;
  const double kLearningRate = 0.1;

  auto communicator = Communicator::create().value();
  auto chain = parallel::Chain::of(model).value();
  pipeline::PartitionRequest request{.objective = pipeline::Objective::speed};
  request.rules.shape.microbatches = kMicrobatches;
  auto partition = parallel::partition_chain(chain, images.narrow(0, 0, 2), *communicator, request).value();
  auto stages = parallel::make_stages(chain, partition, communicator->rank(), communicator->size()).value();
  parallel::PipelineOptions options{.microbatches = kMicrobatches, .stage_times = partition.times};
  parallel::PipelineModel pipeline(stages, *communicator, options);
  torch::optim::SGD optimizer(pipeline.parameters(), kLearningRate);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    auto loss = pipeline.step(images, targets, cross_entropy).reduce_mean();
    optimizer.step();
    std::printf("rank %d of %d, step %d: loss %.9g\n", communicator->rank(), communicator->size(), step, loss.item<double>());
  }
}

}  // namespace

int main() {
  try {
    train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
