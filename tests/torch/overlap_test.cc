// Training whose averages and updates overlap with the next forward gives the same bits as training that waits.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "bench/train/gloo.h"
#include "bench/train/models/model.h"
#include "torch_plugin/ddp/data_parallel.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::ddp {
namespace {

namespace fs = std::filesystem;
namespace nn = ::torch::nn;

constexpr int kSteps = 6;
constexpr std::uint64_t kSeed = 5;

/// Which layers a Layers network announces.
enum class Announces { all, none, some };

/// Two convolutions with batch normalisation and a linear layer, of sizes that make several buckets and pieces.
class Layers final : public models::ImageClassifier {
 public:
  explicit Layers(Announces announces)
      : announces_(announces),
        first_(register_module("first", nn::Conv2d(nn::Conv2dOptions(3, 24, 3).padding(1)))),
        norm_(register_module("norm", nn::BatchNorm2d(24))),
        second_(register_module("second", nn::Conv2d(nn::Conv2dOptions(24, 40, 3).padding(1)))),
        head_(register_module("head", nn::Linear(40, 10))) {}

  at::Tensor forward(at::Tensor images) override {
    head_at_start = head_->weight.detach().clone();
    at::Tensor x = part(first_, images, announces_ == Announces::all);
    x = part(norm_, x, announces_ == Announces::all).relu_();
    x = part(second_, x, announces_ != Announces::none).relu_();
    return part(head_, x.mean({2, 3}), announces_ != Announces::none);
  }

  const at::Tensor& head() const { return head_->weight; }
  at::Tensor head_at_start;

 private:
  template <typename Holder>
  at::Tensor part(Holder& layer, const at::Tensor& x, bool announced) {
    return announced ? run(layer, x) : layer->forward(x);
  }

  const Announces announces_;
  nn::Conv2d first_;
  nn::BatchNorm2d norm_;
  nn::Conv2d second_;
  nn::Linear head_;
};

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::string& backend, const fs::path& store_file, int rank, int ranks,
                                                  const std::string& name) {
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(name, c10::make_intrusive<c10d::FileStore>(store_file.string(), ranks));
  c10::intrusive_ptr<c10d::Backend> inner;
  if (backend == "shoal") {
    // With more than two ranks the bits depend on the order of additions, so on the algorithm, which depends on the size.
    auto in_rank_order = c10::make_intrusive<torch::ProcessGroupShoal::Options>();
    in_rank_order->algorithm = "direct";
    inner = c10::make_intrusive<torch::ProcessGroupShoal>(store, rank, ranks, in_rank_order);
  } else {
    inner = train::make_gloo(store, rank, ranks, "127.0.0.1", std::chrono::seconds(60)).value();
  }
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, ranks);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, inner);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName(name);
  return group;
}

