#include "torch_plugin/ddp/data_parallel.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

namespace shoal::ddp {
namespace {

constexpr std::size_t kBroadcastBytes = std::size_t{250}
                                        << 20;  // tensors are sent in pieces of at most this much, as torch does
constexpr int kRootRank = 0;

std::int64_t to_bytes(double mib) { return static_cast<std::int64_t>(mib * 1024 * 1024); }

}  // namespace

DataParallel::DataParallel(::torch::nn::Module& model, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                           DataParallelOptions options)
    : model_(model), group_(group), buffers_(model.buffers()) {
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& named : model.named_parameters()) {
    if (!named.value().requires_grad()) continue;
    names.emplace(parameters_.size(), named.key());
    parameters_.push_back(named.value());
    gradient_bytes_ += named.value().nbytes();
  }
  c10d::verify_params_across_processes(group_, parameters_, std::nullopt);
  std::vector<at::Tensor> state;
  for (const std::vector<at::Tensor>& part : {model.parameters(), buffers_}) {
    for (const at::Tensor& tensor : part) state.push_back(tensor.detach());
  }
  c10d::broadcast_coalesced(group_, state, kBroadcastBytes, kRootRank);

  // One bucket for each type at first: the order in which gradients appear is not known yet. Backward works from the end.
  const std::vector<bool> sparse(parameters_.size(), false);
  auto [buckets, limits] =
      c10d::compute_bucket_assignment_by_size(parameters_, {std::numeric_limits<std::size_t>::max()}, sparse);
  std::ranges::reverse(buckets);
  reducer_ =
      std::make_unique<c10d::Reducer>(parameters_, std::move(buckets), group_, sparse, to_bytes(options.bucket_mib),
                                      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, std::move(names),
                                      to_bytes(options.first_bucket_mib), /*skip_all_reduce_unused_params=*/false,
                                      /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
}

void DataParallel::clear_gradients() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void DataParallel::before_forward() {
  reducer_->prepare_for_forward();
  reducer_->rebuild_buckets();
  if (model_.is_training() && !buffers_.empty()) c10d::broadcast_coalesced(group_, buffers_, kBroadcastBytes, kRootRank);
}

void DataParallel::before_backward() { reducer_->prepare_for_backward({}); }

}  // namespace shoal::ddp
