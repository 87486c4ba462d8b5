#include "torch_plugin/ddp/deferred_updates.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "torch_plugin/ddp/transfer_order.h"

namespace shoal::ddp {
namespace {

constexpr std::size_t kUnused = std::numeric_limits<std::size_t>::max();

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

using AddBucket = std::function<void(const c10d::GradBucket&)>;

/// Hands each bucket over and tells the reducer that it is done, so that backward does not wait.
class HandOver final : public c10d::CppCommHookInterface<AddBucket> {
 public:
  using c10d::CppCommHookInterface<AddBucket>::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    state_(bucket);
    auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    done->markCompleted(bucket.getBuffer());
    return done;
  }
};

}  // namespace

DeferredUpdates::DeferredUpdates(const ::torch::nn::Module& model, std::vector<at::Tensor> parameters,
                                 c10::intrusive_ptr<c10d::ProcessGroup> group, const MakeOptimizer& make_optimizer,
                                 std::size_t piece_bytes)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      piece_bytes_(std::max<std::size_t>(piece_bytes, 1)),
      bucket_of_(parameters_.size(), 0),
      first_use_(parameters_.size(), kUnused) {
  TORCH_CHECK_VALUE(make_optimizer,
                    "DataParallel: updates can overlap with the next forward only where options.make_optimizer is set");
  for (const at::Tensor& parameter : parameters_) {
    index_.emplace(parameter.unsafeGetTensorImpl(), optimizers_.size());
    optimizers_.push_back(make_optimizer({parameter}));
  }
  for (const auto& module : model.modules(/*include_self=*/false)) {
    std::vector<std::size_t>& indices = parameters_of_[module.get()];
    for (const at::Tensor& parameter : module->parameters()) {
      if (const auto found = index_.find(parameter.unsafeGetTensorImpl()); found != index_.end())
        indices.push_back(found->second);
    }
  }
}

std::unique_ptr<c10d::CommHookInterface> DeferredUpdates::make_hook() {
  return std::make_unique<HandOver>([this](const c10d::GradBucket& bucket) { add_bucket(bucket); });
}

void DeferredUpdates::begin_forward() {
  if (!all_announced_) finish();
  std::ranges::fill(first_use_, kUnused);
  announcements_ = 0;
}

void DeferredUpdates::before_use(const ::torch::nn::Module& part) {
  const auto known = parameters_of_.find(&part);
  if (known == parameters_of_.end()) return finish();  // the model itself, or a module that was replaced
  for (const std::size_t parameter : known->second) {
    first_use_[parameter] = std::min(first_use_[parameter], announcements_);
    while (taken_ < started_ && buckets_[bucket_of_[parameter]].pieces_left > 0) take_next();
  }
  ++announcements_;
}

void DeferredUpdates::begin_backward() {
  finish();
  all_announced_ = std::ranges::find(first_use_, kUnused) == first_use_.end();
  if (grouped_ && !pieces_.empty() && taken_ == pieces_.size()) {
    sample();
    if (wire_s_per_byte_.size() == kLearnedSteps) decide_order();
  }
  forget();
}

void DeferredUpdates::finish() {
  while (taken_ < started_) take_next();
}

void DeferredUpdates::regrouped() {
  forget();
  grouped_ = true;
}

void DeferredUpdates::forget() {
  buckets_.clear();
  pieces_.clear();
  started_ = taken_ = 0;
}

double DeferredUpdates::take_waited_s() { return std::exchange(waited_s_, 0.0); }

void DeferredUpdates::add_bucket(const c10d::GradBucket& bucket) {
  Bucket added;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    const std::size_t index = index_.at(parameter.unsafeGetTensorImpl());
    added.parameters.push_back(index);
    bucket_of_[index] = buckets_.size();
  }
  // What the reducer does on its own where it has no hook: to scale first, by the reciprocal.
  const at::NoGradGuard no_grad;
  at::Tensor gradients = bucket.getBuffer();
  gradients.mul_(1.0 / group_->getSize());
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(piece_bytes_ / gradients.element_size(), 1));
  for (std::int64_t at = 0; at < gradients.numel(); at += most) {
    pieces_.push_back({.bucket = buckets_.size(),
                       .gradients = gradients.narrow(0, at, std::min(most, gradients.numel() - at)),
                       .started = {},
                       .ended = nullptr,
                       .work = {}});
    ++added.pieces_left;
  }
  added.ready = Clock::now();
  buckets_.push_back(std::move(added));
  for (; started_ < pieces_.size() && piece_at(started_) < pieces_.size(); ++started_) start(pieces_[piece_at(started_)]);
}

