// Data with a known reduction, independent of the order in which an algorithm reduces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <shoal/types.h>

namespace shoal::perf {

/// The elements of one rank's input, and the expected result of a collective.
///
/// The values are chosen for the type, the operation and the number of ranks so that every partial result can be represented
/// exactly (small integers for sum, few factors of two and three for prod, any bits for the bitwise operations): all orders
/// of reduction then give the same bits. Only `avg` of floating types rounds; there a result within a few units in the last
/// place is accepted. The pattern repeats after a prime number of elements, so that data moved to a wrong place is detected.
class Pattern {
 public:
  /// Precondition: supports(type, op), ranks >= 1. `seed` varies the values between iterations.
  Pattern(DataType type, ReduceOp op, int ranks, std::uint32_t seed);

  /// Writes the input of `rank`, `count` elements.
  void fill(void* data, std::size_t count, int rank) const;
  /// Number of elements that differ from the input of `rank`, starting at its element `first`.
  [[nodiscard]] std::size_t count_wrong_input(const void* data, std::size_t count, int rank, std::size_t first = 0) const;
  /// Number of elements that differ from the reduction of all ranks' inputs, starting at element `first`.
  [[nodiscard]] std::size_t count_wrong_result(const void* data, std::size_t count, std::size_t first = 0) const;

  /// Elements after which the pattern repeats.
  static constexpr std::size_t kPeriod = 4093;

 private:
  [[nodiscard]] double floating_value(int rank, std::size_t index) const;
  [[nodiscard]] std::uint64_t integer_value(int rank, std::size_t index) const;
  [[nodiscard]] std::vector<std::byte> input_of(int rank) const;
  /// A period rotated so that it begins with its element `first`.
  [[nodiscard]] std::vector<std::byte> from(std::vector<std::byte> period, std::size_t first) const;
  void make_floating_result();
  void make_integer_result();

  DataType type_;
  ReduceOp op_;
  int ranks_;
  std::uint32_t seed_;
  std::vector<std::byte> result_;     ///< kPeriod elements
  std::vector<double> result_value_;  ///< if rounding is allowed: the exact results; the next member has the permitted errors
  std::vector<double> result_tolerance_;
};

/// Conversions of one element; encode() expects a value that the type can represent exactly. For tests and reports.
void encode_floating(DataType type, double value, std::byte* out);
[[nodiscard]] double decode_floating(DataType type, const std::byte* in);

}  // namespace shoal::perf
