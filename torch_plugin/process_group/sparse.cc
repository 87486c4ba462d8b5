// The sum of sparse tensors, as embeddings with sparse gradients need it.
#include <utility>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/interpreter.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

using at::Tensor;

namespace {

constexpr const char* kCall = "all_reduce of sparse tensors";

void check_sparse(const Tensor& tensor, const c10d::ReduceOp& op) {
  if (!tensor.device().is_cpu()) refuse(kCall, "only supports CPU tensors; this one is on " + tensor.device().str());
  if (tensor.layout() != at::kSparse) refuse(kCall, "only supports COO tensors, not " + c10d::toString(tensor.layout()));
  if (op.op_ != c10d::ReduceOp::SUM) refuse(kCall, "unsupported reduction operation; only SUM is defined");
}

/// How the non-zero values of one rank are sent: their indices, one row per value, then the values, padded so that the next
/// rank's indices are aligned.
struct Layout {
  std::int64_t index_bytes;  ///< of one value
  std::int64_t value_bytes;

  explicit Layout(const Tensor& coalesced)
      : index_bytes(coalesced.sparse_dim() * static_cast<std::int64_t>(sizeof(std::int64_t))),
        value_bytes(static_cast<std::int64_t>(coalesced.element_size())) {
    for (const std::int64_t extent : coalesced.values().sizes().slice(1)) value_bytes *= extent;
  }
  [[nodiscard]] std::size_t bytes(std::uint64_t values) const {
    const auto count = static_cast<std::size_t>(values);
    return count * static_cast<std::size_t>(index_bytes) + (count * static_cast<std::size_t>(value_bytes) + 7) / 8 * 8;
  }
};

Tensor pack(const Tensor& coalesced, const Layout& layout) {
  const std::int64_t count = coalesced._nnz();
  Tensor piece = at::zeros({static_cast<std::int64_t>(layout.bytes(static_cast<std::uint64_t>(count)))}, at::kByte);
  if (count == 0) return piece;
  const Tensor indices = coalesced.indices().t().contiguous();
  const Tensor values = contiguous(coalesced.values());
  piece.narrow(0, 0, count * layout.index_bytes).view(at::kLong).copy_(indices.view({-1}));
  piece.narrow(0, count * layout.index_bytes, count * layout.value_bytes).view(values.scalar_type()).copy_(values.view({-1}));
  return piece;
}

/// The sum of the parts of all ranks, from their concatenated pieces.
Tensor sum_of_pieces(const Tensor& like, const Layout& layout, const Tensor& pieces, const std::vector<std::uint64_t>& counts) {
  std::vector<Tensor> indices, values;
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape = like.values().sizes().vec();
  for (const std::uint64_t of_rank : counts) {
    const auto count = static_cast<std::int64_t>(of_rank);
    if (count == 0) continue;
    shape[0] = count;
    indices.push_back(pieces.narrow(0, offset, count * layout.index_bytes).view(at::kLong).view({count, like.sparse_dim()}));
    values.push_back(
        pieces.narrow(0, offset + count * layout.index_bytes, count * layout.value_bytes).view(like.scalar_type()).view(shape));
    offset += static_cast<std::int64_t>(layout.bytes(of_rank));
  }
  if (indices.empty()) return like;
  return at::sparse_coo_tensor(at::cat(indices).t(), at::cat(values), like.sizes(), like.options()).coalesce();
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allreduce_sparse(std::vector<Tensor>& tensors,
                                                                   const c10d::AllreduceOptions& options) {
  if (tensors.size() != 1) refuse(kCall, "requires a single-element tensor list");
  Tensor tensor = tensors[0];
  check_sparse(tensor, options.reduceOp);
  const at::NoGradGuard no_grad;
  const Tensor mine = tensor.coalesce();
  const Layout layout(mine);
  const Tensor piece = pack(mine, layout);
  const CallOptions how = call_options(options.timeout);
  if (how.estimate_us != nullptr) refuse(kCall, "its time cannot be estimated: it depends on the data of the other ranks");

  // The number of values of each rank, which the second call needs in advance.
  const auto count = static_cast<std::uint64_t>(mine._nnz());
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(getSize()));
  const Status counted = finish_with_signals(kCall, *communicator_,
                                             communicator_->all_gather_async(&count, counts.data(), 1, DataType::uint64, how));
  if (!counted.ok()) throw_status(kCall, counted);
  std::vector<std::size_t> bytes;
  std::int64_t total = 0;
  for (const std::uint64_t of_rank : counts) {
    bytes.push_back(layout.bytes(of_rank));
    total += static_cast<std::int64_t>(bytes.back());
  }
  const Tensor pieces = at::empty({total}, at::kByte);
  return start({.type = c10d::OpType::_ALLREDUCE_SPARSE,
                .name = kCall,
                .profiling_title = "shoal:sparse_all_reduce",
                .inputs = {tensor},
                .staging = {piece, pieces},
                .outputs = {tensor},
                .unpack = [=]() mutable { tensor.copy_(sum_of_pieces(mine, layout, pieces, counts)); }},
               communicator_->all_gather_v_async(piece.data_ptr(), pieces.data_ptr(), bytes, DataType::uint8, how), how);
}

}  // namespace shoal::torch
