// The n-way fold and the copy as one thread of many performs them. A kernel calls these with its thread's number; the tests and
// the fake device call them in a loop over all threads.
#pragma once

#include <cstring>

#include "kernels/element.h"
#include "kernels/parameters.h"
#include "kernels/partition.h"

namespace shoal::kernels {

/// 16 bytes that are loaded and stored at once.
struct alignas(kVectorBytes) Vector {
  std::uint32_t words[4];
};

SHOAL_HOST_DEVICE Vector load_vector(const std::byte* from) { return *reinterpret_cast<const Vector*>(from); }
SHOAL_HOST_DEVICE void store_vector(std::byte* to, const Vector& value) { *reinterpret_cast<Vector*>(to) = value; }

/// An element that may lie at any address.
template <typename Stored>
SHOAL_HOST_DEVICE Stored load_element(const std::byte* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(Stored) == 0) return *reinterpret_cast<const Stored*>(from);
  Stored value;
  auto* bytes = reinterpret_cast<std::byte*>(&value);
  for (std::size_t i = 0; i < sizeof(Stored); ++i) bytes[i] = from[i];
  return value;
}
template <typename Stored>
SHOAL_HOST_DEVICE void store_element(std::byte* to, Stored value) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(Stored) == 0) {
    *reinterpret_cast<Stored*>(to) = value;
    return;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  for (std::size_t i = 0; i < sizeof(Stored); ++i) to[i] = bytes[i];
}

/// A fold whose sources are known.
struct Fold {
  const std::byte* sources[kMaxPeers];
  int source_count;
  std::byte* targets[2];
  std::size_t count;
  int divisor;
};

/// A fold of one source, which needs no table that is indexed at run time.
struct FoldOfOne {
  static constexpr int source_count = 1;
  const std::byte* sources[1];
  std::byte* targets[2];
  std::size_t count;
  int divisor;
};

/// The address of `source` at this moment.
SHOAL_HOST_DEVICE const std::byte* resolve(const Source& source) {
  if (source.place == nullptr) return source.address + source.offset_bytes;
  const auto* place = const_cast<const volatile Place*>(source.place);  // another processor has written it
  const std::uint64_t offset = std::uint64_t{place->offset_high} << 32 | place->offset_low;
  return source.bases[place->buffer] + offset + source.offset_bytes;
}

SHOAL_HOST_DEVICE bool vectors_line_up(const auto& fold) {
  const auto beyond = reinterpret_cast<std::uintptr_t>(fold.targets[0]) % kVectorBytes;
  bool same = fold.targets[1] == nullptr || reinterpret_cast<std::uintptr_t>(fold.targets[1]) % kVectorBytes == beyond;
  for (int k = 0; k < fold.source_count; ++k) {
    same = same && reinterpret_cast<std::uintptr_t>(fold.sources[k]) % kVectorBytes == beyond;
  }
  return same;
}

/// Element `i` of a Vector, by shifts: an array that is addressed would lie in memory. Little-endian, as all devices are.
template <typename Stored>
SHOAL_HOST_DEVICE Stored element_of(const Vector& vector, int i) {
  constexpr int kBytes = static_cast<int>(sizeof(Stored));
  if constexpr (kBytes == 8) {
    return std::bit_cast<Stored>(std::uint64_t{vector.words[2 * i + 1]} << 32 | vector.words[2 * i]);
  } else if constexpr (kBytes == 4) {
    return std::bit_cast<Stored>(vector.words[i]);
  } else {
    return static_cast<Stored>(vector.words[i * kBytes / 4] >> (8 * (i * kBytes % 4)));
  }
}

/// Puts element `i` into a Vector whose bits there are zero.
template <typename Stored>
SHOAL_HOST_DEVICE void put_element(Vector& vector, int i, Stored element) {
  constexpr int kBytes = static_cast<int>(sizeof(Stored));
  if constexpr (kBytes == 8) {
    const auto bits = std::bit_cast<std::uint64_t>(element);
    vector.words[2 * i] = static_cast<std::uint32_t>(bits);
    vector.words[2 * i + 1] = static_cast<std::uint32_t>(bits >> 32);
  } else if constexpr (kBytes == 4) {
    vector.words[i] = std::bit_cast<std::uint32_t>(element);
  } else {
    const std::uint32_t bits = static_cast<std::make_unsigned_t<Stored>>(element);
    vector.words[i * kBytes / 4] |= bits << (8 * (i * kBytes % 4));
  }
}

/// How E's elements of one Vector are folded.
template <class E, class Op>
struct VectorFold {
  using Stored = typename E::Stored;
  static constexpr int kElements = static_cast<int>(kVectorBytes / sizeof(Stored));
  typename E::Computed values[kElements];

