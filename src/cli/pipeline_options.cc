#include "src/cli/pipeline_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <utility>

#include "src/pipeline/exact.h"
#include "src/pipeline/manual_partition.h"
#include "src/pipeline/report.h"

namespace shoal {
namespace {

constexpr double kMaxActionUs = 1e9;

Status bad(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

/// "conv1=0".
Result<std::pair<std::string, int>> parse_assignment(const std::string& text) {
  const auto equals = text.rfind('=');
  int stage = 0;
  if (equals != std::string::npos && equals > 0) {
    const char* first = text.data() + equals + 1;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, stage);
    if (error == std::errc() && end == last && first != last) return std::pair(text.substr(0, equals), stage);
  }
  return bad(fmt::format("'{}' is not an assignment such as conv1=0: a unit and its stage", text));
}

/// One time for each of `stages`, from one for all or one for each.
Result<std::vector<std::int64_t>> times_ps(const char* option, const std::vector<double>& us, std::size_t stages) {
  if (us.size() != 1 && us.size() != stages) {
    return bad(fmt::format("{} has {} times, the pipeline has {} stages: give one for all or one for each", option, us.size(),
                           stages));
  }
  std::vector<std::int64_t> ps;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const double value = us[us.size() == 1 ? 0 : stage];
    if (!(value >= 0 && value <= kMaxActionUs))
      return bad(fmt::format("{} {}: not from 0 to {:g}", option, value, kMaxActionUs));
    ps.push_back(pipeline::millionths(value));
  }
  return ps;
}

}  // namespace

void PipelineOptions::add_shape_to(CLI::App& command) {
  command.add_option("--pipeline", kind_, "schedule: " + pipeline::schedule_kind_names())->capture_default_str();
  command.add_option("--partitions,-p", partitions_, "ranks of the pipeline")->required();
  command.add_option("--microbatches,-m", microbatches_, "parts of a batch")->capture_default_str();
  command.add_option("--chunks", chunks_, "stages of each rank, with the schedule virtual")->capture_default_str();
  command.add_option("--active-microbatches", active_microbatches_,
                     "with the schedule interleaved: the most microbatches that a stage holds (default: partitions + 2)");
}

void PipelineOptions::add_partition_to(CLI::App& command) {
  command.add_option("--optimize", objective_, "speed, memory or weighted")->capture_default_str();
  command.add_option("--memory-weight", memory_weight_,
                     "optimize this share of memory and the rest of time: 0 is speed, 1 is memory");
  command.add_option("--memory-limit-bytes", memory_limit_bytes_, "no rank may need more");
  command
      .add_option("--optimizer-states", optimizer_states_,
                  "values that the optimizer keeps for each parameter: SGD 0, with momentum 1, Adam 2, Adadelta 2")
      ->capture_default_str();
  command.add_option("--link-latency-us", link_latency_us_, "latency of a message between stages")->capture_default_str();
  command.add_option("--link-bytes-per-us", link_bytes_per_us_, "rate of a message between stages (default: no limit)");
  command.add_flag("--overlap", overlaps_, "messages travel while the stages compute");
  command
      .add_option("--recompute", recompute_,
                  "which stages keep their inputs only and repeat the forward before the backward: none, all, or where_needed, "
                  "to meet --memory-limit-bytes")
      ->capture_default_str();
  command
      .add_option("--recompute-units", recompute_units_,
                  "which single units do so: none, all, where_needed (the first units of a stage, as many as "
                  "--memory-limit-bytes needs), or a,b,c..e: units by themselves, and runs of neighbours that keep one input")
      ->capture_default_str();
  auto* const cuts = command.add_option("--cuts", cuts_, "manual partition: the first unit of each stage but the first, a,b,c");
  cuts->delimiter(',')->allow_extra_args(false);
  auto* const assign =
      command.add_option("--assign", assignments_, "manual partition: unit=stage, several separated by commas");
  assign->delimiter(',')->allow_extra_args(false)->excludes(cuts);
  command.add_option("--default-partition", default_partition_, "stage of the units that --assign does not name")
      ->excludes(cuts);
}

