// Calls on CUDA tensors in device memory: a group's calls on one device, in the order of its streams.
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

/// A StreamCommunicator over the ranks of a group, the stream of its calls, and a thread that waits for the end of each call.
/// The stream is torch's, of high priority, and waits for the caller's current one before every call. Thread rule: any
/// thread.
class DeviceStreams {
 public:
  /// A call of the communicator on the stream.
  using Call = std::function<Result<StreamWork>(StreamCommunicator& communicator, void* stream)>;

  /// Collective over `host`: every rank makes one for its own device. Null, on every rank, if a rank has no CUDA that shoal
  /// can use; torch logs a warning with the reason once. Errors: those of Communicator.
  static Result<std::unique_ptr<DeviceStreams>> create(const std::shared_ptr<Communicator>& host, c10::Device device);
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;
  /// Waits for calls in flight and for the other ranks to reach this point, at most the communicator's timeout.
  ~DeviceStreams();
  /// Limits the time for which the destructor waits for the other ranks.
  void leave_within(std::chrono::milliseconds limit) { communicator_->leave_within(limit); }

  /// ok, or the reason why no call can be made on the current stream of `device`: it is being captured into a graph.
  static Status check_current_stream(c10::Device device);

  /// Makes `call`, then runs `unpacks` in the stream; keeps `memory` alive until both are done. Errors: those of the call.
  Result<std::shared_ptr<StreamEnd>> make(const Call& call, const std::vector<std::function<void()>>& unpacks,
                                          const std::vector<at::Tensor>& memory);
  /// From here on the thread waits for the end of `call`.
  void follow(std::shared_ptr<StreamEnd> call);

  /// See StreamCommunicator::register_buffer. Keeps the tensor. Collective; first waits for the calls of this rank.
  Status register_buffer(const at::Tensor& tensor);

  /// Closes the group here and on every other rank; streams that wait continue.
  void abort(const std::string& reason);
  [[nodiscard]] Status status() const { return communicator_->status(); }
  /// Whether a call is still in flight.
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
  c10::Event ready_;                 ///< the position of the caller's stream; guarded by calls_mutex_
  std::vector<at::Tensor> buffers_;  ///< registered; guarded by calls_mutex_

  std::mutex mutex_;  ///< guards the members below
  std::condition_variable news_;
  std::condition_variable idle_;
  std::deque<std::shared_ptr<StreamEnd>> in_flight_;  ///< oldest first; they end in this order
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the members above
};

/// The memory that a call can work on: that of the device if `streams` makes the call, else host memory.
inline Reach reach_of(const std::shared_ptr<DeviceStreams>& streams) {
  return streams == nullptr ? Reach::host : Reach::device;
}

}  // namespace shoal::torch
