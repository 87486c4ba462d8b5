// The gradients of data-parallel ranks are those of one process that trains on the whole batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "bench/train/gloo.h"
#include "bench/train/models/model.h"
#include "torch_plugin/ddp/data_parallel.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr int kImages = 8;
constexpr int kBackwards = 2;  // one bucket in the first, regrouped into several before the second
constexpr std::uint64_t kSeed = 11;
constexpr double kTolerance = 1e-5;  // relative, of the Euclidean norm of each parameter's gradient

/// ResNet18 with batch normalization that is frozen after one forward of the whole batch: with moving statistics the gradient
/// of an image would depend on the other images of its part.
std::shared_ptr<models::ImageClassifier> frozen_model(const at::Tensor& images) {
  ::torch::manual_seed(kSeed);
  auto model = models::find_model("resnet18")->make(3, 10);
  {
    const at::NoGradGuard no_grad;
    model->forward(images);
  }
  model->eval();
  return model;
}

struct WholeBatch {
  at::Tensor images;
  at::Tensor labels;
};

WholeBatch whole_batch() {
  ::torch::manual_seed(kSeed + 1);
  return {at::randn({kImages, 3, 32, 32}), at::randint(10, {kImages}, at::kLong)};
}

void save_gradients(const models::ImageClassifier& model, const fs::path& path) {
  std::ofstream file(path, std::ios::binary);
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor gradient = parameter.grad().contiguous();
    file.write(static_cast<const char*>(gradient.data_ptr()), static_cast<std::streamsize>(gradient.nbytes()));
  }
}

void train_alone(const fs::path& result) {
  const WholeBatch batch = whole_batch();
  const auto model = frozen_model(batch.images);
  ::torch::cross_entropy_loss(model->forward(batch.images), batch.labels).backward();
  save_gradients(*model, result);
}

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::string& backend, const fs::path& folder, int rank, int ranks) {
  const auto store = c10::make_intrusive<c10d::FileStore>((folder / "store").string(), ranks);
  c10::intrusive_ptr<c10d::Backend> inner;
  if (backend == "shoal") {
    inner = c10::make_intrusive<torch::ProcessGroupShoal>(store, rank, ranks);
  } else {
    inner = train::make_gloo(store, rank, ranks, "127.0.0.1", std::chrono::seconds(60)).value();
  }
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, ranks);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, inner);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName(backend);
  return group;
}

void train_as_rank(const std::string& backend, const fs::path& folder, int rank, int ranks) {
  const auto group = make_group(backend, folder, rank, ranks);
  const WholeBatch batch = whole_batch();
  const auto model = frozen_model(batch.images);
  if (rank > 0) {
    const at::NoGradGuard no_grad;  // DataParallel must broadcast rank 0's weights
    for (at::Tensor& parameter : model->parameters()) parameter.add_(1.0);
    for (at::Tensor& buffer : model->buffers()) buffer.add_(1);
  }
  ddp::DataParallel parallel(*model, group, {.bucket_mib = 4, .first_bucket_mib = 0.5});
  const std::int64_t share = kImages / ranks;
  for (int backward = 0; backward < kBackwards; ++backward) {
    parallel.clear_gradients();
    parallel.before_forward();
    const at::Tensor loss = ::torch::cross_entropy_loss(model->forward(batch.images.narrow(0, rank * share, share)),
                                                        batch.labels.narrow(0, rank * share, share));
    parallel.before_backward();
    loss.backward();
    save_gradients(*model, folder / ("rank" + std::to_string(rank) + "." + std::to_string(backward)));
  }
}

/// Forks a process for each body. This process never starts torch's threads, because they would not survive a fork.
void run_processes(const std::vector<std::function<void()>>& bodies) {
  std::vector<pid_t> children;
  for (const auto& body : bodies) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(120);
      int code = 0;
      try {
        at::set_num_threads(1);
        body();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        code = 1;
      }
      std::_Exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int outcome = -1;
    ASSERT_EQ(waitpid(child, &outcome, 0), child);
    EXPECT_EQ(outcome, 0) << "a process failed";
  }
}

std::vector<float> load(const fs::path& path) {
  std::vector<float> values(fs::file_size(path) / sizeof(float));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

struct Case {
  const char* backend;
  int ranks;
};

class Gradients : public ::testing::TestWithParam<Case> {
 protected:
  Gradients() {
    std::string pattern = (fs::temp_directory_path() / "shoal-gradients-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Gradients() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_P(Gradients, GradientsMatchOneProcess) {
  const std::string backend = GetParam().backend;
  const int ranks = GetParam().ranks;
#ifndef SHOAL_TORCH_HAS_GLOO
  if (backend == "gloo") GTEST_SKIP() << "built without Gloo's headers";
#endif
  run_processes({[this] { train_alone(folder_ / "alone"); }});
  std::vector<std::function<void()>> bodies;
  for (int rank = 0; rank < ranks; ++rank) {
    bodies.emplace_back([this, backend, rank, ranks] { train_as_rank(backend, folder_, rank, ranks); });
  }
  run_processes(bodies);
  if (HasFailure()) return;

  const std::vector<float> expected = load(folder_ / "alone");
  ASSERT_EQ(expected.size(), 11'173'962U);
  std::vector<std::int64_t> sizes;
  at::set_num_threads(1);  // the next case forks
  for (const at::Tensor& parameter : models::find_model("resnet18")->make(3, 10)->parameters())
    sizes.push_back(parameter.numel());
  double worst = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int backward = 0; backward < kBackwards; ++backward) {
      const std::vector<float> found = load(folder_ / ("rank" + std::to_string(rank) + "." + std::to_string(backward)));
      ASSERT_EQ(found.size(), expected.size());
      std::size_t at = 0;
      for (const std::int64_t size : sizes) {
        double difference = 0;
        double norm = 0;
        for (const std::size_t end = at + static_cast<std::size_t>(size); at < end; ++at) {
          const double of_one = expected[at];
          const double apart = found[at] - of_one;
          difference += apart * apart;
          norm += of_one * of_one;
        }
        ASSERT_GT(norm, 0) << "a parameter without a gradient proves nothing";
        worst = std::max(worst, std::sqrt(difference / norm));
      }
    }
  }
  EXPECT_LE(worst, kTolerance);
  std::printf("largest relative difference of a parameter's gradient: %.2e\n", worst);
}

INSTANTIATE_TEST_SUITE_P(, Gradients, ::testing::Values(Case{"shoal", 1}, Case{"shoal", 4}, Case{"gloo", 4}),
                         [](const auto& info) { return std::string(info.param.backend) + std::to_string(info.param.ranks); });

}  // namespace
}  // namespace shoal
