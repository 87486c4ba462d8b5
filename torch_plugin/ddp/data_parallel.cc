#include "torch_plugin/ddp/data_parallel.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "torch_plugin/ddp/deferred_updates.h"

namespace shoal::ddp {
namespace {

using std::chrono::steady_clock;

// Maximum size of the pieces in which tensors are sent, as in torch.
constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;
constexpr int kRootRank = 0;
constexpr double kBucketMib = 25;  // PyTorch's
// Small, so that the first averages that the next forward needs do not wait behind large buckets.
constexpr double kBucketMibNextForward = 0.5;

std::int64_t to_bytes(double mib) { return static_cast<std::int64_t>(mib * 1024 * 1024); }

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// A CommHook with the interface that the reducer requires.
class HookAdapter final : public c10d::CppCommHookInterface<CommHook> {
 public:
  HookAdapter(CommHook hook, c10::intrusive_ptr<c10d::ProcessGroup> group)
      : c10d::CppCommHookInterface<CommHook>(std::move(hook)), group_(std::move(group)) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override { return state_(group_, bucket); }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

void check(const DataParallelOptions& options) {
  if (options.overlap != Overlap::next_forward) return;
  TORCH_CHECK_VALUE(!options.comm_hook, "DataParallel: options.comm_hook works with Overlap::backward only");
  TORCH_CHECK_VALUE(!options.find_unused_parameters,
                    "DataParallel: options.find_unused_parameters works with Overlap::backward only");
}

}  // namespace

DataParallel::DataParallel(::torch::nn::Module& model, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                           DataParallelOptions options)
    : model_(model), group_(group), finds_unused_(options.find_unused_parameters), buffers_(model.buffers()) {
  check(options);
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& named : model.named_parameters()) {
    if (!named.value().requires_grad()) continue;
    names.emplace(parameters_.size(), named.key());
    parameters_.push_back(named.value());
    gradient_bytes_ += named.value().nbytes();
  }
  TORCH_CHECK_VALUE(!parameters_.empty(), "DataParallel: no parameter of the model requires a gradient");
  c10d::verify_params_across_processes(group_, parameters_, std::nullopt);
  std::vector<at::Tensor> state;
  for (const std::vector<at::Tensor>& part : {model.parameters(), buffers_}) {
    for (const at::Tensor& tensor : part) state.push_back(tensor.detach());
  }
  c10d::broadcast_coalesced(group_, state, kBroadcastBytes, kRootRank);
  if (!options.broadcast_buffers) buffers_.clear();

