// Ranks whose fake device is a CUDA for shoal, for tests of calls on streams.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "tests/torch/device_ranks.h"
#include "tests/torch/fake_cuda_api.h"
#include "torch_plugin/process_group/work_stream.h"

namespace shoal::torch {

using Work = c10::intrusive_ptr<c10d::Work>;

constexpr std::int64_t kLarge = 60000;  // needs the two-shot algorithm and several pieces

class StreamRanks : public ::testing::Test {
 protected:
  static void on_ranks(int size, const std::function<void(const Rank&)>& body,
                       std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    run_ranks(size, Path::streams, body, timeout);
  }
  void TearDown() override {
    fake::CudaBehaviour& behaviour = fake::cuda_behaviour();
    behaviour.works = true;
    behaviour.exports_memory = true;
    behaviour.shared_device = true;
    behaviour.capturing = false;
    fake::set_seed(20);
  }
};

inline const c10::impl::VirtualGuardImpl& device_guard() {
  static const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
  return guard;
}
inline c10::Stream current_stream(int rank) { return device_guard().getStream(fake::device(rank)); }

inline bool is_on_streams(const Work& work) { return dynamic_cast<const WorkStream*>(work.get()) != nullptr; }

/// Another group of the same ranks.
inline Group group_beside(const Rank& self, Path path) {
  std::vector<int> ranks;
  for (int rank = 0; rank < self.size; ++rank) ranks.push_back(rank);
  return self.group->subgroup(c10::make_intrusive<c10d::HashStore>(), ranks, options_of(path));
}

/// The message of the exception that a call throws.
template <typename Exception, typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace shoal::torch
