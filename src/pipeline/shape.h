// Shape: which pipeline is asked for: the kind of schedule, ranks, chunks and microbatches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal::pipeline {

/// The kinds of schedule. `interleaved` is what SageMaker's library calls so: a backward goes before a forward as soon as it
/// can. Megatron's interleaving, several chunks of the model on each rank, is `virtual_stages`.
enum class ScheduleKind : std::uint8_t {
  simple,          ///< all forwards, then all backwards (GPipe)
  one_f_one_b,     ///< as many forwards as stages follow, then backward and forward in turn
  eager_1f1b,      ///< twice as many forwards first, which hides messages
  interleaved,     ///< list scheduling offline: a backward that is ready, else a forward while few microbatches are held
  virtual_stages,  ///< 1f1b over several chunks on each rank
  zb_h1,           ///< 1f1b with the backward in two halves, of which the second fills the bubble
  forward_only,    ///< evaluation
};

/// "simple", "1f1b", "eager_1f1b", "interleaved", "virtual", "zb_h1", "forward_only".
std::string_view to_string(ScheduleKind kind) noexcept;
/// Error: invalid_argument that lists the names.
Result<ScheduleKind> parse_schedule_kind(std::string_view name);
/// All names, separated by spaces.
std::string schedule_kind_names();

/// Stage s is on rank s % ranks, as its chunk s / ranks.
struct Shape {
  ScheduleKind kind = ScheduleKind::interleaved;
  int ranks = 1;
  int chunks = 1;  ///< stages of a rank; more than one with virtual_stages only
  int microbatches = 1;
  std::optional<int> active_microbatches;  ///< with interleaved: the most that a stage holds; default ranks + 2

  [[nodiscard]] int stages() const { return ranks * chunks; }
  [[nodiscard]] int rank_of(int stage) const { return stage % ranks; }
  /// The most microbatches that a stage holds in `interleaved`.
  [[nodiscard]] int active() const;

  bool operator==(const Shape&) const = default;
};

/// Schedules with more compute actions are refused.
inline constexpr std::int64_t kMaxActions = 4'000'000;

/// Error: invalid_argument that names the numbers and, where some work, the nearest that do.
Status check(const Shape& shape);

/// What the user should know about a valid shape: microbatches fewer than ranks, or a cap without effect.
std::vector<std::string> notes(const Shape& shape);

/// The most microbatches that each stage holds at any moment: those whose forward has begun and whose backward (with zb_h1 both
/// halves) has not ended. Precondition: a valid shape.
std::vector<int> held_microbatches(const Shape& shape);

}  // namespace shoal::pipeline
