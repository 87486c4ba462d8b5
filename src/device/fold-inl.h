// The one loop of all reductions: fold n operands in a single pass over memory.
// Highway includes this file once per target (hwy/foreach_target.h), hence the toggled guard.
#if defined(SHOAL_DEVICE_FOLD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_DEVICE_FOLD_INL
#undef SHOAL_DEVICE_FOLD_INL
#else
#define SHOAL_DEVICE_FOLD_INL
#endif

#include "src/device/kernels.h"
#include "src/device/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::host::HWY_NAMESPACE {

/// How two operands combine, and what happens to the result before it is stored.
struct Sum {
  template <class L, class V>
  static HWY_INLINE V combine(const V& a, const V& b) {
    return L::sum(a, b);
  }
  template <class L, class V>
  static HWY_INLINE V finish(const V& a, int) {
    return a;
  }
};
struct Average : Sum {
  template <class L, class V>
  static HWY_INLINE V finish(const V& a, int divisor) {
    return L::divide(a, divisor);
  }
};
struct Prod : Sum {
  template <class L, class V>
  static HWY_INLINE V combine(const V& a, const V& b) {
    return L::prod(a, b);
  }
};
struct Min : Sum {
  template <class L, class V>
  static HWY_INLINE V combine(const V& a, const V& b) {
    return L::min(a, b);
  }
};
struct Max : Sum {
  template <class L, class V>
  static HWY_INLINE V combine(const V& a, const V& b) {
    return L::max(a, b);
  }
};
struct Band : Sum {
  template <class L, class V>
  static HWY_INLINE V combine(const V& a, const V& b) {
    return L::band(a, b);
  }
};
struct Bor : Sum {
  template <class L, class V>
  static HWY_INLINE V combine(const V& a, const V& b) {
    return L::bor(a, b);
  }
};
struct Bxor : Sum {
  template <class L, class V>
  static HWY_INLINE V combine(const V& a, const V& b) {
    return L::bxor(a, b);
  }
};

/// Folds the vector at `offset` of every operand.
template <class L, class Op>
HWY_INLINE typename L::Value fold_vector(const std::byte* const* operands, std::size_t n, std::size_t offset, int divisor) {
  auto value = L::load(operands[0] + offset);
  for (std::size_t k = 1; k < n; ++k) value = Op::template combine<L>(value, L::load(operands[k] + offset));
  return Op::template finish<L>(value, divisor);
}

/// Folds less than one vector: each operand is padded with zeros on the stack.
template <class L, class Op>
void fold_short(std::byte* target, const std::byte* const* operands, std::size_t n, std::size_t bytes, int divisor) {
  alignas(64) std::byte padded[L::kBytes] = {};
  std::memcpy(padded, operands[0], bytes);
  auto value = L::load(padded);
  for (std::size_t k = 1; k < n; ++k) {
    std::memcpy(padded, operands[k], bytes);
    value = Op::template combine<L>(value, L::load(padded));
  }
  L::store(Op::template finish<L>(value, divisor), padded);
  std::memcpy(target, padded, bytes);
}

/// Folds kOperands operands, known to the compiler so that it keeps their addresses in registers; 0: any number.
///
/// The remainder behind the last whole vector is folded first, as the last whole vector of the buffers, and stored last. It
/// overlaps its neighbour, which is safe in place too: both compute the same values from operands that were read unchanged.
template <class L, class Op, std::size_t kOperands>
void fold(std::byte* target, const std::byte* const* given, std::size_t given_count, std::size_t bytes, int divisor) {
  const std::size_t n = kOperands == 0 ? given_count : kOperands;
  const std::byte* known[kOperands == 0 ? 1 : kOperands];
  for (std::size_t k = 0; k < kOperands; ++k) known[k] = given[k];
  const std::byte* const* operands = kOperands == 0 ? given : known;

  const auto last = fold_vector<L, Op>(operands, n, bytes - L::kBytes, divisor);
  std::size_t done = 0;
  for (; done + 4 * L::kBytes <= bytes; done += 4 * L::kBytes) {
    const std::byte* p = operands[0] + done;
    auto v0 = L::load(p);
    auto v1 = L::load(p + L::kBytes);
    auto v2 = L::load(p + 2 * L::kBytes);
    auto v3 = L::load(p + 3 * L::kBytes);
    for (std::size_t k = 1; k < n; ++k) {
      p = operands[k] + done;
      v0 = Op::template combine<L>(v0, L::load(p));
      v1 = Op::template combine<L>(v1, L::load(p + L::kBytes));
      v2 = Op::template combine<L>(v2, L::load(p + 2 * L::kBytes));
      v3 = Op::template combine<L>(v3, L::load(p + 3 * L::kBytes));
    }
    L::store(Op::template finish<L>(v0, divisor), target + done);
    L::store(Op::template finish<L>(v1, divisor), target + done + L::kBytes);
    L::store(Op::template finish<L>(v2, divisor), target + done + 2 * L::kBytes);
    L::store(Op::template finish<L>(v3, divisor), target + done + 3 * L::kBytes);
  }
  for (; done + L::kBytes <= bytes; done += L::kBytes) {
    L::store(fold_vector<L, Op>(operands, n, done, divisor), target + done);
  }
  L::store(last, target + bytes - L::kBytes);
}

/// The Kernel of one element type and operation.
template <typename T, class Op>
void kernel(std::byte* target, const std::byte* const* operands, std::size_t operand_count, std::size_t count, int divisor) {
  using L = Lanes<T>;
  const std::size_t bytes = count * L::kElementBytes;
  if (bytes < L::kBytes) return fold_short<L, Op>(target, operands, operand_count, bytes, divisor);
  switch (operand_count) {
    case 2:
      return fold<L, Op, 2>(target, operands, operand_count, bytes, divisor);
    case 3:
      return fold<L, Op, 3>(target, operands, operand_count, bytes, divisor);
    case 4:
      return fold<L, Op, 4>(target, operands, operand_count, bytes, divisor);
    default:
      return fold<L, Op, 0>(target, operands, operand_count, bytes, divisor);
  }
}

template <typename T>
inline constexpr ArithmeticKernels kFloatingKernels{kernel<T, Sum>, kernel<T, Prod>, kernel<T, Min>, kernel<T, Max>,
                                                    kernel<T, Average>};

/// Sums and products of signed and unsigned integers have the same bits, so one kernel serves both.
template <typename T>
inline constexpr ArithmeticKernels kIntegerKernels{kernel<std::make_unsigned_t<T>, Sum>, kernel<std::make_unsigned_t<T>, Prod>,
                                                   kernel<T, Min>, kernel<T, Max>, nullptr};

}  // namespace shoal::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHOAL_DEVICE_FOLD_INL
