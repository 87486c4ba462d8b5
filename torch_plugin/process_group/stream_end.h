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

/// What is known of one call on a stream: whether it has ended and how, and the memory that it uses until then. Its work holds
/// it (several works, where messages go on together), and so does the thread that sees it end; neither outputs nor futures are
/// in it, so that they live no longer than the user wants. Thread rule: any thread.
class StreamEnd {
 public:
  /// `done` has been recorded in `stream` behind the call and, where it `copies`, what moves its result; `caller` was current
  /// when it was made.
  StreamEnd(StreamWork operation, bool copies, c10::Event done, const c10::Stream& caller, const c10::Stream& stream,
            std::vector<at::Tensor> memory);

  /// What the flight recorder knows of it: an entry for each of c10d's calls. Before it is followed.
  void add_entry(RecorderEntry entry) { entries_.push_back(std::move(entry)); }
  /// What is kept until the call has ended and its callbacks have returned. Before it is followed.
  void keep(std::shared_ptr<CallsInFlight::Entry> in_flight) { in_flight_ = std::move(in_flight); }
  void write_trace_once() const { entries_.front().write_trace_once(); }

  /// Never blocks: whether the device is through with it, or it has failed.
  [[nodiscard]] bool is_over() const;
  /// ok while it is in flight.
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::uint64_t sequence() const noexcept { return operation_.sequence(); }
  /// The current stream of the device waits for it; the host does not.
  void block_current_stream();
  /// Blocks the host until it is over, at most so long; whether it is.
  bool wait_for(std::chrono::milliseconds timeout);
  /// When it was over; now where it is not.
  [[nodiscard]] std::chrono::steady_clock::time_point ended_at() const;
  /// A future of the number of a c10d::WorkResult, completed when it is over.
  [[nodiscard]] const c10::intrusive_ptr<c10::ivalue::Future>& result() const { return result_; }

  /// For the thread that follows it: blocks until it is over, then lets go of its memory and tells who wants to know. The
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

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable over_;
  bool seen_ = false;
  std::chrono::steady_clock::time_point ended_;
  std::vector<at::Tensor> memory_;
};

/// Tells the allocator that `stream` uses the memory of `tensors`: it is not given to others before the stream is through.
void keep_for_stream(const std::vector<at::Tensor>& tensors, const c10::Stream& stream);

}  // namespace shoal::torch
