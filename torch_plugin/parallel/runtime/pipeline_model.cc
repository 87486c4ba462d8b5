#include "torch_plugin/parallel/runtime/pipeline_model.h"

#include <map>
#include <utility>

#include "torch_plugin/parallel/runtime/agreement.h"
#include "torch_plugin/parallel/runtime/evaluation_mode.h"

namespace shoal::parallel {
namespace {

/// That of the first parameter; the CPU if there is none.
at::Device stage_device(const std::vector<std::shared_ptr<Unit>>& chunks) {
  for (const std::shared_ptr<Unit>& chunk : chunks) {
    if (chunk == nullptr) continue;
    const std::vector<at::Tensor> parameters = chunk->parameters();
    if (!parameters.empty()) return parameters.front().device();
  }
  return at::kCPU;
}

/// What is wrong with the units of a rank, or "".
std::string refusal_of(const std::vector<std::shared_ptr<Unit>>& chunks) {
  if (chunks.empty()) return "no stage; pass at least one unit";
  const at::Device device = stage_device(chunks);
  std::map<void*, std::string> owners;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (chunks[chunk] == nullptr) return "chunk " + std::to_string(chunk) + " is null; pass a unit";
    for (const auto& named : chunks[chunk]->named_parameters()) {
      const std::string name = "chunk " + std::to_string(chunk) + "'s " + named.key();
      if (named.value().device() != device) {
        return c10::str("the parameter ", name, " is on ", named.value().device(), ", the first one on ", device,
                        "; a rank needs its stages on one device");
      }
      const auto [owner, is_new] = owners.try_emplace(named.value().unsafeGetTensorImpl(), name);
      if (!is_new) return "the parameters " + owner->second + " and " + name + " are the same; tied stages are not supported";
    }
  }
  return "";
}

/// Why this rank's messages cannot go by streams, if they should, or "".
std::string refusal_of_streams(const PipelineOptions& options, at::Device device) {
  if (options.messages != MessageRoute::streams) return "";
  if (device.type() != options.cuda_devices) {
    return c10::str("messages on streams need stages on CUDA devices; these are on ", device, ": move them or use host_memory");
  }
  return cuda_available().message();
}

std::unique_ptr<StageStreams> streams_of(const PipelineOptions& options, Communicator& communicator, at::Device device) {
  if (options.messages != MessageRoute::streams) return nullptr;
  try {
    return std::make_unique<StageStreams>(communicator, device);
  } catch (const CallError& error) {
    throw StepError({.rank = communicator.rank(), .action = "making streams for messages"}, error.status());
  }
}

std::string refusal_of(const std::vector<std::shared_ptr<Unit>>& chunks, const PipelineOptions& options, int ranks) {
  if (std::string refusal = refusal_of(chunks); !refusal.empty()) return refusal;
  if (options.timeout.count() <= 0) return "a timeout of " + std::to_string(options.timeout.count()) + " ms is not positive";
  const std::size_t stages = static_cast<std::size_t>(ranks) * chunks.size();
  if (options.recompute == pipeline::Recompute::where_needed && options.recompute_stages.size() != stages) {
    return "recompute where_needed with recompute_stages of " + std::to_string(options.recompute_stages.size()) +
           " stages; the pipeline has " + std::to_string(stages);
  }
  if (std::string refusal = refusal_of_streams(options, stage_device(chunks)); !refusal.empty()) return refusal;
  return Programs::check(options, ranks, static_cast<int>(chunks.size())).message();
}

/// Of each chunk of `rank`, whether its forward may run again in the backward. Precondition: agreed options.
std::vector<bool> recomputing_chunks(const PipelineOptions& options, int ranks, std::size_t chunks, int rank) {
  std::vector<bool> found;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t stage = chunk * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank);
    found.push_back(options.recompute == pipeline::Recompute::where_needed ? options.recompute_stages[stage]
                                                                           : options.recompute == pipeline::Recompute::all);
  }
  return found;
}

/// The constructor's collective check, before any part is made.
const PipelineOptions& agreed(const PipelineOptions& options, const std::vector<std::shared_ptr<Unit>>& chunks,
                              Communicator& communicator) {
  agree_on_options(communicator, options, static_cast<int>(chunks.size()), refusal_of(chunks, options, communicator.size()));
  return options;
}

