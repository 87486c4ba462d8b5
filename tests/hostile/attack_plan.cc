#include "tests/hostile/attack_plan.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/hostile/health.h"
#include "tests/hostile/wait_until.h"

namespace shoal::hostile {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMaxQueued = 150;  // for an inactive listener, which leaves connections in its backlog
constexpr std::uint64_t kMaxUnanswered = Attacker::kMaxOpen + 300;  // so that no backlog overflows
constexpr std::uint64_t kStages = 2;

constexpr std::uint64_t divided(std::uint64_t number, std::uint64_t by) { return (number + by - 1) / by; }

}  // namespace

AttackPlan::AttackPlan(SharedState& state, std::vector<Listener> listeners, int inputs, std::uint64_t seed)
    : state_(state),
      listeners_(std::move(listeners)),
      attacker_(seed),
      delivered_(listeners_.size()),
      counted_(listeners_.size()) {
  const auto served =
      std::count_if(listeners_.begin(), listeners_.end(), [](const Listener& one) { return one.serves_in != kNever; });
  share_ = divided(static_cast<std::uint64_t>(inputs), static_cast<std::uint64_t>(served));
}

std::string AttackPlan::run() {
  std::string wrong = check_listeners();
  for (const int now : {kSharedMemory, kData}) {
    if (wrong.empty()) wrong = stage(now);
  }
  state_.stage = kOpen;
  if (wrong.empty()) wrong = finish();
  attacker_.close_all();
  if (wrong.empty()) print();
  return wrong;
}

// The published listeners are exactly those that exist.
std::string AttackPlan::check_listeners() {
  std::map<std::string, pid_t> published;
  for (const Listener& one : listeners_) published.emplace(one.address, pid(one.rank));
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) pids.push_back(pid(rank));
  if (found_listeners(pids) == published) return {};
  std::string text = "the job listens on";
  for (const auto& [address, holder] : found_listeners(pids))
    text += " " + address + (published.contains(address) ? "" : " (!)");
  text += ", but publishes";
  for (const auto& [address, holder] : published) text += " " + address;
  return text;
}

std::string AttackPlan::stage(int stage) {
  std::string wrong = await_stage(stage);
  if (!wrong.empty()) return wrong;
  await_quiet();
  const Descriptors descriptors = descriptors_of(state_);
  wrong = rounds(stage, true);
  if (!wrong.empty()) return wrong;
  const Memory memory = memory_of(state_);
  wrong = rounds(stage, false);
  if (!wrong.empty()) return wrong;
  wrong = growth(memory, memory_of(state_));
  // Dropped connections are closed. The job itself opens and loses no connection meanwhile (job.cc checks), so the counts are
  // equal.
  wrong += await_descriptors(state_, descriptors);
  if (wrong.empty() && stage == kSharedMemory) wrong = await_timeouts(stage);
  return wrong.empty() ? attack_transition(stage) : "stage " + std::to_string(stage) + ": " + wrong;
}

// Waits until the job has reached this stage, and checks that every listener of the stage answers.
std::string AttackPlan::await_stage(int stage) {
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    const Listener& listener = listeners_[at];
    if (!listener.serves(stage)) continue;
    const bool there = wait_until([&] {
      add_recordings(listeners_, state_);
      return listener.connected == 0 || (!listener.borrowed && listener.recordings.size() >= listener.connected);
    });
    if (!there) return "too few connections of the job to " + listener.name + ": " + std::to_string(listener.recordings.size());
  }
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    const Listener& listener = listeners_[at];
    if (!listener.serves(stage)) {
      // Inactive in this stage.
      for (std::uint64_t i = 0; stage == kSharedMemory && i < std::min(kMaxQueued, share_ / 4); ++i) {
        if (std::string wrong = attack(at, static_cast<Kind>(i % kKinds)); !wrong.empty()) return wrong;
      }
      continue;
    }
    const auto deadline = Clock::now() + kTimeLimit;
    count(at, Kind::junk);
    const auto to_junk = attacker_.exchange(listener, std::string(200, '?'), deadline);
    if (to_junk != std::string()) return listener.name + (to_junk ? " answers junk" : " does not close on junk");
    // A recorded greeting is answered only by the listener that it was recorded for.
    for (const std::string& recording : listener.recordings) {
      count(at, Kind::recorded);
      const auto answer = attacker_.exchange(listener, recording.substr(0, listener.greeting_bytes()), deadline);
      const bool fits = listener.tcp() && !listener.borrowed;
      if (!answer || answer->empty() == fits)
        return listener.name + (fits ? " does not answer" : " answers") + " a recorded greeting";
    }
  }
  attacker_.close_all();
  return {};
}

