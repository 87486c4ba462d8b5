#include "bench/train/pipeline/pipeline_checkpoint.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bench/train/checkpoint.h"
#include "bench/train/pipeline/full_checkpoint.h"
#include "bench/train/run_checkpoint.h"
#include "torch_plugin/parallel/checkpoint/fingerprint.h"
#include "torch_plugin/parallel/checkpoint/stage_tensors.h"
#include "torch_plugin/parallel/checkpoint/tensor_file.h"
#include "torch_plugin/parallel/partition/text_of_rank_0.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {
namespace {

using nlohmann::json;
using parallel::ModelTensor;
using pipeline::Axis;

constexpr std::int64_t kMostReplicas = 1 << 20;
constexpr const char* kFull = "file";

/// "units.3.conv.weight" for "chunk0.units.3.conv.weight".
std::string plain_name(const std::string& name) { return name.substr(name.find('.') + 1); }

std::vector<ModelTensor> tensors_of(StageTrainer& trainer) {
  return parallel::stage_tensors(trainer.chunks(), trainer.split(), trainer.position().slice);
}

parallel::OptimizerState optimizer_state(StageTrainer& trainer) {
  parallel::OptimizerState plain;
  for (auto& [name, tensor] : trainer.optimizers().state(trainer.stages())) plain[plain_name(name)] = tensor;
  return plain;
}

/// Throws c10::Error for the state of another optimizer or model.
void restore_optimizer(StageTrainer& trainer, const parallel::OptimizerState& state) {
  std::map<std::string, std::string> chunk_names;  // by the plain name
  std::map<std::string, int> counts;               // of tensors, likewise
  for (const auto& named : trainer.stages().named_parameters()) {
    chunk_names[plain_name(named.key())] = named.key();
    counts[plain_name(named.key())] = 0;
  }
  Tensors chunked;
  for (const auto& [name, tensor] : state) {
    const std::size_t slash = name.rfind('/');
    ++counts[name.substr(0, slash)];
    chunked[chunk_names.at(name.substr(0, slash)) + name.substr(slash)] = tensor;
  }
  for (const auto& [name, count] : counts) {
    TORCH_CHECK(count == counts.begin()->second, "the optimizer's state has ", count, " tensors for ", name, ", and ",
                counts.begin()->second, " for ", counts.begin()->first);
  }
  trainer.optimizers().restore(trainer.stages(), chunked);
}

/// A whole number from 0 to `most` in what the manifest says of the training.
Result<std::int64_t> number_in(const json& about, const char* key, std::int64_t most) {
  const auto found = about.find(key);
  if (found != about.end() && found->is_number_unsigned() && found->get<std::uint64_t>() <= static_cast<std::uint64_t>(most))
    return found->get<std::int64_t>();
  return Status(StatusCode::invalid_argument,
                std::string("its '") + key + "' must be a whole number up to " + std::to_string(most));
}

/// The place in the images of a checkpoint, for the `replicas` of this run.
Result<EpochPlan> course_of(const json& about, std::int64_t step, int replicas, std::size_t images,
                            const TrainOptions& options) {
  const Result<std::int64_t> then = number_in(about, "replicas", kMostReplicas);
  if (!then.ok()) return then.status();
  if (*then == 0) return Status(StatusCode::invalid_argument, "its 'replicas' is 0");
  Result<std::vector<std::int64_t>> known = std::vector<std::int64_t>();
  if (const auto numbers = about.find("course"); numbers != about.end()) known = EpochPlan::read_numbers(*numbers);
  if (!known.ok()) return known.status();
  EpochPlan course(images, static_cast<std::size_t>(options.batch), static_cast<int>(*then), options.epochs);
  if (Status status = course.go_to(step, *known); !status.ok()) return status;
  if (*then != replicas) course.go_on_with(replicas, step);
  return course;
}

}  // namespace

/// The settings that must be equal for the continuation to be the same training. It may be divided over other ranks.
json PipelineCheckpoint::settings() const {
  json made = run_settings(job_, model_, images_, options_);
  made.erase("ranks");
  made.erase("accumulate");
  made.update({{"channels", images_.channels}, {"classes", images_.classes}});
  made.update(own_settings());
  return made;
}

/// Those that training without a pipeline does not have.
json PipelineCheckpoint::own_settings() const {
  const auto& clip_norm = options_.parallel.clip_norm;
  return {{"clip_norm", clip_norm ? json(*clip_norm) : json("none")}, {"batch_norm", to_string(plan_.config.batch_norm)}};
}

/// How the training is divided.
json PipelineCheckpoint::layout() const {
  json made{{"partitions", plan_.config.partitions},        {"replicas", plan_.layout.size(Axis::replica)},
            {"slices", plan_.layout.size(Axis::tensor)},    {"chunks", plan_.config.chunks},
            {"schedule", to_string(plan_.config.pipeline)}, {"microbatches", plan_.config.microbatches},
            {"units", plan_.profile.unit_names()}};
  for (const Axis axis : plan_.config.placement) made["placement"].push_back(static_cast<int>(axis));
  for (const pipeline::Stage& stage : plan_.partition.stages)
    made["first_units"].push_back(plan_.profile.units[static_cast<std::size_t>(stage.first)].name);
  return made;
}

