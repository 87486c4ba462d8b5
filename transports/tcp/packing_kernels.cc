// Kernels of packing: shuffles of 16 bytes take elements apart, and comparisons make the bit planes of codes.
#include "transports/tcp/packing_kernels.h"

// Those of src/device/targets.h: each costs build time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transports/tcp/packing_kernels.cc"
#include <hwy/foreach_target.h>  // includes this file once per further target
#include <hwy/highway.h>

#include <bit>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace shoal::tcp::HWY_NAMESPACE {

// Element by element: for the rest of less than sixteen, and for all elements where there are no vectors.
template <typename Element>
void split_each(const std::uint8_t* elements, std::size_t count, std::uint8_t* rests, std::uint8_t* exponents) {
  constexpr std::size_t kRest = sizeof(Element) - 1;
  for (std::size_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, elements + i * sizeof element, sizeof element);
    element = std::rotl(element, 1);
    std::memcpy(rests + i * kRest, &element, kRest);
    exponents[i] = static_cast<std::uint8_t>(element >> (8 * kRest));
  }
}
template <typename Element>
void join_each(const std::uint8_t* rests, const std::uint8_t* exponents, std::size_t count, std::uint8_t* elements) {
  constexpr std::size_t kRest = sizeof(Element) - 1;
  for (std::size_t i = 0; i < count; ++i) {
    Element element = 0;
    std::memcpy(&element, rests + i * kRest, kRest);
    element = std::rotr(static_cast<Element>(element | exponents[i] << (8 * kRest)), 1);
    std::memcpy(elements + i * sizeof element, &element, sizeof element);
  }
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

constexpr auto split32 = split_each<std::uint32_t>;
constexpr auto join32 = join_each<std::uint32_t>;
constexpr auto split16 = split_each<std::uint16_t>;
constexpr auto join16 = join_each<std::uint16_t>;

struct Coder {
  Window window;

  void encode(const std::uint8_t* exponents, std::uint8_t* planes) const {
    std::memset(planes, 0, kGroupBytes);
    for (std::size_t i = 0; i < kGroup; ++i) {
      const unsigned distance = static_cast<std::uint8_t>(exponents[i] - window.base);
      const unsigned code = exponents[i] == window.other ? kOther : distance < kEscape ? distance : kEscape;
      for (std::size_t k = 0; k < 3; ++k)
        planes[k * kPlaneBytes + i / 8] |= static_cast<std::uint8_t>((code >> k & 1U) << i % 8);
    }
  }
  void decode(const std::uint8_t* planes, std::uint8_t* exponents) const {
    for (std::size_t i = 0; i < kGroup; ++i) {
      unsigned code = 0;
      for (std::size_t k = 0; k < 3; ++k) code |= (planes[k * kPlaneBytes + i / 8] >> i % 8 & 1U) << k;
      exponents[i] = code == kOther ? window.other : static_cast<std::uint8_t>(window.base + code);
    }
  }
};

#else

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::FixedTag<std::uint8_t, 16> kBytes;
constexpr hn::FixedTag<std::uint16_t, 8> kElements16;
constexpr hn::FixedTag<std::uint32_t, 4> kElements32;
using Bytes = hn::Vec<decltype(kBytes)>;
constexpr std::size_t kAtOnce = 16;  // elements

// Where each byte comes from; kNone: a zero.
constexpr std::uint8_t kNone = 0x80;
alignas(16) constexpr std::uint8_t kRests[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, kNone, kNone, kNone, kNone};
alignas(16) constexpr std::uint8_t kFromRests[16] = {0, 1, 2, kNone, 3, 4, 5, kNone, 6, 7, 8, kNone, 9, 10, 11, kNone};
// For the k-th four of sixteen elements.
alignas(16) constexpr std::uint8_t kTops[4][16] = {
    {3, 7, 11, 15, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone},
    {kNone, kNone, kNone, kNone, 3, 7, 11, 15, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone},
    {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, 3, 7, 11, 15, kNone, kNone, kNone, kNone},
    {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone, 3, 7, 11, 15}};
alignas(16) constexpr std::uint8_t kFromTops[4][16] = {
    {kNone, kNone, kNone, 0, kNone, kNone, kNone, 1, kNone, kNone, kNone, 2, kNone, kNone, kNone, 3},
    {kNone, kNone, kNone, 4, kNone, kNone, kNone, 5, kNone, kNone, kNone, 6, kNone, kNone, kNone, 7},
    {kNone, kNone, kNone, 8, kNone, kNone, kNone, 9, kNone, kNone, kNone, 10, kNone, kNone, kNone, 11},
    {kNone, kNone, kNone, 12, kNone, kNone, kNone, 13, kNone, kNone, kNone, 14, kNone, kNone, kNone, 15}};

HWY_INLINE Bytes pick(Bytes from, const std::uint8_t* which) { return hn::TableLookupBytesOr0(from, hn::Load(kBytes, which)); }

void split32(const std::uint8_t* elements, std::size_t count, std::uint8_t* rests, std::uint8_t* exponents) {
  std::size_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) {
    Bytes tops = hn::Zero(kBytes);
    for (std::size_t k = 0; k < 4; ++k) {
      const auto four = hn::BitCast(kElements32, hn::LoadU(kBytes, elements + 4 * i + 16 * k));
      const auto rotated = hn::BitCast(kBytes, hn::RotateRight<31>(four));
      hn::StoreU(pick(rotated, kRests), kBytes, rests + 3 * i + 12 * k);
      tops = hn::Or(tops, pick(rotated, kTops[k]));
    }
    hn::StoreU(tops, kBytes, exponents + i);
  }
  split_each<std::uint32_t>(elements + 4 * i, count - i, rests + 3 * i, exponents + i);
}

