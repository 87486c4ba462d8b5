// The average of integers, exact for every type.
#pragma once

#include <cstddef>
#include <vector>

#include <shoal/request.h>

#include "src/plan/plan.h"

namespace shoal::internal {

/// The sum of the ranks' numbers may not fit into their type, while their average always does. So every number is split into
/// parts whose sums fit into 64 bits, a call adds up the parts, and each rank computes the average from the sums: exact, and
/// rounded toward zero.
///
/// A number of at most 32 bits is one part. A number x of 64 bits among n ranks is two: floor(x / n) and x - n * floor(x / n).

/// Whether a call is computed that way.
[[nodiscard]] bool averages_integers(const Request& request, int ranks) noexcept;
/// The call that adds up the parts of `average`; `counts` stores its counts, if any.
[[nodiscard]] PlanKey sum_of_parts(const PlanKey& average, std::vector<std::size_t>& counts);

/// Writes the parts of `count` numbers at `input` to `parts`.
void split_into_parts(DataType type, const void* input, std::size_t count, int ranks, void* parts) noexcept;
/// Writes the averages of `count` numbers of each rank to `output`, from the sums of their parts at `sums`.
void average_of_parts(DataType type, const void* sums, std::size_t count, int ranks, void* output) noexcept;

}  // namespace shoal::internal