// The warm-up is a quarter of the share of a stage.
std::string AttackPlan::rounds(int stage, bool warms_up) {
  std::vector<std::size_t> left;
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    if (listeners_[at].serves(stage)) left.push_back(at);
  }
  while (!left.empty()) {
    std::vector<std::size_t> targets;
    std::set<int> ranks;
    std::erase_if(left, [&](std::size_t at) {
      const bool takes_part = ranks.insert(listeners_[at].rank).second;
      if (takes_part) targets.push_back(at);
      return takes_part;
    });
    if (std::string wrong = round(targets, warms_up); !wrong.empty()) return wrong;
  }
  return {};
}

std::string AttackPlan::round(const std::vector<std::size_t>& targets, bool warms_up) {
  struct Input {
    std::size_t at;
    Kind kind;
  };
  std::vector<Input> plan;
  for (const std::size_t at : targets) {
    // A listener that is always active gets a part of its share in each stage.
    const std::uint64_t share = listeners_[at].serves_in == 0 ? divided(share_, kStages) : share_;
    const std::uint64_t start = divided(share, 4);
    for (std::uint64_t i = warms_up ? 0 : start; i < (warms_up ? start : share); ++i)
      plan.push_back({at, static_cast<Kind>(i % kKinds)});
  }
  std::shuffle(plan.begin(), plan.end(), attacker_.random());
  std::array<std::uint64_t, kRanks> sums{};
  std::array<std::uint64_t, kRanks> before{};
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    sums[rank] = state_.ranks[rank].sums;
    before[rank] = refused(static_cast<int>(rank));
  }
  for (const Input& input : plan) {
    const int rank = listeners_[input.at].rank;
    const auto& expected = expected_[static_cast<std::size_t>(rank)];
    if (expected >= refused(rank) + kMaxUnanswered && !wait_until([&] { return expected < refused(rank) + kMaxUnanswered; }))
      return listeners_[input.at].name + " stopped refusing connections";
    if (std::string wrong = attack(input.at, input.kind); !wrong.empty()) return wrong;
  }
  // Half-open and slow connections are still open: every rank makes a correct sum in every round.
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const auto& now = state_.ranks[rank].sums;
    if (!wait_until([&] { return now > sums[rank]; })) return "rank " + std::to_string(rank) + " makes no sum under attack";
    sums_[rank] += now - sums[rank];
  }
  if (std::string wrong = check_refusals(); !wrong.empty())
    return wrong + " after a round with " + listeners_[targets[0]].plane;
  for (const std::size_t at : targets) {
    const int rank = listeners_[at].rank;
    counted_[at] += refused(rank) - before[static_cast<std::size_t>(rank)];
  }
  return {};
}

// Closes all hostile connections. Each process must have refused exactly as many as were made, and its sums must continue.
std::string AttackPlan::check_refusals() {
  attacker_.close_all();
  for (int rank = 0; rank < kRanks; ++rank) {
    const SharedState::Rank& one = state_.ranks[static_cast<std::size_t>(rank)];
    const std::uint64_t expected = expected_[static_cast<std::size_t>(rank)];
    const std::uint64_t before = one.sums;
    wait_until([&] { return one.refused >= expected; });
    if (!wait_until([&] { return one.sums >= before + 2; }))
      return "the sums of rank " + std::to_string(rank) + " have stopped";
    if (one.refused != expected)
      return "rank " + std::to_string(rank) + " counts " + std::to_string(one.refused) + " refused instead of " +
             std::to_string(expected);
  }
  return {};
}

// Listeners close silent and slow connections after their timeout: here the attacker closes none first.
std::string AttackPlan::await_timeouts(int stage) {
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    if (!listeners_[at].serves(stage) || !listeners_[at].tcp()) continue;
    for (int i = 0; i < 4; ++i) {
      if (std::string wrong = attack(at, i % 2 == 0 ? Kind::half_open : Kind::slow); !wrong.empty()) return wrong;
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::uint64_t expected = expected_[static_cast<std::size_t>(rank)];
    if (!wait_until([&] { return refused(rank) >= expected; }))
      return "rank " + std::to_string(rank) + " keeps " + std::to_string(expected - refused(rank)) +
             " unauthenticated connections open";
  }
  return check_refusals();
}

