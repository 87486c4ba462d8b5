#include "torch_plugin/process_group/work_stream.h"

#include <utility>

#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/interpreter.h"

namespace shoal::torch {

WorkStream::WorkStream(int rank, const WorkShoal::Call& call, const std::shared_ptr<DeviceStreams>& streams)
    : WorkBase(rank, call.type, call.name, call.profiling_title, call.outputs, call.inputs, {streams->stream().device()}),
      peer_(call.peer),
      streams_of_group_(streams) {
  streams_.push_back(streams->stream());
}

void WorkStream::follow(std::shared_ptr<StreamEnd> end) {
  end_ = std::move(end);
  WorkBase::end(nullptr, c10d::WorkResult::SUCCESS);
}

StreamEnd& WorkStream::known_end() const {
  TORCH_CHECK(end_ != nullptr, "shoal ", name_,
              ": messages on a CUDA device start together at the end of their block; wait after endCoalescing()");
  return *end_;
}

std::exception_ptr WorkStream::exception() const {
  const Status status = end_ == nullptr ? Status() : end_->status();
  return status.ok() ? nullptr : to_exception(name_, status);
}

bool WorkStream::wait(std::chrono::milliseconds timeout) {
  const InterpreterExit leaving;
  StreamEnd& end = known_end();
  if (timeout != kNoTimeout) {
    const bool over = wait_with_signals(
        timeout, [&](std::chrono::milliseconds limit) { return end.wait_for(limit); },
        [this](const std::string& reason) {
          if (const auto streams = streams_of_group_.lock()) streams->abort(std::string(name_) + ": " + reason);
        });
    TORCH_CHECK(over, "Operation timed out!");  // c10d's wording
  }
  if (const Status status = end.status(); !status.ok()) {
    end.write_trace_once();
    throw_status(name_, status);
  }
  end.block_current_stream();
  return true;
}

void WorkStream::abort() {
  if (const std::shared_ptr<DeviceStreams> streams = streams_of_group_.lock()) {
    streams->abort(std::string("abort of a work, ") + name_);
  }
}

float WorkStream::getDuration() const {
  const StreamEnd& end = known_end();
  TORCH_CHECK(end.is_over(), "shoal ", name_, ": getDuration() before the operation has ended on the device");
  return std::chrono::duration<float, std::milli>(end.ended_at() - started_at()).count();
}

}  // namespace shoal::torch