void DeferredUpdates::start(Piece& piece) {
  std::vector<at::Tensor> tensors{piece.gradients};
  piece.started = Clock::now();
  piece.work = group_->allreduce(tensors);
  piece.ended = std::make_shared<std::atomic<Clock::rep>>(0);
  piece.work->getFuture()->addCallback(
      [ended = piece.ended](const c10::ivalue::Future&) { ended->store(Clock::now().time_since_epoch().count()); });
}

void DeferredUpdates::take_next() {
  Piece& piece = pieces_[piece_at(taken_)];
  const auto begin = Clock::now();
  try {
    piece.work->wait();
  } catch (...) {
    forget();  // the group is unusable; nobody shall wait for the rest
    throw;
  }
  waited_s_ += seconds(Clock::now() - begin);
  piece.work.reset();
  ++taken_;
  Bucket& bucket = buckets_[piece.bucket];
  if (--bucket.pieces_left > 0) return;
  for (const std::size_t parameter : bucket.parameters) {
    optimizers_[parameter]->step();
    at::Tensor(parameters_[parameter]).mutable_grad().reset();
  }
}

void DeferredUpdates::sample() {
  double busy_s = 0;
  std::size_t bytes = 0;
  Clock::time_point free_at{};
  for (std::size_t turn = 0; turn < pieces_.size(); ++turn) {
    const Piece& piece = pieces_[piece_at(turn)];
    const Clock::time_point ended{Clock::duration(piece.ended->load())};
    // Only while backward goes on does the rate matter, and the wire is slower then: it shares the cores with arithmetic.
    if (bytes == 0 || ended < buckets_.back().ready) {
      if (const auto from = std::max(piece.started, free_at); ended > from) busy_s += seconds(ended - from);
      bytes += piece.gradients.nbytes();
    }
    free_at = std::max(free_at, ended);
  }
  if (last_ended_ != Clock::time_point{}) {
    ready_s_.resize(buckets_.size());
    for (std::size_t i = 0; i < buckets_.size(); ++i) ready_s_[i].push_back(seconds(buckets_[i].ready - last_ended_));
    wire_s_per_byte_.push_back(busy_s / static_cast<double>(bytes));
  }
  last_ended_ = free_at;
}

void DeferredUpdates::decide_order() {
  // The slowest rank's figures, so that all ranks decide the same by the same numbers.
  std::vector<double> figures{median(wire_s_per_byte_)};
  for (const std::vector<double>& samples : ready_s_) figures.push_back(median(samples));
  for (const Bucket& bucket : buckets_) {
    std::size_t needed_at = kUnused;
    for (const std::size_t parameter : bucket.parameters) needed_at = std::min(needed_at, first_use_[parameter]);
    figures.push_back(static_cast<double>(needed_at));
  }
  std::vector<at::Tensor> tensors{at::from_blob(figures.data(), {static_cast<std::int64_t>(figures.size())}, at::kDouble)};
  c10d::AllreduceOptions slowest;
  slowest.reduceOp = c10d::ReduceOp::MAX;
  group_->allreduce(tensors, slowest)->wait();

  std::vector<Transfer> transfers;
  for (const Piece& piece : pieces_) {
    transfers.push_back({.ready_s = figures[1 + piece.bucket],
                         .wire_s = figures[0] * static_cast<double>(piece.gradients.nbytes()),
                         .needed_at = figures[1 + buckets_.size() + piece.bucket]});
  }
  order_ = transfer_order(transfers);
  ready_s_.clear();
  wire_s_per_byte_.clear();
}

}  // namespace shoal::ddp
