#include "torch_plugin/process_group/device_streams.h"

#include <pthread.h>

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include "torch_plugin/process_group/call_scope.h"
#include "torch_plugin/process_group/interpreter.h"
#include "torch_plugin/process_group/quiet_thread.h"

namespace shoal::torch {

using at::Tensor;

Result<std::unique_ptr<DeviceStreams>> DeviceStreams::create(const std::shared_ptr<Communicator>& host, c10::Device device) {
  const c10::DeviceGuard here(device);
  const CallScope::Outside calls_start_now;
  // A rank without CUDA reports it, so that the other ranks do not wait for it.
  Status usable = cuda_available();
  const auto own = static_cast<std::int32_t>(usable.code());
  std::vector<std::int32_t> codes(static_cast<std::size_t>(host->size()));
  const Status told = finish_with_signals("the first call on a CUDA device", *host,
                                          host->all_gather_async(&own, codes.data(), 1, DataType::int32));
  if (!told.ok()) return told;
  for (std::size_t rank = 0; rank < codes.size() && usable.ok(); ++rank) {
    if (codes[rank] != 0) usable = Status(StatusCode::unsupported, "rank " + std::to_string(rank) + " has no usable CUDA");
  }
  if (usable.ok()) {
    auto made = StreamCommunicator::create(*host);
    if (made.ok()) return std::unique_ptr<DeviceStreams>(new DeviceStreams(host, device, std::move(*made)));
    usable = made.status();
    // An error of the device, the same on all ranks; all of them can use host memory instead.
    const bool of_device = usable.code() == StatusCode::unsupported || usable.code() == StatusCode::system_error;
    if (!of_device || !host->status().ok()) return usable;
  }
  TORCH_WARN_ONCE("shoal: tensors on ", device, " go through host memory: ", usable.message());
  return std::unique_ptr<DeviceStreams>();
}

DeviceStreams::DeviceStreams(std::shared_ptr<Communicator> host, c10::Device device,
                             std::unique_ptr<StreamCommunicator> communicator)
    : host_(std::move(host)),
      guard_(device.type()),
      stream_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      communicator_(std::move(communicator)),
      ready_(device.type()),
      thread_(quiet_thread([this] { watch(); })) {}

DeviceStreams::~DeviceStreams() {
  {
    const c10::DeviceGuard here(stream_.device());
    communicator_.reset();  // all calls have ended after this line
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  news_.notify_all();
  thread_.join();
}

Status DeviceStreams::check_current_stream(c10::Device device) {
  if (!cuda_available().ok()) return {};  // such calls go through host memory
  const c10::DeviceGuard here(device);
  return cuda_stream_takes_calls(c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle());
}

Result<std::shared_ptr<StreamEnd>> DeviceStreams::make(const Call& call, const std::vector<std::function<void()>>& unpacks,
                                                       const std::vector<Tensor>& memory) {
  const std::lock_guard<std::mutex> calling(calls_mutex_);
  if (const Status closed = host_->status(); !closed.ok()) communicator_->abort(closed.message());
  const c10::Stream caller = guard_.getStream(stream_.device());
  const c10::StreamGuard current(stream_);  // also sets the current device
  ready_.record(caller);
  ready_.block(stream_);
  try {
    Result<StreamWork> operation = call(*communicator_, stream_.native_handle());
    if (!operation.ok()) {
      keep_for_stream(memory, stream_);  // the stream may hold part of the call
      if (!status().ok()) host_->abort(status().message());
      return operation.status();
    }
    {
      const at::NoGradGuard no_grad;  // an output may be a leaf that requires a gradient
      for (const std::function<void()>& unpack : unpacks) unpack();
    }
    c10::Event done(guard_.type());
    done.record(stream_);
    return std::make_shared<StreamEnd>(std::move(operation).value(), !unpacks.empty(), std::move(done), caller, stream_,
                                       memory);
  } catch (...) {
    keep_for_stream(memory, stream_);
    throw;
  }
}

void DeviceStreams::follow(std::shared_ptr<StreamEnd> call) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_flight_.push_back(std::move(call));
  }
  news_.notify_one();
}

void DeviceStreams::watch() {
  ::pthread_setname_np(::pthread_self(), "shoal-streams");
  const c10::DeviceGuard here(stream_.device());  // otherwise CUDA may create a context on the first device
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    news_.wait(lock, [this] { return stopping_ || !in_flight_.empty(); });
    if (in_flight_.empty()) return;
    const std::shared_ptr<StreamEnd> oldest = in_flight_.front();
    lock.unlock();
    const Status outcome = oldest->see_end();
    // Calls through host memory belong to the same group, so they must end, too.
    if (!outcome.ok() && host_->status().ok()) {
      LOG(ERROR) << "shoal: a call on " << stream_.device() << " failed and its group is closed: " << outcome.to_string();
      host_->abort(outcome.message());
    }
    lock.lock();
    in_flight_.pop_front();
    if (in_flight_.empty()) idle_.notify_all();
  }
}

bool DeviceStreams::busy() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !in_flight_.empty() && !in_flight_.back()->is_over();
}

Status DeviceStreams::register_buffer(const Tensor& tensor) {
  const std::lock_guard<std::mutex> calling(calls_mutex_);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return in_flight_.empty(); });
  }
  const c10::DeviceGuard here(stream_.device());
  const CallScope::Outside calls_start_now;
  const Status status = communicator_->register_buffer(tensor.data_ptr());
  if (status.ok()) buffers_.push_back(tensor);
  return status;
}

void DeviceStreams::abort(const std::string& reason) {
  communicator_->abort("rank " + std::to_string(host_->rank()) + " aborted: " + reason);
  host_->abort(reason);
}

}  // namespace shoal::torch
