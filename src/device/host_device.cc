// The host device: selects the kernel of a type and operation, and the kind of stores.
#include <cassert>
#include <cstring>
#include <type_traits>

#include "src/device/device.h"
#include "src/device/kernels.h"

namespace shoal {
namespace {

/// Copies of at least this many bytes bypass the caches.
constexpr std::size_t kStreamingCopyBytes = std::size_t{8} << 20;

const host::ArithmeticKernels& kernels_of(DataType type) noexcept {
  switch (type) {
    case DataType::float32:
      return host::float32_kernels();
    case DataType::float64:
      return host::float64_kernels();
    case DataType::float16:
      return host::float16_kernels();
    case DataType::bfloat16:
      return host::bfloat16_kernels();
    case DataType::float8_e4m3fn:
      return host::float8_e4m3fn_kernels();
    case DataType::float8_e5m2:
      return host::float8_e5m2_kernels();
    case DataType::int8:
      return host::int8_kernels();
    case DataType::int16:
      return host::int16_kernels();
    case DataType::int32:
      return host::int32_kernels();
    case DataType::int64:
      return host::int64_kernels();
    case DataType::uint8:
      return host::uint8_kernels();
    case DataType::uint16:
      return host::uint16_kernels();
    case DataType::uint32:
      return host::uint32_kernels();
    case DataType::uint64:
      break;
  }
  return host::uint64_kernels();
}

template <typename T>
void divide_each(std::byte* values, std::size_t count, int divisor) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, values + i * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) < sizeof(int) || std::is_signed_v<T>) {
      value = static_cast<T>(value / divisor);
    } else {
      value = static_cast<T>(value / static_cast<T>(divisor));
    }
    std::memcpy(values + i * sizeof(T), &value, sizeof(T));
  }
}

void divide_integers(std::byte* values, std::size_t count, DataType type, int divisor) noexcept {
  switch (type) {
    case DataType::int8:
      return divide_each<std::int8_t>(values, count, divisor);
    case DataType::int16:
      return divide_each<std::int16_t>(values, count, divisor);
    case DataType::int32:
      return divide_each<std::int32_t>(values, count, divisor);
    case DataType::int64:
      return divide_each<std::int64_t>(values, count, divisor);
    case DataType::uint8:
      return divide_each<std::uint8_t>(values, count, divisor);
    case DataType::uint16:
      return divide_each<std::uint16_t>(values, count, divisor);
    case DataType::uint32:
      return divide_each<std::uint32_t>(values, count, divisor);
    case DataType::uint64:
      return divide_each<std::uint64_t>(values, count, divisor);
    default:
      return;  // floating types divide in their kernels
  }
}

class HostDevice final : public Device {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "host"; }

  void reduce(std::byte* target, std::span<const std::byte* const> operands, std::size_t count, DataType type,
              ReduceOp op) const override {
    assert(!operands.empty() && supports(type, op));
    if (count == 0) return;
    if (operands.size() == 1) {
      if (target != operands[0]) copy(target, operands[0], count * size_of(type));
      return;
    }
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        return kernels_of(type).sum(target, operands.data(), operands.size(), count, 1);
      case ReduceOp::prod:
        return kernels_of(type).prod(target, operands.data(), operands.size(), count, 1);
      case ReduceOp::min:
        return kernels_of(type).min(target, operands.data(), operands.size(), count, 1);
      case ReduceOp::max:
        return kernels_of(type).max(target, operands.data(), operands.size(), count, 1);
      case ReduceOp::band:
        return host::byte_kernels().band(target, operands.data(), operands.size(), count * size_of(type), 1);
      case ReduceOp::bor:
        return host::byte_kernels().bor(target, operands.data(), operands.size(), count * size_of(type), 1);
      case ReduceOp::bxor:
        return host::byte_kernels().bxor(target, operands.data(), operands.size(), count * size_of(type), 1);
    }
  }

  void reduce_average(std::byte* target, std::span<const std::byte* const> operands, std::size_t count, DataType type,
                      int divisor) const override {
    assert(!operands.empty() && divisor > 0);
    if (count == 0) return;
    if (const host::Kernel average = kernels_of(type).average) {
      return average(target, operands.data(), operands.size(), count, divisor);
    }
    reduce(target, operands, count, type, ReduceOp::sum);
    divide_integers(target, count, type, divisor);
  }

  void copy(std::byte* target, const std::byte* source, std::size_t bytes) const override {
    if (bytes >= kStreamingCopyBytes) return host::byte_kernels().stream(target, source, bytes);
    if (bytes > 0) std::memcpy(target, source, bytes);
  }

  void stream(std::byte* target, const std::byte* source, std::size_t bytes) const override {
    if (bytes > 0) host::byte_kernels().stream(target, source, bytes);
  }
};

}  // namespace

const Device& host_device() noexcept {
  static const HostDevice device;
  return device;
}

}  // namespace shoal
