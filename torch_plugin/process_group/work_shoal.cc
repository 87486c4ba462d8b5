#include "torch_plugin/process_group/work_shoal.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/ParallelGuard.h>

#include "torch_plugin/process_group/conversions.h"

namespace shoal::torch {

WorkShoal::WorkShoal(int rank, Call call)
    : c10d::Work(rank, call.type, call.profiling_title, call.inputs),
      call_(std::move(call)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

void WorkShoal::follow(shoal::Work operation) {
  operation_ = std::move(operation);
  // The callback owns this object: c10d may drop its own reference while the operation still runs.
  auto self = c10::intrusive_ptr<WorkShoal>::reclaim_copy(this);
  const Status status = operation_.on_completion([self](const Status& outcome) { self->complete(outcome); });
  if (!status.ok()) throw_status(call_.name, status);
}

void WorkShoal::complete(const Status& status) {
  std::exception_ptr failure;
  if (!status.ok()) {
    failure = to_exception(call_.name, status);
  } else {
    try {
      if (call_.unpack) {
        const at::NoGradGuard no_grad;          // an output may be a leaf that requires a gradient
        const c10::ParallelGuard serial(true);  // this is shoal's thread: no second team of OpenMP threads
        call_.unpack();
      }
    } catch (...) {
      failure = std::current_exception();
    }
  }
  // The future first: who wakes from wait() may ask for its value at once.
  if (failure) {
    future_->setError(failure);
  } else {
    future_->markCompleted(c10::IValue(call_.outputs));
  }
  finish(failure);
}

bool WorkShoal::isSuccess() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && !exception_;
}

std::vector<at::Tensor> WorkShoal::result() {
  TORCH_CHECK(isCompleted(), "shoal ", call_.name, ": result() before the operation has ended; call wait() first");
  return call_.outputs;
}

bool WorkShoal::wait(std::chrono::milliseconds timeout) {
  // shoal's own wait lets this thread do the work; c10d's then waits for complete(), which may still be running in the other
  // thread.
  if (timeout == kNoTimeout) {
    (void)operation_.wait();
  } else {
    (void)operation_.wait_for(timeout);
    if (!operation_.is_completed())
      timeout = std::chrono::milliseconds(1);  // let c10d say that time is up, in its words
    else
      timeout = kNoTimeout;
  }
  return c10d::Work::wait(timeout);
}

}  // namespace shoal::torch
