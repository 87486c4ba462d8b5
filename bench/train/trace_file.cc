#include "bench/train/trace_file.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

namespace shoal::train {
namespace {

/// Rows of a rank in a trace: training, then the kinds whose events overlap, each with as many threads as needed.
struct Row {
  const char* title;
  std::vector<std::string> kinds;
};
const std::vector<Row>& rows() {
  static const std::vector<Row> all{{"training", {}},
                                    {"average", {"gradients", "blocking"}},
                                    {"node reduce", {"node reduce"}},
                                    {"wire", {"wire"}},
                                    {"node gather", {"node gather"}}};
  return all;
}
constexpr std::size_t kThreadsOfRow = 1000;

/// Index of the row for events of `kind`; kinds that no row names belong to training.
std::size_t row_of(const std::string& kind) {
  const auto found = std::ranges::find_if(rows(), [&](const Row& row) { return std::ranges::count(row.kinds, kind) > 0; });
  return found == rows().end() ? 0 : static_cast<std::size_t>(found - rows().begin());
}

/// The events of one rank. A thread of a trace shows one event at a time: each event uses the first free thread of its row.
nlohmann::json to_events(std::vector<TraceEvent> events, int process, const std::string& name, TraceEvent::Time zero) {
  std::ranges::stable_sort(events, {}, &TraceEvent::begin);
  nlohmann::json list = nlohmann::json::array();
  list.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", name}}}});
  std::vector<std::vector<TraceEvent::Time>> busy_until(rows().size());
  for (const TraceEvent& event : events) {
    const std::size_t row = row_of(event.kind);
    std::vector<TraceEvent::Time>& busy = busy_until[row];
    auto free = std::ranges::find_if(busy, [&](TraceEvent::Time until) { return row == 0 || until <= event.begin; });
    if (free == busy.end()) free = busy.emplace(busy.end());
    *free = event.end;
    nlohmann::json entry{{"ph", "X"},
                         {"cat", event.kind},
                         {"name", event.name.empty() ? event.kind : event.kind + " " + event.name},
                         {"pid", process},
                         {"tid", row * kThreadsOfRow + static_cast<std::size_t>(free - busy.begin())},
                         {"ts", microseconds(event.begin - zero)},
                         {"dur", microseconds(event.end - event.begin)}};
    if (!event.details.is_null()) entry["args"] = event.details;
    list.push_back(std::move(entry));
  }
  for (std::size_t row = 0; row < rows().size(); ++row) {
    for (std::size_t thread = 0; thread < busy_until[row].size(); ++thread) {
      std::string title = rows()[row].title;
      if (thread > 0) title.append(1, ' ').append(std::to_string(thread + 1));
      list.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", process},
                      {"tid", row * kThreadsOfRow + thread},
                      {"args", {{"name", title}}}});
    }
  }
  return list;
}

/// The events of all ranks on rank 0; null on other ranks. Times are relative to `zero`.
Result<nlohmann::json> gather_events(Communicator& control, const Entry& entry, int first_process, TraceEvent::Time zero) {
  const int rank = control.rank();
  const std::string own =
      to_events(entry.trace, first_process + rank, entry.replica->wanted().name() + " rank " + std::to_string(rank), zero)
          .dump();
  std::uint64_t largest = own.size();
  Status status = control.all_reduce(&largest, &largest, 1, DataType::uint64, ReduceOp::max);
  if (!status.ok()) return status;
  std::string padded = own + std::string(largest - own.size(), ' ');
  std::string all(largest * static_cast<std::size_t>(control.size()), ' ');
  status = control.all_gather(padded.data(), all.data(), largest, DataType::uint8);
  if (!status.ok()) return status;
  nlohmann::json together = nlohmann::json::array();
  if (rank != 0) return together;
  for (std::size_t at = 0; at < all.size(); at += largest) {
    for (auto& event : nlohmann::json::parse(all.begin() + static_cast<std::ptrdiff_t>(at),
                                             all.begin() + static_cast<std::ptrdiff_t>(at + largest))) {
      together.push_back(std::move(event));
    }
  }
  return together;
}

/// Shifts all events so that the first one starts at 0.
void start_at_zero(nlohmann::json& events) {
  double first_us = std::numeric_limits<double>::max();
  for (const nlohmann::json& event : events) first_us = std::min(first_us, event.value("ts", first_us));
  for (nlohmann::json& event : events) {
    if (event.contains("ts")) event["ts"] = event["ts"].get<double>() - first_us;
  }
}

}  // namespace

Result<nlohmann::json> gather_trace(Communicator& control, const std::vector<Entry>& entries, const std::string& title) {
  // Ranks of one host share a clock; on several hosts each rank starts its own clock when all have reached the barrier.
  if (const Status together = control.barrier(); !together.ok()) return together;
  const auto zero = control.nodes() == 1 ? TraceEvent::Time() : TraceEvent::Time::clock::now();
  nlohmann::json all = nlohmann::json::array();
  int process = 0;
  for (const Entry& entry : entries) {
    Result<nlohmann::json> events = gather_events(control, entry, process, zero);
    if (!events.ok()) return events.status();
    for (nlohmann::json& event : *events) all.push_back(std::move(event));
    process += control.size();
  }
  if (control.rank() != 0) return nlohmann::json();
  start_at_zero(all);
  return nlohmann::json{{"traceEvents", all}, {"displayTimeUnit", "ms"}, {"otherData", {{"title", title}}}};
}

}  // namespace shoal::train
