#include "torch_plugin/ddp/deferred_updates.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

namespace shoal::ddp {
namespace {

using std::chrono::steady_clock;

// Two pieces of half a mebibyte keep a wire of 1 Gbit/s busy, and a more urgent piece waits for them for at most 8 ms.
constexpr std::size_t kWindow = 2;
constexpr std::size_t kPieceBytes = std::size_t{512} << 10;
// Among more than two ranks an average takes several exchanges, each of which waits for cores that also compute: with VGG16
// on four hosts pieces of 2 MiB use 96 % of the wire, those of half a mebibyte 76 to 83 %.
constexpr std::size_t kLongestPieceBytes = std::size_t{2} << 20;
// The optimizer passes over a slice several times; values, gradients and state of a slice of this size stay in the cache. A
// multiple of all vector lengths, so that every element is computed as in the whole parameter.
constexpr std::int64_t kSliceElements = std::int64_t{128} << 10;

using AddBucket = std::function<void(const c10d::GradBucket&)>;

/// Passes each bucket on and reports it as done to the reducer, so that backward does not wait.
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

/// `parameter` as slices, in the order of its memory, which is also how the reducer lays out its gradient. If that is not the
/// order of its elements, or slices are not wanted: the parameter itself.
std::vector<at::Tensor> slices_of(const at::Tensor& parameter, bool several) {
  if (!several || parameter.numel() <= kSliceElements || !parameter.is_non_overlapping_and_dense()) return {parameter};
  return parameter.detach().as_strided({parameter.numel()}, {1}).split(kSliceElements);
}

}  // namespace

DeferredUpdates::DeferredUpdates(const ::torch::nn::Module& model, std::vector<at::Tensor> parameters,
                                 c10::intrusive_ptr<c10d::ProcessGroup> group, const MakeOptimizer& make_optimizer,
                                 bool update_slices)
    : parameters_(std::move(parameters)),
      averages_(group, 1.0 / group->getSize(), kWindow, kPieceBytes, group->getSize() > 2 ? kLongestPieceBytes : kPieceBytes),
      bucket_of_(parameters_.size(), 0),
      announced_(parameters_.size(), false) {
  TORCH_CHECK_VALUE(make_optimizer,
                    "DataParallel: updates can overlap with the next forward only where options.make_optimizer is set");
  for (const at::Tensor& parameter : parameters_) {
    index_.emplace(parameter.unsafeGetTensorImpl(), slices_.size());
    std::vector<Slice>& slices = slices_.emplace_back();
    for (const at::Tensor& slice : slices_of(parameter, update_slices)) slices.push_back({slice, make_optimizer({slice})});
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
  if (known == parameters_of_.end()) return finish();  // the model itself, or a replaced module
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
  // Backward fills the buckets from the model's end, so forward needs the last ones first.
  for (std::size_t bucket = buckets_.size(); bucket-- > 0;) finish(bucket);
}

double DeferredUpdates::take_waited_s() { return std::exchange(waited_s_, 0.0); }

void DeferredUpdates::add_bucket(const c10d::GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  Bucket added;
  const at::Tensor all = bucket.getBuffer();
  const std::vector<at::Tensor> gradients = bucket.getGradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::size_t index = index_.at(bucket.getParameters()[i].unsafeGetTensorImpl());
    added.parameters.push_back(index);
    bucket_of_[index] = buckets_.size();
    std::int64_t begin = gradients[i].storage_offset() - all.storage_offset();
    for (Slice& slice : slices_[index]) {
      const std::int64_t elements = slice.values.numel();
      const bool whole = slices_[index].size() == 1;
      if (elements > 0)
        added.updates.push_back({&slice, whole ? gradients[i] : all.narrow(0, begin, elements), begin, elements});
      begin += elements;
    }
  }
  added.left = added.updates.size();
  averages_.add(all);
  awaited_ -= added.parameters.size();
  if (awaited_ == 0) averages_.release();
  buckets_.push_back(std::move(added));
}

/// Updates the parameters of `bucket`, unless that has been done. While its average is missing, updates other buckets.
void DeferredUpdates::finish(std::size_t bucket) {
  if (std::exchange(awaited_, 0) > 0) averages_.release();  // backward was interrupted and did not release the second parts
  const auto is_ready = [](const Bucket& b) { return !b.ready.empty(); };
  while (buckets_[bucket].left > 0) {
    const auto next = is_ready(buckets_[bucket]) ? buckets_.begin() + static_cast<std::ptrdiff_t>(bucket)
                                                 : std::ranges::find_if(buckets_, is_ready);
    const bool idle = next == buckets_.end();
    if (!idle) update_one(*next);
    const auto begin = steady_clock::now();
    for (const Averages::Part& part : averages_.take_finished(idle)) note(part);
    if (idle) waited_s_ += std::chrono::duration<double>(steady_clock::now() - begin).count();
  }
}

/// Records that the average of `part` is ready.
void DeferredUpdates::note(const Averages::Part& part) {
  Bucket& bucket = buckets_[part.bucket];
  const std::int64_t end = part.begin + part.elements;
  const auto ends_before = [&](const Update& update) { return update.begin + update.slice->values.numel() <= part.begin; };
  for (auto update = std::ranges::partition_point(bucket.updates, ends_before);
       update != bucket.updates.end() && update->begin < end; ++update) {
    const std::int64_t update_end = update->begin + update->slice->values.numel();
    update->missing -= std::min(end, update_end) - std::max(part.begin, update->begin);
    if (update->missing == 0) bucket.ready.push_back(static_cast<std::size_t>(update - bucket.updates.begin()));
  }
}

/// The update that became ready last: its data is still in the cache.
void DeferredUpdates::update_one(Bucket& bucket) {
  const Update& update = bucket.updates[bucket.ready.back()];
  bucket.ready.pop_back();
  update.slice->values.mutable_grad() = update.gradient;
  update.slice->optimizer->step();
  update.slice->values.mutable_grad().reset();
  if (--bucket.left > 0) return;
  for (const std::size_t parameter : bucket.parameters) at::Tensor(parameters_[parameter]).mutable_grad().reset();
}

}  // namespace shoal::ddp
