// Lanes: as many elements as one vector holds, and the arithmetic on them, for the instruction set at hand.
// Highway includes this file once per target (hwy/foreach_target.h), hence the toggled guard.
#if defined(SHOAL_DEVICE_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_DEVICE_LANES_INL
#undef SHOAL_DEVICE_LANES_INL
#else
#define SHOAL_DEVICE_LANES_INL
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "src/device/lanes_portable.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::host::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

using portable::Bfloat16;
using portable::Float16;
using portable::Lanes;
using portable::stream_bytes;

#else

namespace hn = hwy::HWY_NAMESPACE;

/// Element formats that C++20 has no type for.
struct Float16 {};
struct Bfloat16 {};

/// Loads and stores go by bytes, since buffers need no alignment.
template <class D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const std::byte* from) {
  const hn::Repartition<std::uint8_t, D> bytes;
  return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(from)));
}
template <class D>
HWY_INLINE void store_bytes(D d, hn::Vec<D> value, std::byte* to) {
  const hn::Repartition<std::uint8_t, D> bytes;
  static_cast<void>(d);
  hn::StoreU(hn::BitCast(bytes, value), bytes, reinterpret_cast<std::uint8_t*>(to));
}

/// Products that wrap, also if the instruction set has no multiplication of that width. Signed and unsigned have the same
/// bits.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> multiply(D d, hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (std::is_floating_point_v<T>) {
    return hn::Mul(a, b);
  } else if constexpr (sizeof(T) == 1) {
    const hn::Repartition<std::uint16_t, D> wide;
    const auto a16 = hn::BitCast(wide, a);
    const auto b16 = hn::BitCast(wide, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(wide, 0x00FF));
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
    return hn::BitCast(d, hn::Or(even, odd));
  } else if constexpr (sizeof(T) == 8) {
    // (2^32 ah + al)(2^32 bh + bl) = 2^32 (ah bl + al bh) + al bl, modulo 2^64. MulEven multiplies the low halves in full.
    const hn::Repartition<std::uint32_t, D> narrow;
    const hn::Repartition<std::uint64_t, D> wide;
    const auto a64 = hn::BitCast(wide, a);
    const auto b64 = hn::BitCast(wide, b);
    const auto al = hn::BitCast(narrow, a);
    const auto bl = hn::BitCast(narrow, b);
    const auto ah = hn::BitCast(narrow, hn::ShiftRight<32>(a64));
    const auto bh = hn::BitCast(narrow, hn::ShiftRight<32>(b64));
    const auto cross = hn::Add(hn::MulEven(ah, bl), hn::MulEven(al, bh));
    return hn::BitCast(d, hn::Add(hn::MulEven(al, bl), hn::ShiftLeft<32>(cross)));
  } else {
    return hn::Mul(a, b);
  }
}

/// IEEE 754-2019 minimum and maximum: a NaN in either operand is the result (a's if both are), -0 is less than +0. The
/// instructions differ between instruction sets and depend on the order of the operands, so they are not used.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> minimum(D, hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (std::is_floating_point_v<T>) {
    const auto smaller = hn::IfThenElse(hn::Lt(a, b), a, b);
    const auto ordered = hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), smaller);
    return hn::IfThenElse(hn::IsNaN(a), a, ordered);
  } else {
    return hn::Min(a, b);
  }
}
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> maximum(D, hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (std::is_floating_point_v<T>) {
    const auto larger = hn::IfThenElse(hn::Lt(b, a), a, b);
    const auto ordered = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), larger);
    return hn::IfThenElse(hn::IsNaN(a), a, ordered);
  } else {
    return hn::Max(a, b);
  }
}

/// One vector of T, computed in T.
template <typename T>
struct Lanes {
  using D = hn::ScalableTag<T>;
  using Value = hn::Vec<D>;
  static constexpr std::size_t kElementBytes = sizeof(T);
  static constexpr std::size_t kBytes = hn::MaxLanes(D()) * sizeof(T);

