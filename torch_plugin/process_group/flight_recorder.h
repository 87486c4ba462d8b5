// Entries of torch's flight recorder: what each rank last called, in the format that PyTorch's own tools read.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <shoal/status.h>

namespace shoal::torch {

/// One call in the recorder. Empty where recording is off, which costs nothing. Thread rule: ended() once, from any thread.
class RecorderEntry {
 public:
  struct State;
  RecorderEntry() = default;
  explicit RecorderEntry(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Marks the call as completed where `status` is ok; else it stays as it was, which is how a trace shows what hung.
  void ended(const Status& status);

  /// Writes the whole trace to TORCH_FR_DUMP_TEMP_FILE<global rank>, the first time that it is called in this process, unless
  /// TORCH_FR_DUMP_ON_TIMEOUT=0. Takes Python's lock for the stacks: not for shoal's threads.
  void write_trace_once() const;

 private:
  std::shared_ptr<State> state_;
};

/// What the recorder notes about a call. `peer` is the other rank of a point-to-point call, -1 where there is none.
struct RecordedCall {
  const char* title;  ///< "shoal:all_reduce"
  int peer;
  bool to_peer;  ///< a send
  std::uint64_t sequence;
  const std::vector<at::Tensor>& inputs;
  const std::vector<at::Tensor>& outputs;
  std::chrono::milliseconds timeout;
};

/// Notes one group's calls in torch's flight recorder where TORCH_FR_BUFFER_SIZE (or its older name,
/// TORCH_NCCL_TRACE_BUFFER_SIZE) is set to a number of entries; otherwise does nothing. Thread rule: any thread.
class FlightRecorder {
 public:
  FlightRecorder(int rank, int size);

  [[nodiscard]] bool recording() const { return group_ != nullptr; }
  /// Names the group as c10d does, once that is known; `ranks` are its global ranks in order.
  void name_group(const std::string& name, const std::string& description, const std::vector<std::uint64_t>& ranks);
  [[nodiscard]] RecorderEntry record(const RecordedCall& call);

  /// The trace of all groups of this process, pickled as `torchfrtrace` reads it; empty where recording is off.
  static std::string dump(bool with_stacks, bool only_active);

 private:
  struct Group;
  std::shared_ptr<Group> group_;
};

}  // namespace shoal::torch