void join32(const std::uint8_t* rests, const std::uint8_t* exponents, std::size_t count, std::uint8_t* elements) {
  std::size_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) {
    const Bytes tops = hn::LoadU(kBytes, exponents + i);
    for (std::size_t k = 0; k < 4; ++k) {
      const Bytes low = pick(hn::LoadU(kBytes, rests + 3 * i + 12 * k), kFromRests);
      const auto rotated = hn::BitCast(kElements32, hn::Or(low, pick(tops, kFromTops[k])));
      hn::StoreU(hn::BitCast(kBytes, hn::RotateRight<1>(rotated)), kBytes, elements + 4 * i + 16 * k);
    }
  }
  join_each<std::uint32_t>(rests + 3 * i, exponents + i, count - i, elements + 4 * i);
}

void split16(const std::uint8_t* elements, std::size_t count, std::uint8_t* rests, std::uint8_t* exponents) {
  const auto rotated = [](const std::uint8_t* from) HWY_ATTR {
    const auto eight = hn::BitCast(kElements16, hn::LoadU(kBytes, from));
    return hn::BitCast(kBytes, hn::Or(hn::ShiftLeft<1>(eight), hn::ShiftRight<15>(eight)));
  };
  std::size_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) {
    const Bytes low = rotated(elements + 2 * i);
    const Bytes high = rotated(elements + 2 * i + 16);
    hn::StoreU(hn::ConcatEven(kBytes, high, low), kBytes, rests + i);
    hn::StoreU(hn::ConcatOdd(kBytes, high, low), kBytes, exponents + i);
  }
  split_each<std::uint16_t>(elements + 2 * i, count - i, rests + i, exponents + i);
}

void join16(const std::uint8_t* rests, const std::uint8_t* exponents, std::size_t count, std::uint8_t* elements) {
  const auto store = [](Bytes rotated, std::uint8_t* to) HWY_ATTR {
    const auto eight = hn::BitCast(kElements16, rotated);
    hn::StoreU(hn::BitCast(kBytes, hn::Or(hn::ShiftRight<1>(eight), hn::ShiftLeft<15>(eight))), kBytes, to);
  };
  std::size_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) {
    const Bytes low = hn::LoadU(kBytes, rests + i);
    const Bytes tops = hn::LoadU(kBytes, exponents + i);
    store(hn::InterleaveLower(kBytes, low, tops), elements + 2 * i);
    store(hn::InterleaveUpper(kBytes, low, tops), elements + 2 * i + 16);
  }
  join_each<std::uint16_t>(rests + i, exponents + i, count - i, elements + 2 * i);
}

class Coder {
 public:
  explicit Coder(Window window) {
    for (unsigned code = 0; code < kEscape; ++code) meanings_[code] = static_cast<std::uint8_t>(window.base + code);
    meanings_[kOther] = window.other;
  }

