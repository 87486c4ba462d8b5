// shoal_train's pipelines with stages on the fake device, beside the same on the processor.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "bench/train/epoch_plan.h"
#include "bench/train/pipeline/plan.h"
#include "bench/train/pipeline/stage_trainer.h"
#include "tests/torch/fake_device.h"
#include "tests/torch/pipeline_ranks.h"

namespace shoal::train {
namespace {

using parallel::pipeline_testing::check;
using parallel::pipeline_testing::run_ranks;

constexpr int kSteps = 2;
constexpr int kWidth = 6;

/// torch::nn::Module::to() cannot move parameters to the fake device, so networks are made there.
at::Device& device_of_networks() {
  static at::Device device = at::kCPU;
  return device;
}

/// A dense layer and tanh.
struct DenseBlock : ::torch::nn::Module {
  DenseBlock(int in, int out)
      : weight(register_parameter("weight", at::randn({in, out}).to(device_of_networks()))),
        bias(register_parameter("bias", at::randn({out}).to(device_of_networks()))) {}
  at::Tensor forward(const at::Tensor& x) { return at::addmm(bias, x.flatten(1), weight).tanh(); }
  at::Tensor weight, bias;
};

/// The fake device has no convolutions.
struct DenseNetwork : models::ImageClassifier {
  explicit DenseNetwork(int classes) {
    int in = 4 * 4;
    for (const int out : {kWidth, kWidth, classes}) {
      const std::string name = "block" + std::to_string(in) + "_" + std::to_string(out);
      add_block(name, register_module(name, std::make_shared<DenseBlock>(in, out)));
      in = out;
    }
  }
};

data::Dataset small_images() {
  data::Dataset images;
  images.name = "small";
  images.classes = 5;
  images.channels = 1;
  images.height = images.width = 4;
  images.mean = {0.5};
  images.deviation = {0.25};
  for (int i = 0; i < 64; ++i) {
    images.labels.push_back(static_cast<std::uint8_t>(i * 7 % images.classes));
    for (int pixel = 0; pixel < 16; ++pixel) images.pixels.push_back(static_cast<std::uint8_t>(i * 31 + pixel * pixel * 5));
  }
  return images;
}

/// The losses of some steps, the accuracy and the sum of all parameters of this rank's stages, of a pipeline over two ranks of
/// `all`, with as many replicas as there are pairs.
std::vector<double> train_on(Communicator& all, at::Device device) {
  std::vector<int> ranks;
  for (int rank = 0; rank < all.size(); ++rank) ranks.push_back(rank);
  Job job;
  job.control = *all.group(ranks);
  job.store = c10::make_intrusive<c10d::HashStore>();
  job.timeout = std::chrono::seconds(60);
  job.device = device_of_networks() = device;
  const models::ModelInfo model{
      "dense", "three dense layers",
      [](int, int classes) -> std::shared_ptr<models::ImageClassifier> { return std::make_shared<DenseNetwork>(classes); }};
  const data::Dataset images = small_images();
  TrainOptions options;
  options.replicas = {{"shoal", "backward"}};
  options.model = model.name;
  options.dataset = images.name;
  options.batch = 8;
  options.augment = false;
  options.parallel.pipeline = "1f1b";
  options.parallel.partitions = 2;
  options.parallel.microbatches = 4;
  options.parallel.ddp = all.size() > 2;
  options.parallel.clip_norm = 0.5;
  const Result<PipelinePlan> plan = make_plan(job, model, images, options);
  check(plan.ok(), plan.status().to_string());
  Result<std::unique_ptr<StageTrainer>> made = StageTrainer::make(job, *plan, model, images, options);
  check(made.ok(), made.status().to_string());
  StageTrainer& trainer = **made;
  for (const auto& parameter : trainer.stages().parameters()) check(parameter.device() == device, "a stage is on its device");
  EpochPlan course(images.size(), static_cast<std::size_t>(options.batch), plan->layout.size(pipeline::Axis::replica), 1);
  trainer.begin_epoch(course);
  std::vector<double> found;
  for (int step = 0; step < kSteps; ++step) found.push_back(trainer.make_step(0.1));
  const Result<double> accuracy = trainer.accuracy(images);
  check(accuracy.ok(), accuracy.status().to_string());
  found.push_back(*accuracy);
  double sum = 0;
  for (const auto& parameter : trainer.stages().parameters()) sum += parameter.cpu().to(at::kDouble).sum().item<double>();
  check(all.all_reduce(&sum, &sum, 1, DataType::float64, ReduceOp::sum).ok(), "the sum over all ranks");
  found.push_back(sum);  // partitions may differ between two runs, whose profiles are measured, but not this
  return found;
}

TEST(PipelineTrainDevices, TrainAsOnProcessor) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [](Communicator& communicator) {
      const std::vector<double> wanted = train_on(communicator, at::kCPU);
      const std::vector<double> found = train_on(communicator, fake::device(communicator.rank()));
      for (int step = 0; step < kSteps; ++step) {
        const auto at = static_cast<std::size_t>(step);
        check(found[at] == wanted[at], "the loss of step " + std::to_string(step));
      }
      check(found[kSteps] == wanted[kSteps], "the accuracy");
      check(std::abs(found.back() - wanted.back()) < 1e-9, "the parameters");
      check(fake::freed_memory_is_untouched(), "no stream wrote to freed memory");
    });
  }
}

}  // namespace
}  // namespace shoal::train