void PipelineOptions::add_times_to(CLI::App& command) {
  auto* const profile = command.add_option("--profile", profile_, "profile of a model; its partition gives the times");
  for (CLI::Option* const option :
       {command.add_option("--forward-us", forward_us_, "forward of a microbatch: one for all stages or one for each, a,b,c")
            ->delimiter(',')
            ->allow_extra_args(false),
        command.add_option("--backward-us", backward_us_, "backward of a microbatch")->delimiter(',')->allow_extra_args(false),
        command.add_option("--message-us", message_us_, "a message between neighbours")
            ->check(CLI::Range(0.0, kMaxActionUs))}) {
    option->capture_default_str()->excludes(profile);
  }
}

Result<pipeline::Shape> PipelineOptions::shape() const {
  const auto kind = pipeline::parse_schedule_kind(kind_);
  if (!kind.ok()) return kind.status();
  const pipeline::Shape shape{*kind, partitions_, chunks_, microbatches_, active_microbatches_};
  if (Status status = check(shape); !status.ok()) return status;
  return shape;
}

Result<pipeline::PartitionRequest> PipelineOptions::request() const {
  const auto wanted = shape();
  if (!wanted.ok()) return wanted.status();
  const auto objective = pipeline::parse_objective(objective_);
  if (!objective.ok()) return objective.status();
  if (*objective == pipeline::Objective::weighted && !memory_weight_) {
    return bad("--optimize weighted needs --memory-weight from 0 (speed) to 1 (memory)");
  }
  if (memory_limit_bytes_.value_or(0) < 0) return bad(fmt::format("--memory-limit-bytes {}: not from 0", *memory_limit_bytes_));
  const auto recompute = pipeline::parse_recompute(recompute_);
  if (!recompute.ok()) return bad("--recompute: " + recompute.status().message());
  const auto units = pipeline::parse_recompute_units(recompute_units_);
  if (!units.ok()) return bad("--recompute-units: " + units.status().message());
  pipeline::PartitionRequest request;
  request.rules = {*wanted, {link_latency_us_, link_bytes_per_us_}, overlaps_, *recompute, optimizer_states_, *units};
  request.objective = memory_weight_ ? pipeline::Objective::weighted : *objective;
  request.memory_weight = memory_weight_.value_or(0);
  request.memory_limit_bytes = memory_limit_bytes_;
  return request;
}

Result<pipeline::Partition> PipelineOptions::partition(const pipeline::Profile& profile) const {
  const auto wanted = request();
  if (!wanted.ok()) return wanted.status();
  if (cuts_.empty() && assignments_.empty() && !default_partition_) return pipeline::partition(profile, *wanted);
  const auto names = profile.unit_names();
  if (!cuts_.empty()) {
    const auto cuts = pipeline::find_cuts(names, cuts_);
    if (!cuts.ok()) return cuts.status();
    return pipeline::partition_at(profile, *wanted, *cuts);
  }
  std::vector<std::pair<std::string, int>> assignments;
  for (const std::string& text : assignments_) {
    auto assignment = parse_assignment(text);
    if (!assignment.ok()) return assignment.status();
    assignments.push_back(*std::move(assignment));
  }
  const auto cuts = pipeline::assign_units(names, assignments, wanted->rules.shape.stages(), default_partition_);
  if (!cuts.ok()) return cuts.status();
  return pipeline::partition_at(profile, *wanted, *cuts);
}

Result<PipelineTimes> PipelineOptions::times() const {
  if (!profile_.empty()) {
    const auto profile = pipeline::read_profile(profile_);
    if (!profile.ok()) return profile.status();
    auto found = partition(*profile);
    if (!found.ok()) return found.status();
    std::string recomputation = recomputation_line(*found, profile->unit_names());
    return PipelineTimes{std::move(found->times), std::move(recomputation)};
  }
  if (recompute_units_ != "none") return bad("--recompute-units needs --profile, which has the units");
  const auto wanted = shape();
  if (!wanted.ok()) return wanted.status();
  const auto stages = static_cast<std::size_t>(wanted->stages());
  const auto forward = times_ps("--forward-us", forward_us_, stages);
  if (!forward.ok()) return forward.status();
  const auto backward = times_ps("--backward-us", backward_us_, stages);
  if (!backward.ok()) return backward.status();
  pipeline::StageTimes times = pipeline::equal_stages(wanted->stages(), 0, 0, message_us_);
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const std::int64_t backward_ps = (*backward)[stage];
    times.stages[stage] = {(*forward)[stage], backward_ps - backward_ps / 2, backward_ps / 2, 0};
  }
  if (Status status = check(times, *wanted); !status.ok()) return status;
  return PipelineTimes{std::move(times)};
}

}  // namespace shoal
