// Calls on streams, as c10d's Work.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "torch_plugin/process_group/device_streams.h"
#include "torch_plugin/process_group/work_shoal.h"

namespace shoal::torch {

/// One call on a stream, with the semantics of NCCL's backend: the future is marked at once, with events of the device;
/// wait(), synchronize() and the future's wait() make the current stream wait, not the host; wait() with a timeout blocks the
/// host. A failure appears in wait(), status and later calls as soon as the host detects it, never in the future. Thread
/// rule: any thread; before follow() only the thread that makes the call.
class WorkStream final : public WorkBase {
 public:
  WorkStream(int rank, const WorkShoal::Call& call, const std::shared_ptr<DeviceStreams>& streams);

  /// The call is on its stream. Called once; before that, waiting throws c10::Error.
  void follow(std::shared_ptr<StreamEnd> end);

  bool isCompleted() override { return end_ != nullptr && end_->is_over(); }
  bool isSuccess() const override { return end_ != nullptr && end_->is_over() && end_->status().ok(); }
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }
  void abort() override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return known_end().result(); }
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override { return known_end().sequence(); }
  /// The sender of the received message.
  int sourceRank() const override { return peer_.rank; }

 private:
  StreamEnd& known_end() const;

  const Peer peer_;
  const std::weak_ptr<DeviceStreams> streams_of_group_;
  std::shared_ptr<StreamEnd> end_;
};

}  // namespace shoal::torch