DataParallelOptions options(Overlap overlap, bool slices = false) {
  return {.overlap = overlap,
          .make_optimizer =
              [](std::vector<at::Tensor> parameters) {
                return std::make_unique<::torch::optim::SGD>(std::move(parameters),
                                                             ::torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
              },
          .update_slices = slices,
          .bucket_mib = 0.01,
          .first_bucket_mib = 0.001};
}

void make_step(models::ImageClassifier& model, DataParallel& parallel, int rank) {
  const at::Tensor images = at::randn({3, 3, 12, 12}) * (rank + 1);  // batch statistics differ between ranks
  const at::Tensor labels = at::randint(10, {3}, at::kLong);
  parallel.clear_gradients();
  parallel.before_forward();
  const at::Tensor loss = ::torch::cross_entropy_loss(model.forward(images), labels);
  parallel.before_backward();
  loss.backward();
  parallel.step();
}

void save_state(const models::ImageClassifier& model, const fs::path& path) {
  std::ofstream file(path, std::ios::binary);
  for (const std::vector<at::Tensor>& part : {model.parameters(), model.buffers()}) {
    for (const at::Tensor& tensor : part) {
      const at::Tensor values = tensor.detach().contiguous();
      file.write(static_cast<const char*>(values.data_ptr()), static_cast<std::streamsize>(values.nbytes()));
    }
  }
  const at::NoGradGuard no_grad;
  ::torch::manual_seed(kSeed + 1);
  const at::Tensor scores = const_cast<models::ImageClassifier&>(model).forward(at::randn({2, 3, 12, 12})).contiguous();
  file.write(static_cast<const char*>(scores.data_ptr()), static_cast<std::streamsize>(scores.nbytes()));
}

using MakeModel = std::function<std::shared_ptr<models::ImageClassifier>()>;

void train(const Group& group, const MakeModel& make, const DataParallelOptions& options, const fs::path& result) {
  const int rank = group->getRank();
  ::torch::manual_seed(kSeed + static_cast<std::uint64_t>(rank));  // DataParallel must broadcast rank 0's weights
  const auto model = make();
  DataParallel parallel(*model, group, options);
  for (int step = 0; step < kSteps; ++step) make_step(*model, parallel, rank);
  parallel.synchronize();
  model->eval();
  save_state(*model, result);
}

std::string load(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Ranks : public ::testing::Test {
 protected:
  Ranks() {
    std::string pattern = (fs::temp_directory_path() / "shoal-overlap-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Ranks() override { fs::remove_all(folder_); }

  /// Forks a process for each rank, which runs `body(rank)`. This process never starts torch's threads, because they would not
  /// survive a fork. A failed assertion or an exception of a body fails the test.
  void run(int ranks, const std::function<void(int)>& body) {
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(120);
        int code = 0;
        try {
          at::set_num_threads(1);
          body(rank);
          code = HasFailure() ? 1 : 0;
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
          code = 1;
        }
        std::_Exit(code);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int outcome = -1;
      ASSERT_EQ(waitpid(child, &outcome, 0), child);
      EXPECT_EQ(outcome, 0) << "a rank failed";
    }
  }

  /// Trains with every kind of overlap and compares all ranks' parameters, buffers and scores.
  void expect_same_bits(const std::string& backend, int ranks, const MakeModel& make) {
    run(ranks, [&](int rank) {
      const Group group = make_group(backend, folder_ / "store", rank, ranks, backend);
      const auto file = [&](const char* name) { return folder_ / (name + std::to_string(rank)); };
      train(group, make, options(Overlap::backward), file("waits"));
      train(group, make, options(Overlap::next_forward), file("overlaps"));
      train(group, make, options(Overlap::next_forward, /*slices=*/true), file("slices"));
    });
    const std::string expected = load(folder_ / "waits0");
    ASSERT_GT(expected.size(), 1000U);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const char* name : {"waits", "overlaps", "slices"}) {
        EXPECT_TRUE(load(folder_ / (name + std::to_string(rank))) == expected) << "rank " << rank << " " << name;
      }
    }
  }

  fs::path folder_;
};

MakeModel layers(Announces announces) {
  return [announces] { return std::make_shared<Layers>(announces); };
}

TEST_F(Ranks, OneRankGetsSameBits) { expect_same_bits("shoal", 1, layers(Announces::all)); }
TEST_F(Ranks, TwoRanksGetSameBits) { expect_same_bits("shoal", 2, layers(Announces::all)); }
TEST_F(Ranks, FourRanksGetSameBits) { expect_same_bits("shoal", 4, layers(Announces::all)); }
TEST_F(Ranks, ModelWithoutAnnouncementsGetsSameBits) { expect_same_bits("shoal", 2, layers(Announces::none)); }
TEST_F(Ranks, ModelWithSomeAnnouncementsGetsSameBits) { expect_same_bits("shoal", 2, layers(Announces::some)); }
TEST_F(Ranks, ShuffleNetGetsSameBits) {
  expect_same_bits("shoal", 2, [] { return models::find_model("shufflenet_v2_x1")->make(3, 10); });
}
TEST_F(Ranks, GlooGetsSameBits) {
#ifndef SHOAL_TORCH_HAS_GLOO
  GTEST_SKIP() << "built without Gloo's headers";
#endif
  expect_same_bits("gloo", 2, layers(Announces::all));
}

TEST_F(Ranks, UpdatesAreDeferredIfModelAnnounces) {
  run(1, [&](int) {
    const Group group = make_group("shoal", folder_ / "store", 0, 1, "shoal");
    for (const Announces announces : {Announces::all, Announces::none, Announces::some}) {
      Layers model(announces);
      DataParallel parallel(model, group, options(Overlap::next_forward));
      for (int step = 0; step < 3; ++step) make_step(model, parallel, 0);
      const at::Tensor before = model.head().detach().clone();
      make_step(model, parallel, 0);
      EXPECT_EQ(model.head_at_start.equal(before), announces == Announces::all);
      const at::Tensor after = model.head().detach().clone();
      EXPECT_FALSE(after.equal(before)) << "the update of the step before was made in this forward";
      parallel.flush();
      EXPECT_FALSE(model.head().equal(after)) << "flush makes the last update";
      EXPECT_FALSE(model.head().grad().defined());
    }
  });
}

TEST_F(Ranks, MissingOptimizerThrows) {
  run(1, [&](int) {
    const Group group = make_group("shoal", folder_ / "store", 0, 1, "shoal");
    Layers model(Announces::all);
    DataParallelOptions incomplete = options(Overlap::next_forward);
    incomplete.make_optimizer = {};
    EXPECT_THROW(DataParallel(model, group, incomplete), c10::ValueError);
    DataParallel waits(model, group);
    EXPECT_THROW(waits.step(), c10::ValueError);
  });
}

TEST_F(Ranks, LeavingPeerIsErrorAndNotHang) {
  run(2, [&](int rank) {
    const Group group = make_group("shoal", folder_ / "store", rank, 2, "shoal");
    Layers model(Announces::all);
    DataParallel parallel(model, group, options(Overlap::next_forward));
    for (int step = 0; step < 3; ++step) make_step(model, parallel, rank);
    parallel.flush();
    if (rank == 1) return;  // its process ends
    EXPECT_ANY_THROW({
      make_step(model, parallel, rank);
      parallel.flush();
    });
    EXPECT_ANY_THROW({
      make_step(model, parallel, rank);
      parallel.flush();
    });
  });
}

TEST_F(Ranks, DestructorDoesNotWaitForCallsInFlight) {
  run(2, [&](int rank) {
    const Group group = make_group("shoal", folder_ / "store", rank, 2, "shoal");
    Layers model(Announces::all);
    {
      DataParallel parallel(model, group, options(Overlap::next_forward));
      for (int step = 0; step < 3; ++step) make_step(model, parallel, rank);
      parallel.flush();
      if (rank == 0) make_step(model, parallel, rank);  // rank 1 takes no part
    }
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(model.forward(at::randn({1, 3, 12, 12})).defined()) << "the model must not use the destroyed DataParallel";
  });
}

}  // namespace
}  // namespace shoal::ddp