  static HWY_INLINE Value load(const std::byte* from) { return load_bytes(D(), from); }
  static HWY_INLINE void store(Value value, std::byte* to) { store_bytes(D(), value, to); }
  static HWY_INLINE Value sum(Value a, Value b) { return hn::Add(a, b); }
  static HWY_INLINE Value prod(Value a, Value b) { return multiply(D(), a, b); }
  static HWY_INLINE Value min(Value a, Value b) { return minimum(D(), a, b); }
  static HWY_INLINE Value max(Value a, Value b) { return maximum(D(), a, b); }
  static HWY_INLINE Value divide(Value a, int divisor) { return hn::Div(a, hn::Set(D(), static_cast<T>(divisor))); }
  static HWY_INLINE Value band(Value a, Value b) { return hn::And(a, b); }
  static HWY_INLINE Value bor(Value a, Value b) { return hn::Or(a, b); }
  static HWY_INLINE Value bxor(Value a, Value b) { return hn::Xor(a, b); }
};

/// Half a vector of float16, computed as one vector of float32.
template <>
struct Lanes<Float16> : Lanes<float> {
  using Stored = hn::Rebind<std::uint16_t, D>;
  using Half = hn::Rebind<hwy::float16_t, D>;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr std::size_t kBytes = hn::MaxLanes(D()) * 2;

  static HWY_INLINE Value load(const std::byte* from) {
    return hn::PromoteTo(D(), hn::BitCast(Half(), load_bytes(Stored(), from)));
  }
  static HWY_INLINE void store(Value value, std::byte* to) {
    store_bytes(Stored(), hn::BitCast(Stored(), hn::DemoteTo(Half(), value)), to);
  }
};

/// A vector of bfloat16, computed as two vectors of float32: the elements at even and at odd positions. A bfloat16 is the
/// upper half of a float32, so splitting and merging need no movement across lanes.
template <>
struct Lanes<Bfloat16> {
  using F = Lanes<float>;
  using D = F::D;
  using U = hn::Repartition<std::uint32_t, D>;
  struct Value {
    F::Value even;
    F::Value odd;
  };
  static constexpr std::size_t kElementBytes = 2;
  static constexpr std::size_t kBytes = F::kBytes;

  static HWY_INLINE Value load(const std::byte* from) {
    const auto pairs = load_bytes(U(), from);
    return {hn::BitCast(D(), hn::ShiftLeft<16>(pairs)), hn::BitCast(D(), hn::And(pairs, hn::Set(U(), 0xFFFF0000U)))};
  }
  static HWY_INLINE void store(const Value& value, std::byte* to) {
    const auto even = hn::ShiftRight<16>(rounded(value.even));
    store_bytes(U(), hn::OrAnd(even, rounded(value.odd), hn::Set(U(), 0xFFFF0000U)), to);
  }
  static HWY_INLINE Value sum(const Value& a, const Value& b) { return {F::sum(a.even, b.even), F::sum(a.odd, b.odd)}; }
  static HWY_INLINE Value prod(const Value& a, const Value& b) { return {F::prod(a.even, b.even), F::prod(a.odd, b.odd)}; }
  static HWY_INLINE Value min(const Value& a, const Value& b) { return {F::min(a.even, b.even), F::min(a.odd, b.odd)}; }
  static HWY_INLINE Value max(const Value& a, const Value& b) { return {F::max(a.even, b.even), F::max(a.odd, b.odd)}; }
  static HWY_INLINE Value divide(const Value& a, int divisor) {
    return {F::divide(a.even, divisor), F::divide(a.odd, divisor)};
  }

 private:
  /// Rounds to nearest even; the result is in the upper 16 bits. Written out because the instruction for it (AVX512_BF16)
  /// flushes small numbers to zero. NaNs need no special case: a NaN that comes from bfloat16 operands has zeros in its lower
  /// half, and so does the NaN that the processor generates, hence nothing carries into the upper half.
  static HWY_INLINE hn::Vec<U> rounded(F::Value value) {
    const auto bits = hn::BitCast(U(), value);
    const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(U(), 1));
    return hn::Add(bits, hn::Add(last, hn::Set(U(), 0x7FFFU)));
  }
};