// The ranks that were held back connect during an attack.
std::string AttackPlan::attack_transition(int stage) {
  if (stage == kSharedMemory) connections_before_transitions_ = state_.connections;
  state_.stage = stage + 1;
  for (std::uint64_t i = 0; i < std::min(kMaxQueued, share_ / 8); ++i) {
    for (std::size_t at = 0; at < listeners_.size(); ++at) {
      const Listener& listener = listeners_[at];
      if (listener.serves_in != stage) continue;
      // A socket of shared memory closes when its group is complete; connections in its backlog are not counted.
      if (attacker_.input(listener, static_cast<Kind>(i % kKinds)).ok()) {
        ++delivered_[at][i % kKinds];
        Bounds& total = total_[static_cast<std::size_t>(listener.rank)];
        ++total.most;
        if (listener.tcp()) ++total.least;
      } else if (listener.tcp()) {
        return "cannot connect to " + listener.name;
      }
    }
    std::this_thread::sleep_for(milliseconds(3));
  }
  attacker_.close_all();
  return {};
}

// The second communicator works, and all connections in the backlogs of its listeners are refused. (Without calls, none would
// be accepted.)
std::string AttackPlan::finish() {
  for (const SharedState::Rank& rank : state_.ranks) {
    if (!wait_until([&] { return rank.second_works || state_.over; })) return "the second communicator was not completed";
  }
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const Bounds& total = total_[rank];
    const auto now = [&] { return refused(static_cast<int>(rank)); };
    // Some of the job's own connections may have been displaced during a transition, and retried.
    const std::uint64_t most = total.most + (state_.connections - connections_before_transitions_);
    wait_until([&] { return now() >= total.least; });
    if (now() < total.least || now() > most)
      return "rank " + std::to_string(rank) + " has refused " + std::to_string(now()) + " instead of " +
             std::to_string(total.least) + " to " + std::to_string(most);
  }
  return {};
}

std::string AttackPlan::attack(std::size_t at, Kind kind) {
  const Status status = attacker_.input(listeners_[at], kind);
  if (!status.ok()) return status.to_string();
  count(at, kind);
  return {};
}

void AttackPlan::count(std::size_t at, Kind kind) {
  const Listener& listener = listeners_[at];
  ++delivered_[at][static_cast<std::size_t>(kind)];
  if (listener.serves_in == kNever) return;
  const auto rank = static_cast<std::size_t>(listener.rank);
  ++expected_[rank];
  ++total_[rank].least;
  ++total_[rank].most;
}

// Waits until the counts of refusals and of descriptors stop changing, and takes the former as the new baseline.
void AttackPlan::await_quiet() {
  const auto counts = [this] {
    std::array<std::uint64_t, kRanks> now{};
    for (int rank = 0; rank < kRanks; ++rank) now[static_cast<std::size_t>(rank)] = refused(rank);
    return now;
  };
  expected_ = counts();
  Descriptors descriptors{};
  for (int same = 0; same < 10;) {
    const Descriptors open = descriptors_of(state_);  // over 50 ms
    const auto now = counts();
    same = now == expected_ && open == descriptors ? same + 1 : 0;
    expected_ = now;
    descriptors = open;
  }
}

void AttackPlan::print() const {
  std::ostringstream text;
  std::uint64_t all = 0;
  std::array<std::uint64_t, kKinds> of_kind{};
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    std::uint64_t inputs_to_it = 0;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      inputs_to_it += delivered_[at][kind];
      of_kind[kind] += delivered_[at][kind];
    }
    all += inputs_to_it;
    text << "  " << listeners_[at].name << " (" << listeners_[at].address << "): " << inputs_to_it << " inputs, of which "
         << counted_[at] << " were counted as refused; " << listeners_[at].recordings.size()
         << (listeners_[at].borrowed ? " recordings of another rank\n" : " recordings\n");
  }
  for (std::size_t kind = 0; kind < kKinds; ++kind) text << "  " << kKindNames[kind] << ": " << of_kind[kind] << "\n";
  std::uint64_t refusals = 0;
  for (int rank = 0; rank < kRanks; ++rank) refusals += refused(rank);
  text << all << " hostile connections, " << refusals << " refused, " << *std::min_element(sums_.begin(), sums_.end())
       << " correct sums meanwhile\n";
  std::cout << text.str() << std::flush;
}

}  // namespace shoal::hostile
