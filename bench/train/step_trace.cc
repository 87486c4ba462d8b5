#include "bench/train/step_trace.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <unordered_map>

#include <unistd.h>

namespace shoal::train {
namespace {

using std::chrono::steady_clock;

// Size of the messages with which ranks agree on stopping, beside every step; they are not part of training.
constexpr std::size_t kQuestionBytes = 1;
// Size of the message of Averages with the fraction of buckets during backward; it is not a bucket.
constexpr std::size_t kWordBytes = sizeof(double);

/// "layers.3.conv.weight" is a parameter of "layers.3.conv".
std::string module_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

std::string size_name(std::size_t bytes) {
  return bytes < 1024 ? std::to_string(bytes) + " B" : std::to_string(bytes / 1024) + " KiB";
}

const char* name_of(Stage stage) {
  switch (stage) {
    case Stage::node_reduce:
      return "node reduce";
    case Stage::node_gather:
      return "node gather";
    case Stage::wire:
      break;
  }
  return "wire";
}

}  // namespace

double microseconds(steady_clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

StepTrace::StepTrace(models::ImageClassifier& model) : model_(model), training_thread_(static_cast<std::int32_t>(::gettid())) {
  std::unordered_map<const ::torch::nn::Module*, std::string> names;
  for (const auto& named : model.named_modules()) names[named.value().get()] = named.key();
  model.observe([this, names](const ::torch::nn::Module& part, bool ready) {
    const auto found = names.find(&part);
    next(ready ? "forward" : "wait", found == names.end() ? std::string() : found->second);
  });
  for (const auto& named : model.named_parameters()) {
    at::Tensor parameter = named.value();
    const unsigned hook = parameter.register_hook([this, layer = module_of(named.key())](const at::Tensor& gradient) {
      current_.name = layer;  // the event that ended is this layer's backward
      current_.details = {{"gradient_bytes", gradient.nbytes()}};
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
  current_ = {.kind = kind, .name = {}, .begin = begin_, .end = {}, .details = nullptr};
}

void StepTrace::next(const std::string& kind, const std::string& name) {
  if (!recording_) return;
  close();
  current_ = {.kind = kind, .name = name, .begin = current_.end, .end = {}, .details = nullptr};
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

void StepTrace::communicated(const CommClock::Operation& operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(operation);
}

/// Numbers of buckets by their memory, from 1. In backward the first part of every bucket starts, one bucket after the other;
/// operations in flight before that are parts of the same buckets from the previous step.
std::map<const void*, std::size_t> StepTrace::bucket_numbers() const {
  const auto backward = std::ranges::find(events_, "backward", &TraceEvent::kind);
  std::vector<CommClock::Operation> started;
  for (const CommClock::Operation& each : operations_) {
    const bool of_step = backward != events_.end() && each.start >= backward->begin && each.start < end_;
    if (of_step && each.kind == CommClock::Kind::gradients && each.bytes > kWordBytes) started.push_back(each);
  }
  std::ranges::stable_sort(started, {}, &CommClock::Operation::start);
  std::map<const void*, std::size_t> numbers;
  for (const CommClock::Operation& each : started) numbers.try_emplace(each.memory, numbers.size() + 1);
  return numbers;
}

void StepTrace::add_stages(const std::vector<StageEvent>& pieces) {
  struct Sum {
    TraceEvent event;
    std::size_t bytes = 0;
    double busy_us = 0;
    bool by_trainer = false;  // the training thread drives communication while it waits
  };
  std::map<std::tuple<std::uint32_t, std::uint64_t, Stage>, Sum> sums;
  for (const StageEvent& piece : pieces) {
    if (piece.message_bytes <= kQuestionBytes) continue;
    Sum& sum = sums[{piece.communicator, piece.call, piece.stage}];
    if (sum.bytes == 0) {
      sum.event = {.kind = name_of(piece.stage),
                   .name = size_name(piece.message_bytes),
                   .begin = piece.begin,
                   .end = piece.end,
                   .details = {{"communicator", piece.communicator}, {"call", piece.call}}};
    }
    sum.event.begin = std::min(sum.event.begin, piece.begin);
    sum.event.end = std::max(sum.event.end, piece.end);
    sum.bytes += piece.bytes;
    sum.busy_us += microseconds(piece.end - piece.begin);
    sum.by_trainer = sum.by_trainer || piece.thread == training_thread_;
  }
  const std::lock_guard lock(mutex_);
  for (auto& [call, sum] : sums) {
    sum.event.details["bytes"] = sum.bytes;
    sum.event.details["busy_us"] = sum.busy_us;
    sum.event.details["thread"] = sum.by_trainer ? "training, while it waited" : "communication";
    stages_.emplace_back(std::move(sum.event), std::get<1>(call));
  }
}

std::vector<TraceEvent> StepTrace::events() {
  std::vector<TraceEvent> all = events_;
  const std::lock_guard lock(mutex_);
  const auto in_step = [this](TraceEvent::Time begin, TraceEvent::Time end) { return begin < end_ && end > begin_; };
  const std::map<const void*, std::size_t> buckets = bucket_numbers();
  std::map<std::pair<std::uint64_t, std::string>, std::string> names_of_calls;  // by shoal's number of the call and the size
  for (const CommClock::Operation& each : operations_) {
    const bool gradients = each.kind == CommClock::Kind::gradients;
    const std::string size = size_name(each.bytes);
    const auto bucket = gradients ? buckets.find(each.memory) : buckets.end();
    const std::string name = bucket == buckets.end() ? size : "bucket " + std::to_string(bucket->second) + ", " + size;
    names_of_calls[{each.call, size}] = name;
    if (in_step(each.start, each.end))
      all.push_back({.kind = gradients ? "gradients" : "blocking",
                     .name = name,
                     .begin = each.start,
                     .end = each.end,
                     .details = nullptr});
  }
  for (auto [event, call] : stages_) {
    if (!in_step(event.begin, event.end)) continue;
    if (const auto known = names_of_calls.find({call, event.name}); known != names_of_calls.end()) event.name = known->second;
    all.push_back(std::move(event));
  }
  return all;
}

}  // namespace shoal::train
