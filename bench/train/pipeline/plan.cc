#include "bench/train/pipeline/plan.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "bench/train/model_profile.h"
#include "bench/train/pipeline/exchange.h"
#include "bench/train/pipeline/link.h"
#include "bench/train/pipeline/settings.h"
#include "bench/train/pipeline/tensor_group.h"
#include "src/pipeline/partition_file.h"
#include "torch_plugin/parallel/partition/text_of_rank_0.h"

namespace shoal::train {
namespace {

using Json = nlohmann::ordered_json;

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

/// What a pipeline of this program does not have.
Status check_options(const TrainOptions& options) {
  const bool is_shoal = options.replicas.size() == 1 && options.replicas.front().backend == "shoal";
  if (!is_shoal) return invalid("a pipeline runs over shoal only: train with --backend shoal alone");
  if (options.accumulate > 1) return invalid("--accumulate is for training without a pipeline: use --microbatches");
  if (options.survives()) return invalid("--on-failure shrink: a pipeline cannot continue without a stage");
  const auto unsupported = [](const char* option) {
    return Status(StatusCode::unsupported, std::string(option) + " is not supported with a pipeline yet: omit it");
  };
  if (options.parallel.full_checkpoint && options.checkpoint.empty()) return invalid("--full-checkpoint needs --checkpoint");
  if (!options.trace.empty()) return unsupported("--trace");
  if (options.precision != "fp32") return unsupported("--precision bf16");
  return {};
}

/// All that must be equal, under the names of the options; those of the pipeline first.
Json all_settings(const PipelineSettings& settings, const TrainOptions& options) {
  const pipeline::Config& config = settings.config;
  Json all{{"pipeline", pipeline::to_string(config.pipeline)},
           {"partitions", config.partitions},
           {"microbatches", config.microbatches},
           {"chunks", config.chunks},
           {"active_microbatches", config.shape().active()},
           {"optimize", pipeline::to_string(config.optimize)},
           {"tensor_parallel_degree", config.tensor_parallel_degree},
           {"recompute", pipeline::to_string(config.recompute)},
           {"recompute_units", to_string(config.recompute_units)},
           {"batch_norm", pipeline::to_string(config.batch_norm)},
           {"ddp", config.ddp}};
  if (config.memory_weight) all["memory_weight"] = *config.memory_weight;
  if (config.memory_limit_bytes) all["memory_limit_bytes"] = *config.memory_limit_bytes;
  for (const pipeline::Axis axis : config.placement) all["placement"].push_back(static_cast<int>(axis));
  if (options.parallel.clip_norm) all["clip_norm"] = *options.parallel.clip_norm;
  if (options.parallel.link_latency_us) all["link_latency_us"] = *options.parallel.link_latency_us;
  if (options.parallel.link_bytes_per_us) all["link_bytes_per_us"] = *options.parallel.link_bytes_per_us;
  all["partition"] = options.parallel.partition;
  all["profile"] = options.parallel.profile;
  all.update(Json{{"model", options.model},
                  {"dataset", options.dataset},
                  {"batch", options.batch},
                  {"optimizer", options.optimizer},
                  {"lr", options.start_learning_rate()},
                  {"momentum", options.momentum},
                  {"weight_decay", options.weight_decay_or_default()},
                  {"schedule", options.schedule},
                  {"schedule_epochs", options.schedule_epochs},
                  {"schedule_factor", options.schedule_factor},
                  {"seed", options.seed},
                  {"epochs", options.epochs},
                  {"steps", options.steps},
                  {"seconds", options.seconds},
                  {"block", options.block},
                  {"augment", options.augment},
                  {"evaluate", options.evaluate},
                  {"checkpoint", options.checkpoint},
                  {"full_checkpoint", options.parallel.full_checkpoint},
                  {"resume", options.resume},
                  {"timeout", options.timeout_s}});
  return all;
}

/// Files of rank 0 as one text.
Result<std::string> files_text(const Job& job, const PipelineChoices& choices) {
  if (job.rank() != 0) return std::string();
  const Result<PipelineFiles> files = read_files(choices);
  if (!files.ok()) return files.status();
  return Json(Json::array({files->parallel, files->partition, files->profile}))
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<PipelineSettings> agreed_settings(const Job& job, const TrainOptions& options, PipelineFiles& files) {
  const Result<std::string> text = parallel::text_of_rank_0(*job.control, files_text(job, options.parallel));
  if (!text.ok()) return text.status();
  const Json parts = Json::parse(*text);
  files = {parts[0].get<std::string>(), parts[1].get<std::string>(), parts[2].get<std::string>()};
  Status refusal = check_options(options);
  Result<PipelineSettings> settings = refusal.ok() ? make_settings(options.parallel, files) : refusal;
  const Json mine = settings.ok() ? all_settings(*settings, options) : Json::object();
  if (Status status = agree_on_settings(job, mine, settings.status()); !status.ok()) return status;
  return settings;
}

int optimizer_states(const TrainOptions& options) {
  if (options.optimizer == "sgd") return options.momentum > 0 ? 1 : 0;
  return 2;  // adadelta and adam
}

/// The sizes that steps have: those of a whole batch, and of the last step of an epoch, if that has fewer images and this run
/// comes to it.
std::vector<parallel::Microbatches> steps_of(const pipeline::Config& config, int replicas, const data::Dataset& images,
                                             const TrainOptions& options) {
  std::vector<parallel::Microbatches> steps{parallel::Microbatches(options.batch, config.microbatches)};
  const auto batch = static_cast<std::size_t>(options.batch);
  const std::size_t share = (images.size() + static_cast<std::size_t>(replicas) - 1) / static_cast<std::size_t>(replicas);
  const bool ends_before = options.steps > 0 && static_cast<std::size_t>(options.steps) <= share / batch;
  if (share % batch > 0 && !ends_before) steps.emplace_back(static_cast<std::int64_t>(share % batch), config.microbatches);
  return steps;
}

/// The profile of the file if there is one, checked; else a new one of the network that `group` shares. On rank 0; on the other
/// ranks of `group` to measure with it.
Result<std::string> profile_text(at::Device device, const PipelineSettings& settings, const PipelineFiles& files,
                                 const models::ModelInfo& model, const data::Dataset& images, const TrainOptions& options,
                                 int replicas, const parallel::LayerSlices::Group& group) {
  const bool measures = options.parallel.profile.empty();
  UnitsRequest request{.measures = measures, .group = group, .steps = steps_of(settings.config, replicas, images, options)};
  const std::int64_t microbatch = request.microbatch = request.steps.front().size(0);
  Result<pipeline::Profile> expected = describe_units(device, model, images, options, request);
  if (!expected.ok()) {
    const Status& status = expected.status();
    const std::string last =
        request.steps.size() > 1 ? ", at the end of an epoch " + std::to_string(request.steps[1].batch()) : "";
    return Status(status.code(), status.message() + " (microbatches of " + std::to_string(microbatch) + " images: --batch " +
                                     std::to_string(options.batch) + last + ", --microbatches " +
                                     std::to_string(settings.config.microbatches) + ")");
  }
  if (measures) return pipeline::to_json(*expected);
  const Result<pipeline::Profile> read = pipeline::parse_profile(files.profile, options.parallel.profile);
  if (!read.ok()) return read.status();
  if (Status status = check_model(*read, options.parallel.profile, *expected); !status.ok()) return status;
  for (const std::string& difference : differences(*read, options.parallel.profile, *expected)) {
    std::fprintf(stderr, "shoal_train: warning: %s\n", difference.c_str());
  }
  return pipeline::to_json(*read);
}

Status check_units(const pipeline::PartitionFile& file, const pipeline::Profile& profile, const std::string& path) {
  if (!file.model.empty() && !profile.model.empty() && file.model != profile.model) {
    return invalid(path + ": model is " + file.model + ", not " + profile.model);
  }
  const std::vector<std::string> names = profile.unit_names();
  if (file.units.size() != names.size()) {
    return invalid(path + ": has " + std::to_string(file.units.size()) + " units, and " + profile.model + " has " +
                   std::to_string(names.size()));
  }
  for (std::size_t unit = 0; unit < names.size(); ++unit) {
    if (file.units[unit] != names[unit]) {
      return invalid(path + ": unit " + std::to_string(unit) + " is '" + file.units[unit] + "', not '" + names[unit] + "'");
    }
  }
  return {};
}

/// The profile of rank 0. The ranks that share its layers measure with it.
Result<pipeline::Profile> agreed_profile(const Job& job, const pipeline::Layout& layout, const PipelineSettings& settings,
                                         const PipelineFiles& files, const models::ModelInfo& model,
                                         const data::Dataset& images, const TrainOptions& options) {
  const bool reads = !options.parallel.profile.empty();
  const std::vector<int> measuring = reads ? std::vector<int>{0} : layout.group(0, pipeline::Axis::tensor);
  Result<std::string> own = std::string();
  if (std::ranges::find(measuring, job.rank()) != measuring.end()) {
    const Result<parallel::LayerSlices::Group> group =
        reads ? parallel::LayerSlices::Group() : make_tensor_group(job, layout, "profile");
    const int replicas = layout.size(pipeline::Axis::replica);
    own = group.ok() ? profile_text(job.device, settings, files, model, images, options, replicas, *group)
                     : Result<std::string>(group.status());
  }
  const Result<std::string> text = parallel::text_of_rank_0(*job.control, own);
  if (!text.ok()) return text.status();
  return pipeline::parse_profile(*text, "profile of rank 0");
}

/// On every rank from the same values, and exact: so every rank has the same result.
Result<pipeline::Partition> cut(const PipelineSettings& settings, const pipeline::Profile& profile,
                                const pipeline::PartitionRequest& request, const std::string& path) {
  if (!settings.partition) return pipeline::partition(profile, request);
  if (Status status = check_units(*settings.partition, profile, path); !status.ok()) return status;
  return pipeline::partition_at(profile, request, settings.partition->cuts, settings.partition->recomputes);
}

std::string link_origin(const PipelineChoices& choices) {
  const bool latency = choices.link_latency_us.has_value();
  const bool rate = choices.link_bytes_per_us.has_value();
  if (latency && rate) return "that of --link-latency-us and --link-bytes-per-us";
  return std::string("measured between the ranks") + (latency ? "; its latency is that of --link-latency-us"
                                                      : rate  ? "; its rate is that of --link-bytes-per-us"
                                                              : "");
}

void print_plan(const PipelinePlan& plan, const PipelineSettings& settings, const TrainOptions& options) {
  std::fputs(pipeline::partition_table(plan.profile, plan.request, plan.partition, plan.prediction).c_str(), stdout);
  std::vector<std::string> notes = pipeline::notes(plan.config.shape());
  notes.push_back("batch normalisation uses the images of a microbatch, so results differ from those of the whole batch");
  if (settings.partition && settings.partition->shape != plan.config.shape()) {
    notes.push_back("the partition was made for " + std::string(to_string(settings.partition->shape.kind)) + " with " +
                    std::to_string(settings.partition->shape.microbatches) + " microbatches");
  }
  if (plan.config.partitions > 1) notes.push_back("the link between stages is " + link_origin(options.parallel));
  if (plan.config.tensor_parallel_degree > 1 && !options.parallel.profile.empty())
    notes.push_back(options.parallel.profile + " is of the unsplit network: stages need less than it predicts");
  for (const std::string& note : notes) std::printf("note: %s\n", note.c_str());
  std::fflush(stdout);
}

}  // namespace

std::vector<int> PipelinePlan::stages_at(int stage) const {
  std::vector<int> stages;
  for (int chunk = 0; chunk < config.chunks; ++chunk) stages.push_back(chunk * config.partitions + stage);
  return stages;
}

Result<PipelinePlan> make_plan(const Job& job, const models::ModelInfo& model, const data::Dataset& images,
                               const TrainOptions& options) {
  PipelineFiles files;
  const Result<PipelineSettings> settings = agreed_settings(job, options, files);
  if (!settings.ok()) return settings.status();
  Result<pipeline::Layout> layout = settings->config.layout(job.size());
  if (!layout.ok()) return layout.status();
  Result<pipeline::Profile> profile = agreed_profile(job, *layout, *settings, files, model, images, options);
  if (!profile.ok()) return profile.status();
  pipeline::CostRules rules;
  rules.optimizer_states = optimizer_states(options);
  const Result<pipeline::Link> link = find_link(*job.control, *layout, settings->config.chunks > 1, options.parallel);
  if (!link.ok()) return link.status();
  rules.link = *link;
  pipeline::PartitionRequest request = settings->config.request(rules);
  Result<pipeline::Partition> partition = cut(*settings, *profile, request, options.parallel.partition);
  if (!partition.ok()) return partition.status();
  Result<pipeline::Prediction> prediction = pipeline::predict(settings->config.shape(), partition->times);
  if (!prediction.ok()) return prediction.status();
  PipelinePlan plan{settings->config,   *std::move(layout),    *std::move(profile),
                    std::move(request), *std::move(partition), *std::move(prediction)};
  if (job.rank() == 0) print_plan(plan, *settings, options);
  return plan;
}

}  // namespace shoal::train
