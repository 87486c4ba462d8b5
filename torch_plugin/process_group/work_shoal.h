// Operations in flight, as c10d's Work.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <shoal/communicator.h>

#include "torch_plugin/process_group/calls_in_flight.h"
#include "torch_plugin/process_group/flight_recorder.h"
#include "torch_plugin/process_group/staging.h"

namespace shoal::torch {

/// The other rank of a message.
struct Peer {
  int rank = -1;
  bool sending = false;
};

/// Base of all works of this backend: a future that can be used before the end, a duration, an order of ending.
///
/// The order at the end: the future is marked, then waiters wake. No lock of this class is held while user code (callbacks of
/// the future) runs. User code runs in shoal's thread and must not wait there, unless let_callbacks_wait() has been called.
/// Thread rule: every method may be called from any thread.
///
/// For device tensors: the work has ended when the copy of the result to the device has been enqueued. Work that the caller
/// puts into its current stream after wait(), synchronize() or the future's wait() sees the result, and so do callbacks; the
/// host does not wait for the copy.
class WorkBase : public c10d::Work {
 public:
  /// `devices`: the devices of the result, if not those of `outputs`.
  WorkBase(int rank, c10d::OpType type, const char* name, const char* profiling_title, std::vector<at::Tensor> outputs,
           const std::optional<std::vector<at::Tensor>>& inputs, std::vector<c10::Device> devices = {});

  bool isSuccess() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  /// Callbacks that are attached to the future from now on may wait: they run in one of CallbackThreads, or at once if this
  /// has ended already. The Python module calls it when Python code requests a future; torch's C++ code that requests one,
  /// such as DDP's reducer, attaches no callbacks that wait.
  void let_callbacks_wait();
  /// A future of the number of a c10d::WorkResult; it never fails.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Milliseconds from the call to its end. Throws before the end.
  float getDuration() const override;
  /// For device tensors: waits for the end, then as wait().
  void synchronize() override;
  /// For device tensors the same as wait(): torch's own implementation would not make the stream wait for the copy of the
  /// result.
  void blockCurrentStream() override;

 protected:
  using InFlight = std::shared_ptr<CallsInFlight::Entry>;
  /// `in_flight` is kept until the callbacks have returned.
  void end(const std::exception_ptr& failure, c10d::WorkResult kind, const InFlight& in_flight = {});
  /// c10d::Work::wait(), with signal handlers running meanwhile; `abort` as in wait_with_signals().
  bool wait_for_mark(std::chrono::milliseconds timeout, const std::function<void(const std::string& reason)>& abort);
  [[nodiscard]] std::chrono::steady_clock::time_point started_at() const { return started_; }

  const char* const name_;  ///< for messages, "all_reduce"
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<c10::Stream> streams_;  ///< in which the result moves to its devices; set before end()
  std::optional<std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>>
      storages_;  ///< the result's, if not those of outputs_; set before end()

 private:
  void mark(const std::exception_ptr& failure);

  static constexpr int kEnding = -1;
  /// Level of CallbackThreads in which this ends; 0: the thread that happens to end it; kEnding: the level can no longer
  /// change.
  std::atomic<int> callback_level_{0};
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point ended_;
  c10d::WorkResult kind_ = c10d::WorkResult::UNKNOWN;
};

/// One call: a c10d::Work over a shoal::Work. Holds the tensors that the call uses until it has ended. `unpack` runs in
/// shoal's thread, before the future is marked.
class WorkShoal final : public WorkBase {
 public:
  /// What a call needs besides its buffers.
  struct Call {
    c10d::OpType type;
    const char* name;                 ///< for messages, "all_reduce"
    const char* profiling_title;      ///< for profiles, "shoal:all_reduce"; null: not shown
    std::vector<at::Tensor> inputs;   ///< kept alive until the end; shown by profilers
    std::vector<at::Tensor> staging;  ///< kept alive until the end
    std::vector<at::Tensor> outputs;  ///< the result
    std::function<void()> unpack;     ///< moves the result from staging to outputs; may be empty
    Peer peer = {};                   ///< of a message
  };

  WorkShoal(int rank, Call call, std::weak_ptr<shoal::Communicator> communicator);

  /// Takes over the running operation. Called once, before another object holds this object's address. `entry` is the call's
  /// entry in the flight recorder.
  void follow(shoal::Work operation, RecorderEntry entry);

  /// Blocks until the end or the timeout (c10d's kNoTimeout: the operation's own deadline). Throws the failure.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// Aborts the group, on every rank: a single call cannot be cancelled.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  bool isCompleted() override;
  std::uint64_t getSequencenumber() const override { return operation_.sequence(); }
  /// The sender of the received message.
  int sourceRank() const override { return operation_.source(); }

 private:
  void complete(const Status& status, const InFlight& in_flight);
  void write_outputs();
  void abort_because(const std::string& reason) const;
  void start_if_collected();

  const std::vector<at::Tensor> inputs_;
  const std::vector<at::Tensor> staging_;
  std::function<void()> unpack_;
  const bool inference_;                               ///< the caller is in inference mode, or an output was created in it
  std::unique_ptr<const DeviceResult> device_result_;  ///< null for tensors on the CPU
  const std::weak_ptr<shoal::Communicator> communicator_;
  shoal::Work operation_;
  RecorderEntry entry_;
};

/// Several calls as one c10d work; it ends with the last of them, and fails with the first failure.
class WorkTogether final : public WorkBase {
 public:
  WorkTogether(int rank, const char* name, const char* profiling_title, const std::vector<at::Tensor>& inputs,
               std::vector<at::Tensor> outputs, std::vector<c10::intrusive_ptr<c10d::Work>> parts);

  /// Called once, before another object holds this object's address.
  void follow();

  bool isCompleted() override;
  bool isSuccess() const override;
  /// As WorkShoal::wait; the timeout applies to all parts together.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;

 private:
  void part_ended(const InFlight& in_flight);
  void join_streams();

  const std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
  std::atomic<std::size_t> missing_;
};

}  // namespace shoal::torch
