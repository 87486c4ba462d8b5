#include "torch_plugin/train/step_trace.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace shoal::train {
namespace {

using std::chrono::steady_clock;

double microseconds(steady_clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

/// "layers.3.conv.weight" is a parameter of "layers.3.conv".
std::string module_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

bool is_operation(const TraceEvent& event) { return event.kind == "gradients" || event.kind == "blocking"; }

/// The events of one rank. Operations overlap, and a thread of a trace shows one event at a time: each takes the first thread
/// that is free.
nlohmann::json to_json(std::vector<TraceEvent> events, int process, const std::string& name, TraceEvent::Time zero) {
  std::ranges::sort(events, {}, &TraceEvent::begin);
  nlohmann::json list = nlohmann::json::array();
  list.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", name}}}});
  std::vector<TraceEvent::Time> busy_until;
  for (const TraceEvent& event : events) {
    std::size_t thread = 0;
    if (is_operation(event)) {
      const auto free = std::ranges::find_if(busy_until, [&](TraceEvent::Time until) { return until <= event.begin; });
      thread = static_cast<std::size_t>(free - busy_until.begin()) + 1;
      if (free == busy_until.end()) busy_until.emplace_back();
      busy_until[thread - 1] = event.end;
    }
    list.push_back({{"ph", "X"},
                    {"cat", event.kind},
                    {"name", event.name.empty() ? event.kind : event.kind + " " + event.name},
                    {"pid", process},
                    {"tid", thread},
                    {"ts", microseconds(event.begin - zero)},
                    {"dur", microseconds(event.end - event.begin)}});
  }
  for (std::size_t thread = 0; thread <= busy_until.size(); ++thread) {
    const std::string title = thread == 0 ? "training" : "communication " + std::to_string(thread);
    list.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", process}, {"tid", thread}, {"args", {{"name", title}}}});
  }
  return list;
}

}  // namespace

StepTrace::StepTrace(models::ImageClassifier& model) : model_(model) {
  std::unordered_map<const ::torch::nn::Module*, std::string> names;
  for (const auto& named : model.named_modules()) names[named.value().get()] = named.key();
  model.observe([this, names](const ::torch::nn::Module& part, bool ready) {
    const auto found = names.find(&part);
    next(ready ? "forward" : "wait", found == names.end() ? std::string() : found->second);
  });
  for (const auto& named : model.named_parameters()) {
    at::Tensor parameter = named.value();
    const unsigned hook = parameter.register_hook([this, layer = module_of(named.key())](const at::Tensor&) {
      current_.name = layer;  // what has just ended was this layer's backward
      next(++gradients_ == hooks_.size() ? "wait" : "backward");
    });
    hooks_.emplace_back(parameter, hook);
  }
}

StepTrace::~StepTrace() {
  model_.observe({});
  for (auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
}

void StepTrace::begin(const std::string& kind) {
  recording_ = true;
  gradients_ = 0;
  begin_ = steady_clock::now();
  current_ = {.kind = kind, .name = {}, .begin = begin_, .end = {}};
}

void StepTrace::next(const std::string& kind, const std::string& name) {
  if (!recording_) return;
  close();
  current_ = {.kind = kind, .name = name, .begin = current_.end, .end = {}};
}

void StepTrace::end() {
  close();
  recording_ = false;
  end_ = current_.end;
}

void StepTrace::close() {
  current_.end = steady_clock::now();
  events_.push_back(current_);
}

void StepTrace::communicated(const char* kind, std::size_t bytes, TraceEvent::Time begin, TraceEvent::Time end) {
  const std::string name = bytes < 1024 ? std::to_string(bytes) + " B" : std::to_string(bytes / 1024) + " KiB";
  const std::lock_guard lock(mutex_);
  operations_.push_back({.kind = kind, .name = name, .begin = begin, .end = end});
}

std::vector<TraceEvent> StepTrace::events() {
  std::vector<TraceEvent> all = events_;
  const std::lock_guard lock(mutex_);
  std::ranges::copy_if(operations_, std::back_inserter(all),
                       [this](const TraceEvent& event) { return event.begin < end_ && event.end > begin_; });
  return all;
}

Result<nlohmann::json> gather_trace(Communicator& control, const std::string& title, int first_process,
                                    const std::vector<TraceEvent>& events, TraceEvent::Time zero) {
  const int rank = control.rank();
  const std::string own = to_json(events, first_process + rank, title + " rank " + std::to_string(rank), zero).dump();
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

}  // namespace shoal::train