  const bool defer = options.overlap == Overlap::next_forward;
  const double bucket_mib = options.bucket_mib.value_or(defer ? kBucketMibNextForward : kBucketMib);
  const std::vector<bool> sparse(parameters_.size(), false);
  // One bucket for each type at first: the order in which gradients become ready is not known yet. If that order may change,
  // the reducer never learns it and assumes the order of the parameters. Backward starts at the end.
  std::vector<std::size_t> sizes{std::numeric_limits<std::size_t>::max()};
  if (finds_unused_) {
    sizes = {static_cast<std::size_t>(to_bytes(options.first_bucket_mib)), static_cast<std::size_t>(to_bytes(bucket_mib))};
  }
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(parameters_, sizes, sparse);
  std::ranges::reverse(buckets);
  if (defer) {
    updates_ = std::make_unique<DeferredUpdates>(model, parameters_, group_, options.make_optimizer, options.update_slices);
  } else if (options.make_optimizer) {
    optimizer_ = options.make_optimizer(parameters_);
  }
  reducer_ =
      std::make_unique<c10d::Reducer>(parameters_, std::move(buckets), group_, sparse, to_bytes(bucket_mib), finds_unused_,
                                      options.gradient_as_bucket_view, std::move(names), to_bytes(options.first_bucket_mib),
                                      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
                                      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  if (finds_unused_) {  // the reducer then requires a logger
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
  }
  if (options.comm_hook) {
    reducer_->register_comm_hook(std::make_unique<HookAdapter>(std::move(options.comm_hook), group_));
  }
  if (!updates_) return;
  reducer_->register_comm_hook(updates_->make_hook());
  if (auto* announcing = dynamic_cast<Announcing*>(&model_)) {
    announcing->announce_to([this](const ::torch::nn::Module& part) { updates_->before_use(part); });
  }
}

DataParallel::~DataParallel() {
  if (auto* announcing = dynamic_cast<Announcing*>(&model_); announcing != nullptr && updates_) announcing->announce_to({});
}

void DataParallel::clear_gradients() {
  if (updates_) return;  // forgets each gradient after its use
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void DataParallel::before_forward() {
  if (updates_) {
    if (at::GradMode::is_enabled() && reducer_->should_rebuild_buckets()) updates_->finish();
    updates_->begin_forward();
  }
  if (at::GradMode::is_enabled()) {
    if (!alone_) reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
  }
  if (!model_.is_training()) return;
  finish_buffers();
  if (buffers_are_old_ && !alone_) broadcast_buffers();
  buffers_are_old_ = true;
}

void DataParallel::before_backward(const std::vector<at::Tensor>& outputs) {
  if (!at::GradMode::is_enabled()) return;
  if (updates_) updates_->begin_backward();
  if (alone_) return;
  if (updates_ && buffers_are_old_) start_buffers();
  TORCH_CHECK_VALUE(!finds_unused_ || !outputs.empty(),
                    "DataParallel: with find_unused_parameters, before_backward needs the outputs of forward");
  reducer_->prepare_for_backward(finds_unused_ ? outputs : std::vector<at::Tensor>());
}

void DataParallel::step() {
  if (updates_) return;
  TORCH_CHECK_VALUE(optimizer_, "DataParallel: step() needs options.make_optimizer");
  optimizer_->step();
}

void DataParallel::flush() {
  if (!updates_) return;
  updates_->finish();
  finish_buffers();
}

void DataParallel::synchronize() {
  flush();
  if (buffers_are_old_) broadcast_buffers();
}

double DataParallel::take_waited_s() { return std::exchange(waited_s_, 0.0) + (updates_ ? updates_->take_waited_s() : 0.0); }

/// Buffers do not change between one forward and the next, so they can be sent before the gradients.
void DataParallel::start_buffers() {
  buffers_are_old_ = false;
  if (buffers_.empty() || group_->getSize() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& buffer : buffers_) bytes.push_back(buffer.detach().reshape({-1}).view(at::kByte));
  buffers_in_flight_ = at::cat(bytes);
  std::vector<at::Tensor> tensors{buffers_in_flight_};
  c10d::BroadcastOptions from_root;
  from_root.rootRank = kRootRank;
  buffers_work_ = group_->broadcast(tensors, from_root);
}

void DataParallel::finish_buffers() {
  if (!buffers_work_) return;
  const auto begin = steady_clock::now();
  std::exchange(buffers_work_, {})->wait();
  waited_s_ += seconds_since(begin);
  const at::Tensor bytes = std::exchange(buffers_in_flight_, {});
  if (group_->getRank() == kRootRank) return;
  const at::NoGradGuard no_grad;
  std::int64_t at = 0;
  for (const at::Tensor& buffer : buffers_) {
    const auto size = static_cast<std::int64_t>(buffer.nbytes());
    // A separate copy, because the bytes may be misaligned for the type.
    const at::Tensor values = bytes.narrow(0, at, size).clone().view(buffer.scalar_type()).view(buffer.sizes());
    buffer.detach().copy_(values);
    at += size;
  }
}

void DataParallel::broadcast_buffers() {
  buffers_are_old_ = false;
  if (buffers_.empty()) return;
  const auto begin = steady_clock::now();
  c10d::broadcast_coalesced(group_, buffers_, kBroadcastBytes, kRootRank);
  waited_s_ += seconds_since(begin);
}

}  // namespace shoal::ddp
