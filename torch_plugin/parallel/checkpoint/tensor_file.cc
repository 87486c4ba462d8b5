#include "torch_plugin/parallel/checkpoint/tensor_file.h"

#include <algorithm>
#include <utility>

#include <ATen/EmptyTensor.h>

namespace shoal::parallel {
namespace {

/// torch's reader does not check the offset and sizes of a tensor in its storage, which the file states.
bool lies_in_its_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return false;
  const auto is_negative = [](std::int64_t number) { return number < 0; };
  if (std::ranges::any_of(tensor.sizes(), is_negative) || std::ranges::any_of(tensor.strides(), is_negative)) return false;
  if (tensor.storage_offset() < 0) return false;
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                          static_cast<std::size_t>(tensor.storage_offset())) <= tensor.storage().nbytes();
}

}  // namespace

std::vector<char> to_file(const std::vector<NamedTensor>& tensors) {
  // Pairs, because Python refuses a dictionary written by C++ unless it is told to trust the file.
  std::vector<c10::IValue> pairs;
  for (const auto& [name, tensor] : tensors) {
    pairs.emplace_back(c10::ivalue::Tuple::create(c10::IValue(name), c10::IValue(tensor)));
  }
  return ::torch::pickle_save(c10::ivalue::Tuple::create(std::move(pairs)));
}

std::vector<NamedTensor> from_file(const std::vector<char>& bytes) {
  std::vector<NamedTensor> tensors;
  const c10::IValue content = ::torch::pickle_load(bytes);
  for (const c10::IValue& pair : content.toTupleRef().elements()) {
    const auto& elements = pair.toTupleRef().elements();
    TORCH_CHECK(elements.size() == 2, "it does not contain pairs");
    tensors.emplace_back(elements[0].toStringRef(), elements[1].toTensor());
    TORCH_CHECK(lies_in_its_storage(tensors.back().second), "\"", tensors.back().first, "\" is damaged");
  }
  return tensors;
}

at::Tensor to_tensor(std::string_view text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  text.copy(static_cast<char*>(bytes.data_ptr()), text.size());
  return bytes;
}

std::string from_tensor(const at::Tensor& bytes) {
  TORCH_CHECK(bytes.scalar_type() == at::kByte, "a text is not of bytes");
  const at::Tensor text = bytes.contiguous();
  return {static_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(text.numel())};
}

}  // namespace shoal::parallel
