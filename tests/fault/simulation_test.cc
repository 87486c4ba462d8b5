// The engine on the loopback transport in one thread, on a clock of its own: everything that happens depends on the seed alone,
// so a seed that fails does so again, step for step. Delays, refusals, late copies, little room, ranks that are late, stand
// still, die, abort or disagree: every seed ends with right results or with the error that says what has happened, within the
// times that src/engine/failures.md names.
//
// SHOAL_TEST_SEED=n runs one seed; SHOAL_TEST_SEEDS=n, or first:n, others than the usual ones. SHOAL_TEST_TRACE=1 shows each
// step of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "src/engine/progress_thread.h"
#include "tests/fault/simulation_ranks.h"
#include "tests/fault/simulation_scenario.h"
#include "tests/fault/simulation_system.h"
#include "tests/multiprocess/ranks.h"
#include "tests/seeds.h"

namespace shoal::testing {
namespace {

using namespace std::chrono_literals;
using Clock = SimulatedClock;
using std::chrono::nanoseconds;

constexpr std::uint64_t kMostSteps = 4'000'000;
constexpr std::string_view kReason = "as simulated";

double seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

/// What happened in one simulation.
struct Report {
  std::vector<std::string> complaints;
  std::uint64_t hash = 14695981039346656037U;  ///< of all that happened (FNV-1a)
  std::uint64_t steps = 0;
  nanoseconds time{};
  std::size_t failed_calls = 0;
  std::size_t calls = 0;

  void happened(std::uint64_t what) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (what >> (8 * byte) & 0xFF)) * 1099511628211U;
  }
  void happened(std::string_view words) {
    for (const char c : words) happened(static_cast<unsigned char>(c));
  }
};

class Simulation {
 public:
  explicit Simulation(const Scenario& scenario)
      : scenario_(scenario),
        random_(scenario.seed),
        data_(LoopbackHub::create(scenario.ranks(), scenario.wire)),
        control_(LoopbackHub::create(scenario.ranks(), scenario.control)) {
    for (auto& executor : make_executors(scenario, *data_, *control_))
      ranks_.push_back(std::make_unique<SimulatedRank>(scenario, std::move(executor)));
  }

  Report run() {
    begin_fault_if_due();
    while (!std::ranges::all_of(ranks_, [&](const auto& rank) { return is_dead(rank->rank()) || is_over(*rank); })) {
      if (++report_.steps > kMostSteps) return give_up("has not ended");
      if (others_are_done()) let_culprit_go_on();
      if (SimulatedRank* const rank = choose()) {
        step(*rank);
      } else if (!go_on_to_next_event()) {
        return give_up("hangs: nothing is to come");
      }
    }
    report_.time = Simulated::now() - Simulated::kStart;
    finish();
    return std::move(report_);
  }

 private:
  [[nodiscard]] bool is_culprit(int rank) const { return rank == scenario_.culprit; }
  [[nodiscard]] bool is_dead(int rank) const { return scenario_.fault == Fault::kill && fault_at_ && is_culprit(rank); }
  [[nodiscard]] bool is_over(const SimulatedRank& rank) const {
    return rank.is_done() && (!scenario_.leaves || rank.has_left());
  }
  [[nodiscard]] bool is_ready(const SimulatedRank& rank) const {
    if (is_dead(rank.rank()) || (stands_still_ && is_culprit(rank.rank()))) return false;
    return rank.is_ready() || (rank.is_done() && !is_over(rank));
  }
  [[nodiscard]] bool others_are_done() const {
    return std::ranges::all_of(ranks_, [&](const auto& rank) { return is_culprit(rank->rank()) || rank->is_done(); });
  }

