#include "bench/train/replica.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "bench/train/batch_tensors.h"
#include "bench/train/data/sampler.h"
#include "torch_plugin/parallel/checkpoint/fingerprint.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::train {
namespace {

/// While it exists, torch runs suitable operations in bfloat16.
class Bfloat16 {
 public:
  explicit Bfloat16(at::DeviceType device) : device_(device) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Bfloat16() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Bfloat16(const Bfloat16&) = delete;
  Bfloat16& operator=(const Bfloat16&) = delete;

 private:
  const at::DeviceType device_;
};

}  // namespace

Replica::Replica(const Job& job, ReplicaOptions wanted, const data::Dataset& images, const TrainOptions& options)
    : job_(job), wanted_(std::move(wanted)), device_(job.device), images_(images), options_(options) {}

Result<std::unique_ptr<Replica>> Replica::make(const Job& job, const ReplicaOptions& wanted, const models::ModelInfo& model,
                                               const data::Dataset& images, const TrainOptions& options) {
  std::unique_ptr<Replica> made(new Replica(job, wanted, images, options));
  if (const Status status = made->join(); !status.ok()) return status;
  ::torch::manual_seed(options.seed);
  made->model_ = model.make(images.channels, images.classes);  // the same initial values on every device
  made->model_->to(made->device_);
  made->make_parallel();
  return made;
}

Status Replica::join() {
  Result<c10::intrusive_ptr<c10d::ProcessGroup>> group = make_group(job_, wanted_.backend, wanted_.name(), clock_);
  if (!group.ok()) return group.status();
  group_ = std::move(group).value();
  return {};
}

void Replica::make_parallel() {
  const bool defers = wanted_.overlap == "next_forward";
  parallel_ = std::make_unique<ddp::DataParallel>(
      *model_, group_,
      ddp::DataParallelOptions{.overlap = defers ? ddp::Overlap::next_forward : ddp::Overlap::backward,
                               .make_optimizer = optimizers_.maker(options_),
                               .update_slices = true,
                               .bucket_mib = options_.bucket_mib,
                               .first_bucket_mib = options_.first_bucket_mib});
}

void Replica::begin_epoch(const EpochPlan& course) {
  loader_ = std::make_unique<data::Loader>(images_, data::LoaderOptions{.order = course.rest(step_, job_.rank(), options_.seed),
                                                                        .batch = static_cast<std::size_t>(options_.batch),
                                                                        .augment = options_.augment,
                                                                        .seed = options_.seed,
                                                                        .epoch = static_cast<std::uint64_t>(course.pass()),
                                                                        .workers = static_cast<std::size_t>(options_.workers)});
  batches_left_ = loader_->batches();
}

at::Tensor Replica::scores(const at::Tensor& pixels) {
  if (options_.precision == "fp32") return model_->forward(pixels);
  const Bfloat16 cast(device_.type());
  return model_->forward(pixels).to(at::kFloat);
}

/// Accumulates `weight` times the gradients of a batch.
void Replica::learn(data::Batch batch, double learning_rate, double weight) {
  const auto [pixels, labels] = to_tensors(std::move(batch), images_, device_);
  now("wait");
  parallel_->before_forward();
  if (options_.survives()) keep_buffers();
  now("forward");
  at::Tensor loss = ::torch::cross_entropy_loss(scores(pixels), labels);
  if (weight != 1) loss = loss * weight;
  now("wait");
  parallel_->before_backward();
  optimizers_.set_learning_rate(learning_rate);  // all updates of the previous step have been made by now
  now("backward");
  loss.backward();
  loss_ += loss.item<double>();
}

double Replica::make_step(double learning_rate) {
  const auto next = [this] {
    std::optional<data::Batch> batch = loader_->next();
    TORCH_CHECK(batch.has_value(), "the epoch has fewer batches than steps");
    --batches_left_;
    return std::move(*batch);
  };
  const int parts = static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(options_.accumulate), batches_left_));
  parallel_->clear_gradients();
  loss_ = 0;
  if (parts > 1) {
    const auto alone = parallel_->no_sync();
    for (int part = 0; part + 1 < parts; ++part) learn(next(), learning_rate, 1.0 / parts);
  }
  learn(next(), learning_rate, 1.0 / parts);
  now("update");
  parallel_->step();
  ++step_;
  return loss_;
}

double Replica::make_traced_step(double learning_rate) {
  trace_ = std::make_unique<StepTrace>(*model_);
  clock_->observe([trace = trace_.get()](const CommClock::Operation& operation) { trace->communicated(operation); });
  if (wanted_.backend == torch::kBackendName) trace_begin();
  trace_->begin("load");
  const double loss = make_step(learning_rate);
  trace_->end();
  return loss;
}

void Replica::flush() {
  parallel_->flush();
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  clock_->settle();
}

std::vector<TraceEvent> Replica::finish_trace() {
  clock_->observe({});
  trace_->add_stages(trace_end());
  return std::exchange(trace_, nullptr)->events();
}

/// The activity of the training thread from here on, for the trace.
void Replica::now(const char* kind) {
  if (trace_) trace_->next(kind);
}

CommTimes Replica::take_comm() {
  if (parallel_->overlap() == ddp::Overlap::backward) clock_->settle();  // backward has waited for all operations
  CommTimes times = clock_->take_step();
  const double waited_s = parallel_->take_waited_s();
  if (parallel_->overlap() == ddp::Overlap::next_forward) times.exposed_s = waited_s;
  return times;
}

