// Device: memory and arithmetic. The host device reduces with SIMD; a CUDA device enqueues on a stream.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include <shoal/status.h>
#include <shoal/types.h>

namespace shoal {

/// Arithmetic on buffers of one kind of memory.
/// Thread rule: stateless; every method may be called from any thread at once.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// target[i] = operands[0][i] op operands[1][i] op ..., folded in the order of `operands`, for i < count.
  ///
  /// `target` may be equal to any operand, but must not overlap one otherwise. One or more operands (one: a copy). Floats of
  /// 16 and of 8 bits accumulate in float32 with one rounding at the end, to nearest even; other types fold in their own
  /// type, integers wrap. `avg` folds as sum; reduce_average() does its last fold. Buffers need no alignment beyond that of a
  /// byte. `min` and `max` of floats follow IEEE 754-2019 `minimum` and `maximum`: a NaN in any operand makes the result NaN,
  /// and -0 is less than +0. Precondition: supports(type, op).
  virtual void reduce(std::byte* target, std::span<const std::byte* const> operands, std::size_t count, DataType type,
                      ReduceOp op) const = 0;

  /// target[i] = (operands folded with sum)[i] / divisor: the last fold of an `avg`, with one rounding for floats of 16 and 8
  /// bits. Integers divide towards zero.
  virtual void reduce_average(std::byte* target, std::span<const std::byte* const> operands, std::size_t count, DataType type,
                              int divisor) const = 0;

  /// Copies bytes that do not overlap; uses streaming stores, which bypass the caches, if the copy is large enough.
  virtual void copy(std::byte* target, const std::byte* source, std::size_t bytes) const = 0;
  /// As copy(), but always with streaming stores: for pieces of a buffer that is larger than the caches.
  virtual void stream(std::byte* target, const std::byte* source, std::size_t bytes) const = 0;
};

/// The host device (Highway, run-time dispatch). Never null; lives until the process ends.
const Device& host_device() noexcept;

}  // namespace shoal
