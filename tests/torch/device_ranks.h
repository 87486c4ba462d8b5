// Ranks for tests of device tensors. Each rank is a thread with its own fake device, which reveals missing synchronization
// (fake_device.h); with Path::streams the fake device is also a CUDA for shoal (fake_cuda_api.h).
#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/facts.h"
#include "tests/torch/fake_device.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

using at::Tensor;
using Group = c10::intrusive_ptr<ProcessGroupShoal>;
using Tensors = std::vector<Tensor>;
using Lists = std::vector<Tensors>;

constexpr std::int64_t kCount = 301;
constexpr int kBusy = 12;  // steps; far longer than a call takes

/// How shoal sends tensors of the fake device.
enum class Path { host_memory, streams };

inline c10::intrusive_ptr<ProcessGroupShoal::Options> options_of(Path path,
                                                                 std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const auto options = c10::make_intrusive<ProcessGroupShoal::Options>(timeout);
  if (path == Path::streams) options->cuda_devices = c10::DeviceType::PrivateUse1;
  return options;
}

/// One rank of a test.
struct Rank {
  Group group;
  int rank, size;
  Path path;

  /// Small integers that differ between ranks and calls.
  static Tensor of(int rank, int call = 0, std::int64_t count = kCount, at::ScalarType type = at::kFloat) {
    return (at::arange(count) % 5 + rank + call).to(type);
  }
  [[nodiscard]] Tensor mine(int call = 0, std::int64_t count = kCount, at::ScalarType type = at::kFloat) const {
    return fake::on_device(of(rank, call, count, type), rank);
  }
  /// An output tensor, filled on the current stream with a value that no call returns.
  [[nodiscard]] Tensor output(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) const {
    return at::empty(sizes, at::TensorOptions(fake::device(rank)).dtype(type)).fill_(99);
  }
  [[nodiscard]] Tensors outputs(std::int64_t count = kCount) const {
    Tensors list;
    for (int r = 0; r < size; ++r) list.push_back(output({count}));
    return list;
  }
  [[nodiscard]] Tensor total(int call = 0, std::int64_t count = kCount, at::ScalarType type = at::kFloat) const {
    Tensor sum = at::zeros({count}, type);
    for (int r = 0; r < size; ++r) sum += of(r, call, count, type);
    return sum;
  }
  [[nodiscard]] Tensor of_all_ranks(int call = 0) const {
    Tensors all;
    for (int r = 0; r < size; ++r) all.push_back(of(r, call));
    return at::cat(all);
  }
};

/// A rank's group as a c10d::ProcessGroup, for the dispatcher and the reducer.
inline c10::intrusive_ptr<c10d::ProcessGroup> process_group_of(const Rank& self) {
  constexpr auto kBackend = c10d::ProcessGroup::BackendType::CUSTOM;
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), self.rank, self.size);
  for (const c10::DeviceType type : {c10::DeviceType::CPU, c10::DeviceType::PrivateUse1}) {
    group->setBackend(type, kBackend, self.group);
  }
  group->setDefaultBackend(kBackend);
  return group;
}

/// Compares the values, read on the current stream of the tensor's device.
inline void expect_equal(const Tensor& found, const Tensor& wanted, const std::string& what) {
  EXPECT_TRUE(found.is_privateuseone()) << what;
  const Tensor values = found.cpu();
  EXPECT_TRUE(at::equal(values, wanted)) << what << ": found\n"
                                         << values.flatten().slice(0, 0, 8) << "\nwanted\n"
                                         << wanted.flatten().slice(0, 0, 8);
}

inline void run_ranks(int size, Path path, const std::function<void(const Rank&)>& body,
                      std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  ::setenv("SHOAL_CUDA_STAGING", "256K", 1);  // so that large messages are sent in pieces
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Rank self{c10::make_intrusive<ProcessGroupShoal>(store, rank, size, options_of(path, timeout)), rank, size, path};
        body(self);
        if (self.group->getError() != c10d::ErrorType::SUCCESS) return;  // the body has ended the group
        self.group->barrier()->wait();                                   // no rank leaves before its peers are done
        self.group->shutdown();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(fake::freed_memory_is_untouched());
}

template <typename Exception>
void expect_refusal(const std::function<void()>& call, const std::vector<std::string>& facts) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << facts[0];
  } catch (const Exception& error) {
    for (const std::string& fact : facts) {
      EXPECT_TRUE(testing::holds_fact(error.what(), fact)) << fact << " is not in: " << error.what();
    }
  }
}

}  // namespace shoal::torch
