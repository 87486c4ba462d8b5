// From c10d's words to shoal's: element types, operations, errors. Every function throws what Python users of c10d know.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <shoal/status.h>
#include <shoal/types.h>

namespace shoal::torch {

/// How a tensor's elements are reduced: `count` elements of `type` in its memory, with `op`.
struct Reduction {
  DataType type;
  ReduceOp op;
  std::size_t count;
};

/// What all_reduce of `tensor` with `op` is for shoal. Complex numbers are reduced as twice as many real ones (sum and average
/// only), as torch itself does. bool is reduced as bytes of 0 and 1 with the operation that means the same: sum, max and bor
/// are "or"; product, min and band are "and". Throws c10::ValueError when shoal has no such type or the type no such operation;
/// the message names both.
Reduction to_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op);

/// How a tensor's elements are moved unchanged.
struct Movement {
  DataType type;
  std::size_t count;
};

/// What broadcast or all_gather of `tensor` is for shoal. Any dense type can be moved: one that shoal cannot reduce travels as
/// bytes.
Movement to_movement(const at::Tensor& tensor);

/// The exception for a failed operation: c10::DistBackendError with `call` and shoal's message.
std::exception_ptr to_exception(const char* call, const Status& status);

/// What an exception says, without the stack that torch appends.
std::string plain_message(const std::exception& error);

/// Throws to_exception(call, status).
[[noreturn]] void throw_status(const char* call, const Status& status);

}  // namespace shoal::torch
