// The table of reduction kernels of the host device: one row per data type, compiled for several instruction sets.
#pragma once

#include <cstddef>

#include <shoal/types.h>

namespace shoal::host {

/// target[i] = operands[0][i] op ... op operands[operand_count - 1][i] for i < count, folded from the left.
/// `divisor` is used by averages only. Preconditions: operand_count >= 1; target equals an operand or overlaps none.
using Kernel = void (*)(std::byte* target, const std::byte* const* operands, std::size_t operand_count, std::size_t count,
                        int divisor);

/// The kernels of one data type. The bitwise operations depend only on bytes and are in ByteKernels.
struct ArithmeticKernels {
  Kernel sum;
  Kernel prod;
  Kernel min;
  Kernel max;
  Kernel average;  ///< null for integers: vectors cannot divide them, so host_device.cc divides the sums one by one
};

/// Kernels that work on bytes: here `count` is in bytes.
struct ByteKernels {
  Kernel band;
  Kernel bor;
  Kernel bxor;
  /// Copies past the caches; the usual synchronization afterwards makes the bytes visible to other threads.
  void (*stream)(std::byte* target, const std::byte* source, std::size_t bytes);
};

/// The rows for the best instruction set of this CPU. Each lives until the process ends.
const ArithmeticKernels& float32_kernels() noexcept;
const ArithmeticKernels& float64_kernels() noexcept;
const ArithmeticKernels& float16_kernels() noexcept;
const ArithmeticKernels& bfloat16_kernels() noexcept;
const ArithmeticKernels& float8_e4m3fn_kernels() noexcept;
const ArithmeticKernels& float8_e5m2_kernels() noexcept;
const ArithmeticKernels& int8_kernels() noexcept;
const ArithmeticKernels& int16_kernels() noexcept;
const ArithmeticKernels& int32_kernels() noexcept;
const ArithmeticKernels& int64_kernels() noexcept;
const ArithmeticKernels& uint8_kernels() noexcept;
const ArithmeticKernels& uint16_kernels() noexcept;
const ArithmeticKernels& uint32_kernels() noexcept;
const ArithmeticKernels& uint64_kernels() noexcept;
const ByteKernels& byte_kernels() noexcept;

}  // namespace shoal::host
