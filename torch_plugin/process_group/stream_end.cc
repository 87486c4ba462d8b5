#include "torch_plugin/process_group/stream_end.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "torch_plugin/process_group/conversions.h"

namespace shoal::torch {

using at::Tensor;

void keep_for_stream(const std::vector<Tensor>& tensors, const c10::Stream& stream) {
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  for (const Tensor& tensor : tensors) {
    if (tensor.device() == stream.device()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }
}

StreamEnd::StreamEnd(StreamWork operation, bool copies, c10::Event done, const c10::Stream& caller, const c10::Stream& stream,
                     std::vector<Tensor> memory)
    : caller_(caller),
      stream_(stream),
      operation_(std::move(operation)),
      copies_(copies),
      done_(std::move(done)),
      result_(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get())),
      memory_(std::move(memory)) {}

bool StreamEnd::is_over() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (seen_) return true;
  }
  return operation_.is_completed() && (!copies_ || !operation_.status().ok() || done_.query());
}

Status StreamEnd::status() const { return operation_.status(); }

void StreamEnd::block_current_stream() {
  const c10::Stream current = c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device());
  done_.block(current);
  if (current != caller_) return;
  // Later work of the caller's stream on this memory runs after the call, so the allocator may reuse it.
  std::vector<Tensor> memory;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::swap(memory, memory_);
}

bool StreamEnd::wait_for(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return over_.wait_for(lock, timeout, [this] { return seen_; });
}

std::chrono::steady_clock::time_point StreamEnd::ended_at() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return seen_ ? ended_ : std::chrono::steady_clock::now();
}

Status StreamEnd::see_end() {
  const Status outcome = operation_.wait();
  if (outcome.ok() && copies_) done_.synchronize();
  std::vector<Tensor> memory;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    seen_ = true;
    ended_ = std::chrono::steady_clock::now();
    std::swap(memory, memory_);
  }
  over_.notify_all();
  if (!outcome.ok()) keep_for_stream(memory, stream_);  // the stream may still use it
  memory.clear();
  for (RecorderEntry& entry : entries_) entry.ended(outcome);
  result_->markCompleted(c10::IValue(static_cast<std::int64_t>(to_work_result(outcome))));
  in_flight_.reset();
  return outcome;
}

}  // namespace shoal::torch