/// The header of a step with these arguments of rank 0; of kind `refused` where they are wrong.
StepHeader header_of(StepKind kind, const at::Tensor& images, const at::Tensor& targets) {
  StepHeader header;
  try {
    TORCH_CHECK_VALUE(images.defined(), "the images are undefined on rank 0");
    header.image = layout_of(images);
    header.batch = images.size(0);
    TORCH_CHECK_VALUE(header.batch > 0, "a batch of 0 images");
    if (targets.defined()) {
      header.target = layout_of(targets);
      TORCH_CHECK_VALUE(targets.size(0) == header.batch, targets.size(0), " targets for ", header.batch, " images");
    }
    header.kind = kind;
  } catch (const c10::Error& error) {
    header.refusal = to_text_field(error.what_without_backtrace());
  }
  return header;
}

const char* text_of(StepKind kind) {
  return kind == StepKind::training ? "step()" : kind == StepKind::evaluation ? "evaluate()" : "end()";
}

}  // namespace

PipelineModel::PipelineModel(std::shared_ptr<Unit> stage, Communicator& communicator, PipelineOptions options)
    : PipelineModel(std::vector<std::shared_ptr<Unit>>{std::move(stage)}, communicator, std::move(options)) {}

PipelineModel::PipelineModel(std::vector<std::shared_ptr<Unit>> chunks, Communicator& communicator, PipelineOptions options,
                             std::shared_ptr<GradientReduction> gradients)
    : chunks_(std::move(chunks)),
      communicator_(communicator),
      options_(agreed(options, chunks_, communicator)),
      gradients_(std::move(gradients)),
      programs_(options_, communicator.size(), static_cast<int>(chunks_.size()), communicator.rank()),
      recomputes_(recomputing_chunks(options_, communicator.size(), chunks_.size(), communicator.rank())),
      streams_(streams_of(options_, communicator, stage_device(chunks_))),
      step_(options_.first_step) {}

StepOutput PipelineModel::step(const at::Tensor& images, const at::Tensor& targets, const Loss& loss) {
  check_open();
  std::string refusal;
  if (!at::GradMode::is_enabled()) refusal = "step() with gradients disabled; call it outside of NoGradGuard";
  if (communicator_.rank() == last_rank() && !loss) refusal = "step() without a loss on the rank of the last stage";
  StepHeader header;
  if (is_first()) {
    header = refusal.empty() ? header_of(StepKind::training, images, targets) : StepHeader{.refusal = to_text_field(refusal)};
  } else if (!refusal.empty()) {  // rank 0 may already be in the step
    fail(here("step()"), {StatusCode::invalid_argument, refusal});
  }
  header = exchange(StepKind::training, header);
  if (header.kind == StepKind::end) return {};
  const bool is_first_step = step_ == options_.first_step;
  const std::vector<at::Tensor> losses = run(header, images, targets, loss);
  if (is_first_step) wait_for_all();
  return share_losses(Microbatches(header.batch, options_.microbatches), losses);
}

StepOutput PipelineModel::evaluate(const at::Tensor& images) {
  check_open();
  const StepHeader header =
      exchange(StepKind::evaluation, is_first() ? header_of(StepKind::evaluation, images, {}) : StepHeader{});
  if (header.kind == StepKind::end) return {};
  const at::NoGradGuard no_grad;
  const EvaluationMode evaluation_mode(chunks_);
  const std::vector<at::Tensor> outputs = run(header, images, {}, {});
  return share_outputs(Microbatches(header.batch, options_.microbatches), outputs);
}

void PipelineModel::end() {
  check_open();
  exchange(StepKind::end, {.kind = StepKind::end});
}

std::vector<at::Tensor> PipelineModel::parameters() const {
  std::vector<at::Tensor> all;
  for (const std::shared_ptr<Unit>& chunk : chunks_) {
    for (const at::Tensor& parameter : chunk->parameters()) all.push_back(parameter);
  }
  return all;
}

std::vector<std::string> PipelineModel::notes() const { return pipeline::notes(programs_.shape()); }

void PipelineModel::check_open() const {
  TORCH_CHECK_VALUE(failure_.empty(), "this pipeline has ended with an error: ", failure_);
}

StepPlace PipelineModel::here(const char* action, int peer) const {
  return StepPlace::between_actions(communicator_.rank(), chunks_.size(), action, peer);
}

void PipelineModel::fail(StepPlace place, const Status& cause) {
  const StepError error(std::move(place), cause);
  communicator_.abort(error.what());
  if (gradients_) gradients_->abort(error.what());
  failure_ = error.what();
  throw error;
}