/// A quarter of a vector of floats of 8 bits, computed as one vector of float32; see Format<Float8> for the arithmetic.
template <int kFractionBits, std::uint32_t kFirstSpecial>
struct Lanes<portable::Float8<kFractionBits, kFirstSpecial>> : Lanes<float> {
  using N = portable::Float8Numbers<kFractionBits, kFirstSpecial>;
  using F = Lanes<float>;
  using D = F::D;
  using Value = F::Value;
  using U = hn::Repartition<std::uint32_t, D>;
  using I = hn::Repartition<std::int32_t, D>;
  using Stored = hn::Rebind<std::uint8_t, D>;
  static constexpr std::size_t kElementBytes = 1;
  static constexpr std::size_t kBytes = hn::MaxLanes(D());

  static HWY_INLINE Value load(const std::byte* from) {
    const auto bits8 = hn::PromoteTo(U(), load_bytes(Stored(), from));
    const auto magnitude = hn::And(bits8, set(0x7F));
    const auto shifted = hn::ShiftLeft<N::kShift>(magnitude);
    const auto number = hn::ConvertTo(D(), hn::BitCast(I(), magnitude));
    const auto tiny = hn::BitCast(U(), hn::Mul(number, hn::Set(D(), N::kQuantum)));
    const auto normal = hn::Add(shifted, set(N::kRebias));
    const auto finite = hn::IfThenElse(hn::Lt(magnitude, set(N::kNormalBits)), tiny, normal);
    const auto special = hn::Or(shifted, set(0x7F800000U));
    const auto bits = hn::IfThenElse(hn::Lt(magnitude, set(kFirstSpecial)), finite, special);
    return hn::BitCast(D(), hn::Or(bits, hn::ShiftLeft<24>(hn::AndNot(set(0x7F), bits8))));
  }
  static HWY_INLINE void store(Value value, std::byte* to) {
    const auto bits = hn::BitCast(U(), value);
    const auto magnitude = hn::And(bits, set(0x7FFFFFFFU));
    const auto rounder = hn::Set(D(), N::kRounder);
    const auto tiny = hn::Sub(hn::BitCast(U(), hn::Add(hn::BitCast(D(), magnitude), rounder)), hn::BitCast(U(), rounder));
    const auto last = hn::And(hn::ShiftRight<N::kShift>(magnitude), set(1));
    const auto below_half = set((1U << (N::kShift - 1)) - 1U - N::kRebias);
    const auto normal = hn::ShiftRight<N::kShift>(hn::Add(magnitude, hn::Add(below_half, last)));
    const auto rounded = hn::IfThenElse(hn::Lt(magnitude, set(N::kSmallestNormal)), tiny, hn::Min(normal, set(kFirstSpecial)));
    const auto result = hn::IfThenElse(hn::Gt(magnitude, set(0x7F800000U)), set(N::kNan), rounded);
    const auto signed_result = hn::Or(result, hn::And(hn::ShiftRight<24>(bits), set(0x80)));
    store_bytes(Stored(), hn::DemoteTo(Stored(), hn::BitCast(I(), signed_result)), to);
  }

 private:
  static HWY_INLINE hn::Vec<U> set(std::uint32_t bits) { return hn::Set(U(), bits); }
};

/// Copies without leaving the target in the caches.
inline void stream_bytes(std::byte* target, const std::byte* source, std::size_t bytes) {
  using L = Lanes<std::uint8_t>;
  const auto misaligned = reinterpret_cast<std::uintptr_t>(target) % L::kBytes;
  std::size_t head = misaligned == 0 ? 0 : L::kBytes - misaligned;
  if (head > bytes) head = bytes;
  std::memcpy(target, source, head);
  std::size_t done = head;
  for (; done + 4 * L::kBytes <= bytes; done += 4 * L::kBytes) {
    const auto v0 = L::load(source + done);
    const auto v1 = L::load(source + done + L::kBytes);
    const auto v2 = L::load(source + done + 2 * L::kBytes);
    const auto v3 = L::load(source + done + 3 * L::kBytes);
    auto* to = reinterpret_cast<std::uint8_t*>(target + done);
    hn::Stream(v0, L::D(), to);
    hn::Stream(v1, L::D(), to + L::kBytes);
    hn::Stream(v2, L::D(), to + 2 * L::kBytes);
    hn::Stream(v3, L::D(), to + 3 * L::kBytes);
  }
  std::memcpy(target + done, source + done, bytes - done);
  hwy::FlushStream();  // streaming stores are not ordered with the stores that announce these bytes to another thread
}

#endif

}  // namespace shoal::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHOAL_DEVICE_LANES_INL