  SHOAL_HOST_DEVICE void begin(const Vector& vector) {
    SHOAL_UNROLL
    for (int i = 0; i < kElements; ++i) values[i] = E::decode(element_of<Stored>(vector, i));
  }
  SHOAL_HOST_DEVICE void add(const Vector& vector) {
    SHOAL_UNROLL
    for (int i = 0; i < kElements; ++i) values[i] = Op::apply(values[i], E::decode(element_of<Stored>(vector, i)));
  }
  template <bool kDivides>
  SHOAL_HOST_DEVICE Vector end(int divisor) const {
    Vector result{};
    SHOAL_UNROLL
    for (int i = 0; i < kElements; ++i)
      put_element<Stored>(result, i, E::encode(kDivides ? divide(values[i], divisor) : values[i]));
    return result;
  }
};

/// Folds the single element `i` of all sources.
template <class E, class Op, bool kDivides>
SHOAL_HOST_DEVICE void fold_element(const auto& fold, std::size_t i) {
  using Stored = typename E::Stored;
  auto value = E::decode(load_element<Stored>(fold.sources[0] + i * sizeof(Stored)));
  for (int k = 1; k < fold.source_count; ++k) {
    value = Op::apply(value, E::decode(load_element<Stored>(fold.sources[k] + i * sizeof(Stored))));
  }
  const Stored result = E::encode(kDivides ? divide(value, fold.divisor) : value);
  store_element(fold.targets[0] + i * sizeof(Stored), result);
  if (fold.targets[1] != nullptr) store_element(fold.targets[1] + i * sizeof(Stored), result);
}

/// Folds kVectors vectors, `stride` vectors apart: their loads are issued together, which is what memory needs to be busy.
template <class E, class Op, bool kDivides, int kVectors>
SHOAL_HOST_DEVICE void fold_vectors(const auto& fold, std::size_t offset_bytes, std::size_t stride_bytes) {
  VectorFold<E, Op> folds[kVectors];
  SHOAL_UNROLL
  for (int u = 0; u < kVectors; ++u) {
    folds[u].begin(load_vector(fold.sources[0] + offset_bytes + static_cast<std::size_t>(u) * stride_bytes));
  }
  SHOAL_NO_UNROLL
  for (int k = 1; k < fold.source_count; ++k) {
    Vector loaded[kVectors];
    SHOAL_UNROLL
    for (int u = 0; u < kVectors; ++u) {
      loaded[u] = load_vector(fold.sources[k] + offset_bytes + static_cast<std::size_t>(u) * stride_bytes);
    }
    SHOAL_UNROLL
    for (int u = 0; u < kVectors; ++u) folds[u].add(loaded[u]);
  }
  SHOAL_UNROLL
  for (int u = 0; u < kVectors; ++u) {
    const Vector result = folds[u].template end<kDivides>(fold.divisor);
    const std::size_t at = offset_bytes + static_cast<std::size_t>(u) * stride_bytes;
    store_vector(fold.targets[0] + at, result);
    if (fold.targets[1] != nullptr) store_vector(fold.targets[1] + at, result);
  }
}

/// The part of thread `thread` of `threads`. All threads together fold every element once; no two touch the same one.
template <class E, class Op, bool kDivides>
SHOAL_HOST_DEVICE void fold_thread(const auto& fold, std::size_t thread, std::size_t threads) {
  constexpr std::size_t kBytes = sizeof(typename E::Stored);
  constexpr std::size_t kPerVector = kVectorBytes / kBytes;
  // 8-bit floats have 16 values a vector, each of 4 bytes in registers: fewer vectors at once.
  constexpr int kAtOnce = kBytes == 1 ? 2 : static_cast<int>(kUnroll);
  Parts parts{fold.count, 0, 0};
  if (vectors_line_up(fold)) parts = split_range(reinterpret_cast<std::uintptr_t>(fold.targets[0]), fold.count, kBytes);

  const std::size_t begin_bytes = parts.head_elements * kBytes;
  std::size_t v = thread;
  for (; v + (kAtOnce - 1) * threads < parts.vectors; v += kAtOnce * threads) {
    fold_vectors<E, Op, kDivides, kAtOnce>(fold, begin_bytes + v * kVectorBytes, threads * kVectorBytes);
  }
  for (; v < parts.vectors; v += threads) fold_vectors<E, Op, kDivides, 1>(fold, begin_bytes + v * kVectorBytes, 0);
  const std::size_t singles = parts.head_elements + parts.tail_elements;
  for (std::size_t i = thread; i < singles; i += threads) {
    fold_element<E, Op, kDivides>(fold, single_element(parts, i, kPerVector));
  }
}

/// Copies the part of thread `thread` of `threads`: a fold of one operand.
SHOAL_HOST_DEVICE void copy_thread(std::byte* target, const std::byte* source, std::size_t bytes, std::size_t thread,
                                   std::size_t threads) {
  const FoldOfOne fold{{source}, {target, nullptr}, bytes, 0};
  fold_thread<Plain<std::uint8_t>, Bor, false>(fold, thread, threads);
}

}  // namespace shoal::kernels