Status PipelineCheckpoint::save(const EpochPlan& course, StageTrainer& trainer) const {
  if (options_.checkpoint.empty()) return {};
  const std::int64_t step = trainer.step();
  json about{{"settings", settings()},
             {"layout", layout()},
             {"step", step},
             {"images", course.images_used(step)},
             {"replicas", plan_.layout.size(Axis::replica)},
             {"profile", parallel::fingerprint_of({parallel::to_tensor(pipeline::to_json(plan_.profile))})}};
  if (course.has_other_ranks()) about["course"] = course.numbers();
  const pipeline::Position& position = trainer.position();
  parallel::SaveRequest request{
      .root = options_.checkpoint,
      .tag = "step-" + std::to_string(step),
      .about = about.dump(),
      .file = "stage" + std::to_string(position.stage) + "-slice" + std::to_string(position.slice) + ".pt",
      .removes_previous = true};
  if (options_.parallel.full_checkpoint) {
    request.finish = [&](const parallel::StoredCheckpoint& made) {
      return write_full(made, model_, images_, full_settings(course), step);
    };
  }
  if (position.replica == 0) {
    request.tensors = tensors_of(trainer);
    for (ModelTensor& each : parallel::optimizer_tensors(optimizer_state(trainer), request.tensors))
      request.tensors.push_back(std::move(each));
    // What is not split is the same in all slices.
    if (position.slice > 0)
      std::erase_if(request.tensors, [](const ModelTensor& each) { return each.slice.dimension == parallel::kWhole; });
  }
  return parallel::save_checkpoint(*job_.control, request).status();
}

/// Those of the same training without a pipeline.
json PipelineCheckpoint::full_settings(const EpochPlan& course) const {
  json made = run_settings(job_, model_, images_, options_);
  made["ranks"] = plan_.layout.size(Axis::replica);
  if (options_.batch % plan_.config.microbatches == 0) {  // else no training without a pipeline has the same bits
    made["batch"] = options_.batch / plan_.config.microbatches;
    made["accumulate"] = plan_.config.microbatches;
  }
  made.update(own_settings());
  if (course.has_other_ranks()) made["course"] = course.numbers();
  return made;
}

Status PipelineCheckpoint::resume(EpochPlan& course, StageTrainer& trainer) const {
  if (options_.resume.empty()) return {};
  const Result<Saved> saved = open();
  if (!saved.ok()) return saved.status();
  const json& about = saved->about;
  const auto in_it = [&](const Status& status) { return Status(status.code(), saved->path + ": " + status.message()); };
  const Checkpoint then{.settings = about.value("settings", json::object()), .replicas = {}};
  if (!then.settings.is_object()) return in_it({StatusCode::invalid_argument, "its 'settings' is not an object"});
  if (Status same = check_settings(then, settings()); !same.ok()) return in_it(same);
  const Result<std::int64_t> step = number_in(about, "step", EpochPlan::kMostSteps);
  if (!step.ok()) return in_it(step.status());
  const int replicas = plan_.layout.size(Axis::replica);
  Result<EpochPlan> place = course_of(about, *step, replicas, images_.size(), options_);
  if (!place.ok()) return in_it(place.status());
  if (replicas > 1) {
    // This step, which is discarded, sorts the gradients into buckets, so that the next one sums as without the interruption.
    trainer.begin_epoch(course);
    (void)trainer.make_step(0);
  }
  const bool same_layout = about.value("layout", json()) == layout();
  if (Status status = restore(*saved, trainer, *step, same_layout); !status.ok()) return status;
  course = *std::move(place);
  trainer.continue_from(*step);
  if (job_.rank() != 0) return {};
  std::printf("continues after step %lld of %s%s\n", static_cast<long long>(*step), saved->path.c_str(),
              same_layout ? "" : "; it has no random generators for this layout, so they start from --seed and the step");
  std::fflush(stdout);
  return {};
}

Result<PipelineCheckpoint::Saved> PipelineCheckpoint::open() const {
  std::error_code error;
  const bool is_file = job_.rank() == 0 && std::filesystem::is_regular_file(options_.resume, error);
  const Result<std::string> kind = parallel::text_of_rank_0(*job_.control, std::string(is_file ? kFull : "folder"));
  if (!kind.ok()) return kind.status();
  if (*kind == kFull) {
    Result<FullCheckpoint> full = read_full(job_, options_.resume, images_);
    if (!full.ok()) return full.status();
    return Saved{options_.resume, std::move(full->about), {}, std::move(full->tensors)};
  }
  Result<parallel::StoredCheckpoint> stored = parallel::open_checkpoint(*job_.control, options_.resume);
  if (!stored.ok()) return stored.status();
  const std::string folder = stored->folder;
  json about = json::parse(stored->manifest.about);
  return Saved{folder, std::move(about), *std::move(stored), {}};
}

Status PipelineCheckpoint::restore(const Saved& saved, StageTrainer& trainer, std::int64_t step, bool same_layout) const {
  const std::vector<ModelTensor> stages = tensors_of(trainer);
  std::vector<ModelTensor> wanted =
      saved.parts ? parallel::wanted_tensors(*saved.parts, stages) : parallel::wanted_tensors(saved.whole, stages);
  if (same_layout) wanted.push_back(parallel::generator_of(job_.rank()));
  Communicator& ranks = *job_.control;
  const Result<std::vector<at::Tensor>> found = saved.parts ? parallel::load_tensors(ranks, *saved.parts, wanted)
                                                            : parallel::take_tensors(ranks, saved.whole, saved.path, wanted);
  if (!found.ok()) return found.status();
  Status outcome;
  try {
    restore_optimizer(trainer, parallel::restore_stages(wanted, *found));
    if (same_layout) {
      parallel::set_generator(found->back());
    } else {
      // Each rank draws its own numbers, and others in each step.
      constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
      const std::uint64_t drawn = static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(job_.size());
      ::torch::manual_seed(options_.seed + kGolden * (drawn + static_cast<std::uint64_t>(job_.rank()) + 1));
    }
  } catch (const std::exception& error) {
    outcome = {StatusCode::invalid_argument, saved.path + ": " + torch::plain_message(error)};
  }
  return parallel::agree_on_outcome(*job_.control, outcome);
}

}  // namespace shoal::train
