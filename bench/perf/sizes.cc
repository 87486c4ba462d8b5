#include "bench/perf/sizes.h"

#include <charconv>
#include <limits>

#include <fmt/format.h>

namespace shoal::perf {

Result<std::size_t> parse_size(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("size '{}' {}; write bytes, or a number with K, M or G (KiB, MiB, GiB)", text, why));
  };
  if (!text.empty() && text.front() == '-') return refuse("is negative");
  std::size_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range) return refuse("is too large");
  if (error != std::errc{}) return refuse("is not a number");
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  int shift = 0;
  if (unit == "K" || unit == "k" || unit == "KiB") {
    shift = 10;
  } else if (unit == "M" || unit == "m" || unit == "MiB") {
    shift = 20;
  } else if (unit == "G" || unit == "g" || unit == "GiB") {
    shift = 30;
  } else if (!unit.empty() && unit != "B") {
    return refuse(fmt::format("has an unknown unit '{}'", unit));
  }
  if (number > (std::numeric_limits<std::size_t>::max() >> shift)) return refuse("is too large");
  return number << shift;
}

Result<std::vector<std::size_t>> list_sizes(const SizeRange& range) {
  if (range.begin_bytes > range.end_bytes) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("the smallest size (-b {}) is above the largest (-e {})", range.begin_bytes, range.end_bytes));
  }
  if (range.step_bytes == 0 && range.factor < 2) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("-f {} does not change the size; use a factor of 2 or more, or a step with -i", range.factor));
  }
  std::vector<std::size_t> sizes;
  std::size_t size = range.begin_bytes;
  for (;;) {
    sizes.push_back(size);
    const std::size_t room = range.end_bytes - size;
    if (range.step_bytes > 0) {
      if (range.step_bytes > room) return sizes;
      size += range.step_bytes;
    } else if (size == 0) {
      if (room == 0) return sizes;
      size = 1;
    } else {
      if (size > range.end_bytes / static_cast<std::size_t>(range.factor)) return sizes;
      size *= static_cast<std::size_t>(range.factor);
    }
  }
}

}  // namespace shoal::perf
