#include "src/communicator/integer_average.h"

#include <cstdint>
#include <type_traits>

namespace shoal::internal {
namespace {

template <typename T>
constexpr bool kTwoParts = sizeof(T) == sizeof(std::int64_t);

template <typename T>
void split(const T* numbers, std::size_t count, T ranks, T* parts) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    T quotient = numbers[i] / ranks;
    T remainder = numbers[i] % ranks;
    if constexpr (std::is_signed_v<T>) {
      if (remainder < 0) {
        remainder += ranks;
        --quotient;
      }
    }
    parts[2 * i] = quotient;
    parts[2 * i + 1] = remainder;
  }
}

template <typename T>
void join(const T* sums, std::size_t count, T ranks, T* averages) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    // The sum of the quotients may overflow by less than the remainders bring back: it wraps, so this addition must wrap as
    // well.
    const auto floor =
        static_cast<T>(static_cast<std::uint64_t>(sums[2 * i]) + static_cast<std::uint64_t>(sums[2 * i + 1] / ranks));
    const bool up = std::is_signed_v<T> && floor < T{0} && sums[2 * i + 1] % ranks != 0;
    averages[i] = up ? floor + 1 : floor;
  }
}

/// Calls `function` with a null pointer to the type of the numbers.
template <typename Function>
void with_type(DataType type, Function function) noexcept {
  switch (type) {
    case DataType::int8:
      return function(static_cast<std::int8_t*>(nullptr));
    case DataType::int16:
      return function(static_cast<std::int16_t*>(nullptr));
    case DataType::int32:
      return function(static_cast<std::int32_t*>(nullptr));
    case DataType::int64:
      return function(static_cast<std::int64_t*>(nullptr));
    case DataType::uint8:
      return function(static_cast<std::uint8_t*>(nullptr));
    case DataType::uint16:
      return function(static_cast<std::uint16_t*>(nullptr));
    case DataType::uint32:
      return function(static_cast<std::uint32_t*>(nullptr));
    case DataType::uint64:
      return function(static_cast<std::uint64_t*>(nullptr));
    default:
      return;  // floating types
  }
}

}  // namespace

bool averages_integers(const Request& request, int ranks) noexcept {
  return reduces(request.kind) && request.op == ReduceOp::avg && !is_floating(request.type) && ranks > 1;
}

PlanKey sum_of_parts(const PlanKey& average, std::vector<std::size_t>& counts) {
  PlanKey key = average;
  key.averages = true;
  key.integers = average.collective.type;
  Collective& sum = key.collective;
  sum.op = ReduceOp::sum;
  sum.type = key.integers == DataType::uint64 ? DataType::uint64 : DataType::int64;
  const std::size_t parts = key.parts_of_number();
  sum.count *= parts;
  counts.assign(sum.counts.begin(), sum.counts.end());
  for (std::size_t& count : counts) count *= parts;
  sum.counts = counts;
  return key;
}

void split_into_parts(DataType type, const void* input, std::size_t count, int ranks, void* parts) noexcept {
  with_type(type, [&]<typename T>(T*) {
    const T* numbers = static_cast<const T*>(input);
    if constexpr (kTwoParts<T>) {
      split(numbers, count, static_cast<T>(ranks), static_cast<T*>(parts));
    } else {
      auto* wide = static_cast<std::int64_t*>(parts);
      for (std::size_t i = 0; i < count; ++i) wide[i] = numbers[i];
    }
  });
}

void average_of_parts(DataType type, const void* sums, std::size_t count, int ranks, void* output) noexcept {
  with_type(type, [&]<typename T>(T*) {
    T* averages = static_cast<T*>(output);
    if constexpr (kTwoParts<T>) {
      join(static_cast<const T*>(sums), count, static_cast<T>(ranks), averages);
    } else {
      const auto* wide = static_cast<const std::int64_t*>(sums);
      for (std::size_t i = 0; i < count; ++i) averages[i] = static_cast<T>(wide[i] / ranks);
    }
  });
}

}  // namespace shoal::internal
