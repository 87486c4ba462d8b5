// One operation in flight, as c10d sees it.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <shoal/communicator.h>

namespace shoal::torch {

/// A c10d::Work over a shoal::Work. Holds the tensors that the operation touches until it has ended.
///
/// It ends in shoal's thread, in this order: `unpack` runs, the future is marked, waiters wake. No lock of this class is held
/// while user code (callbacks of the future) runs. Thread rule: every method may be called from any thread.
class WorkShoal final : public c10d::Work {
 public:
  /// What an operation needs besides its buffers.
  struct Call {
    c10d::OpType type;
    const char* name;                 ///< in messages, "all_reduce"
    const char* profiling_title;      ///< in profiles, "shoal:all_reduce"
    std::vector<at::Tensor> inputs;   ///< kept alive until the end; shown by profilers
    std::vector<at::Tensor> staging;  ///< kept alive until the end
    std::vector<at::Tensor> outputs;  ///< the result
    std::function<void()> unpack;     ///< moves the result from staging to outputs; may be empty
  };

  WorkShoal(int rank, Call call);

  /// Takes over the running operation. Called once, before anybody else holds this object's address.
  void follow(shoal::Work operation);

  bool isSuccess() const override;
  std::vector<at::Tensor> result() override;
  /// Blocks until the end or the timeout (c10d's kNoTimeout: the operation's own deadline). Throws what went wrong.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::uint64_t getSequencenumber() const override { return operation_.sequence(); }

 private:
  void complete(const Status& status);

  const Call call_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  shoal::Work operation_;
};

}  // namespace shoal::torch
