// The position of a training in its images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// How the steps of a training are distributed over its epochs, also if ranks are lost on the way. Steps and passes over the
/// images count from 0.
class EpochPlan {
 public:
  /// In each step a rank uses `step_images` of the `images` of an epoch.
  EpochPlan(std::size_t images, std::size_t step_images, int ranks, int epochs);

  /// The current or next pass.
  [[nodiscard]] std::int64_t pass() const { return pass_; }
  /// The number of steps made at the end of this pass, and at the end of all passes.
  [[nodiscard]] std::int64_t pass_end() const;
  [[nodiscard]] std::int64_t end() const;
  /// Moves to the next pass if this one has ended.
  void next_pass();

  /// `step` steps have been made, the last of them in this pass, and `ranks` ranks go on: they use the images of this pass
  /// that no rank has used yet.
  void go_on_with(int ranks, std::int64_t step);
  /// `step` steps have been made, by a training whose checkpoint contains `known` = numbers(); empty: with as many ranks as
  /// now. Errors: invalid_argument for numbers that no training can have; then nothing has changed.
  Status go_to(std::int64_t step, const std::vector<std::int64_t>& known = {});
  /// Whether the number of ranks has changed, so that the number of steps alone does not determine the position.
  [[nodiscard]] bool has_other_ranks() const { return ranks_ != first_ranks_; }
  [[nodiscard]] std::vector<std::int64_t> numbers() const;
  /// Reads the result of numbers() from a file. Errors: invalid_argument for anything else.
  static Result<std::vector<std::int64_t>> read_numbers(const nlohmann::json& written);

  /// More steps than any training makes, and small enough for arithmetic without overflow.
  static constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

  /// The images that this rank uses in the rest of this pass after `step` steps, in the order of data::distributed_order.
  [[nodiscard]] std::vector<std::size_t> rest(std::int64_t step, int rank, std::uint64_t seed) const;

  /// The steps of an epoch with the initial ranks, and the number of such steps that correspond to `step`. The learning rate
  /// depends on them, so that its schedule ends with the last epoch.
  [[nodiscard]] std::int64_t epoch_steps() const { return steps_for(images_, first_ranks_); }
  [[nodiscard]] std::int64_t scheduled(std::int64_t step) const;
  /// The images that all ranks together have used after `step` steps, over all passes.
  [[nodiscard]] std::int64_t images_used(std::int64_t step) const;

 private:
  static constexpr std::size_t kNumbers = 4;
  static constexpr std::int64_t kMostRanks = 1 << 20;

  [[nodiscard]] Status check(std::int64_t step, const std::vector<std::int64_t>& known) const;
  [[nodiscard]] std::int64_t steps_for(std::size_t images, int ranks) const;
  [[nodiscard]] std::size_t seen_until(std::int64_t step) const;

  std::size_t images_;
  std::size_t step_images_;
  int first_ranks_;
  int ranks_;
  int epochs_;
  std::int64_t pass_ = 0;
  std::int64_t since_ = 0;  // step of this pass from which on the number of ranks is the current one
  std::size_t seen_ = 0;    // images of this pass that had been used before that
};

}  // namespace shoal::train
