#include "torch_plugin/process_group/arguments.h"

#include <algorithm>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include "torch_plugin/process_group/staging.h"

namespace shoal::torch {

using at::Tensor;

void refuse(const char* call, const std::string& complaint) {
  C10_THROW_ERROR(ValueError, std::string("shoal ") + call + ": " + complaint);
}

void check_tensor(const char* call, const Tensor& tensor) {
  if (!tensor.defined()) refuse(call, "undefined tensor");
  if (tensor.layout() != at::kStrided) refuse(call, "only supports dense tensors; convert this sparse one with to_dense()");
  if (tensor.is_meta()) refuse(call, "only supports tensors with memory; this one is on " + tensor.device().str());
  if (!tensor.has_storage())
    refuse(call,
           "only supports tensors with memory; this one is a wrapper of others (a tensor subclass or torch.func.vmap): pass "
           "those");
}

const Tensor& only_tensor(const char* call, const std::vector<Tensor>& tensors) {
  if (tensors.empty()) refuse(call, "requires non-empty tensor list");
  if (tensors.size() != 1)
    refuse(call, "requires a single-element tensor list, one tensor a rank; this one has " + std::to_string(tensors.size()));
  check_tensor(call, tensors[0]);
  return tensors[0];
}

std::vector<Tensor> unwrapped(std::vector<Tensor> tensors) {
  for (Tensor& tensor : tensors) {
    while (auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor)) tensor = Tensor(wrapper->value());
  }
  return tensors;
}

std::vector<Tensor> only_list(const char* call, const char* which, const std::vector<std::vector<Tensor>>& lists, int size) {
  if (lists.size() != 1)
    refuse(call, std::string("requires a single-element ") + which + " list; this one has " + std::to_string(lists.size()));
  if (lists[0].size() != static_cast<std::size_t>(size))
    refuse(call, std::string("incorrect ") + which + " list size " + std::to_string(lists[0].size()) +
                     ", should be the size of the group, " + std::to_string(size));
  return unwrapped(lists[0]);
}

void check_device(const char* call, const Tensor& tensor, std::size_t index, const Tensor& like) {
  if (tensor.device() != like.device())
    refuse(call, "invalid tensor device at index " + std::to_string(index) + " (expected " + like.device().str() + ", got " +
                     tensor.device().str() + "): the tensors of one call must lie on one device");
}

namespace {
void check_type(const char* call, const Tensor& tensor, std::size_t index, const Tensor& like) {
  if (tensor.scalar_type() != like.scalar_type())
    refuse(call, "invalid tensor type at index " + std::to_string(index) + " (expected " + c10::toString(like.scalar_type()) +
                     ", got " + c10::toString(tensor.scalar_type()) + ")");
  check_device(call, tensor, index, like);
}

/// "[2, 3]"
std::string shape(const Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}
}  // namespace

void check_same_type(const char* call, const std::vector<Tensor>& tensors) {
  if (tensors.empty()) refuse(call, "requires non-empty tensor list");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(call, tensors[i]);
    check_type(call, tensors[i], i, tensors[0]);
  }
}

void check_pairs(const char* call, const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) {
  if (inputs.empty()) refuse(call, "requires non-empty tensor list");
  if (outputs.size() != inputs.size())
    refuse(call, "mismatched list lengths: " + std::to_string(outputs.size()) + " outputs, " + std::to_string(inputs.size()) +
                     " inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(call, inputs[i]);
    check_tensor(call, outputs[i]);
    check_type(call, outputs[i], i, inputs[i]);
    check_device(call, inputs[i], i, inputs[0]);
  }
}

void check_like(const char* call, const Tensor& tensor, std::size_t index, const Tensor& like) {
  check_tensor(call, tensor);
  check_type(call, tensor, index, like);
  if (tensor.numel() != like.numel())
    refuse(call, "invalid tensor size at index " + std::to_string(index) + " (expected " + shape(like) + ", got " +
                     shape(tensor) + ")");
}

void check_root(const char* call, std::int64_t root, int size, std::int64_t root_tensor) {
  if (root < 0 || root >= size)
    refuse(call, "invalid root rank: " + std::to_string(root) + "; the group has " + std::to_string(size) + " ranks");
  if (root_tensor != 0) refuse(call, "invalid root tensor: " + std::to_string(root_tensor));
}

void check_peer(const char* call, int peer, int rank, int size) {
  if (peer < 0 || peer >= size)
    refuse(call, "invalid rank: " + std::to_string(peer) + "; the group has " + std::to_string(size) + " ranks");
  if (peer == rank) refuse(call, "rank " + std::to_string(rank) + " is the calling rank itself");
}

