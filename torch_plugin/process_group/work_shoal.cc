#include "torch_plugin/process_group/work_shoal.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ParallelGuard.h>

#include "torch_plugin/process_group/call_scope.h"
#include "torch_plugin/process_group/callback_threads.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/interpreter.h"

namespace shoal::torch {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

WorkBase::WorkBase(int rank, c10d::OpType type, const char* name, const char* profiling_title, std::vector<at::Tensor> outputs,
                   const std::optional<std::vector<at::Tensor>>& inputs, std::vector<c10::Device> devices)
    : c10d::Work(rank, type, profiling_title, inputs),
      name_(name),
      outputs_(std::move(outputs)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       devices.empty() ? devices_of(outputs_) : std::move(devices))) {}

void WorkBase::end(const std::exception_ptr& failure, c10d::WorkResult kind, const InFlight& in_flight) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = steady_clock::now();
    kind_ = kind;
  }
  int level = 0;
  if (callback_level_.compare_exchange_strong(level, kEnding)) return mark(failure);
  auto self = c10::intrusive_ptr<WorkBase>::reclaim_copy(this);
  CallbackThreads::run(level, [self, failure, in_flight]() mutable {
    self->mark(failure);
    self.reset();  // before in_flight: members of `self` may need the interpreter to be freed
  });
}

void WorkBase::mark(const std::exception_ptr& failure) {
  // The future first: a thread that wakes from wait() may ask for its value at once.
  if (failure) {
    future_->setError(failure);
  } else {
    const c10::MultiStreamGuard current(streams_);  // the future records on these streams when its value is ready
    future_->markCompleted(c10::IValue(outputs_), std::move(storages_));
  }
  finish(failure);
}

void WorkBase::let_callbacks_wait() {
  int level = 0;
  callback_level_.compare_exchange_strong(level, CallbackThreads::own_level() + 1);
  // The call is ending in another thread: callbacks attached before the future is marked would run there.
  while (level == kEnding && !future_->completed()) std::this_thread::yield();
}

bool WorkBase::wait_for_mark(milliseconds timeout, const std::function<void(const std::string& reason)>& abort) {
  const auto marked = [this](milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (limit != kNoTimeout) return cv_.wait_for(lock, limit, [this] { return completed_; });
    cv_.wait(lock, [this] { return completed_; });
    return true;
  };
  const bool ended = wait_with_signals(timeout, marked, abort);
  return c10d::Work::wait(ended ? kNoTimeout : milliseconds(1));  // throws the failure or c10d's timeout
}

bool WorkBase::isSuccess() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && !exception_;
}

std::vector<at::Tensor> WorkBase::result() {
  TORCH_CHECK(isCompleted(), "shoal ", name_, ": result() before the operation has ended; call wait() first");
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkBase::getFutureResult() {
  auto result = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  auto self = c10::intrusive_ptr<WorkBase>::reclaim_copy(this);
  future_->addCallback([result, self](c10::ivalue::Future&) {
    std::int64_t kind = 0;
    {
      const std::lock_guard<std::mutex> lock(self->mutex_);
      kind = static_cast<std::int64_t>(self->kind_);
    }
    result->markCompleted(c10::IValue(kind));
  });
  return result;
}

float WorkBase::getDuration() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(completed_, "shoal ", name_, ": getDuration() before the operation has ended; call wait() first");
  return std::chrono::duration<float, std::milli>(ended_ - started_).count();
}

void WorkBase::synchronize() {
  c10d::Work::synchronize();
  if (!future_->devices().empty()) getFuture()->wait();
}

void WorkBase::blockCurrentStream() {
  if (future_->devices().empty()) return c10d::Work::blockCurrentStream();
  wait();
}

WorkShoal::WorkShoal(int rank, Call call, std::weak_ptr<shoal::Communicator> communicator)
    : WorkBase(rank, call.type, call.name, call.profiling_title, std::move(call.outputs), call.inputs),
      inputs_(std::move(call.inputs)),
      staging_(std::move(call.staging)),
      unpack_(std::move(call.unpack)),
      inference_(c10::InferenceMode::is_enabled() || std::ranges::any_of(outputs_, &at::Tensor::is_inference)),
      communicator_(std::move(communicator)) {}

void WorkShoal::follow(shoal::Work operation, RecorderEntry entry) {
  if (unpack_ && !future_->devices().empty()) device_result_ = std::make_unique<DeviceResult>(future_->devices()[0]);
  operation_ = std::move(operation);
  entry_ = std::move(entry);
  // The callback owns this object: c10d may drop its own reference while the operation still runs.
  struct Running {
    InFlight in_flight;  // first member, so it is destroyed last
    c10::intrusive_ptr<WorkShoal> self;
  };
  Running running{CallsInFlight::add([communicator = communicator_](const std::string& reason) {
                    if (const auto open = communicator.lock()) open->abort(reason);
                  }),
                  c10::intrusive_ptr<WorkShoal>::reclaim_copy(this)};
  const Status status = operation_.on_completion(
      [running = std::move(running)](const Status& outcome) { running.self->complete(outcome, running.in_flight); });
  if (!status.ok()) throw_status(name_, status);
}

void WorkShoal::complete(const Status& status, const InFlight& in_flight) {
  std::exception_ptr failure;
  if (!status.ok()) {
    failure = to_exception(name_, status);
  } else {
    try {
      if (unpack_) write_outputs();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  entry_.ended(status);
  end(failure, to_work_result(status), in_flight);
}

void WorkShoal::write_outputs() {
  const c10::InferenceMode mode(inference_);  // outside it, a tensor made in inference mode cannot be written
  // A caller that waits inside a transform of torch.func: the outputs are below it, as PyTorch gave them to the call.
  const c10::impl::ExcludeDispatchKeyGuard no_transform(
      c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode}));
  const at::NoGradGuard no_grad;          // an output may be a leaf that requires a gradient
  const c10::ParallelGuard serial(true);  // this is shoal's thread: avoids a second team of OpenMP threads
  if (device_result_) {
    streams_.push_back(device_result_->write(outputs_, unpack_));
  } else {
    unpack_();
  }
}

