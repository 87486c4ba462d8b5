#include "torch_plugin/ddp/deferred_updates.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

namespace shoal::ddp {
namespace {

using std::chrono::steady_clock;

// Two of half a mebibyte keep a wire of 1 Gbit/s busy, and what is more urgent waits for them for 8 ms at most.
constexpr std::size_t kWindow = 2;
constexpr std::size_t kPieceBytes = std::size_t{512} << 10;

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
                                 c10::intrusive_ptr<c10d::ProcessGroup> group, const MakeOptimizer& make_optimizer)
    : parameters_(std::move(parameters)),
      scale_(1.0 / group->getSize()),
      averages_(std::move(group), kWindow, kPieceBytes),
      bucket_of_(parameters_.size(), 0),
      announced_(parameters_.size(), false) {
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
  std::fill(announced_.begin(), announced_.end(), false);
}

void DeferredUpdates::before_use(const ::torch::nn::Module& part) {
  const auto known = parameters_of_.find(&part);
  if (known == parameters_of_.end()) return finish();  // the model itself, or a module that was replaced
  for (const std::size_t parameter : known->second) {
    announced_[parameter] = true;
    if (bucket_of_[parameter] < buckets_.size()) finish(bucket_of_[parameter]);
  }
}

void DeferredUpdates::begin_backward() {
  finish();
  all_announced_ = std::ranges::find(announced_, false) == announced_.end();
  buckets_.clear();
  averages_.restart();
  awaited_ = parameters_.size();
}

void DeferredUpdates::finish() {
  // Backward fills the buckets from the model's end, so that the last ones are needed first.
  for (std::size_t bucket = buckets_.size(); bucket-- > 0;) finish(bucket);
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
  gradients.mul_(scale_);
  averages_.add(gradients);
  awaited_ -= added.parameters.size();
  if (awaited_ == 0) averages_.release();
  buckets_.push_back(std::move(added));
}

/// Updates the parameters of `bucket`, unless that has been done. While its average is missing, others are updated.
void DeferredUpdates::finish(std::size_t bucket) {
  if (std::exchange(awaited_, 0) > 0) averages_.release();  // backward broke off: nothing else would let the second halves go
  while (!buckets_[bucket].updated) {
    const auto next = buckets_[bucket].averaged
                          ? buckets_.begin() + static_cast<std::ptrdiff_t>(bucket)
                          : std::ranges::find_if(buckets_, [](const Bucket& b) { return b.averaged && !b.updated; });
    if (next != buckets_.end()) {
      update(*next);
      continue;
    }
    const auto begin = steady_clock::now();
    for (const std::size_t finished : averages_.take_finished()) buckets_[finished].averaged = true;
    waited_s_ += std::chrono::duration<double>(steady_clock::now() - begin).count();
  }
}

void DeferredUpdates::update(Bucket& bucket) {
  for (const std::size_t parameter : bucket.parameters) {
    optimizers_[parameter]->step();
    at::Tensor(parameters_[parameter]).mutable_grad().reset();
  }
  bucket.updated = true;
}

}  // namespace shoal::ddp
