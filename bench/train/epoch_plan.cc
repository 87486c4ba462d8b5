#include "bench/train/epoch_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/train/data/sampler.h"

namespace shoal::train {
namespace {

std::size_t rounded_up(std::size_t dividend, std::size_t divisor) { return (dividend + divisor - 1) / divisor; }

}  // namespace

EpochPlan::EpochPlan(std::size_t images, std::size_t step_images, int ranks, int epochs)
    : images_(images), step_images_(step_images), first_ranks_(ranks), ranks_(ranks), epochs_(epochs) {}

std::int64_t EpochPlan::steps_for(std::size_t images, int ranks) const {
  return static_cast<std::int64_t>(rounded_up(rounded_up(images, static_cast<std::size_t>(ranks)), step_images_));
}

std::int64_t EpochPlan::pass_end() const { return since_ + steps_for(images_ - seen_, ranks_); }

std::int64_t EpochPlan::end() const {
  if (pass_ >= epochs_) return since_;  // all passes have ended
  return pass_end() + (epochs_ - pass_ - 1) * steps_for(images_, ranks_);
}

void EpochPlan::next_pass() {
  since_ = pass_end();
  seen_ = 0;
  ++pass_;
}

std::size_t EpochPlan::seen_until(std::int64_t step) const {
  return seen_ + static_cast<std::size_t>(step - since_) * static_cast<std::size_t>(ranks_) * step_images_;
}

void EpochPlan::go_on_with(int ranks, std::int64_t step) {
  seen_ = std::min(seen_until(step), images_);
  since_ = step;
  ranks_ = ranks;
}

Result<std::vector<std::int64_t>> EpochPlan::read_numbers(const nlohmann::json& written) {
  const auto is_number = [](const nlohmann::json& value) {
    if (value.is_number_unsigned()) return value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
    return value.is_number_integer();
  };
  if (!written.is_array() || written.size() != kNumbers || !std::ranges::all_of(written, is_number)) {
    return Status(StatusCode::invalid_argument, "its \"course\" must be " + std::to_string(kNumbers) + " whole numbers");
  }
  return written.get<std::vector<std::int64_t>>();
}

/// Every pass takes at least one step.
Status EpochPlan::check(std::int64_t step, const std::vector<std::int64_t>& known) const {
  const auto in_range = [](const std::string& what, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return Status();
    return Status(StatusCode::invalid_argument, what + " is " + std::to_string(value) + ", not from " + std::to_string(least) +
                                                    " to " + std::to_string(most));
  };
  Status status = in_range("its number of steps", step, 0, kMostSteps);
  if (!status.ok() || known.size() != kNumbers) return status;
  status = in_range("in its \"course\" the number of ranks", known[0], 1, kMostRanks);
  if (status.ok()) status = in_range("in its \"course\" the step", known[2], 0, step);
  if (status.ok()) status = in_range("in its \"course\" the pass", known[1], 0, known[2]);
  if (status.ok()) {
    status = in_range("in its \"course\" the number of images seen", known[3], 0, static_cast<std::int64_t>(images_));
  }
  return status;
}

Status EpochPlan::go_to(std::int64_t step, const std::vector<std::int64_t>& known) {
  if (Status status = check(step, known); !status.ok()) return status;
  if (known.size() == kNumbers) {
    first_ranks_ = static_cast<int>(known[0]);
    pass_ = known[1];
    since_ = known[2];
    seen_ = static_cast<std::size_t>(known[3]);
  }
  if (step < pass_end()) return {};
  next_pass();
  const std::int64_t of_a_pass = steps_for(images_, ranks_);  // in one calculation, because a file may contain any number
  const std::int64_t whole = (step - since_) / of_a_pass;
  pass_ += whole;
  since_ += whole * of_a_pass;
  return {};
}

std::vector<std::int64_t> EpochPlan::numbers() const { return {first_ranks_, pass_, since_, static_cast<std::int64_t>(seen_)}; }

std::vector<std::size_t> EpochPlan::rest(std::int64_t step, int rank, std::uint64_t seed) const {
  if (seen_ == images_) return {};
  std::vector<std::size_t> order =
      data::distributed_order(images_, rank, ranks_, true, seed, static_cast<std::uint64_t>(pass_), seen_);
  const std::size_t made = static_cast<std::size_t>(step - since_) * step_images_;
  order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(std::min(made, order.size())));
  return order;
}

std::int64_t EpochPlan::images_used(std::int64_t step) const {
  return pass_ * static_cast<std::int64_t>(images_) +
         static_cast<std::int64_t>(std::min(seen_until(std::max(step, since_)), images_));
}

std::int64_t EpochPlan::scheduled(std::int64_t step) const {
  const std::size_t at_first = static_cast<std::size_t>(first_ranks_) * step_images_;
  const auto in_pass = static_cast<std::int64_t>(seen_until(std::max(step, since_)) / at_first);
  return pass_ * epoch_steps() + in_pass;
}

}  // namespace shoal::train
