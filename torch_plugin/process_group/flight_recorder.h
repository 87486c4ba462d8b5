// Entries of torch's flight recorder: the last calls of each rank, in the format of PyTorch's own tools.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <shoal/status.h>

namespace shoal::torch {

/// One call in the recorder. Empty if recording is off, which costs nothing. Thread rule: ended() once, from any thread.
class RecorderEntry {
 public:
  struct State;
  RecorderEntry() = default;
  explicit RecorderEntry(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Marks the call as completed if `status` is ok; otherwise leaves the entry unchanged, so that a trace shows the hung
  /// call.
  void ended(const Status& status);

  /// Writes the whole trace to TORCH_FR_DUMP_TEMP_FILE<global rank>, at the first call in this process, unless
  /// TORCH_FR_DUMP_ON_TIMEOUT=0. Takes Python's lock for the stacks, so shoal's threads must not call it.
  void write_trace_once() const;

 private:
  std::shared_ptr<State> state_;
};

/// The recorded properties of a call. `peer` is the other rank of a point-to-point call, -1 if there is none.
struct RecordedCall {
  const char* title;  ///< "shoal:all_reduce"
  int peer;
  bool to_peer;  ///< a send
  std::uint64_t sequence;
  const std::vector<at::Tensor>& inputs;
  const std::vector<at::Tensor>& outputs;
  std::chrono::milliseconds timeout;
};

/// Records one group's calls in torch's flight recorder if TORCH_FR_BUFFER_SIZE (or its older name,
/// TORCH_NCCL_TRACE_BUFFER_SIZE) is set to a number of entries; otherwise does nothing. Thread rule: any thread.
class FlightRecorder {
 public:
  FlightRecorder(int rank, int size);

  [[nodiscard]] bool recording() const { return group_ != nullptr; }
  /// Sets the names that c10d uses for the group, once they are known; `ranks` are its global ranks in order.
  void name_group(const std::string& name, const std::string& description, const std::vector<std::uint64_t>& ranks);
  [[nodiscard]] RecorderEntry record(const RecordedCall& call);

  /// The trace of all groups of this process, pickled as `torchfrtrace` reads it; empty if recording is off.
  static std::string dump(bool with_stacks, bool only_active);

 private:
  struct Group;
  std::shared_ptr<Group> group_;
};

}  // namespace shoal::torch