  /// The rank whose step is next; null where there is none that could do anything.
  SimulatedRank* choose() {
    const auto count = ranks_.size();
    std::size_t first = random_() % count;
    if (random_() % 16 < scenario_.burst) first = last_;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = (first + i) % count;
      if (!is_ready(*ranks_[at])) continue;
      last_ = at;
      return ranks_[at].get();
    }
    return nullptr;
  }

  void step(SimulatedRank& rank) {
    Simulated::start_step("step", report_.steps);
    char did = 'x';
    if (rank.is_done() && !rank.is_ready()) {
      rank.leave();
    } else {
      did = rank.step();
    }
    // All share a core, however many there are, and longer a step of more of them would reach the deadlines.
    const std::uint64_t most = std::max<std::uint64_t>(scenario_.step_ns * 4 / std::max<std::uint64_t>(ranks_.size(), 4), 2);
    Simulated::pass(nanoseconds(most / 2 + random_() % most));
    note(rank.rank(), did);
    if (is_culprit(rank.rank())) {
      ++culprit_steps_;
      begin_fault_if_due();
    }
  }

  void note(int rank, char did) {
    const auto now = static_cast<std::uint64_t>((Simulated::now() - Simulated::kStart).count());
    report_.happened(static_cast<std::uint64_t>(rank) << 8 | static_cast<unsigned char>(did));
    report_.happened(now);
    if (traces_) fmt::print(stderr, "{:>12} ns  rank {:>3}  {}\n", now, rank, did);
  }

  void begin_fault_if_due() {
    if (fault_at_ || culprit_steps_ != scenario_.at_step) return;
    SimulatedRank& culprit = *ranks_[static_cast<std::size_t>(scenario_.culprit)];
    if (scenario_.fault == Fault::pause || scenario_.fault == Fault::stop) {
      stands_still_ = true;
    } else if (scenario_.fault == Fault::kill) {
      data_->kill(scenario_.culprit);
      control_->kill(scenario_.culprit);
    } else if (scenario_.fault == Fault::abort && !culprit.has_left()) {
      culprit.abort(fmt::format("rank {} aborted: {}", scenario_.culprit, kReason));
    } else {
      return;
    }
    fault_at_ = Simulated::now();
    note(scenario_.culprit, '!');
  }

  void let_culprit_go_on() {
    SimulatedRank& culprit = *ranks_[static_cast<std::size_t>(scenario_.culprit)];
    if (stands_still_ || scenario_.fault == Fault::absent) {
      if (!went_on_at_) note(scenario_.culprit, '+');
      if (!went_on_at_) went_on_at_ = Simulated::now();
    }
    stands_still_ = false;
    culprit.end_absence();
  }

  /// False where there is none.
  bool go_on_to_next_event() {
    auto next = Clock::time_point::max();
    for (const auto& rank : ranks_) {
      const bool moves = !is_dead(rank->rank()) && !(stands_still_ && is_culprit(rank->rank()));
      if (moves) next = std::min(next, rank->next_event());
    }
    const bool pauses = stands_still_ && scenario_.fault == Fault::pause;
    const Clock::time_point pause_ends = pauses ? *fault_at_ + scenario_.fault_time : Clock::time_point::max();
    if (next == Clock::time_point::max() && !pauses) return false;
    Simulated::pass_until(std::min(next, pause_ends));
    if (pause_ends <= next) let_culprit_go_on();
    return true;
  }

  Report give_up(const char* why) {
    std::string open;
    for (const auto& rank : ranks_) {
      for (std::size_t k = 0; k < rank->calls().size(); ++k) {
        if (!rank->calls()[k].ended_at && !is_dead(rank->rank())) open += fmt::format(" rank {} call {};", rank->rank(), k);
      }
    }
    report_.complaints.push_back(fmt::format("the simulation {} after {} steps and {:.3f} s:{}", why, report_.steps,
                                             seconds(Simulated::now() - Simulated::kStart), open));
    for (const auto& rank : ranks_) {
      if (!rank->has_left()) rank->bury();
    }
    return std::move(report_);
  }

  void finish() {
    for (const auto& rank : ranks_) {
      if (rank->has_left()) continue;
      Simulated::start_step("leaving of rank", static_cast<unsigned long long>(rank->rank()));
      if (is_dead(rank->rank())) {
        rank->bury();
      } else {
        rank->leave();
      }
    }
    for (const auto& rank : ranks_) {
      if (!is_dead(rank->rank())) judge(*rank);
    }
    judge_first_failure();
  }

  // Of what a rank has been told.

  void complain(int rank, std::size_t call, const std::string& what) {
    report_.complaints.push_back(fmt::format("rank {} call {}: {}", rank, call, what));
  }

  void judge(const SimulatedRank& rank) {
    const MadeCall* first_failed = nullptr;
    for (std::size_t k = 0; k < rank.calls().size(); ++k) {
      const MadeCall& call = rank.calls()[k];
      ++report_.calls;
      report_.happened(call.outcome.to_string());
      report_.happened(static_cast<std::uint64_t>(call.ended_at->time_since_epoch().count()));
      if (!call.wrong.empty()) complain(rank.rank(), k, call.wrong);
      last_made_ = std::max(last_made_, call.made_at);
      if (call.outcome.ok()) continue;
      ++report_.failed_calls;
      if (traces_) fmt::print(stderr, "rank {} call {}: {}\n", rank.rank(), k, call.outcome.to_string());
      if (first_failed == nullptr) first_failed = &call;
      if (call.outcome.to_string() != first_failed->outcome.to_string())
        complain(rank.rank(), k, "not the first cause: " + call.outcome.to_string());
      failures_.push_back({&rank, k, &call});
      if (const std::string what = odd_words(call.outcome); !what.empty())
        complain(rank.rank(), k, fmt::format("{}: {}", what, call.outcome.to_string()));
    }
  }

  /// What an error should have said and does not.
  std::string odd_words(const Status& outcome) const {
    const auto is = [&](StatusCode code) { return outcome.code() == code; };
    const auto says = [&](const std::string& words) { return outcome.message().find(words) != std::string::npos; };
    const int culprit = scenario_.culprit;
    switch (scenario_.fault) {
      case Fault::kill:
        if (!is(StatusCode::peer_failed) || !says(fmt::format("rank {} died or lost its connection", culprit)))
          return "not the death";
        return {};
      case Fault::abort:
        if (!is(StatusCode::aborted) || !says(fmt::format("rank {} aborted: {}", culprit, kReason))) return "not the abort";
        return {};
      case Fault::mismatch:
        if (!is(StatusCode::mismatch)) return "not the mismatch";
        if (const auto named = ranks_named_in(outcome.message()); named.size() < 2 || !named.contains(culprit))
          return "not both ranks";
        return {};
      case Fault::stop:
      case Fault::absent:
        if (!is(StatusCode::timeout)) return "not a timeout";
        if (late_ranks_in(outcome.message()) != std::set<int>{culprit}) return "not the late rank";
        return {};
      default:
        return "an error though nothing has failed";
    }
  }

  static std::set<int> ranks_named_in(std::string_view words) {
    std::set<int> ranks;
    constexpr std::string_view kRank = "rank ";
    for (auto at = words.find(kRank); at != std::string_view::npos; at = words.find(kRank, at + 1)) {
      const std::string number(words.substr(at + kRank.size(), 10));
      if (std::isdigit(static_cast<unsigned char>(number[0])) != 0) ranks.insert(std::atoi(number.c_str()));
    }
    return ranks;
  }
  /// Those that a timeout is blamed on.
  static std::set<int> late_ranks_in(std::string_view words) {
    std::set<int> ranks;
    for (const std::string_view clause : {"; not in the call: ", "; in the call but data still missing: "}) {
      const auto at = words.find(clause);
      if (at == std::string_view::npos) continue;
      const auto from = at + clause.size();
      ranks.merge(ranks_named_in(words.substr(from, words.find(';', from) - from)));
    }
    return ranks;
  }

  struct Failure {
    const SimulatedRank* rank;
    std::size_t index;
    const MadeCall* call;
  };

  /// When failures came: see src/engine/failures.md.
  void judge_first_failure() {
    if (failures_.empty()) return;
    Clock::time_point first = Clock::time_point::max();
    for (const Failure& failure : failures_) first = std::min(first, *failure.call->ended_at);
    if (scenario_.fault == Fault::stop || scenario_.fault == Fault::absent) judge_timeouts(first);
    for (const Failure& failure : failures_) {
      const auto [rank, index, call] = failure;
      Clock::time_point begin = call->made_at;
      nanoseconds within = 100ms;  // from the first failure on others, by the control plane
      if (scenario_.fault == Fault::kill || scenario_.fault == Fault::abort) begin = std::max(begin, *fault_at_);
      if (scenario_.fault == Fault::kill) within = 1s;
      if (scenario_.fault == Fault::mismatch) {
        begin = std::max(begin, last_made_before(*call->ended_at));
        within = 1s;
      }
      if (scenario_.fault == Fault::stop || scenario_.fault == Fault::absent) begin = std::max(begin, first);
      if (is_culprit(rank->rank()) && went_on_at_) begin = std::max(begin, *went_on_at_);
      if (*call->ended_at - begin > within)
        complain(rank->rank(), index, fmt::format("only failed after {:.3f} s", seconds(*call->ended_at - begin)));
    }
  }

  [[nodiscard]] Clock::time_point last_made_before(Clock::time_point time) const {
    auto last = Clock::time_point::min();
    for (const auto& rank : ranks_) {
      for (const MadeCall& call : rank->calls()) {
        if (call.made_at <= time) last = std::max(last, call.made_at);
      }
    }
    return last;
  }

  void judge_timeouts(Clock::time_point first) {
    auto first_deadline = Clock::time_point::max();
    for (const auto& rank : ranks_) {
      for (const MadeCall& call : rank->calls()) {
        if (*call.ended_at >= first) first_deadline = std::min(first_deadline, call.made_at + scenario_.timeout);
      }
    }
    if (first < first_deadline)
      report_.complaints.push_back(fmt::format("a timeout {:.3f} s early", seconds(first_deadline - first)));
    if (first > first_deadline + 250ms)
      report_.complaints.push_back(fmt::format("a timeout {:.3f} s late", seconds(first - first_deadline)));
  }

  const Scenario& scenario_;
  std::mt19937_64 random_;
  Report report_;
  Result<LoopbackHub> data_;
  Result<LoopbackHub> control_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
  std::size_t last_ = 0;
  std::uint64_t culprit_steps_ = 0;
  std::optional<Clock::time_point> fault_at_;
  std::optional<Clock::time_point> went_on_at_;
  bool stands_still_ = false;
  const bool traces_ = std::getenv("SHOAL_TEST_TRACE") != nullptr;
  Clock::time_point last_made_ = Clock::time_point::min();
  std::vector<Failure> failures_;
};

