#include "tests/hostile/siege.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/hostile/health.h"
#include "tests/hostile/patience.h"

namespace shoal::hostile {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMaxQueued = 150;  // for a listener that is not at work: what it has not accepted stays
constexpr std::uint64_t kMaxUnanswered = Attacker::kMaxOpen + 300;  // so that no listener's queue overflows and loses any
constexpr std::uint64_t kStages = 3;

constexpr std::uint64_t divided(std::uint64_t number, std::uint64_t by) { return (number + by - 1) / by; }

}  // namespace

Siege::Siege(Board& board, std::vector<Listener> listeners, int inputs, std::uint64_t seed)
    : board_(board),
      listeners_(std::move(listeners)),
      attacker_(seed),
      delivered_(listeners_.size()),
      counted_(listeners_.size()) {
  const auto served =
      std::count_if(listeners_.begin(), listeners_.end(), [](const Listener& one) { return one.serves_in != kNever; });
  share_ = divided(static_cast<std::uint64_t>(inputs), static_cast<std::uint64_t>(served));
}

std::string Siege::run() {
  std::string wrong = check_listeners();
  for (const int now : {kControl, kSharedMemory, kData}) {
    if (wrong.empty()) wrong = stage(now);
  }
  board_.stage = kOpen;
  if (wrong.empty()) wrong = finish();
  attacker_.leave();
  if (wrong.empty()) print();
  return wrong;
}

// What it found is what there is: no listener that nobody has told of, and none on another address.
std::string Siege::check_listeners() {
  std::map<std::string, pid_t> told;
  for (const Listener& one : listeners_) told.emplace(one.address, pid(one.rank));
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) pids.push_back(pid(rank));
  if (found_listeners(pids) == told) return {};
  std::string text = "the job listens on";
  for (const auto& [address, holder] : found_listeners(pids)) text += " " + address + (told.contains(address) ? "" : " (!)");
  text += ", and tells of";
  for (const auto& [address, holder] : told) text += " " + address;
  return text;
}

std::string Siege::stage(int stage) {
  std::string wrong = meet(stage);
  if (!wrong.empty()) return wrong;
  rest();
  const Descriptors descriptors = descriptors_of(board_);
  wrong = rounds(stage, true);
  if (!wrong.empty()) return wrong;
  const Memory memory = memory_of(board_);
  wrong = rounds(stage, false);
  if (!wrong.empty()) return wrong;
  wrong = growth(memory, memory_of(board_));
  // What is dropped is closed, too. The job itself makes no connection meanwhile and loses none (job.cc looks), so not even its
  // own ones explain a difference.
  wrong += await_descriptors(board_, descriptors);
  if (wrong.empty() && stage == kControl) wrong = outlast(stage);
  return wrong.empty() ? rush(stage) : "stage " + std::to_string(stage) + ": " + wrong;
}

// Waits until the job has come as far as it may in this stage, and finds every listener at work.
std::string Siege::meet(int stage) {
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    const Listener& listener = listeners_[at];
    if (!listener.serves(stage)) continue;
    const bool there = wait_until([&] {
      add_recordings(listeners_, board_);
      return listener.connected == 0 || (!listener.borrowed && listener.recordings.size() >= listener.connected);
    });
    if (!there) return "too few connections of the job to " + listener.name + ": " + std::to_string(listener.recordings.size());
  }
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    const Listener& listener = listeners_[at];
    if (!listener.serves(stage)) {
      // Not at work yet, or not any more.
      for (std::uint64_t i = 0; stage == kControl && i < std::min(kMaxQueued, share_ / 4); ++i) {
        if (std::string wrong = say_to(at, static_cast<Kind>(i % kKinds)); !wrong.empty()) return wrong;
      }
      continue;
    }
    const auto deadline = Clock::now() + kTimeLimit;
    count(at, Kind::junk);
    const auto to_junk = attacker_.say(listener, std::string(200, '?'), deadline);
    if (to_junk != std::string()) return listener.name + (to_junk ? " answers junk" : " does not close on junk");
    // A recorded greeting is answered where the recording is one for this listener: only then does what follows count.
    for (const std::string& recording : listener.recordings) {
      count(at, Kind::recorded);
      const auto answer = attacker_.say(listener, recording.substr(0, listener.greeting_bytes()), deadline);
      const bool fits = listener.tcp() && !listener.borrowed;
      if (!answer || answer->empty() == fits)
        return listener.name + (fits ? " does not answer" : " answers") + " a recorded greeting";
    }
  }
  attacker_.leave();
  return {};
}

