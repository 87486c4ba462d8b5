// Where in the images a training is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// How the steps of a training lie in its epochs, also where the number of ranks goes down on the way. Steps and passes over
/// the images count from 0.
class EpochPlan {
 public:
  /// Of `images` in an epoch a rank sees `step_images` in a step.
  EpochPlan(std::size_t images, std::size_t step_images, int ranks, int epochs);

  /// The pass that is going on or comes next.
  [[nodiscard]] std::int64_t pass() const { return pass_; }
  /// The steps that will have been made when this pass ends, and when all do.
  [[nodiscard]] std::int64_t pass_end() const;
  [[nodiscard]] std::int64_t end() const;
  /// Goes on to the next pass when this one has ended.
  void next_pass();

  /// `step` steps have been made, the last of them in this pass, and `ranks` are left: they see what of this pass nobody has
  /// seen yet.
  void go_on_with(int ranks, std::int64_t step);
  /// `step` steps have been made, by a training of which a checkpoint knows these numbers(); none: by as many ranks as now.
  /// Errors: invalid_argument for numbers that no training comes to; then nothing has changed.
  Status go_to(std::int64_t step, const std::vector<std::int64_t>& known = {});
  /// Whether ranks have been lost, so that the number of steps alone does not tell where the training is.
  [[nodiscard]] bool has_lost_ranks() const { return ranks_ != first_ranks_; }
  [[nodiscard]] std::vector<std::int64_t> numbers() const;
  /// numbers() that were written to a file. Errors: invalid_argument for anything else.
  static Result<std::vector<std::int64_t>> read_numbers(const nlohmann::json& written);

  /// More than any training makes, and few enough to reckon with.
  static constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

  /// The images that this rank sees in this pass when `step` steps have been made, in the order of data::distributed_order.
  [[nodiscard]] std::vector<std::size_t> rest(std::int64_t step, int rank, std::uint64_t seed) const;

  /// Steps of an epoch with the ranks of the beginning, and how many of those it would have taken to be where `step` steps have
  /// led: the learning rate goes by them, so that it ends with the last epoch.
  [[nodiscard]] std::int64_t epoch_steps() const { return steps_for(images_, first_ranks_); }
  [[nodiscard]] std::int64_t scheduled(std::int64_t step) const;

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
  std::int64_t since_ = 0;  // step of this pass from which on there are as many ranks as now
  std::size_t seen_ = 0;    // images of this pass that had been seen before that
};

}  // namespace shoal::train