Report simulate(const Scenario& scenario) {
  ProgressThread::instance();  // now: it has a descriptor for good
  const Simulated system(scenario.seed);
  Report report;
  {
    Simulation simulation(scenario);
    report = simulation.run();
  }
  if (const std::size_t open = Simulated::open_descriptors(); open != 0)
    report.complaints.push_back(fmt::format("{} descriptors are left open", open));
  return report;
}

Report run_seed(std::uint64_t seed) {
  const Scenario scenario = make_scenario(seed);
  Report report = simulate(scenario);
  for (const std::string& complaint : report.complaints) ADD_FAILURE() << "seed " << seed << ": " << complaint;
  if (!report.complaints.empty()) ADD_FAILURE() << scenario.text();
  return report;
}

TEST(Simulation, EverySeedEndsRightOrWithItsError) {
  const Seeds seeds = wanted_seeds({0, 2000});
  std::map<Fault, std::uint64_t> ran, failed;
  std::uint64_t steps = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    const Fault fault = make_scenario(seed).fault;
    const Report report = run_seed(seed);
    steps += report.steps;
    ++ran[fault];
    failed[fault] += report.failed_calls > 0;
  }
  for (const auto& [fault, count] : ran)
    fmt::print("{}: {} seeds, {} with errors\n", kFaultNames[static_cast<std::size_t>(fault)], count, failed[fault]);
  fmt::print("{} steps\n", steps);
}

}  // namespace
}  // namespace shoal::testing
