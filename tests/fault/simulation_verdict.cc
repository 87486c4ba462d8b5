#include "tests/fault/simulation_verdict.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "tests/fault/clauses.h"

namespace shoal::testing {
namespace {

using namespace std::chrono_literals;
using Clock = SimulatedClock;
using std::chrono::nanoseconds;

// Limits of failures.md, for ranks that have a core each.
constexpr nanoseconds kDeathIsKnown = 1s;
constexpr nanoseconds kMismatchIsKnown = 1s;
constexpr nanoseconds kCauseIsKnown = 100ms;  // of an abort, and of the first failure of a rank
constexpr nanoseconds kVerdictAfterDeadline = 250ms;

double seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

class Verdict {
 public:
  explicit Verdict(const History& history) : history_(history), scenario_(history.scenario) {}

  std::vector<std::string> complaints() {
    for (const auto& rank : history_.ranks) {
      if (!history_.is_dead(rank->rank())) judge(*rank);
    }
    for (const Failure& failure : failures_) first_failure_ = std::min(first_failure_, *failure.call->ended_at);
    if (!failures_.empty() && culprit_is_waited_for()) judge_first_timeout();
    for (const Failure& failure : failures_) judge_time(failure);
    return std::move(complaints_);
  }

 private:
  struct Failure {
    int rank;
    std::size_t index;
    const MadeCall* call;
  };

  [[nodiscard]] bool culprit_is_waited_for() const {
    return scenario_.fault == Fault::stop || scenario_.fault == Fault::absent;
  }

  void complain(int rank, std::size_t call, const std::string& what) {
    complaints_.push_back(fmt::format("rank {} call {}: {}", rank, call, what));
  }

  void judge(const SimulatedRank& rank) {
    const MadeCall* first_failed = nullptr;
    for (std::size_t k = 0; k < rank.calls().size(); ++k) {
      const MadeCall& call = rank.calls()[k];
      if (!call.wrong.empty()) complain(rank.rank(), k, call.wrong);
      if (call.outcome.ok()) continue;
      failures_.push_back({rank.rank(), k, &call});
      if (first_failed == nullptr) first_failed = &call;
      if (call.outcome.to_string() != first_failed->outcome.to_string())
        complain(rank.rank(), k, "not the first cause: " + call.outcome.to_string());
      if (const std::string what = wrong_error(rank.rank(), call.outcome); !what.empty())
        complain(rank.rank(), k, fmt::format("{}: {}", what, call.outcome.to_string()));
    }
  }

  /// What is wrong with an error; empty: nothing.
  [[nodiscard]] std::string wrong_error(int rank, const Status& outcome) const {
    const auto is = [&](StatusCode code) { return outcome.code() == code; };
    const std::string& message = outcome.message();
    const int culprit = scenario_.culprit;
    switch (scenario_.fault) {
      case Fault::kill:
        if (!is(StatusCode::peer_failed) || first_rank_named_in(message) != culprit) return "not the death";
        return {};
      case Fault::abort:
        if (!is(StatusCode::aborted) || first_rank_named_in(message) != culprit || !mentions(message, kAbortReason))
          return "not the abort";
        return {};
      case Fault::mismatch:
        if (one_side_is_done() && (is(StatusCode::timeout) || (is(StatusCode::peer_failed) && !mentions(message, "died"))))
          return {};
        if (!is(StatusCode::mismatch)) return "not the mismatch";
        if (const auto named = ranks_named_in(message);
            std::set<int>(named.begin(), named.end()).size() < 2 || std::ranges::find(named, culprit) == named.end())
          return "not both ranks";
        return {};
      case Fault::stop:
      case Fault::absent:
        // The culprit paused from before its first check of the call until the deadline. No time is left to ask its peers, so
        // it fails at once and cannot know that it is the late rank.
        if (!is(StatusCode::timeout)) return "not a timeout";
        if (mentions(message, fmt::format("rank {}", culprit), "0.0 s") && rank == culprit) return {};
        if (late_ranks_in(message) != std::set<int>{culprit}) return "not the late rank";
        return {};
      default:
        return "an error without a fault";
    }
  }

  /// Whether the rank that disagrees, or all its peers, have completed all of their calls, because their data took other paths.
  /// They answer no more requests, so the remaining ranks can only wait for them.
  [[nodiscard]] bool one_side_is_done() const {
    const SimulatedRank& culprit = *history_.ranks[static_cast<std::size_t>(scenario_.culprit)];
    return all_went_well(culprit) || std::ranges::all_of(history_.ranks, [&](const auto& rank) {
             return rank->rank() == culprit.rank() || all_went_well(*rank);
           });
  }
  static bool all_went_well(const SimulatedRank& rank) {
    return std::ranges::all_of(rank.calls(), [](const MadeCall& call) { return call.outcome.ok(); });
  }

  void judge_time(const Failure& failure) {
    const auto [rank, index, call] = failure;
    Clock::time_point begin = call->made_at;
    nanoseconds within = kCauseIsKnown;
    switch (scenario_.fault) {
      case Fault::kill:
        begin = std::max(begin, *history_.fault_at);
        within = kDeathIsKnown;
        break;
      case Fault::abort:
        begin = std::max(begin, *history_.fault_at);
        break;
      case Fault::mismatch:
        // The calls that differ may be made last.
        begin = std::max(begin, last_made_before(*call->ended_at));
        within = one_side_is_done() ? scenario_.timeout + kVerdictAfterDeadline : kMismatchIsKnown;
        break;
      default:
        begin = std::max(begin, first_failure_);
        if (history_.is_culprit(rank) && history_.resumed_at) begin = std::max(begin, *history_.resumed_at);
    }
    if (*call->ended_at - begin > within)
      complain(rank, index, fmt::format("only failed after {:.3f} s", seconds(*call->ended_at - begin)));
  }

  [[nodiscard]] Clock::time_point last_made_before(Clock::time_point time) const {
    auto last = Clock::time_point::min();
    for (const auto& rank : history_.ranks) {
      for (const MadeCall& call : rank->calls()) {
        if (call.made_at <= time) last = std::max(last, call.made_at);
      }
    }
    return last;
  }

  /// The first timeout comes at the first deadline of a waiting call, not earlier.
  void judge_first_timeout() {
    auto first_deadline = Clock::time_point::max();
    bool only_the_culprit = true;
    for (const Failure& failure : failures_) only_the_culprit &= history_.is_culprit(failure.rank);
    for (const auto& rank : history_.ranks) {
      if (history_.is_culprit(rank->rank()) && !only_the_culprit) continue;  // it is paused and checks no deadline
      for (const MadeCall& call : rank->calls()) {
        if (*call.ended_at >= first_failure_) first_deadline = std::min(first_deadline, call.made_at + scenario_.timeout);
      }
    }
    if (only_the_culprit) first_deadline = std::max(first_deadline, history_.resumed_at.value_or(first_deadline));
    if (first_failure_ < first_deadline)
      complaints_.push_back(fmt::format("a timeout {:.3f} s early", seconds(first_deadline - first_failure_)));
    if (first_failure_ > first_deadline + kVerdictAfterDeadline)
      complaints_.push_back(fmt::format("a timeout {:.3f} s late", seconds(first_failure_ - first_deadline)));
  }

  const History& history_;
  const Scenario& scenario_;
  std::vector<std::string> complaints_;
  std::vector<Failure> failures_;
  Clock::time_point first_failure_ = Clock::time_point::max();
};

}  // namespace

std::vector<std::string> complaints_about(const History& history) { return Verdict(history).complaints(); }

}  // namespace shoal::testing
