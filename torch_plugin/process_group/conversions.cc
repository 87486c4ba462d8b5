#include "torch_plugin/process_group/conversions.h"

#include <optional>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

namespace shoal::torch {
namespace {

std::optional<DataType> to_data_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::float32;
    case at::kDouble:
      return DataType::float64;
    case at::kHalf:
      return DataType::float16;
    case at::kBFloat16:
      return DataType::bfloat16;
    case at::kChar:
      return DataType::int8;
    case at::kShort:
      return DataType::int16;
    case at::kInt:
      return DataType::int32;
    case at::kLong:
      return DataType::int64;
    case at::kByte:
      return DataType::uint8;
    case at::kUInt16:
      return DataType::uint16;
    case at::kUInt32:
      return DataType::uint32;
    case at::kUInt64:
      return DataType::uint64;
    case at::kFloat8_e4m3fn:
      return DataType::float8_e4m3fn;
    case at::kFloat8_e5m2:
      return DataType::float8_e5m2;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> to_reduce_op(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::prod;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    default:
      return std::nullopt;
  }
}

/// The operation on bytes of 0 and 1 that keeps them 0 or 1 and equals `op` on truth values.
std::optional<ReduceOp> to_bool_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return ReduceOp::max;
    case ReduceOp::prod:
    case ReduceOp::min:
    case ReduceOp::band:
      return ReduceOp::min;
    case ReduceOp::bxor:
      return ReduceOp::bxor;
    case ReduceOp::avg:
      return std::nullopt;
  }
  return std::nullopt;
}

const char* name_of(c10d::ReduceOp::RedOpType op) {
  static constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return op < std::size(kNames) ? kNames[op] : "an unknown operation";
}

}  // namespace

Reduction to_reduction(const char* call, const at::Tensor& tensor, const c10d::ReduceOp& c10d_op) {
  const at::ScalarType scalar = tensor.scalar_type();
  const auto elements = static_cast<std::size_t>(tensor.numel());
  const std::optional<ReduceOp> op = to_reduce_op(c10d_op.op_);
  if (op.has_value()) {
    if (scalar == at::kBool) {
      if (const std::optional<ReduceOp> bool_op = to_bool_op(*op)) return {DataType::uint8, *bool_op, 1, elements};
    } else if (tensor.is_complex()) {
      const std::optional<DataType> part = to_data_type(c10::toRealValueType(scalar));
      if (part.has_value() && (*op == ReduceOp::sum || *op == ReduceOp::avg)) return {*part, *op, 2, 2 * elements};
    } else if (const std::optional<DataType> type = to_data_type(scalar); type.has_value() && supports(*type, *op)) {
      return {*type, *op, 1, elements};
    }
  }
  TORCH_CHECK_VALUE(false, "shoal ", call, " with ", name_of(c10d_op.op_), " is not defined on ", c10::toString(scalar),
                    " tensors");
}

at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  using Supplement = c10d::NCCLPreMulSumSupplement;
#else
  using Supplement = c10d::PreMulSumSupplement;
#endif
  const auto* supplement = dynamic_cast<const Supplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "shoal: PREMUL_SUM without a factor");
  const at::NoGradGuard no_grad;
  return supplement->tensor_factor.defined() ? tensor * supplement->tensor_factor : tensor * supplement->double_factor;
}

Movement to_movement(const at::Tensor& tensor) {
  const auto elements = static_cast<std::size_t>(tensor.numel());
  if (const std::optional<DataType> type = to_data_type(tensor.scalar_type())) return {*type, 1, elements};
  const auto bytes = static_cast<std::size_t>(tensor.element_size());
  return {DataType::uint8, bytes, elements * bytes};
}

std::exception_ptr to_exception(const char* call, const Status& status) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  const std::string prefix = std::string("shoal ") + call + ": ";
  switch (status.code()) {
    case StatusCode::invalid_argument:
      return std::make_exception_ptr(c10::ValueError(here, prefix + status.message()));
    case StatusCode::timeout:  // begins as Gloo's message does, for users who search for that
      return std::make_exception_ptr(
          c10::DistBackendError(here, prefix + "Timed out waiting for other ranks: " + status.to_string()));
    default:
      return std::make_exception_ptr(c10::DistBackendError(here, prefix + status.to_string()));
  }
}

c10d::WorkResult to_work_result(const Status& status) {
  if (status.ok()) return c10d::WorkResult::SUCCESS;
  return status.code() == StatusCode::timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
}

std::string plain_message(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  return from_torch != nullptr ? from_torch->what_without_backtrace() : error.what();
}

void throw_status(const char* call, const Status& status) { std::rethrow_exception(to_exception(call, status)); }

}  // namespace shoal::torch
