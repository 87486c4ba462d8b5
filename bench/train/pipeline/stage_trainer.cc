#include "bench/train/pipeline/stage_trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "bench/train/batch_tensors.h"
#include "bench/train/pipeline/tensor_group.h"
#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/checkpoint/fingerprint.h"
#include "torch_plugin/parallel/tensor/layer_pairs.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {
namespace {

using pipeline::Axis;

at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& labels) {
  return ::torch::cross_entropy_loss(scores, labels);
}

std::string chunk_name(std::size_t chunk) { return "chunk" + std::to_string(chunk); }

parallel::PipelineOptions runtime_options(const PipelinePlan& plan, const TrainOptions& options) {
  return {.schedule = plan.config.pipeline,
          .microbatches = plan.config.microbatches,
          .active_microbatches = plan.config.active_microbatches,
          .stage_times = plan.partition.times,
          .batch_norm = plan.config.batch_norm,
          .recompute = plan.config.recompute,
          .recompute_stages = plan.partition.recomputes(),
          .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * options.timeout_s))};
}

}  // namespace

StageTrainer::Stages::Stages(const std::vector<std::shared_ptr<parallel::Unit>>& chunks) {
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) register_module(chunk_name(chunk), chunks[chunk]);
}

StageTrainer::StageTrainer(const Job& job, const PipelinePlan& plan, const data::Dataset& images, const TrainOptions& options)
    : job_(job),
      plan_(plan),
      images_(images),
      options_(options),
      position_(plan.layout.position(job.rank())),
      meter_(job.device.type()) {}

StageTrainer::~StageTrainer() = default;

Result<std::unique_ptr<StageTrainer>> StageTrainer::make(const Job& job, const PipelinePlan& plan,
                                                         const models::ModelInfo& model, const data::Dataset& images,
                                                         const TrainOptions& options) {
  std::unique_ptr<StageTrainer> made(new StageTrainer(job, plan, images, options));
  if (Status status = made->make_stages(model); !status.ok()) return status;
  try {
    if (Status status = made->make_groups(); !status.ok()) return status;
    made->model_ = std::make_unique<parallel::PipelineModel>(made->chunks_, *made->pipeline_, runtime_options(plan, options),
                                                             made->reduction_);
  } catch (const std::exception& error) {
    return Status(StatusCode::invalid_argument, torch::plain_message(error));
  }
  made->make_optimizer();
  made->meter_.restart_peak();  // the whole network has gone
  return made;
}

Status StageTrainer::make_stages(const models::ModelInfo& info) {
  ::torch::manual_seed(options_.seed);
  const auto model = info.make(images_.channels, images_.classes);
  Result<parallel::LayerSlices::Group> sharing = make_tensor_group(job_, plan_.layout, "tensor");
  if (!sharing.ok()) return sharing.status();
  tensor_ = *std::move(sharing);
  const Result<parallel::TensorSplit> split = parallel::split_pairs(*model, *model, model->pairs(), tensor_);
  if (!split.ok()) return split.status();
  split_ = split->split;
  if (tensor_ && job_.rank() == 0) std::printf("note: %s\n", split_text(*split, tensor_->getSize()).c_str());
  const Result<parallel::Chain> chain = parallel::Chain::of(model->parts());
  if (!chain.ok()) return chain.status();
  for (const int stage : plan_.stages_at(position_.stage)) {
    const pipeline::Stage& units = plan_.partition.stages[static_cast<std::size_t>(stage)];
    Result<std::shared_ptr<parallel::Unit>> made = chain->stage(units.first, units.end, units.recomputed_units);
    if (!made.ok()) return made.status();
    chunks_.push_back(*std::move(made));
  }
  stages_ = std::make_shared<Stages>(chunks_);
  stages_->to(job_.device);
  note_slices();
  return {};
}

void StageTrainer::note_slices() {
  const auto parameters = stages_->named_parameters();
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    for (parallel::SplitTensor slice : split_) {
      slice.name = chunk_name(chunk) + "." + slice.name;
      if (parameters.contains(slice.name)) slices_.push_back(std::move(slice));
    }
  }
}

Status StageTrainer::make_groups() {
  const std::vector<int> ranks = plan_.layout.group(job_.rank(), Axis::pipeline);
  Result<std::unique_ptr<Communicator>> group = job_.control->group(ranks);
  if (!group.ok()) return group.status();
  pipeline_ = *std::move(group);
  if (options_.parallel.clip_norm) {
    Result<c10::intrusive_ptr<c10d::ProcessGroup>> norms = make_group_of(job_, ranks, "norm");
    if (!norms.ok()) return norms.status();
    norm_groups_ = {.tensor = tensor_, .pipeline = *std::move(norms)};
  }
  if (replicas() == 1) return {};
  Result<c10::intrusive_ptr<c10d::ProcessGroup>> same_stage =
      make_group_of(job_, plan_.layout.group(job_.rank(), Axis::replica), "replicas");
  if (!same_stage.ok()) return same_stage.status();
  const parallel::BucketSizes sizes{.bucket_mib = options_.bucket_mib, .first_bucket_mib = options_.first_bucket_mib};
  reduction_ = std::make_shared<parallel::ReplicaReduction>(chunks_, *std::move(same_stage), sizes);
  return {};
}