// A quarter of what is due in the stage, for a start, or the rest.
std::string Siege::rounds(int stage, bool warms_up) {
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

std::string Siege::round(const std::vector<std::size_t>& targets, bool warms_up) {
  struct Input {
    std::size_t at;
    Kind kind;
  };
  std::vector<Input> plan;
  for (const std::size_t at : targets) {
    // What is always at work gets a part of its share in each stage.
    const std::uint64_t share = listeners_[at].serves_in == 0 ? divided(share_, kStages) : share_;
    const std::uint64_t start = divided(share, 4);
    for (std::uint64_t i = warms_up ? 0 : start; i < (warms_up ? start : share); ++i)
      plan.push_back({at, static_cast<Kind>(i % kKinds)});
  }
  std::shuffle(plan.begin(), plan.end(), attacker_.random());
  std::array<std::uint64_t, kRanks> sums{};
  std::array<std::uint64_t, kRanks> before{};
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    sums[rank] = board_.ranks[rank].sums;
    before[rank] = refused(static_cast<int>(rank));
  }
  for (const Input& input : plan) {
    const int rank = listeners_[input.at].rank;
    const auto& expected = expected_[static_cast<std::size_t>(rank)];
    if (expected >= refused(rank) + kMaxUnanswered && !wait_until([&] { return expected < refused(rank) + kMaxUnanswered; }))
      return listeners_[input.at].name + " refuses nobody any more";
    if (std::string wrong = say_to(input.at, input.kind); !wrong.empty()) return wrong;
  }
  // Those who are half-open or slow are still there: in every round every rank has a right sum among strangers.
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const auto& now = board_.ranks[rank].sums;
    if (!wait_until([&] { return now > sums[rank]; })) return "rank " + std::to_string(rank) + " makes no sum among strangers";
    sums_[rank] += now - sums[rank];
  }
  if (std::string wrong = settle(); !wrong.empty()) return wrong + " after a round with " + listeners_[targets[0]].plane;
  for (const std::size_t at : targets) {
    const int rank = listeners_[at].rank;
    counted_[at] += refused(rank) - before[static_cast<std::size_t>(rank)];
  }
  return {};
}

// Closes what is open. Each process must have refused exactly as many as were made, and its sums must go on.
std::string Siege::settle() {
  attacker_.leave();
  for (int rank = 0; rank < kRanks; ++rank) {
    const Board::Rank& one = board_.ranks[static_cast<std::size_t>(rank)];
    const std::uint64_t expected = expected_[static_cast<std::size_t>(rank)];
    const std::uint64_t before = one.sums;
    wait_until([&] { return one.refused >= expected; });
    if (!wait_until([&] { return one.sums >= before + 2; })) return "the sums of rank " + std::to_string(rank) + " stand still";
    if (one.refused != expected)
      return "rank " + std::to_string(rank) + " counts " + std::to_string(one.refused) + " refused instead of " +
             std::to_string(expected);
  }
  return {};
}

// What does not go by itself is sent away in time: here nobody closes before the listener does.
std::string Siege::outlast(int stage) {
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    if (!listeners_[at].serves(stage) || !listeners_[at].tcp()) continue;
    for (int i = 0; i < 4; ++i) {
      if (std::string wrong = say_to(at, i % 2 == 0 ? Kind::half_open : Kind::slow); !wrong.empty()) return wrong;
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::uint64_t expected = expected_[static_cast<std::size_t>(rank)];
    if (!wait_until([&] { return refused(rank) >= expected; }))
      return "rank " + std::to_string(rank) + " keeps " + std::to_string(expected - refused(rank)) +
             " who do not introduce themselves";
  }
  return settle();
}

