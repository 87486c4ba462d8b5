// Ranks of a c10d group of this backend, each in a forked process.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_plugin/package/torch.h"

namespace shoal::testing {

using TorchGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

/// A group of `ranks` ranks that meet in `store`.
inline TorchGroup make_torch_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, ranks);
  const auto backend = c10::make_intrusive<torch::ProcessGroupShoal>(store, rank, ranks);
  for (const c10::DeviceType device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    group->setBackend(device, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  }
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName("test");
  return group;
}

/// Another group of some ranks of `all`, which give the same `name`.
inline TorchGroup make_torch_subgroup(const TorchGroup& all, const std::string& name, int rank, int ranks) {
  return make_torch_group(c10::make_intrusive<c10d::PrefixStore>(name, all->getStore()), rank, ranks);
}

/// Forks `ranks` ranks that run `body(group)`; one that throws fails the test. The calling process must not have started
/// torch's threads, because they do not survive a fork.
inline void run_torch_ranks(int ranks, const std::function<void(const TorchGroup&)>& body) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "shoal-torch-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(120);
      int code = 1;
      try {
        at::set_num_threads(1);
        const auto store = c10::make_intrusive<c10d::FileStore>((fs::path(folder) / "store").string(), ranks);
        body(make_torch_group(store, rank, ranks));
        code = 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
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
  fs::remove_all(folder);
}

}  // namespace shoal::testing
