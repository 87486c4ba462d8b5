// What describes a call: data types, reduction operations, collectives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <shoal/status.h>

namespace shoal {

/// Element types. The numbers are part of the C API (shoal.h) and of the wire format; append only.
///
/// The floats of 8 bits are those of the Open Compute Project's "OFP8" specification, named as in torch. float8_e4m3fn has 3
/// bits of fraction, values up to 448 and no infinity: a result beyond 464 becomes NaN. float8_e5m2 has 2 bits of fraction and
/// values up to 57344: a result of 61440 or more becomes infinity. Nothing is clamped to the largest value, so that an overflow
/// shows.
enum class DataType : std::uint8_t {
  float32 = 0,
  float64 = 1,
  float16 = 2,
  bfloat16 = 3,
  int8 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  uint8 = 8,
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
  float8_e4m3fn = 12,
  float8_e5m2 = 13,
};
inline constexpr int kDataTypeCount = 14;

/// Reduction operations. `sum` and `prod` of integers wrap: the result is correct modulo 2^bits, as for C++'s unsigned types.
/// `avg` is the sum divided by the number of ranks. For integers the exact sum is divided and rounded toward zero, so that the
/// result always fits (on CUDA memory it is refused with unsupported). The bitwise operations take integer types only. Append
/// only.
enum class ReduceOp : std::uint8_t { sum = 0, prod = 1, min = 2, max = 3, avg = 4, band = 5, bor = 6, bxor = 7 };
inline constexpr int kReduceOpCount = 8;

/// Kinds of calls. Append only. Calls with counts (reduce_scatter_v, ...) are of the same kind as those without. `send` and
/// `receive` are not collectives; they are listed because messages and signatures name them.
enum class CollectiveKind : std::uint8_t {
  all_reduce = 0,
  broadcast = 1,
  all_gather = 2,
  barrier = 3,
  reduce_scatter = 4,
  reduce = 5,
  gather = 6,
  scatter = 7,
  all_to_all = 8,
  send = 9,
  receive = 10,
};
inline constexpr int kCollectiveKindCount = 9;  ///< the collectives; the two kinds after them are point to point

/// Whether a call of `kind` divides its message into shares, one for each rank: `count` and `counts` are then sizes of shares.
[[nodiscard]] constexpr bool deals_in_shares(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::gather ||
         kind == CollectiveKind::scatter || kind == CollectiveKind::all_to_all;
}
/// Whether a call of `kind` has a root.
[[nodiscard]] constexpr bool has_root(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce || kind == CollectiveKind::gather ||
         kind == CollectiveKind::scatter;
}
/// Whether a call of `kind` folds values with `op`.
[[nodiscard]] constexpr bool reduces(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::reduce;
}

/// Bytes of one element; 0 for a value outside the enum.
[[nodiscard]] constexpr std::size_t size_of(DataType type) noexcept {
  // Indexed by DataType's values; in the header because every call uses it.
  constexpr std::array<std::uint8_t, kDataTypeCount> kBytes{4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1};
  const auto i = static_cast<std::size_t>(type);
  return i < kBytes.size() ? kBytes[i] : 0;
}
[[nodiscard]] bool is_floating(DataType type) noexcept;
/// Whether `op` is defined on `type` (bitwise operations are not defined on floating types).
[[nodiscard]] bool supports(DataType type, ReduceOp op) noexcept;

[[nodiscard]] std::string_view to_string(DataType type) noexcept;  ///< "float32"; "?" outside the enum
[[nodiscard]] std::string_view to_string(ReduceOp op) noexcept;
[[nodiscard]] std::string_view to_string(CollectiveKind kind) noexcept;  ///< includes send and receive

/// The inverse of to_string; also accepts nccl-tests' names (float, double, half, ...). The error lists the known names.
/// parse_collective accepts collectives only.
Result<DataType> parse_data_type(std::string_view name);
Result<ReduceOp> parse_reduce_op(std::string_view name);
Result<CollectiveKind> parse_collective(std::string_view name);

}  // namespace shoal