bool WorkShoal::wait(milliseconds timeout) {
  const InterpreterExit leaving;
  const auto abort_group = [this](const std::string& reason) { abort_because(std::string(name_) + ": " + reason); };
  // shoal's own wait lets this thread drive the operation; c10d's then waits for complete(), which may still be running in
  // the other thread.
  Status status;
  const bool over = wait_with_signals(timeout, operation_, status, abort_group);
  if (over && !operation_.is_completed()) throw_status(name_, status);  // or this is shoal's thread, in a callback
  try {
    return wait_for_mark(over ? kNoTimeout : milliseconds(1), abort_group);
  } catch (...) {
    if (isCompleted()) entry_.write_trace_once();
    throw;
  }
}

/// A thread asks for the outcome while its calls are being collected: the call must start now and not at the end of the
/// block, which an exception may have skipped.
void WorkShoal::start_if_collected() {
  if (CallScope::open()) (void)operation_.wait_for(std::chrono::nanoseconds(0));
}

c10::intrusive_ptr<c10::ivalue::Future> WorkShoal::getFuture() {
  start_if_collected();
  return WorkBase::getFuture();
}

bool WorkShoal::isCompleted() {
  start_if_collected();
  return WorkBase::isCompleted();
}

void WorkShoal::abort() { abort_because(std::string("abort of a work, ") + name_); }

void WorkShoal::abort_because(const std::string& reason) const {
  if (const std::shared_ptr<shoal::Communicator> communicator = communicator_.lock()) communicator->abort(reason);
}

namespace {
/// The devices of the results of several works.
std::vector<c10::Device> devices_of(const std::vector<c10::intrusive_ptr<c10d::Work>>& parts) {
  std::vector<c10::Device> devices;
  for (const c10::intrusive_ptr<c10d::Work>& part : parts) {
    const std::vector<c10::Device>& more = part->getFuture()->devices();
    devices.insert(devices.end(), more.begin(), more.end());
  }
  return devices;
}
}  // namespace

WorkTogether::WorkTogether(int rank, const char* name, const char* profiling_title, const std::vector<at::Tensor>& inputs,
                           std::vector<at::Tensor> outputs, std::vector<c10::intrusive_ptr<c10d::Work>> parts)
    : WorkBase(rank, c10d::OpType::COALESCED, name, profiling_title, std::move(outputs), inputs, devices_of(parts)),
      parts_(std::move(parts)),
      missing_(parts_.size() + 1) {}

void WorkTogether::follow() {
  struct Running {
    InFlight in_flight;  // first member, so it is destroyed last
    c10::intrusive_ptr<WorkTogether> self;
  };
  const Running running{CallsInFlight::add({}), c10::intrusive_ptr<WorkTogether>::reclaim_copy(this)};
  for (const c10::intrusive_ptr<c10d::Work>& part : parts_) {
    part->getFuture()->addCallback([running](c10::ivalue::Future&) { running.self->part_ended(running.in_flight); });
  }
  part_ended(running.in_flight);  // counted above, so that this does not end while parts are still being followed
}

void WorkTogether::part_ended(const InFlight& in_flight) {
  if (missing_.fetch_sub(1) != 1) return;
  std::exception_ptr failure;
  for (const c10::intrusive_ptr<c10d::Work>& part : parts_) {
    const c10::intrusive_ptr<c10::ivalue::Future> future = part->getFuture();
    if (future->hasError()) {
      failure = future->exception_ptr();
      break;
    }
  }
  if (!failure && !future_->devices().empty()) join_streams();
  end(failure, failure ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS, in_flight);
}

/// The result is ready when those of all parts are, which move in separate streams.
void WorkTogether::join_streams() {
  const std::vector<c10::Device>& devices = future_->devices();
  const c10::impl::VirtualGuardImpl guard(devices[0].type());
  for (const c10::Device& device : devices) streams_.push_back(guard.getStreamFromGlobalPool(device));
  const c10::MultiStreamGuard current(streams_);
  storages_.emplace();
  for (const c10::intrusive_ptr<c10d::Work>& part : parts_) {
    const c10::intrusive_ptr<c10::ivalue::Future> future = part->getFuture();
    future->wait();  // the part has ended: this makes the current streams wait
    storages_->insert(storages_->end(), future->storages().begin(), future->storages().end());
  }
}

bool WorkTogether::isCompleted() {
  return WorkBase::isCompleted() && std::ranges::all_of(parts_, [](const auto& part) { return part->isCompleted(); });
}

bool WorkTogether::isSuccess() const {
  return WorkBase::isSuccess() && std::ranges::all_of(parts_, [](const auto& part) { return part->isSuccess(); });
}

bool WorkTogether::wait(milliseconds timeout) {
  const InterpreterExit leaving;
  const steady_clock::time_point deadline = steady_clock::now() + timeout;
  for (const c10::intrusive_ptr<c10d::Work>& part : parts_) {
    milliseconds left = timeout;
    if (timeout != kNoTimeout) {
      left = std::max(std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()), milliseconds(1));
    }
    part->wait(left);
  }
  return wait_for_mark(timeout, [this](const std::string&) { abort(); });
}

void WorkTogether::abort() {
  if (!parts_.empty()) parts_[0]->abort();
}

}  // namespace shoal::torch
