// The options that the schedule tools share: the machine, the collective and its size.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <shoal/status.h>
#include "src/algorithms/algorithm.h"
#include "src/selector/selector.h"
#include "src/settings/settings.h"

namespace CLI {
class App;
}

namespace shoal {

/// "4", "4K", "4KiB", "4kb", "64M", "1GiB" -> bytes; K, M and G are powers of 1024, as nccl-tests has them.
/// Error: invalid_argument for anything else, negative and too large numbers included.
Result<std::size_t> parse_size(std::string_view text);

/// "2x4" (nodes x ranks of each), "3+1+2" (ranks of each node), "8" (one node).
/// Error: invalid_argument for anything else, and for more than kMaxScheduleRanks ranks.
Result<Topology> parse_shape(std::string_view text);

/// The costs by which the library would choose: SHOAL_NUMERICS.
inline ChoiceCosts choice_costs() {
  return setting("SHOAL_NUMERICS") == "measured" ? ChoiceCosts::exact : ChoiceCosts::classes;
}

/// "2 MiB", "1000 bytes".
inline std::string format_size(std::size_t bytes) { return format_bytes(bytes); }

/// The options as the user gave them, and their meaning.
class ScheduleOptions {
 public:
  /// --ranks, --shape, --type, --op, --root, --algorithm.
  void add_to(CLI::App& command);
  /// --collective and --size, for a command that does not take them as positional arguments.
  void add_size_to(CLI::App& command);
  /// The costs of the links: --network-latency-us, --network-gbit-s, --shared-latency-us, --shared-gbyte-s, --cores.
  void add_costs_to(CLI::App& command);

  [[nodiscard]] Result<Topology> topology() const;
  [[nodiscard]] Result<Collective> collective() const;

  std::string collective_name = "all_reduce";
  std::string size = "1MiB";
  std::string algorithm;  ///< empty if none was named

 private:
  std::optional<int> ranks_;
  std::string shape_;
  std::string type_ = "float32";
  std::string op_ = "sum";
  int root_ = 0;
  Topology costs_;  // only its costs are used
  std::optional<double> network_gbit_s_;
  std::optional<double> shared_gbyte_s_;
};

/// Every rank's Program, unless they have more steps than fit comfortably in memory.
/// Error: as build_schedule(); invalid_argument if the schedule is too large.
Result<Schedule> build_schedule_of_bounded_size(const Algorithm& algorithm, const Topology& topology,
                                                const Collective& collective);

/// Writes `text` to the file at `path`, or to standard output if `path` is empty. Error: system_error.
Status write_output(const std::string& path, const std::string& text);

/// Prints `status` for `command` to standard error; returns the exit status 1.
int report_error(std::string_view command, const Status& status);

}  // namespace shoal
