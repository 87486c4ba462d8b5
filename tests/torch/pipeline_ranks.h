// Ranks of a pipeline for tests: forked processes with a Communicator, units of a small network, and one process to compare
// with.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/facts.h"
#include "torch_plugin/parallel/runtime/pipeline_model.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::parallel::pipeline_testing {

namespace nn = ::torch::nn;

inline void check(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("not so: " + what);
}
inline void check_equal(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  check(found.defined() && wanted.defined(), what + " is there");
  check(::torch::equal(found, wanted), what + " has the same bits");
}
template <typename Exception>
void check_throws(const std::function<void()>& body, const std::vector<std::string>& facts) {
  try {
    body();
  } catch (const Exception& error) {
    return check(shoal::testing::mentions_all(error.what(), facts), "\"" + facts.front() + "\" and more in: " + error.what());
  }
  check(false, "throws \"" + facts.front() + "\"");
}

/// A folder that is there as long as the object.
class Folder {
 public:
  Folder() { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "shoal-pipeline-XXXXXX").string();
};

/// Forks ranks that run `body(communicator)` on one thread; an exception fails the test. The rank `killed` must die by SIGKILL,
/// or stop: then it is killed when all others have ended.
/// This process never starts torch's threads, because they would not survive a fork.
inline void run_ranks(int ranks, const std::function<void(Communicator&)>& body, int killed = -1) {
  const Folder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(180);
      int code = 1;
      try {
        at::set_num_threads(1);
        const auto store = make_file_store(folder.path());
        check(store.ok(), store.status().to_string());
        const auto communicator = Communicator::create(**store, rank, ranks);
        check(communicator.ok(), communicator.status().to_string());
        body(**communicator);
        code = 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      std::_Exit(code);
    }
    children.push_back(child);
  }
  const auto expect_end = [&](int rank, int wanted) {
    int outcome = -1;
    ASSERT_EQ(waitpid(children[static_cast<std::size_t>(rank)], &outcome, 0), children[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(outcome, wanted) << "rank " << rank;
  };
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != killed) expect_end(rank, 0);
  }
  if (killed >= 0) {
    kill(children[static_cast<std::size_t>(killed)], SIGKILL);
    expect_end(killed, SIGKILL);
  }
}

/// A group of some ranks of `all`.
inline c10::intrusive_ptr<c10d::ProcessGroup> make_group(Communicator& all, const std::vector<int>& ranks) {
  auto communicator = all.group(ranks);
  check(communicator.ok(), communicator.status().to_string());
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto options = c10::make_intrusive<torch::ProcessGroupShoal::Options>(std::chrono::milliseconds(60'000));
  const int rank = (*communicator)->rank();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, static_cast<int>(ranks.size()));
  group->setBackend(
      at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
      c10::make_intrusive<torch::ProcessGroupShoal>(*std::move(communicator), torch::StartRound{store, 0}, std::move(options)));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName("group");
  return group;
}

constexpr std::int64_t kChannels = 4;
constexpr std::int64_t kClasses = 3;
constexpr std::int64_t kEdge = 5;

/// Convolution, BatchNorm, ReLU.
struct BlockUnit final : Unit {
  explicit BlockUnit(std::int64_t inputs)
      : convolution(register_module("convolution", nn::Conv2d(nn::Conv2dOptions(inputs, kChannels, 3).padding(1)))),
        norm(register_module("norm", nn::BatchNorm2d(kChannels))) {}
  at::Tensor forward(at::Tensor input) override { return norm->forward(convolution->forward(input)).relu(); }
  nn::Conv2d convolution;
  nn::BatchNorm2d norm;
};

/// A block, the mean over the map and a classifier.
struct HeadUnit final : Unit {
  explicit HeadUnit(std::int64_t inputs)
      : block(register_module("block", std::make_shared<BlockUnit>(inputs))),
        classifier(register_module("classifier", nn::Linear(kChannels, kClasses))) {}
  at::Tensor forward(at::Tensor input) override { return classifier->forward(block->forward(std::move(input)).mean({2, 3})); }
  std::shared_ptr<BlockUnit> block;
  nn::Linear classifier;
};

/// Calls functions around another unit.
struct HookedUnit final : Unit {
  using Hook = std::function<at::Tensor(at::Tensor)>;
  HookedUnit(std::shared_ptr<Unit> unit, Hook before_forward, Hook after_forward = {})
      : inner(register_module("inner", std::move(unit))), before(std::move(before_forward)), after(std::move(after_forward)) {}
  at::Tensor forward(at::Tensor input) override {
    if (before) input = before(input);
    const at::Tensor output = inner->forward(input);
    return after ? after(output) : output;
  }
  std::shared_ptr<Unit> inner;
  Hook before, after;
};

/// Stage `stage` of `stages`, with the same values on every rank that makes it.
inline std::shared_ptr<Unit> make_stage(int stage, int stages) {
  ::torch::manual_seed(std::uint64_t{100} + static_cast<std::uint64_t>(stage));
  const std::int64_t inputs = stage == 0 ? 3 : kChannels;
  if (stage == stages - 1) return std::make_shared<HeadUnit>(inputs);
  return std::make_shared<BlockUnit>(inputs);
}

inline at::Tensor make_images(std::int64_t batch, int seed) {
  ::torch::manual_seed(static_cast<std::uint64_t>(seed));
  return ::torch::randn({batch, 3, kEdge, kEdge});
}
inline at::Tensor make_targets(std::int64_t batch, int seed) {
  ::torch::manual_seed(std::uint64_t{1000} + static_cast<std::uint64_t>(seed));
  return ::torch::randint(kClasses, {batch}, ::torch::kLong);
}
inline at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return nn::functional::cross_entropy(output, target);
}

