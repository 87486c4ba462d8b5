// The end of one call on a stream.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <shoal/cuda.h>
#include <shoal/status.h>

#include "torch_plugin/process_group/calls_in_flight.h"
#include "torch_plugin/process_group/flight_recorder.h"

namespace shoal::torch {

/// The state of one call on a stream: whether and how it has ended, and the memory that it uses until then. Owned by its work
/// (by several works, if messages start together) and by the thread that waits for its end. It contains neither outputs nor
/// futures, so these do not live longer than the user needs them. Thread rule: any thread.
class StreamEnd {
 public:
  /// `done` has been recorded in `stream` after the call and, if it `copies`, after the copies of its result; `caller` was
  /// the current stream when the call was made.
  StreamEnd(StreamWork operation, bool copies, c10::Event done, const c10::Stream& caller, const c10::Stream& stream,
            std::vector<at::Tensor> memory);

  /// Adds the flight recorder's entry of one of c10d's calls. Must be called before follow().
  void add_entry(RecorderEntry entry) { entries_.push_back(std::move(entry)); }
  /// `in_flight` is kept until the call has ended and its callbacks have returned. Must be called before follow().
  void keep(std::shared_ptr<CallsInFlight::Entry> in_flight) { in_flight_ = std::move(in_flight); }
  void write_trace_once() const { entries_.front().write_trace_once(); }

  /// Never blocks: whether the device has finished the call, or it has failed.
  [[nodiscard]] bool is_over() const;
  /// ok while it is in flight.
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::uint64_t sequence() const noexcept { return operation_.sequence(); }
  /// The current stream of the device waits for it; the host does not.
  void block_current_stream();
  /// Blocks the host until the call is over, at most `timeout`. Returns whether it is over.
  bool wait_for(std::chrono::milliseconds timeout);
  /// The time at which the call was over; the current time if it is not.
  [[nodiscard]] std::chrono::steady_clock::time_point ended_at() const;
  /// A future of the number of a c10d::WorkResult, completed when it is over.
  [[nodiscard]] const c10::intrusive_ptr<c10::ivalue::Future>& result() const { return result_; }

  /// For the thread that follows the call: blocks until it is over, releases its memory and completes result(). Returns the
  /// outcome.
  Status see_end();

 private:
  const c10::Stream caller_;
  const c10::Stream stream_;
  mutable StreamWork operation_;
  const bool copies_;
  const c10::Event done_;
  const c10::intrusive_ptr<c10::ivalue::Future> result_;
  std::vector<RecorderEntry> entries_;
  std::shared_ptr<CallsInFlight::Entry> in_flight_;

  mutable std::mutex mutex_;  ///< guards the members below
  std::condition_variable over_;
  bool seen_ = false;
  std::chrono::steady_clock::time_point ended_;
  std::vector<at::Tensor> memory_;
};

/// Reports to the allocator that `stream` uses the memory of `tensors`: it is not reused before the stream has finished with
/// it.
void keep_for_stream(const std::vector<at::Tensor>& tensors, const c10::Stream& stream);

}  // namespace shoal::torch
