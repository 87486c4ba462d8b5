// Parsing of message sizes, and the list of sizes of a run.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal::perf {

/// "4", "4K", "4KiB", "64M", "64MiB", "1G", "1GiB" in bytes; K, M and G are powers of 1024, as in nccl-tests.
/// Errors: invalid_argument for anything else, negative numbers and overflow.
Result<std::size_t> parse_size(std::string_view text);

/// How sizes follow one another: by a factor, or by a step in bytes if `step_bytes` is not zero.
struct SizeRange {
  std::size_t begin_bytes = 4;
  std::size_t end_bytes = std::size_t{64} << 20;
  std::size_t step_bytes = 0;
  int factor = 4;
};

/// Every size from begin_bytes to end_bytes. With a factor, a range that starts at 0 continues with 1. Errors:
/// invalid_argument if begin > end, or if neither factor (at least 2) nor step changes the size.
Result<std::vector<std::size_t>> list_sizes(const SizeRange& range);

}  // namespace shoal::perf
