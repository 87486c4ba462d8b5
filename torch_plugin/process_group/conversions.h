// Conversions from c10d's types to shoal's: element types, operations, errors. Every function throws the exceptions that
// Python users of c10d expect.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <shoal/status.h>
#include <shoal/types.h>

namespace shoal::torch {

/// How a tensor's elements are reduced: `count` elements of `type` in its memory, with `op`.
struct Reduction {
  DataType type;
  ReduceOp op;
  std::size_t factor;  ///< elements of `type` in one of the tensor's
  std::size_t count;
};

/// The reduction of shoal that corresponds to a reduction (`call`, for messages) of `tensor` with `op`. PREMUL_SUM is the sum
/// of scaled(). Complex numbers are reduced as twice as many real ones (sum and average only), as torch itself does. Of the
/// 8-bit floats, float8_e4m3fn and float8_e5m2 are reduced. bool is reduced as bytes of 0 and 1 with the equivalent
/// operation: sum, max and bor are "or"; product, min and band are "and". Throws c10::ValueError if shoal has no such type or
/// the type no such operation; the message names both.
Reduction to_reduction(const char* call, const at::Tensor& tensor, const c10d::ReduceOp& op);

/// `tensor` times the factor that PREMUL_SUM carries, in new memory; `tensor` itself for every other operation.
at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op);

/// How a tensor's elements are moved unchanged.
struct Movement {
  DataType type;
  std::size_t factor;  ///< elements of `type` in one of the tensor's
  std::size_t count;
};

/// The movement of shoal that corresponds to a broadcast or all_gather of `tensor`. Any dense type can be moved: a type that
/// shoal cannot reduce is sent as bytes.
Movement to_movement(const at::Tensor& tensor);

/// The exception for a failed operation: c10::DistBackendError with `call` and shoal's message. A bad argument that only
/// shoal detected is a c10::ValueError.
std::exception_ptr to_exception(const char* call, const Status& status);

/// The outcome as c10d's enum.
c10d::WorkResult to_work_result(const Status& status);

/// The message of an exception, without the stack that torch appends.
std::string plain_message(const std::exception& error);

/// Throws to_exception(call, status).
[[noreturn]] void throw_status(const char* call, const Status& status);

}  // namespace shoal::torch
