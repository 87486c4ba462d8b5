// MessageEnd: the end of one message between stages.
#pragma once

#include <utility>
#include <variant>

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <shoal/communicator.h>
#include <shoal/cuda.h>

namespace shoal::parallel {

/// Of a message through host memory or on streams. The default one has ended. Thread rule: one thread.
class MessageEnd {
 public:
  MessageEnd() = default;
  explicit MessageEnd(Work work) : work_(std::move(work)) {}
  MessageEnd(StreamWork work, c10::Device device) : work_(OnStream{{std::move(work)}, device}) {}

  /// What this rank computes next comes after the message: waits for it, or makes the current stream of the device wait.
  Status precede_next() {
    if (auto* work = std::get_if<Work>(&work_)) return work->wait();
    auto& call = std::get<OnStream>(work_);
    return call.wait_on(c10::impl::VirtualGuardImpl(call.device.type()).getStream(call.device).native_handle());
  }
  /// Blocks the host.
  Status wait() {
    return std::visit([](auto& work) { return work.wait(); }, work_);
  }
  [[nodiscard]] bool is_ok() const {
    return std::visit([](const auto& work) { return work.is_completed() && work.status().ok(); }, work_);
  }

 private:
  struct OnStream : StreamWork {
    c10::Device device;
  };

  std::variant<Work, OnStream> work_;
};

}  // namespace shoal::parallel