  HWY_INLINE void encode(const std::uint8_t* exponents, std::uint8_t* planes) const {
    const hn::CappedTag<std::uint8_t, kGroup> d;
    const auto base = hn::Set(d, meanings_[0]);
    const auto other = hn::Set(d, meanings_[kOther]);
    std::uint8_t bits[3][kRoomyPlane];
    for (std::size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
      const auto exponent = hn::LoadU(d, exponents + i);
      const auto near = hn::Min(hn::Sub(exponent, base), hn::Set(d, kEscape));
      const auto code = hn::IfThenElse(hn::Eq(exponent, other), hn::Set(d, kOther), near);
      for (std::size_t k = 0; k < 3; ++k)
        hn::StoreMaskBits(d, hn::TestBit(code, hn::Set(d, static_cast<std::uint8_t>(1 << k))), bits[k] + i / 8);
    }
    for (std::size_t k = 0; k < 3; ++k) std::memcpy(planes + k * kPlaneBytes, bits[k], kPlaneBytes);
  }
  HWY_INLINE void decode(const std::uint8_t* planes, std::uint8_t* exponents) const {
    const hn::CappedTag<std::uint8_t, kGroup> d;
    const auto meanings = hn::LoadDup128(d, meanings_);
    std::uint8_t bits[3][kRoomyPlane] = {};
    for (std::size_t k = 0; k < 3; ++k) std::memcpy(bits[k], planes + k * kPlaneBytes, kPlaneBytes);
    for (std::size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
      auto code = hn::Zero(d);
      for (std::size_t k = 0; k < 3; ++k) {
        const auto bit = hn::Set(d, static_cast<std::uint8_t>(1 << k));
        code = hn::Or(code, hn::IfThenElseZero(hn::LoadMaskBits(d, bits[k] + i / 8), bit));
      }
      hn::StoreU(hn::TableLookupBytes(meanings, code), d, exponents + i);
    }
  }

 private:
  // Loading and storing mask bits may touch eight bytes, however many of them are used.
  static constexpr std::size_t kRoomyPlane = kPlaneBytes + 8;
  alignas(16) std::uint8_t meanings_[16] = {};
};

#endif

// A mask of the escapes in a group.
HWY_INLINE std::uint64_t escapes_of(const std::uint8_t* planes) {
  static_assert(kEscape == 0b110);
  std::uint64_t bits[3];
  std::memcpy(bits, planes, kGroupBytes);
  return bits[2] & bits[1] & ~bits[0];
}

std::uint8_t* encode(const std::uint8_t* exponents, std::size_t groups, Window window, std::uint8_t* to,
                     const std::uint8_t* end) {
  const Coder coder{window};
  std::uint8_t* at = to + groups * kGroupBytes;
  for (; groups > 0; --groups, exponents += kGroup, to += kGroupBytes) {
    coder.encode(exponents, to);
    std::uint64_t escapes = escapes_of(to);
    if (end - at < std::popcount(escapes)) return nullptr;
    for (; escapes != 0; escapes &= escapes - 1) *at++ = exponents[std::countr_zero(escapes)];
  }
  return at;
}

const std::uint8_t* decode(const std::uint8_t* from, const std::uint8_t* end, std::size_t groups, Window window,
                           std::uint8_t* exponents) {
  const Coder coder{window};
  const std::uint8_t* at = from + groups * kGroupBytes;
  for (; groups > 0; --groups, exponents += kGroup, from += kGroupBytes) {
    coder.decode(from, exponents);
    std::uint64_t escapes = escapes_of(from);
    if (end - at < std::popcount(escapes)) return nullptr;
    for (; escapes != 0; escapes &= escapes - 1) exponents[std::countr_zero(escapes)] = *at++;
  }
  return at;
}

constexpr bool kFast = HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128;

inline constexpr PackingKernels kKernels{kFast, {4, split32, join32}, {2, split16, join16}, encode, decode};
const PackingKernels* kernels() { return &kKernels; }

}  // namespace shoal::tcp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::tcp {

HWY_EXPORT(kernels);

const PackingKernels& packing_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(kernels)(); }

}  // namespace shoal::tcp
#endif  // HWY_ONCE