/// One process that runs the same microbatches in the same order through all stages.
class OneProcess {
 public:
  explicit OneProcess(int stages) {
    for (int stage = 0; stage < stages; ++stage) units.push_back(make_stage(stage, stages));
  }
  [[nodiscard]] at::Tensor forward(at::Tensor x) const {
    for (const std::shared_ptr<Unit>& unit : units) x = unit->forward(x);
    return x;
  }
  /// Sizes are written out here, so that those of the pipeline are checked.
  [[nodiscard]] static std::vector<std::int64_t> sizes(std::int64_t batch, std::int64_t most) {
    const std::int64_t count = batch < most ? batch : most;
    std::vector<std::int64_t> found;
    for (std::int64_t left = batch; count > static_cast<std::int64_t>(found.size()); left -= found.back()) {
      const std::int64_t parts = count - static_cast<std::int64_t>(found.size());
      found.push_back((left + parts - 1) / parts);
    }
    return found;
  }
  /// The losses of a step; with `mean` each counts b_i / B in the gradients.
  std::vector<at::Tensor> step(const at::Tensor& images, const at::Tensor& targets, int most, const Loss& loss_of,
                               bool mean = true) {
    std::vector<at::Tensor> losses;
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes(images.size(0), most)) {
      const at::Tensor target = targets.defined() ? targets.narrow(0, begin, size) : targets;
      const at::Tensor loss = loss_of(forward(images.narrow(0, begin, size)), target);
      losses.push_back(loss.detach());
      const double share = static_cast<double>(size) / static_cast<double>(images.size(0));
      (mean ? loss * share : loss).backward();
      begin += size;
    }
    return losses;
  }
  /// The outputs of an evaluation.
  std::vector<at::Tensor> evaluate(const at::Tensor& images, int most) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> outputs;
    std::int64_t begin = 0;
    for (const std::shared_ptr<Unit>& unit : units) unit->eval();
    for (const std::int64_t size : sizes(images.size(0), most)) {
      outputs.push_back(forward(images.narrow(0, begin, size)));
      begin += size;
    }
    for (const std::shared_ptr<Unit>& unit : units) unit->train();
    return outputs;
  }
  std::vector<std::shared_ptr<Unit>> units;
};

/// The stages of a rank.
inline std::vector<std::shared_ptr<Unit>> make_chunks(int rank, int ranks, int chunks = 1) {
  std::vector<std::shared_ptr<Unit>> made;
  for (int chunk = 0; chunk < chunks; ++chunk) made.push_back(make_stage(chunk * ranks + rank, ranks * chunks));
  return made;
}

/// Gradients and buffers of the stages of `rank` have the bits of those of one process.
inline void check_stages(const std::vector<std::shared_ptr<Unit>>& chunks, const OneProcess& alone, int rank, int ranks) {
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const std::size_t stage = chunk * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank);
    const std::string where = " of stage " + std::to_string(stage);
    const auto found = chunks[chunk]->named_parameters();
    for (const auto& wanted : alone.units[stage]->named_parameters()) {
      check_equal(found[wanted.key()].grad(), wanted.value().grad(), "gradient of " + wanted.key() + where);
    }
    const auto buffers = chunks[chunk]->named_buffers();
    for (const auto& wanted : alone.units[stage]->named_buffers()) {
      check_equal(buffers[wanted.key()], wanted.value(), "buffer " + wanted.key() + where);
    }
  }
}
inline void check_all_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted,
                            const std::string& what) {
  check(found.size() == wanted.size(), what + ": as many as microbatches");
  for (std::size_t i = 0; i < wanted.size(); ++i) check_equal(found[i], wanted[i], what + " " + std::to_string(i));
}

}  // namespace shoal::parallel::pipeline_testing
