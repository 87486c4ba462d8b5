#include "torch_plugin/process_group/work_stream.h"

#include <utility>

#include "torch_plugin/process_group/conversions.h"

namespace shoal::torch {

WorkStream::WorkStream(int rank, const WorkShoal::Call& call, std::shared_ptr<StreamEnd> end,
                       const std::shared_ptr<DeviceStreams>& streams)
    : WorkBase(rank, call.type, call.name, call.profiling_title, call.outputs, call.inputs, {streams->stream().device()}),
      end_(std::move(end)),
      streams_of_group_(streams) {
  streams_.push_back(streams->stream());
  WorkBase::end(nullptr, c10d::WorkResult::SUCCESS);
}

std::exception_ptr WorkStream::exception() const {
  const Status status = end_->status();
  return status.ok() ? nullptr : to_exception(name_, status);
}

bool WorkStream::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) TORCH_CHECK(end_->wait_for(timeout), "Operation timed out!");  // in c10d's words
  if (const Status status = end_->status(); !status.ok()) {
    end_->write_trace_once();
    throw_status(name_, status);
  }
  end_->block_current_stream();
  return true;
}

void WorkStream::abort() {
  if (const std::shared_ptr<DeviceStreams> streams = streams_of_group_.lock()) {
    streams->abort(std::string("abort of a work, ") + name_);
  }
}

float WorkStream::getDuration() const {
  TORCH_CHECK(end_->is_over(), "shoal ", name_, ": getDuration() before the operation has ended on the device");
  return std::chrono::duration<float, std::milli>(end_->ended_at() - started_at()).count();
}

}  // namespace shoal::torch
