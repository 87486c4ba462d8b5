// Runs the tests of the program, or, with the word dump_model, writes the scores, gradients and buffers of a network for random
// images to a file for torch.load: dump_model NAME CHANNELS PIXELS CLASSES SEED FILE. In double precision, so that differences
// to a reference are not rounding. One program, since a second one would spend 15 s more on torch's templates.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bench/train/models/model.h"

namespace shoal {
namespace {

/// `arguments` follow the word dump_model. Returns the exit status.
int dump_model(int count, char** arguments) {
  if (count != 6) {
    std::fprintf(stderr, "usage: test_torch_training dump_model NAME CHANNELS PIXELS CLASSES SEED FILE\n");
    return 2;
  }
  const auto info = models::find_model(arguments[0]);
  if (!info.ok()) {
    std::fprintf(stderr, "%s\n", info.status().message().c_str());
    return 1;
  }
  const int channels = std::atoi(arguments[1]);
  const int pixels = std::atoi(arguments[2]);
  const int classes = std::atoi(arguments[3]);
  ::torch::manual_seed(std::strtoull(arguments[4], nullptr, 10));
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
  ::torch::cross_entropy_loss(scores, labels).backward();
  parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) add("gradient " + std::to_string(parameters++), parameter.grad());
  std::size_t buffers = 0;
  for (const at::Tensor& buffer : model->buffers()) add("buffer " + std::to_string(buffers++), buffer.detach());
  add("images", images);
  add("labels", labels);
  add("scores", scores.detach());

  const std::vector<char> bytes = ::torch::pickle_save(c10::ivalue::Tuple::create(std::move(dump)));
  std::ofstream file(arguments[5], std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good() ? 0 : 1;
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "dump_model") == 0) return shoal::dump_model(argc - 2, argv + 2);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
