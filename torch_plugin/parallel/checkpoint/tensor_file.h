// The files of checkpoints: named tensors, which Python reads with dict(torch.load(file)).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include "torch_plugin/parallel/chain/part.h"

namespace shoal::parallel {

/// The bytes of a file with these tensors, in this order. Throws c10::Error.
std::vector<char> to_file(const std::vector<NamedTensor>& tensors);

/// The tensors of a file, which may be damaged or hostile. Throws an exception that says what is wrong with it.
std::vector<NamedTensor> from_file(const std::vector<char>& bytes);

/// A text as a tensor of bytes, and back. from_tensor() throws c10::Error for a tensor of something else.
at::Tensor to_tensor(std::string_view text);
std::string from_tensor(const at::Tensor& bytes);

}  // namespace shoal::parallel
