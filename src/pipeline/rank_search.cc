#include "src/pipeline/rank_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace shoal::pipeline {
namespace {

constexpr std::size_t kMostLabels = 256;  // of a place

std::int64_t rounded_up(std::int64_t dividend, std::int64_t divisor) { return (dividend + divisor - 1) / divisor; }

/// What partitions are compared by, after the cuts the most important.
struct Score {
  Wide time = 0;           ///< of the slowest stage
  std::int64_t bytes = 0;  ///< of the largest rank
  std::int64_t cut_bytes = 0;
};

/// Some stages, up to one unit.
struct Prefix {
  Wide time = 0;
  std::int64_t cut_bytes = 0;
  std::vector<std::int64_t> bytes;  // of each rank

  /// Whether each way to go on from here is at least as good as from `other`.
  [[nodiscard]] bool is_as_good_as(const Prefix& other) const {
    return time <= other.time && cut_bytes <= other.cut_bytes && std::ranges::equal(bytes, other.bytes, std::less_equal<>());
  }
};

class RankSearch {
 public:
  RankSearch(const StageCosts& costs, const RankRequest& request) : costs_(costs), request_(request) {
    const auto stages = static_cast<std::size_t>(costs.stages());
    const auto units = static_cast<std::size_t>(costs.units());
    rest_.assign(stages + 1, std::vector<Rest>(units + 1));
    labels_.assign(stages + 1, std::vector<std::vector<Prefix>>(units + 1));
    for (int first = 0; first < costs.units(); ++first) {
      Rest least{~Wide{0}, std::numeric_limits<std::int64_t>::max()};
      for (int stage = costs.stages() - 1; stage >= 0; --stage) {
        const StageCost cost = costs.cost(stage, first, costs.units());
        least.compute = std::min(least.compute, cost.compute);
        least.bytes = std::min(least.bytes, cost.bytes - (1 + costs.held(stage)) * costs.bytes_before(first));
        rest_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(first)] = least;
      }
    }
  }