StepHeader PipelineModel::exchange(StepKind called, const StepHeader& mine) {
  StepHeader header = mine;
  const StepPlace place = here(text_of(called), 0);
  const Status status = communicator_.broadcast(&header, sizeof header, DataType::uint8, 0, call_options());
  if (!status.ok()) fail(place, status);
  TORCH_CHECK_VALUE(header.kind != StepKind::refused, "pipeline: ", to_string(header.refusal));
  if (header.kind != called && header.kind != StepKind::end) {
    fail(place,
         {StatusCode::mismatch, std::string("rank 0 called ") + text_of(header.kind) + "; all ranks must make the same call"});
  }
  return header;
}

std::optional<MicrobatchSeed> PipelineModel::seed_of_step() const {
  if (!options_.seed) return std::nullopt;
  return MicrobatchSeed{.seed = *options_.seed, .step = step_, .replica = options_.replica};
}

std::vector<at::Tensor> PipelineModel::run(const StepHeader& header, const at::Tensor& images, const at::Tensor& targets,
                                           const Loss& loss) {
  const bool is_new = layouts_of_.kind != header.kind || layouts_of_.image != header.image || layouts_of_.batch != header.batch;
  if (layouts_of_.kind != header.kind || layouts_of_.image != header.image) layouts_.clear();
  layouts_of_ = header;
  const bool trains = header.kind == StepKind::training;
  const Microbatches microbatches(header.batch, options_.microbatches);
  const pipeline::Actions& actions =
      trains ? programs_.training(microbatches.count()) : programs_.evaluation(microbatches.count());
  const StepTask task{trains,
                      microbatches,
                      programs_.shape(),
                      actions,
                      chunks_,
                      recomputes_,
                      stage_device(chunks_),
                      streams_.get(),
                      images,
                      targets,
                      header.target,
                      loss,
                      options_.loss_reduction,
                      options_.batch_norm,
                      trains && !has_warned_ && is_new,
                      trains ? seed_of_step() : std::nullopt,
                      trains ? gradients_.get() : nullptr};
  try {
    StepRun step(communicator_, task, layouts_, std::chrono::steady_clock::now() + options_.timeout);
    std::vector<at::Tensor> results = step.run();
    durations_ = step.durations();
    if (trains) ++step_;
    if (const std::vector<FewValues>& few = step.few_values(); !few.empty()) {
      has_warned_ = true;
      TORCH_WARN(warning_of(few.front(), few.size(), microbatches));
    }
    return results;
  } catch (const StepError& error) {
    failure_ = error.what();
    throw;
  }
}

void PipelineModel::wait_for_all() {
  const Status status = communicator_.barrier(call_options());
  if (!status.ok()) fail(here("end of the first step"), status);
}

void PipelineModel::broadcast_from_last(void* data, std::size_t bytes, const char* what) {
  const Status status = communicator_.broadcast(data, bytes, DataType::uint8, last_rank(), call_options());
  if (!status.ok()) fail(here(what, last_rank()), status);
}

StepOutput PipelineModel::share_losses(const Microbatches& microbatches, const std::vector<at::Tensor>& losses) {
  // The type, then the losses: a double holds each value of a smaller type.
  std::vector<double> numbers(static_cast<std::size_t>(microbatches.count()) + 1);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    numbers[0] = static_cast<double>(losses[i].scalar_type());
    numbers[i + 1] = losses[i].item<double>();
  }
  broadcast_from_last(numbers.data(), numbers.size() * sizeof(double), "losses of the step");
  const auto type = static_cast<at::ScalarType>(static_cast<int>(numbers[0]));
  std::vector<at::Tensor> shared;
  for (std::size_t i = 1; i < numbers.size(); ++i) shared.push_back(at::scalar_tensor(numbers[i], type));
  return {std::move(shared), microbatches.sizes()};
}

StepOutput PipelineModel::share_outputs(const Microbatches& microbatches, const std::vector<at::Tensor>& outputs) {
  constexpr const char* kWhat = "outputs of the evaluation";
  TensorLayout layout;
  if (!outputs.empty()) layout = layout_of(outputs.front());
  for (const at::Tensor& output : outputs) {
    TensorLayout other = layout_of(output);
    other.memory_format = layout.memory_format;
    if (other == layout) continue;
    fail(here(kWhat),
         {StatusCode::invalid_argument, layout.to_string() + " and " + other.to_string() + "; all microbatches need the same"});
  }
  broadcast_from_last(&layout, sizeof layout, kWhat);
  at::Tensor batch = layout.allocate(microbatches.batch());
  if (!outputs.empty()) at::cat_out(batch, outputs);
  broadcast_from_last(batch.data_ptr(), batch.nbytes(), kWhat);
  return {batch.split_with_sizes(microbatches.sizes()), microbatches.sizes()};
}

}  // namespace shoal::parallel
