// Tensors of CUDA devices where they lie: a group's calls on one device, in the order of its streams.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <shoal/communicator.h>
#include <shoal/cuda.h>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/stream_end.h"

namespace shoal::torch {

/// A StreamCommunicator over the ranks of a group, the stream that its calls go to, and a thread that sees them end. The stream
/// is torch's, of high priority, and waits for the caller's current one before every call. Thread rule: any thread.
class DeviceStreams {
 public:
  /// A call of the communicator on the stream.
  using Call = std::function<Result<StreamWork>(StreamCommunicator& communicator, void* stream)>;

  /// Collective over `host`: every rank makes one for a device of its own. Null, on every rank, where some rank has no CUDA
  /// that shoal can use; torch warns of the reason once. Errors: those of Communicator.
  static Result<std::unique_ptr<DeviceStreams>> create(const std::shared_ptr<Communicator>& host, c10::Device device);
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;
  /// Waits for what is in flight and for the other ranks to come here, at most the communicator's timeout.
  ~DeviceStreams();
  /// The destructor waits for the other ranks no longer than that.
  void leave_within(std::chrono::milliseconds limit) { communicator_->leave_within(limit); }

  /// ok, or why no call can be made on the current stream of `device`: it is being captured into a graph.
  static Status check_current_stream(c10::Device device);

  /// Makes `call`, then runs `unpacks` in the stream; `memory` is kept until that has been done. Errors: the call's.
  Result<std::shared_ptr<StreamEnd>> make(const Call& call, const std::vector<std::function<void()>>& unpacks,
                                          const std::vector<at::Tensor>& memory);
  /// The thread sees to the end of `call` from here on.
  void follow(std::shared_ptr<StreamEnd> call);

  /// See StreamCommunicator::register_buffer. Keeps the tensor. Collective; waits for the calls of this rank first.
  Status register_buffer(const at::Tensor& tensor);

  /// Closes the group here and on every other rank; streams that wait go on.
  void abort(const std::string& reason);
  [[nodiscard]] Status status() const { return communicator_->status(); }
  /// Whether a call has not ended yet.
  [[nodiscard]] bool busy();
  [[nodiscard]] const c10::Stream& stream() const { return stream_; }

 private:
  DeviceStreams(std::shared_ptr<Communicator> host, c10::Device device, std::unique_ptr<StreamCommunicator> communicator);
  void watch();

  const std::shared_ptr<Communicator> host_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream stream_;
  std::unique_ptr<StreamCommunicator> communicator_;
  std::mutex calls_mutex_;           ///< held while a call is made; before mutex_
  c10::Event ready_;                 ///< what the caller's stream has come to; guarded by calls_mutex_
  std::vector<at::Tensor> buffers_;  ///< registered; guarded by calls_mutex_

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable news_;
  std::condition_variable idle_;
  std::deque<std::shared_ptr<StreamEnd>> in_flight_;  ///< oldest first; they end in this order
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

/// What memory a call can work on that `streams`, if any, make.
inline Reach reach_of(const std::shared_ptr<DeviceStreams>& streams) {
  return streams == nullptr ? Reach::host : Reach::device;
}

}  // namespace shoal::torch
