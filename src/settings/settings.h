// Every SHOAL_* variable: the table that the code reads and that `shoal env` prints.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <shoal/status.h>

namespace shoal {

/// One variable, as `shoal env` shows it.
struct Setting {
  const char* name;
  const char* fallback;  ///< used where the variable is not set; "" = decided by the program
  const char* help;
  bool secret = false;  ///< shoal env prints only whether it is set
};

/// All variables that shoal reads, in the order of the documentation.
std::span<const Setting> settings();

/// The variable's text, or its default. Precondition: `name` is in settings() (checked: aborts in any build). Each call reads
/// the environment; callers read a setting once, at start-up.
std::string setting(std::string_view name);

/// As a whole number from `low` to `high`. Errors: invalid_argument, naming the variable, its value and the range.
Result<std::int64_t> integer_setting(std::string_view name, std::int64_t low, std::int64_t high);

/// As a positive number of `unit`, at most `high`. Errors as above.
Result<double> positive_setting(std::string_view name, double high, std::string_view unit);

/// As a positive number of seconds, at most 1e9; less than a millisecond becomes one millisecond. Errors as above.
Result<std::chrono::milliseconds> time_setting(std::string_view name);

/// Bytes from "65536", "64K", "64KiB", "4MiB", "1G" (powers of 1024). Errors: invalid_argument.
Result<std::uint64_t> parse_bytes(std::string_view text);
/// The setting as such a size from `low` to `high`. Errors: invalid_argument, naming the variable, its value and the range.
Result<std::uint64_t> bytes_setting(std::string_view name, std::uint64_t low, std::uint64_t high);
/// "2 MiB", "1000 bytes": the largest unit that divides it.
std::string format_bytes(std::uint64_t bytes);

}  // namespace shoal
