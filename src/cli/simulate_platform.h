// `shoal simulate --platform`: predictions by the engine on SimGrid.
#pragma once

#include <optional>
#include <string>

#include "src/cli/schedule_options.h"

namespace CLI {
class App;
}

namespace shoal {

/// The options of `shoal simulate` for platforms, in addition to ScheduleOptions.
struct PlatformOptions {
  std::string platform;
  std::string nodes;
  std::optional<int> ranks_per_node;
  bool table = false;
  bool published = false;
  std::string json;

  void add_to(CLI::App& command);
  /// Whether to simulate on SimGrid. Error: an option that needs a --platform without one.
  [[nodiscard]] Result<bool> wanted() const;
};

/// Prints, as a table in Markdown, the Selector's plan and its time by SimGrid beside each of published_results().
/// Errors: as predict_at_scale().
Status simulate_published();

/// Prints the predictions. Costs that the user has given to `command` replace those of the platform.
/// Errors: invalid_argument or not_found for bad input, system_error for a file that cannot be written.
Status simulate_platform(const CLI::App& command, const ScheduleOptions& schedule, const PlatformOptions& options);

}  // namespace shoal
