// Two layers, trained by all ranks of a job. Every rank prints the same weights, and they are those of a job of one rank.
#include <cstdio>
#include <exception>

#include <shoal/torch.h>
#include <torch/torch.h>

namespace {

constexpr int kSamples = 24;
constexpr int kSteps = 20;

void train() {
  const auto group = shoal::torch::join_job();
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  const torch::Tensor x = torch::randn({kSamples, 8});
  const torch::Tensor y = x.square().sum(1, /*keepdim=*/true);
  const int share = kSamples / group->getSize();
  const torch::Tensor mine = x.narrow(0, group->getRank() * share, share);
  const torch::Tensor wanted = y.narrow(0, group->getRank() * share, share);

  shoal::ddp::DataParallel parallel(*model, group);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  double first = 0;
  double last = 0;
  for (int step = 0; step < kSteps; ++step) {
    parallel.clear_gradients();
    const torch::Tensor output = parallel.forward([&] { return model->forward(mine); });
    const torch::Tensor loss = torch::mse_loss(output, wanted);
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  parallel.synchronize();
  double weights = 0;
  for (const torch::Tensor& parameter : model->parameters()) weights += parameter.abs().sum().item<double>();
  std::printf("rank %d of %d: loss %.6f to %.6f, weights %.6f\n", group->getRank(), group->getSize(), first, last, weights);
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
