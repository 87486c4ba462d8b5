// Writes the scores, gradients and buffers of a network for random images to a file for torch.load: dump_model NAME CHANNELS
// PIXELS CLASSES SEED FILE. In double precision, so that differences to a reference are not rounding.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <torch/torch.h>

#include "bench/train/models/model.h"

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: dump_model NAME CHANNELS PIXELS CLASSES SEED FILE\n");
    return 2;
  }
  const auto info = shoal::models::find_model(argv[1]);
  if (!info.ok()) {
    std::fprintf(stderr, "%s\n", info.status().message().c_str());
    return 1;
  }
  const int channels = std::atoi(argv[2]);
  const int pixels = std::atoi(argv[3]);
  const int classes = std::atoi(argv[4]);
  torch::manual_seed(std::strtoull(argv[5], nullptr, 10));
  const auto model = info->make(channels, classes);
  model->to(at::kDouble);
  const at::Tensor images = at::randn({3, channels, pixels, pixels}, at::kDouble);
  const at::Tensor labels = at::randint(classes, {3}, at::kLong);

  std::vector<c10::IValue> dump;  // pairs, because Python's torch.load refuses a dictionary from C++
  const auto add = [&dump](const std::string& name, const at::Tensor& tensor) {
    dump.emplace_back(c10::ivalue::Tuple::create(c10::IValue(name), c10::IValue(tensor)));
  };
  std::size_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters())
    add("parameter " + std::to_string(parameters++), parameter.detach().clone());
  const at::Tensor scores = model->forward(images);
  torch::cross_entropy_loss(scores, labels).backward();
  parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) add("gradient " + std::to_string(parameters++), parameter.grad());
  std::size_t buffers = 0;
  for (const at::Tensor& buffer : model->buffers()) add("buffer " + std::to_string(buffers++), buffer.detach());
  add("images", images);
  add("labels", labels);
  add("scores", scores.detach());

  const std::vector<char> bytes = torch::pickle_save(c10::ivalue::Tuple::create(std::move(dump)));
  std::ofstream file(argv[6], std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good() ? 0 : 1;
}
