#include "torch_plugin/train/course.h"

#include <algorithm>

#include "torch_plugin/data/sampler.h"

namespace shoal::train {
namespace {

std::size_t rounded_up(std::size_t dividend, std::size_t divisor) { return (dividend + divisor - 1) / divisor; }

}  // namespace

Course::Course(std::size_t images, std::size_t step_images, int ranks, int epochs)
    : images_(images), step_images_(step_images), first_ranks_(ranks), ranks_(ranks), epochs_(epochs) {}

std::int64_t Course::steps_for(std::size_t images, int ranks) const {
  return static_cast<std::int64_t>(rounded_up(rounded_up(images, static_cast<std::size_t>(ranks)), step_images_));
}

std::int64_t Course::pass_end() const { return since_ + steps_for(images_ - seen_, ranks_); }

std::int64_t Course::end() const {
  if (pass_ >= epochs_) return since_;  // all have ended
  return pass_end() + (epochs_ - pass_ - 1) * steps_for(images_, ranks_);
}

void Course::next_pass() {
  since_ = pass_end();
  seen_ = 0;
  ++pass_;
}

std::size_t Course::seen_until(std::int64_t step) const {
  return seen_ + static_cast<std::size_t>(step - since_) * static_cast<std::size_t>(ranks_) * step_images_;
}

void Course::go_on_with(int ranks, std::int64_t step) {
  seen_ = std::min(seen_until(step), images_);
  since_ = step;
  ranks_ = ranks;
}

void Course::go_to(std::int64_t step, const std::vector<std::int64_t>& known) {
  if (known.size() == kNumbers) {
    first_ranks_ = static_cast<int>(known[0]);
    pass_ = known[1];
    since_ = known[2];
    seen_ = std::min(static_cast<std::size_t>(known[3]), images_);
  }
  while (step >= pass_end()) next_pass();
}

std::vector<std::int64_t> Course::numbers() const { return {first_ranks_, pass_, since_, static_cast<std::int64_t>(seen_)}; }

std::vector<std::size_t> Course::rest(std::int64_t step, int rank, std::uint64_t seed) const {
  if (seen_ == images_) return {};
  std::vector<std::size_t> order =
      data::distributed_order(images_, rank, ranks_, true, seed, static_cast<std::uint64_t>(pass_), seen_);
  const std::size_t made = static_cast<std::size_t>(step - since_) * step_images_;
  order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(std::min(made, order.size())));
  return order;
}

std::int64_t Course::scheduled(std::int64_t step) const {
  const std::size_t at_first = static_cast<std::size_t>(first_ranks_) * step_images_;
  const auto in_pass = static_cast<std::int64_t>(seen_until(std::max(step, since_)) / at_first);
  return pass_ * epoch_steps() + in_pass;
}

}  // namespace shoal::train
