#include "tests/fault/simulation_run.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "src/progress/progress_thread.h"
#include "tests/fault/simulation_ranks.h"
#include "tests/fault/simulation_system.h"
#include "tests/fault/simulation_verdict.h"

namespace shoal::testing {
namespace {

using Clock = SimulatedClock;
using std::chrono::nanoseconds;

constexpr std::uint64_t kMostSteps = 4'000'000;  // ten times what any seed has needed

/// FNV-1a.
class Hash {
 public:
  void add(std::uint64_t number) {
    for (int byte = 0; byte < 8; ++byte) value_ = (value_ ^ (number >> (8 * byte) & 0xFF)) * 1099511628211U;
  }
  void add(std::string_view words) {
    for (const char c : words) add(static_cast<unsigned char>(c));
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

std::uint64_t since_start(Clock::time_point time) { return static_cast<std::uint64_t>((time - Simulated::kStart).count()); }

class Simulation {
 public:
  explicit Simulation(const Scenario& scenario)
      : scenario_(scenario),
        random_(scenario.seed),
        data_(LoopbackHub::create(scenario.ranks(), scenario.wire).value()),
        control_(LoopbackHub::create(scenario.ranks(), scenario.control).value()) {
    for (auto& executor : make_executors(scenario, data_, control_))
      ranks_.push_back(std::make_unique<SimulatedRank>(scenario, std::move(executor)));
  }

  Report run() {
    begin_fault_if_due();
    const char* stuck = nullptr;
    while (stuck == nullptr && !is_over()) {
      if (others_are_done()) resume_culprit();
      if (SimulatedRank* const rank = choose()) {
        step(*rank);
      } else if (!advance_to_next_event()) {
        stuck = "hangs: no event is left";
      }
      if (++report_.steps == kMostSteps) stuck = "does not end";
    }
    if (stuck != nullptr) report_.complaints.push_back(fmt::format("the simulation {}:{}", stuck, open_calls()));
    report_.time = Simulated::now() - Simulated::kStart;
    report_.fault_began = history_.fault_at.has_value();
    end_ranks(stuck == nullptr);
    if (stuck == nullptr) {
      for (std::string& complaint : complaints_about(history_)) report_.complaints.push_back(std::move(complaint));
    }
    report_.hash = hash_.value();
    return std::move(report_);
  }

 private:
  [[nodiscard]] SimulatedRank& culprit() { return *ranks_[static_cast<std::size_t>(scenario_.culprit)]; }
  [[nodiscard]] bool moves(const SimulatedRank& rank) const {
    return !history_.is_dead(rank.rank()) && !(paused_ && history_.is_culprit(rank.rank()));
  }
  [[nodiscard]] bool is_over(const SimulatedRank& rank) const {
    return rank.is_done() && (!scenario_.leaves || rank.has_left());
  }
  [[nodiscard]] bool is_over() const {
    return std::ranges::all_of(ranks_, [&](const auto& rank) { return history_.is_dead(rank->rank()) || is_over(*rank); });
  }
  [[nodiscard]] bool others_are_done() const {
    return std::ranges::all_of(ranks_, [&](const auto& rank) { return history_.is_culprit(rank->rank()) || rank->is_done(); });
  }

  /// The rank that makes the next step; null if no rank is ready.
  SimulatedRank* choose() {
    const auto count = ranks_.size();
    std::size_t first = random_() % count;
    if (random_() % 16 < scenario_.burst) first = last_;
    for (std::size_t i = 0; i < count; ++i) {
      SimulatedRank& rank = *ranks_[(first + i) % count];
      if (!moves(rank) || !(rank.is_ready() || (rank.is_done() && !is_over(rank)))) continue;
      last_ = (first + i) % count;
      return &rank;
    }
    return nullptr;
  }

  void step(SimulatedRank& rank) {
    Simulated::start_step("step", report_.steps);
    char did = 'x';
    if (rank.is_done() && scenario_.leaves && !rank.is_ready()) {
      rank.leave();
    } else {
      did = rank.step();
    }
    // Each rank has its own core, so with many ranks the steps follow each other sooner.
    const std::uint64_t most = std::max<std::uint64_t>(scenario_.step_ns * 4 / std::max<std::uint64_t>(ranks_.size(), 4), 2);
    Simulated::pass(nanoseconds(most / 2 + random_() % most));
    note(rank.rank(), did);
    if (!history_.is_culprit(rank.rank())) return;
    ++culprit_steps_;
    begin_fault_if_due();
  }

  void note(int rank, char did) {
    const std::uint64_t now = since_start(Simulated::now());
    hash_.add(static_cast<std::uint64_t>(rank) << 8 | static_cast<unsigned char>(did));
    hash_.add(now);
    if (traces_) fmt::print(stderr, "{:>12} ns  rank {:>3}  {}\n", now, rank, did);
  }

  void begin_fault_if_due() {
    if (history_.fault_at || culprit_steps_ != scenario_.at_step || culprit().is_done()) return;
    switch (scenario_.fault) {
      case Fault::pause:
      case Fault::stop:
        paused_ = true;
        break;
      case Fault::kill:
        data_.kill(scenario_.culprit);
        control_.kill(scenario_.culprit);
        break;
      case Fault::abort:
        culprit().abort(fmt::format("rank {} aborted: {}", scenario_.culprit, kAbortReason));
        break;
      default:
        return;
    }
    history_.fault_at = Simulated::now();
    note(scenario_.culprit, '!');
  }

  void resume_culprit() {
    if (history_.resumed_at || !(paused_ || scenario_.fault == Fault::absent)) return;
    history_.resumed_at = Simulated::now();
    paused_ = false;
    culprit().end_absence();
    note(scenario_.culprit, '+');
  }

  /// Moves the clock to the next event. False if there is none.
  bool advance_to_next_event() {
    auto next = Clock::time_point::max();
    for (const auto& rank : ranks_) {
      if (moves(*rank)) next = std::min(next, rank->next_event());
    }
    const bool pauses = paused_ && scenario_.fault == Fault::pause;
    const auto pause_ends = pauses ? *history_.fault_at + scenario_.fault_time : Clock::time_point::max();
    if (std::min(next, pause_ends) == Clock::time_point::max()) return false;
    Simulated::pass_until(std::min(next, pause_ends));
    if (pause_ends <= next) resume_culprit();
    return true;
  }

  [[nodiscard]] std::string open_calls() const {
    std::string open;
    for (const auto& rank : ranks_) {
      for (std::size_t k = 0; k < rank->calls().size(); ++k) {
        if (!rank->calls()[k].ended_at && !history_.is_dead(rank->rank()))
          open += fmt::format(" rank {} is in call {};", rank->rank(), k);
      }
    }
    return open;
  }

  /// `all_ended`: all calls have ended except those of a dead rank.
  void end_ranks(bool all_ended) {
    for (const auto& rank : ranks_) {
      Simulated::start_step("the end of rank", static_cast<unsigned long long>(rank->rank()));
      if (!rank->has_left()) (!all_ended || history_.is_dead(rank->rank())) ? rank->bury() : rank->leave();
      if (!all_ended || history_.is_dead(rank->rank())) continue;
      for (const MadeCall& call : rank->calls()) {
        hash_.add(call.outcome.to_string());
        hash_.add(since_start(*call.ended_at));
        report_.failed_calls += !call.outcome.ok();
        if (traces_) fmt::print(stderr, "rank {}: {}\n", rank->rank(), call.outcome.to_string());
      }
    }
  }

  const Scenario& scenario_;
  std::mt19937_64 random_;
  Report report_;
  Hash hash_;
  LoopbackHub data_;
  LoopbackHub control_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
  History history_{scenario_, ranks_, {}, {}};
  std::size_t last_ = 0;
  std::uint64_t culprit_steps_ = 0;
  bool paused_ = false;
  const bool traces_ = std::getenv("SHOAL_TEST_TRACE") != nullptr;
};

}  // namespace

Report simulate(const Scenario& scenario) {
  ProgressThread::instance();  // before the simulation: it keeps a descriptor of the kernel
  const Simulated system(scenario.seed);
  Report report = Simulation(scenario).run();
  if (const std::size_t open = Simulated::open_descriptors(); open != 0)
    report.complaints.push_back(fmt::format("{} descriptors are left open", open));
  return report;
}

}  // namespace shoal::testing