  /// Takes these cuts as the best so far, and what follows from moving one of them while that helps.
  void begin_at(const std::vector<int>& cuts) {
    consider(cuts);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < cuts.size(); ++i) {
        for (const int step : {-1, 1}) {
          std::vector<int> other = best_cuts_.value_or(cuts);
          other[i] += step;
          const int before = i == 0 ? 0 : other[i - 1];
          const int behind = i + 1 < other.size() ? other[i + 1] : costs_.units();
          if (other[i] > before && other[i] < behind && consider(other)) moved = true;
        }
      }
    }
    is_from_search_ = false;
  }

  void run() {
    Prefix nothing;
    nothing.bytes.assign(static_cast<std::size_t>(request_.ranks), 0);
    visit(0, 0, nothing);
  }

  [[nodiscard]] bool gave_up() const { return evaluations_ > kMostRankEvaluations; }
  RankAnswer answer() { return {std::move(best_cuts_), evaluations_}; }

 private:
  /// The least that the units from one on cost, as any stages from one on.
  struct Rest {
    Wide compute = 0;
    std::int64_t bytes = 0;
  };

  [[nodiscard]] std::size_t rank_of(int stage) const { return static_cast<std::size_t>(stage % request_.ranks); }

  [[nodiscard]] std::strong_ordering compare(const Score& a, const Score& b) const {
    const auto by_time = a.time <=> b.time;
    const auto by_bytes = a.bytes <=> b.bytes;
    for (const auto order : request_.by_bytes ? std::array{by_bytes, by_time} : std::array{by_time, by_bytes}) {
      if (std::is_neq(order)) return order;
    }
    return a.cut_bytes <=> b.cut_bytes;
  }

  [[nodiscard]] bool within_limit(std::int64_t bytes) const { return !request_.limit_bytes || bytes <= *request_.limit_bytes; }

  /// Whether these cuts are the best so far.
  bool consider(const std::vector<int>& cuts) {
    Prefix all;
    all.bytes.assign(static_cast<std::size_t>(request_.ranks), 0);
    int first = 0;
    for (int stage = 0; stage < costs_.stages(); ++stage) {
      const auto at = static_cast<std::size_t>(stage);
      const int end = at < cuts.size() ? cuts[at] : costs_.units();
      const StageCost cost = costs_.cost(stage, first, end);
      ++evaluations_;
      all.time = std::max(all.time, cost.time);
      all.cut_bytes += costs_.bytes_before(end);
      all.bytes[rank_of(stage)] += cost.bytes;
      first = end;
    }
    return take({all.time, std::ranges::max(all.bytes), all.cut_bytes}, cuts);
  }

  bool take(const Score& score, const std::vector<int>& cuts) {
    if (!within_limit(score.bytes)) return false;
    if (best_cuts_) {
      const auto order = compare(score, best_);
      if (std::is_eq(order) && cuts >= *best_cuts_) is_from_search_ = true;  // those that follow have larger cuts than the best
      if (std::is_gt(order) || (std::is_eq(order) && cuts >= *best_cuts_)) return false;
    }
    best_ = score;
    best_cuts_ = cuts;
    is_from_search_ = true;
    return true;
  }

  /// What no partition that begins so can fall below.
  [[nodiscard]] Score least(int stage, int first, const Prefix& prefix) const {
    Score score{prefix.time, std::ranges::max(prefix.bytes), prefix.cut_bytes};
    const int left = costs_.stages() - stage;
    if (left == 0) return score;
    const Rest& rest = rest_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(first)];
    const auto stages = static_cast<Wide>(left);
    score.time = std::max(score.time, (rest.compute + stages - 1) / stages);
    const int receivers = std::min(left, request_.ranks);
    std::int64_t bytes = rest.bytes;
    for (int each = stage; each < stage + receivers; ++each) bytes += prefix.bytes[rank_of(each)];
    score.bytes = std::max(score.bytes, rounded_up(bytes, receivers));
    return score;
  }

  /// Later prefixes have larger cuts: of equal partitions the first one counts. But that from which the search has begun may
  /// come later than an equal one.
  [[nodiscard]] bool is_hopeless(const Score& score) const {
    if (!within_limit(score.bytes)) return true;
    if (!best_cuts_) return false;
    const auto order = compare(score, best_);
    return std::is_gt(order) || (std::is_eq(order) && is_from_search_);
  }

  bool is_dominated(int stage, int first, const Prefix& prefix) {
    std::vector<Prefix>& known = labels_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(first)];
    if (std::ranges::any_of(known, [&](const Prefix& each) { return each.is_as_good_as(prefix); })) return true;
    if (known.size() < kMostLabels) known.push_back(prefix);
    return false;
  }

  void visit(int stage, int first, const Prefix& prefix) {
    const int behind = costs_.stages() - 1 - stage;  // each needs a unit
    for (int end = behind == 0 ? costs_.units() : first + 1; end <= costs_.units() - behind; ++end) {
      if (++evaluations_ > kMostRankEvaluations) return;
      const StageCost cost = costs_.cost(stage, first, end);
      Prefix next = prefix;
      next.time = std::max(next.time, cost.time);
      next.cut_bytes += costs_.bytes_before(end);
      std::int64_t& bytes = next.bytes[rank_of(stage)];
      bytes += cost.bytes;
      // Longer stages compute longer and keep more. What they send may be less.
      const std::int64_t kept = bytes - costs_.bytes_before(end);
      if (!within_limit(kept)) break;
      if (best_cuts_ && (request_.by_bytes ? kept > best_.bytes : cost.compute > best_.time)) break;
      const Score score = least(stage + 1, end, next);
      if (is_hopeless(score)) continue;
      if (behind == 0) {
        (void)take(score, cuts_);
        continue;
      }
      if (is_dominated(stage + 1, end, next)) continue;
      cuts_.push_back(end);
      visit(stage + 1, end, next);
      cuts_.pop_back();
    }
  }

  const StageCosts& costs_;
  const RankRequest request_;
  std::vector<std::vector<Rest>> rest_;                   // by stage and unit
  std::vector<std::vector<std::vector<Prefix>>> labels_;  // by stage and unit: prefixes that have been visited
  std::vector<int> cuts_;                                 // of the prefix
  Score best_;
  std::optional<std::vector<int>> best_cuts_;
  bool is_from_search_ = false;
  std::int64_t evaluations_ = 0;
};

}  // namespace

std::vector<std::int64_t> bytes_of_ranks(const std::vector<std::int64_t>& bytes_of_stages, int ranks) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks));
  for (std::size_t stage = 0; stage < bytes_of_stages.size(); ++stage)
    bytes[stage % static_cast<std::size_t>(ranks)] += bytes_of_stages[stage];
  return bytes;
}

Result<RankAnswer> search_ranks(const StageCosts& costs, const RankRequest& request, const std::vector<int>& start) {
  RankSearch search(costs, request);
  search.begin_at(start);
  search.run();
  if (!search.gave_up()) return search.answer();
  return Status(StatusCode::unsupported,
                fmt::format("{} units in {} stages on {} ranks: the best partition was not found in {} steps, because a rank "
                            "has several stages; give the cuts, or use fewer chunks",
                            costs.units(), costs.stages(), request.ranks, kMostRankEvaluations));
}

}  // namespace shoal::pipeline