void StageTrainer::make_optimizer() { optimizer_ = optimizers_.maker(options_)(stages_->parameters()); }

void StageTrainer::begin_epoch(const EpochPlan& course) {
  if (!loads()) return;
  loader_ =
      std::make_unique<data::Loader>(images_, data::LoaderOptions{.order = course.rest(step_, position_.replica, options_.seed),
                                                                  .batch = static_cast<std::size_t>(options_.batch),
                                                                  .augment = options_.augment,
                                                                  .seed = options_.seed,
                                                                  .epoch = static_cast<std::uint64_t>(course.pass()),
                                                                  .workers = static_cast<std::size_t>(options_.workers)});
}

void StageTrainer::clear_gradients() {
  if (reduction_) {
    reduction_->clear_gradients();
  } else {
    stages_->zero_grad(/*set_to_none=*/true);
  }
}

/// The gradient is the same on all replicas by now, so all ranks of the job scale it alike or fail alike.
void StageTrainer::clip_gradients() {
  if (!options_.parallel.clip_norm) return;
  const double norm = parallel::clip_gradient_norm(*stages_, slices_, norm_groups_, *options_.parallel.clip_norm);
  TORCH_CHECK_VALUE(std::isfinite(norm), "--clip-norm: the norm of the gradient is ", norm);
}

double StageTrainer::make_step(double learning_rate) {
  at::Tensor pixels;
  at::Tensor labels;
  if (loads()) {
    std::optional<data::Batch> batch = loader_->next();
    TORCH_CHECK(batch.has_value(), "the epoch has fewer batches than steps");
    std::tie(pixels, labels) = to_tensors(std::move(*batch), images_, at::kCPU);
  }
  clear_gradients();
  const parallel::StepOutput losses = model_->step(pixels, labels, cross_entropy);
  const parallel::StepDurations& durations = model_->durations();
  ++use_.steps;
  use_.busy_s += durations.busy_s;
  use_.waiting_s += durations.waiting_s();
  use_.step_s += durations.step_s;
  clip_gradients();
  optimizers_.set_learning_rate(learning_rate);
  optimizer_->step();
  ++step_;
  // As one process adds up the losses of its microbatches.
  double loss = 0;
  std::int64_t images = 0;
  for (const std::int64_t size : losses.images()) images += size;
  for (std::size_t i = 0; i < losses.images().size(); ++i) {
    const double share = static_cast<double>(losses.images()[i]) / static_cast<double>(images);
    loss += (losses.outputs()[i] * share).item<double>();
  }
  return loss;
}

void StageTrainer::continue_from(std::int64_t step) {
  step_ = step;
  use_ = {};
  meter_.restart_peak();  // the tensors of files have gone
}

Result<double> StageTrainer::accuracy(const data::Dataset& test) {
  if (reduction_) reduction_->synchronize_buffers();
  data::LoaderOptions share{.order = {}, .batch = kEvaluationBatch};
  for (auto i = static_cast<std::size_t>(position_.replica); i < test.size(); i += static_cast<std::size_t>(replicas()))
    share.order.push_back(i);
  double correct = 0;
  for (std::size_t first = 0; first < share.order.size(); first += share.batch) {
    at::Tensor pixels;
    at::Tensor labels;
    if (loads()) {
      const std::size_t count = std::min(share.batch, share.order.size() - first);
      std::tie(pixels, labels) = to_tensors(data::make_batch(test, share, first, count), test, at::kCPU);
    }
    const parallel::StepOutput scores = model_->evaluate(pixels);
    if (loads() && position_.slice == 0) correct += scores.concat().argmax(1).eq(labels).sum().item<double>();
  }
  if (Status summed = job_.control->all_reduce(&correct, &correct, 1, DataType::float64, ReduceOp::sum); !summed.ok())
    return summed;
  return correct / static_cast<double>(test.size());
}

std::uint64_t StageTrainer::fingerprint() const { return parallel::fingerprint_of(stages_->parameters()); }

void StageTrainer::abort() noexcept {
  for (const c10::intrusive_ptr<c10d::ProcessGroup>& group : {tensor_, norm_groups_.pipeline}) {
    try {
      if (group) group->abort();
    } catch (const std::exception&) {  // the training has failed already
    }
  }
}

}  // namespace shoal::train