Result<double> Replica::accuracy(const data::Dataset& test) {
  try {
    parallel_->synchronize();
  } catch (const std::exception& error) {
    return Status(StatusCode::peer_failed, wanted_.backend + ", before evaluation: " + torch::plain_message(error));
  }
  const at::NoGradGuard no_grad;
  model_->eval();
  data::LoaderOptions share{.order = {}, .batch = kEvaluationBatch};
  for (auto i = static_cast<std::size_t>(job_.rank()); i < test.size(); i += static_cast<std::size_t>(job_.size()))
    share.order.push_back(i);
  double correct = 0;
  for (std::size_t first = 0; first < share.order.size(); first += share.batch) {
    const std::size_t count = std::min(share.batch, share.order.size() - first);
    const auto [pixels, labels] = to_tensors(data::make_batch(test, share, first, count), test, device_);
    correct += scores(pixels).argmax(1).eq(labels).sum().item<double>();
  }
  model_->train();
  const Status summed = job_.control->all_reduce(&correct, &correct, 1, DataType::float64, ReduceOp::sum);
  if (!summed.ok()) return summed;
  return correct / static_cast<double>(test.size());
}

Tensors Replica::state() {
  parallel_->synchronize();
  return copies();
}

Tensors Replica::copies() {
  Tensors all;
  for (const auto& named : model_->named_parameters()) all["parameter/" + named.key()] = named.value().detach().clone();
  for (const auto& named : model_->named_buffers()) all["buffer/" + named.key()] = named.value().detach().clone();
  for (auto& [name, tensor] : optimizers_.state(*model_)) all["optimizer/" + name] = tensor;
  all["step"] = at::scalar_tensor(step_, at::kLong);
  return all;
}

void Replica::restore(const Tensors& state) {
  const data::LoaderOptions first{.order = std::vector<std::size_t>(static_cast<std::size_t>(options_.batch)),
                                  .batch = static_cast<std::size_t>(options_.batch)};
  parallel_->clear_gradients();
  learn(data::make_batch(images_, first, 0, first.batch), 0, 1);
  parallel_->step();
  parallel_->synchronize();
  (void)take_comm();

  const at::NoGradGuard no_grad;
  const auto get = [&state](const std::string& name, const at::Tensor& like) {
    const auto found = state.find(name);
    TORCH_CHECK(found != state.end() && is_like(found->second, like), "the checkpoint has no ", name,
                " of this shape and type: it belongs to another network");
    return found->second;
  };
  for (const auto& named : model_->named_parameters()) {
    named.value().detach().copy_(get("parameter/" + named.key(), named.value()));
  }
  for (const auto& named : model_->named_buffers()) named.value().copy_(get("buffer/" + named.key(), named.value()));
  const std::string prefix = "optimizer/";
  Tensors remembered;
  for (auto at = state.lower_bound(prefix); at != state.end() && at->first.starts_with(prefix); ++at)
    remembered[at->first.substr(prefix.size())] = at->second;
  optimizers_.restore(*model_, remembered);
  const auto step = get("step", at::scalar_tensor(0, at::kLong)).item<std::int64_t>();
  TORCH_CHECK(step >= 0 && step <= EpochPlan::kMostSteps, "the checkpoint's step is ", step);
  step_ = step;
  first_step_ = step_;
  buffers_ = {};
}

/// Called before each forward; in a step of several forwards the first one counts.
void Replica::keep_buffers() {
  if (buffers_[0].step == step_) return;
  std::swap(buffers_[0], buffers_[1]);
  Buffers& kept = buffers_[0];
  kept.step = step_;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> now = model_->buffers();
  if (kept.values.empty()) {
    for (const at::Tensor& buffer : now) kept.values.push_back(at::empty_like(buffer));
  }
  for (std::size_t i = 0; i < now.size(); ++i) kept.values[i].copy_(now[i]);
}

/// If no forward has begun since that step, the buffers are unchanged.
void Replica::bring_back_buffers(std::int64_t step) {
  const auto kept = std::ranges::find(buffers_, step, &Buffers::step);
  if (kept == buffers_.end()) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> now = model_->buffers();
  for (std::size_t i = 0; i < now.size(); ++i) now[i].copy_(kept->values[i]);
}

std::int64_t Replica::complete_step() const {
  if (to_go_on_.has_value()) return to_go_on_->at("step").item<std::int64_t>();
  return first_step_ + optimizers_.complete_steps();
}

void Replica::give_up() {
  if (group_) group_->abort();
}

void Replica::go_on_from(std::int64_t step) {
  if (!to_go_on_.has_value()) {
    optimizers_.go_back_to(step - first_step_);
    bring_back_buffers(step);
    step_ = step;
    to_go_on_ = copies();
  }
  const at::NoGradGuard no_grad;
  loader_.reset();
  if (trace_) (void)trace_end();
  clock_->observe({});  // its observer would write to the trace
  trace_.reset();
  parallel_.reset();
  group_.reset();
  optimizers_ = {};
  clock_ = std::make_shared<CommClock>();  // operations that fail late use the old clock
  for (const at::Tensor& parameter : model_->parameters()) at::Tensor(parameter).mutable_grad().reset();
  model_->train();
  // Buffers that a lost rank 0 had not sent differ between ranks: all survivors continue with those of the new rank 0.
  for (const auto& named : model_->named_buffers()) named.value().copy_(to_go_on_->at("buffer/" + named.key()));
  if (const Status joined = join(); !joined.ok()) torch::throw_status("continue", joined);
  make_parallel();
  for (const auto& named : model_->named_buffers()) to_go_on_->at("buffer/" + named.key()).copy_(named.value());
  {
    const at::AutoGradMode with_gradients(true);
    restore(*to_go_on_);
  }
  to_go_on_.reset();
}

std::uint64_t Replica::fingerprint() const { return parallel::fingerprint_of(model_->parameters()); }

}  // namespace shoal::train
