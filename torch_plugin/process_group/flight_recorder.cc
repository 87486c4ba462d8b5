#include "torch_plugin/process_group/flight_recorder.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <string_view>
#include <tuple>

// It formats with the fmt that torch carries, whose library is inside torch's own.
#define FMT_HEADER_ONLY 1
#include <torch/csrc/distributed/c10d/FlightRecorderDetail.hpp>

namespace shoal::torch {

using std::chrono::steady_clock;

/// The event type that torch's recorder requires: it reports whether the event was reached.
struct Moment {
  std::atomic<bool> reached{false};
  steady_clock::time_point when;

  void reach() {
    when = steady_clock::now();
    reached = true;
  }
  [[nodiscard]] bool query() const { return reached; }
};

namespace {
// libtorch does not export its instances of this template, so the plugin has its own. It reads the same settings and writes
// the same format. Never freed: entries may end after main().
using Recorder = c10d::FlightRecorder<Moment>;

/// PyTorch's trace analyser accepts only NCCL's names: "nccl:all_reduce", "nccl:send 0->1", "nccl:recv 1<-0".
std::string words_of_analyser(std::string_view title) {
  const std::string name(title.substr(title.find(':') + 1));
  return name == "barrier" ? "all_reduce_barrier" : name;
}

std::mutex& record_mutex() {
  static std::mutex mutex;  // torch's record() looks up groups before it takes its own lock
  return mutex;
}
}  // namespace

struct RecorderEntry::State {
  Moment start, end;
  Recorder::TraceIdentifier id;
  std::shared_ptr<c10d::ProcessGroupStatus> group;
  std::int64_t sequence = 0;
  int global_rank = 0;
};

struct FlightRecorder::Group {
  std::size_t id;
  std::mutex mutex;
  std::tuple<std::string, std::string> name;
  std::vector<std::uint64_t> ranks;
  int rank;
  std::size_t point_to_points = 0;
  std::shared_ptr<c10d::ProcessGroupStatus> status = std::make_shared<c10d::ProcessGroupStatus>();
};

FlightRecorder::FlightRecorder(int rank, int size) {
  // Opt in: with torch's default of 2000 entries every call would cost a stack trace.
  static const bool wanted = c10d::getCvarInt({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 0) > 0;
  if (!wanted) return;
  static std::atomic<std::size_t> groups{0};
  group_ = std::make_shared<Group>();
  group_->id = groups++;
  group_->rank = rank;
  group_->ranks.resize(static_cast<std::size_t>(size));
  std::iota(group_->ranks.begin(), group_->ranks.end(), 0);
}

void FlightRecorder::name_group(const std::string& name, const std::string& description,
                                const std::vector<std::uint64_t>& ranks) {
  if (!group_) return;
  const std::lock_guard<std::mutex> lock(group_->mutex);
  if (!ranks.empty()) group_->ranks = ranks;
  const std::tuple<std::string, std::string> full_name(name, description);
  if (group_->name == full_name) return;
  group_->name = full_name;
  Recorder::get()->record_pg_ranks(full_name, group_->ranks);
}

RecorderEntry FlightRecorder::record(const RecordedCall& call) {
  if (!group_) return {};
  auto state = std::make_shared<RecorderEntry::State>();
  const bool point_to_point = call.peer >= 0;
  const std::lock_guard<std::mutex> lock(group_->mutex);
  state->group = group_->status;
  state->sequence = static_cast<std::int64_t>(call.sequence);
  state->global_rank = static_cast<int>(group_->ranks[static_cast<std::size_t>(group_->rank)]);
  if (point_to_point) ++group_->point_to_points;
  const std::string name = words_of_analyser(call.title);
  std::string title = "nccl:" + name;
  if (point_to_point) title += ' ' + std::to_string(group_->rank) + (call.to_peer ? "->" : "<-") + std::to_string(call.peer);
  group_->status->lastEnqueuedSeq = state->sequence;
  group_->status->lastEnqueuedWorkName = name;
  group_->status->lastStartedSeq = state->sequence;
  group_->status->lastStartedWorkName = name;
  state->start.reach();
  {
    const std::lock_guard<std::mutex> recording(record_mutex());
    state->id = Recorder::get()->recordWithResetEnabled(
        group_->id, group_->name, call.sequence, group_->point_to_points, call.sequence, std::move(title), call.inputs,
        call.outputs, &state->start, &state->end, call.timeout, group_->status, point_to_point);
  }
  return RecorderEntry(std::move(state));
}

void RecorderEntry::ended(const Status& status) {
  if (!state_) return;
  if (status.ok()) {
    state_->end.reach();
    state_->group->lastCompletedSeq = state_->sequence;
  }
  Recorder::get()->retire_id(state_->id.id, state_->id.reset_epoch, /*compute_duration=*/status.ok());
}

void RecorderEntry::write_trace_once() const {
  if (!state_) return;
  static std::once_flag once;
  std::call_once(once, [this] {
    if (!c10d::getCvarBool({"TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"}, true)) return;
    c10d::DebugInfoWriter::getWriter(state_->global_rank).write(FlightRecorder::dump(true, false));
  });
}

std::string FlightRecorder::dump(bool with_stacks, bool only_active) {
  return Recorder::get()->dump(std::nullopt, /*includeCollectives=*/true, with_stacks, only_active);
}

}  // namespace shoal::torch

namespace c10d {
/// The duration of an entry as torch's recorder reads it, in milliseconds.
template <>
float getDurationFromEvent<shoal::torch::Moment>(shoal::torch::Moment& start, shoal::torch::Moment& end) {
  return std::chrono::duration<float, std::milli>(end.when - start.when).count();
}
}  // namespace c10d
