// From a type and an operation at run time to a format and an operation at compile time.
#pragma once

#include "kernels/element.h"
#include "kernels/parameters.h"

namespace shoal::kernels {

/// What a kernel is compiled for: an element, an operation, and whether it divides at the end.
template <class E, class O, bool kDivide>
struct Variant {
  using Element = E;
  using Op = O;
  static constexpr bool kDivides = kDivide;
};

/// Calls visit(Variant) for an operation on floats. avg without a divisor folds as sum.
template <class E, class Visitor>
auto visit_floating(ReduceOp op, int divisor, Visitor&& visit) {
  switch (op) {
    case ReduceOp::prod:
      return visit(Variant<E, Prod, false>());
    case ReduceOp::min:
      return visit(Variant<E, Min, false>());
    case ReduceOp::max:
      return visit(Variant<E, Max, false>());
    default:
      return divisor != 0 ? visit(Variant<E, Sum, true>()) : visit(Variant<E, Sum, false>());
  }
}

/// The same for integers, whose sums, products and bits do not depend on the sign.
template <typename T, class Visitor>
auto visit_integer(ReduceOp op, int divisor, Visitor&& visit) {
  using Unsigned = Plain<std::make_unsigned_t<T>>;
  switch (op) {
    case ReduceOp::prod:
      return visit(Variant<Unsigned, Prod, false>());
    case ReduceOp::min:
      return visit(Variant<Plain<T>, Min, false>());
    case ReduceOp::max:
      return visit(Variant<Plain<T>, Max, false>());
    case ReduceOp::band:
      return visit(Variant<Unsigned, Band, false>());
    case ReduceOp::bor:
      return visit(Variant<Unsigned, Bor, false>());
    case ReduceOp::bxor:
      return visit(Variant<Unsigned, Bxor, false>());
    default:
      return divisor != 0 ? visit(Variant<Plain<T>, Sum, true>()) : visit(Variant<Unsigned, Sum, false>());
  }
}

/// Calls visit(Variant) for `op` on `type`. Precondition: supports(type, op).
template <class Visitor>
auto visit_variant(DataType type, ReduceOp op, int divisor, Visitor&& visit) {
  switch (type) {
    case DataType::float32:
      return visit_floating<Plain<float>>(op, divisor, visit);
    case DataType::float64:
      return visit_floating<Plain<double>>(op, divisor, visit);
    case DataType::float16:
      return visit_floating<Float16>(op, divisor, visit);
    case DataType::bfloat16:
      return visit_floating<Bfloat16>(op, divisor, visit);
    case DataType::float8_e4m3fn:
      return visit_floating<Float8E4M3Fn>(op, divisor, visit);
    case DataType::float8_e5m2:
      return visit_floating<Float8E5M2>(op, divisor, visit);
    case DataType::int8:
      return visit_integer<std::int8_t>(op, divisor, visit);
    case DataType::int16:
      return visit_integer<std::int16_t>(op, divisor, visit);
    case DataType::int32:
      return visit_integer<std::int32_t>(op, divisor, visit);
    case DataType::int64:
      return visit_integer<std::int64_t>(op, divisor, visit);
    case DataType::uint8:
      return visit_integer<std::uint8_t>(op, divisor, visit);
    case DataType::uint16:
      return visit_integer<std::uint16_t>(op, divisor, visit);
    case DataType::uint32:
      return visit_integer<std::uint32_t>(op, divisor, visit);
    case DataType::uint64:
      break;
  }
  return visit_integer<std::uint64_t>(op, divisor, visit);
}

}  // namespace shoal::kernels