// The ranks that were held up come, in the middle of strangers.
std::string Siege::rush(int stage) {
  if (stage == kControl) takes_before_rushes_ = board_.takes;
  board_.stage = stage + 1;
  for (std::uint64_t i = 0; i < std::min(kMaxQueued, share_ / 8); ++i) {
    for (std::size_t at = 0; at < listeners_.size(); ++at) {
      const Listener& listener = listeners_[at];
      if (listener.serves_in != stage) continue;
      // A socket of shared memory goes when its group is complete, and whoever waits there is not counted.
      if (attacker_.input(listener, static_cast<Kind>(i % kKinds)).ok()) {
        ++delivered_[at][i % kKinds];
        Bounds& total = total_[static_cast<std::size_t>(listener.rank)];
        ++total.most;
        if (listener.tcp()) ++total.least;
      } else if (listener.tcp()) {
        return "no way to " + listener.name;
      }
    }
    std::this_thread::sleep_for(milliseconds(3));
  }
  attacker_.leave();
  return {};
}

// The second communicator is there and sums as well, and all that was still in the queues of its listeners is refused, too.
// (While it made no call nobody would look at them.)
std::string Siege::finish() {
  for (const Board::Rank& rank : board_.ranks) {
    if (!wait_until([&] { return rank.has_second || board_.over; })) return "the second communicator does not get ready";
  }
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const Bounds& total = total_[rank];
    const auto now = [&] { return refused(static_cast<int>(rank)); };
    // Of the job's own connections some may have been taken for strangers in a rush, and came again.
    const std::uint64_t most = total.most + (board_.takes - takes_before_rushes_);
    wait_until([&] { return now() >= total.least; });
    if (now() < total.least || now() > most)
      return "rank " + std::to_string(rank) + " has refused " + std::to_string(now()) + " instead of " +
             std::to_string(total.least) + " to " + std::to_string(most);
  }
  return {};
}

std::string Siege::say_to(std::size_t at, Kind kind) {
  const Status status = attacker_.input(listeners_[at], kind);
  if (!status.ok()) return status.to_string();
  count(at, kind);
  return {};
}

void Siege::count(std::size_t at, Kind kind) {
  const Listener& listener = listeners_[at];
  ++delivered_[at][static_cast<std::size_t>(kind)];
  if (listener.serves_in == kNever) return;
  const auto rank = static_cast<std::size_t>(listener.rank);
  ++expected_[rank];
  ++total_[rank].least;
  ++total_[rank].most;
}

// Waits until what was said before is counted, as far as anybody is there to count it, and starts from there.
void Siege::rest() {
  const auto counts = [this] {
    std::array<std::uint64_t, kRanks> now{};
    for (int rank = 0; rank < kRanks; ++rank) now[static_cast<std::size_t>(rank)] = refused(rank);
    return now;
  };
  expected_ = counts();
  for (int same = 0; same < 10;) {
    std::this_thread::sleep_for(milliseconds(50));
    const auto now = counts();
    same = now == expected_ ? same + 1 : 0;
    expected_ = now;
  }
}

void Siege::print() const {
  std::ostringstream text;
  std::uint64_t all = 0;
  std::array<std::uint64_t, kKinds> of_kind{};
  for (std::size_t at = 0; at < listeners_.size(); ++at) {
    std::uint64_t to_it = 0;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      to_it += delivered_[at][kind];
      of_kind[kind] += delivered_[at][kind];
    }
    all += to_it;
    text << "  " << listeners_[at].name << " (" << listeners_[at].address << "): " << to_it << " inputs, of which "
         << counted_[at] << " were counted as refused in rounds of its own; " << listeners_[at].recordings.size()
         << (listeners_[at].borrowed ? " recordings of another rank's\n" : " recordings\n");
  }
  for (std::size_t kind = 0; kind < kKinds; ++kind) text << "  " << kKindNames[kind] << ": " << of_kind[kind] << "\n";
  std::uint64_t refusals = 0;
  for (int rank = 0; rank < kRanks; ++rank) refusals += refused(rank);
  text << all << " hostile connections, " << refusals << " refused, " << *std::min_element(sums_.begin(), sums_.end())
       << " right sums meanwhile\n";
  std::cout << text.str() << std::flush;
}

}  // namespace shoal::hostile