void check_shares(const char* call, const char* rule, const char* which, const Tensor& all, const Tensor& share, int size) {
  if (all.numel() == share.numel() * size) return;
  refuse(call, std::string(rule) + ": the " + which + " has " + std::to_string(all.numel()) + " elements; " +
                   std::to_string(size) + " ranks with " + std::to_string(share.numel()) + " each need " +
                   std::to_string(share.numel() * size));
}

void check_parts(const char* call, const std::vector<Tensor>& parts, int rank, const Tensor& own) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check_tensor(call, parts[i]);
    check_type(call, parts[i], i, own);
  }
  check_like(call, parts[static_cast<std::size_t>(rank)], static_cast<std::size_t>(rank), own);
}

bool are_equal(const std::vector<std::size_t>& counts) {
  return std::ranges::all_of(counts, [&](std::size_t count) { return count == counts[0]; });
}

std::vector<Tensor> list_of_root(const char* call, const char* which, const std::vector<std::vector<Tensor>>& lists,
                                 bool is_root, int size, int rank, const Tensor& own) {
  if (!is_root) {
    if (!lists.empty()) refuse(call, std::string("requires empty ") + which + " on non-root");
    return {};
  }
  std::vector<Tensor> list = only_list(call, which, lists, size);
  check_parts(call, list, rank, own);
  return list;
}

std::vector<Tensor> concat(std::vector<Tensor> first, const std::vector<Tensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

namespace {
bool out_of_reach(const Tensor& tensor, Reach reach) { return reach == Reach::host && on_device(tensor); }

bool is_row_major(const Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

Tensor copy_from_device(const Tensor& tensor) {
  Tensor memory = host_memory(tensor);
  from_device(memory, tensor);
  wait_for_stream(tensor.device());
  return memory;
}
}  // namespace

Tensor contiguous(const Tensor& tensor, Reach reach) {
  if (out_of_reach(tensor, reach)) return copy_from_device(tensor);
  const at::NoGradGuard no_grad;  // an input may require a gradient
  return tensor.resolve_conj().resolve_neg().contiguous();
}

Tensor contiguous_output(const Tensor& tensor, Reach reach) {
  if (out_of_reach(tensor, reach)) return host_memory(tensor);
  return is_row_major(tensor) ? tensor : at::empty_like(tensor, at::MemoryFormat::Contiguous);
}

std::function<void()> copy_back(const Tensor& memory, const Tensor& tensor) {
  if (memory.is_same(tensor)) return {};
  return [memory, tensor] { to_device(tensor, memory); };
}

namespace {
/// Start of the memory of all parts if they are contiguous in their order and within reach; else null.
void* one_piece(const std::vector<Tensor>& parts, Reach reach) {
  if (!parts.empty() && out_of_reach(parts[0], reach)) return nullptr;
  char* begin = nullptr;
  const char* end = nullptr;
  for (const Tensor& part : parts) {
    if (!is_row_major(part)) return nullptr;
    if (part.numel() == 0) continue;
    // Adjacent allocations of a device are not one piece of memory.
    if (on_device(part) && !part.storage().is_alias_of(parts[0].storage())) return nullptr;
    auto* data = static_cast<char*>(part.data_ptr());
    if (begin == nullptr) {
      begin = data;
    } else if (data != end) {
      return nullptr;
    }
    end = data + part.nbytes();
  }
  return begin;
}
}  // namespace

Joined::Joined(std::vector<Tensor> parts, Reach reach)
    : parts_(std::move(parts)), reach_(reach), data_(one_piece(parts_, reach)) {
  if (data_ != nullptr || parts_.empty()) return;
  std::int64_t elements = 0;
  for (const Tensor& part : parts_) elements += part.numel();
  copy_ = out_of_reach(parts_[0], reach)
              ? host_memory(parts_[0], elements)
              : at::empty({elements}, parts_[0].options().requires_grad(false).memory_format(at::MemoryFormat::Contiguous));
  data_ = copy_.data_ptr();
}

std::vector<std::size_t> Joined::counts(std::size_t factor) const {
  std::vector<std::size_t> counts;
  counts.reserve(parts_.size());
  for (const Tensor& part : parts_) counts.push_back(static_cast<std::size_t>(part.numel()) * factor);
  return counts;
}

Tensor Joined::slice(std::size_t part, std::int64_t offset) const {
  return copy_.narrow(0, offset, parts_[part].numel()).view(parts_[part].sizes());
}

void Joined::pack() const {
  if (!copies()) return;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < parts_.size(); offset += parts_[i].numel(), ++i) from_device(slice(i, offset), parts_[i]);
  if (out_of_reach(parts_[0], reach_)) wait_for_stream(parts_[0].device());
}

std::function<void()> copy_back(const Joined& joined) {
  if (!joined.copies()) return {};
  return [joined] { joined.unpack(); };
}

void Joined::unpack() const {
  if (!copies()) return;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < parts_.size(); offset += parts_[i].numel(), ++i) to_device(parts_[i], slice(i, offset));
}

}  // namespace shoal::torch
