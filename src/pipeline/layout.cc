#include "src/pipeline/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "src/pipeline/error.h"

namespace shoal::pipeline {
namespace {

constexpr std::string_view kAxisLetters = "DPT";  // by axis

/// The divisor of `whole` that is nearest to `wanted`; the smaller of two equally near ones.
int nearest_divisor(int whole, int wanted) {
  int nearest = 1;
  for (int candidate = 1; candidate <= whole; ++candidate) {
    if (whole % candidate == 0 && std::abs(candidate - wanted) < std::abs(nearest - wanted)) nearest = candidate;
  }
  return nearest;
}

}  // namespace

Result<Placement> parse_placement(std::string_view text) {
  const std::string_view letters = text == "cluster" ? "DPT" : text == "spread" ? "TPD" : text;
  Placement placement{};
  if (letters.size() == placement.size()) {
    std::size_t known = 0;
    for (std::size_t axis = 0; axis < kAxisLetters.size(); ++axis) {
      const auto place = letters.find(kAxisLetters[axis]);
      if (place == std::string_view::npos) break;
      placement[place] = static_cast<Axis>(axis);
      ++known;
    }
    if (known == placement.size()) return placement;
  }
  return invalid(fmt::format("placement_strategy '{}': use cluster, spread, or the letters D, P and T in any order", text));
}

Result<Layout> Layout::create(int ranks, int pipeline, int tensor, bool replicates, const Placement& placement) {
  if (ranks < 1) return invalid(fmt::format("{} ranks: at least 1 is necessary", ranks));
  if (pipeline < 1) return invalid(fmt::format("{} partitions: at least 1 is necessary", pipeline));
  if (tensor < 1) return invalid(fmt::format("tensor_parallel_degree {}: at least 1 is necessary", tensor));
  if (ranks % pipeline != 0) {
    return invalid(fmt::format("{} partitions on {} ranks: not a divisor; the nearest is {}", pipeline, ranks,
                               nearest_divisor(ranks, pipeline)));
  }
  if (ranks / pipeline % tensor != 0) {
    return invalid(
        fmt::format("tensor_parallel_degree {} on {} ranks with {} partitions: not a divisor of {}; the nearest is {}", tensor,
                    ranks, pipeline, ranks / pipeline, nearest_divisor(ranks / pipeline, tensor)));
  }
  const int replicas = ranks / pipeline / tensor;
  if (replicas > 1 && !replicates) {
    return invalid(
        fmt::format("{} ranks, of which {} partitions with tensor_parallel_degree {} use {}: start {} ranks, or set "
                    "ddp to train {} replicas",
                    ranks, pipeline, tensor, pipeline * tensor, pipeline * tensor, replicas));
  }
  Layout layout;
  layout.sizes_ = {replicas, pipeline, tensor};
  int stride = 1;
  for (auto axis = placement.rbegin(); axis != placement.rend(); ++axis) {
    layout.strides_[static_cast<std::size_t>(*axis)] = stride;
    stride *= layout.size(*axis);
  }
  return layout;
}

Position Layout::position(int rank) const {
  const auto along = [&](std::size_t axis) { return rank / strides_[axis] % sizes_[axis]; };
  return {along(0), along(1), along(2)};
}

int Layout::rank(const Position& position) const {
  return position.replica * strides_[0] + position.stage * strides_[1] + position.slice * strides_[2];
}

std::vector<int> Layout::group(int rank, Axis axis) const {
  const auto which = static_cast<std::size_t>(axis);
  const int first = rank - rank / strides_[which] % sizes_[which] * strides_[which];
  std::vector<int> members;
  for (int place = 0; place < sizes_[which]; ++place) members.push_back(first + place * strides_[which]);
  return members;
}

}  // namespace shoal::pipeline
