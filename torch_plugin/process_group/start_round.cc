#include "torch_plugin/process_group/start_round.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/interpreter.h"

namespace shoal::torch {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kRounds = "shoal/rounds";
constexpr milliseconds kDefaultWarnAfter{20'000};

std::string joins(int rank) { return "shoal/joins/" + std::to_string(rank); }
std::string welcome(int rank, std::int64_t attempt) {
  return "shoal/welcome/" + std::to_string(rank) + "/" + std::to_string(attempt);
}
std::string prefix_of(std::int64_t round) { return "shoal/round/" + std::to_string(round); }
std::string in_round(std::int64_t round, const std::string& name) { return prefix_of(round) + "/" + name; }
std::string entry(std::int64_t round, int rank) { return in_round(round, "rank/" + std::to_string(rank)); }

/// A process that asks to join as a rank. Its text is different for every attempt of every process.
struct Member {
  std::int64_t attempt = 0;
  int size = 0;
  std::string process;  ///< for messages
};

std::string text_of(const Member& member) {
  return std::to_string(member.attempt) + " " + std::to_string(member.size) + " " + member.process;
}

Member member_of(const std::string& text) {
  Member member;
  std::istringstream in(text);
  in >> member.attempt >> member.size >> std::ws;
  std::getline(in, member.process);
  return member;
}

std::string this_process() {
  std::array<char, 256> host{};
  (void)gethostname(host.data(), host.size() - 1);
  return "process " + std::to_string(getpid()) + " on host " + host.data();
}

/// SHOAL_WARN_AFTER. Communicator::create() reports an invalid value.
milliseconds warn_after() {
  const char* const text = std::getenv("SHOAL_WARN_AFTER");
  const double seconds = text == nullptr ? 0 : std::strtod(text, nullptr);
  return std::isfinite(seconds) && seconds > 0 && seconds < 1e9 ? milliseconds(static_cast<std::int64_t>(seconds * 1000))
                                                                : kDefaultWarnAfter;
}

std::string seconds_since(steady_clock::time_point start) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(steady_clock::now() - start).count());
  return text.data();
}

std::string names_of(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 16;
  std::string names = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) names += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  return ranks.size() <= kNamed ? names : names + " and " + std::to_string(ranks.size() - kNamed) + " others";
}

class Joining {
 public:
  Joining(c10d::Store& store, int rank, int size, milliseconds timeout)
      : store_(store), rank_(rank), timeout_(timeout), warn_interval_(warn_after()), self_{0, size, this_process()} {}

  /// Joins the round and returns its number.
  Result<std::int64_t> join() { return rank_ == 0 ? lead() : follow(); }

  /// Ends the round on all ranks.
  Status fail(const Status& status) {
    if (round_ != 0) fail_round(round_, status);
    return status;
  }

 private:
  Result<std::int64_t> lead() {
    const std::int64_t round = store_.add(kRounds, 1);
    round_ = round;
    self_.attempt = round;
    set(entry(round, 0), text_of(self_));
    for (int rank = 1; rank < self_.size; ++rank) {
      if (const std::int64_t attempt = store_.add(joins(rank), 0); attempt > 0) answer(rank, attempt);
    }
    std::string attempts;
    for (int rank = 1; rank < self_.size; ++rank) {
      StoreWait wait(store_);
      while (!wait.arrives(entry(round, rank), slice())) {
        if (Status status = look_as_leader(); !status.ok()) return status;
      }
      const Member member = member_of(get(entry(round, rank)));
      if (member.size != self_.size) return fail(sizes_differ(rank, member, 0, self_));
      answer(rank, member.attempt);
      attempts += " " + std::to_string(member.attempt);
    }
    set(in_round(round, "started"), attempts);
    return round;
  }

  Result<std::int64_t> follow() {
    self_.attempt = store_.add(joins(rank_), 1);
    announce(store_.add(kRounds, 0));
    StoreWait for_answer(store_);
    while (!for_answer.arrives(welcome(rank_, self_.attempt), slice())) {
      if (Status status = look_as_follower(); !status.ok()) return status;
    }
    if (Status status = enter(); !status.ok()) return status;
    StoreWait for_others(store_);
    while (!for_others.arrives(in_round(round_, "started"), slice())) {
      if (Status status = look_as_follower(); !status.ok()) return status;
      if (Status status = enter(); !status.ok()) return status;  // rank 0 may have a new process meanwhile
    }
    std::istringstream attempts(get(in_round(round_, "started")));
    std::int64_t attempt = 0;
    for (int rank = 1; rank <= rank_; ++rank) attempts >> attempt;
    if (attempt != self_.attempt) return fail(two_processes(get(entry(round_, rank_))));
    return round_;
  }

  /// Follows rank 0's answer: writes this rank's entry to the round that the answer names.
  Status enter() {
    std::istringstream answer(get(welcome(rank_, self_.attempt)));
    std::int64_t round = 0;
    answer >> round;
    const Member leader = member_of(get(entry(round, 0)));
    if (round != round_) {
      round_ = round;
      set(entry(round, rank_), text_of(self_));
    }
    return leader.size == self_.size ? Status() : fail(sizes_differ(rank_, self_, 0, leader));
  }

  /// Writes this rank's entry to a round that may be rank 0's current one, or one whose processes have ended.
  void announce(std::int64_t round) {
    if (round == 0 || round == round_ || store_.check({in_round(round, "started")}) ||
        store_.check({in_round(round, kRoundFailed)}) || !store_.check({entry(round, 0)}))
      return;
    round_ = round;
    set(entry(round, rank_), text_of(self_));
    // Rank 0 does not check for entries of ranks beyond its size.
    if (member_of(get(entry(round, 0))).size <= rank_)
      set(in_round(round, "outsider"), std::to_string(rank_) + " " + text_of(self_));
  }

  Status look_as_leader() {
    if (Status status = look(); !status.ok()) return status;
    if (const std::int64_t newest = store_.add(kRounds, 0); newest != round_ && store_.check({entry(newest, 0)})) {
      const Status status = two_processes(get(entry(newest, 0)));
      fail_round(newest, status);
      return fail(status);
    }
    if (!store_.check({in_round(round_, "outsider")})) return {};
    std::istringstream text(get(in_round(round_, "outsider")));
    int rank = 0;
    std::string member;
    text >> rank >> std::ws;
    std::getline(text, member);
    return fail(sizes_differ(rank, member_of(member), 0, self_));
  }

  Status look_as_follower() {
    if (Status status = look(); !status.ok()) return status;
    if (round_ != 0) {
      const std::string text = get(entry(round_, rank_));
      if (text != text_of(self_)) return fail(two_processes(text));
    }
    announce(store_.add(kRounds, 0));
    return {};
  }

  /// Checks for failures of other ranks and for the deadline, and writes the warning after SHOAL_WARN_AFTER.
  Status look() {
    if (round_ != 0) {
      if (Status status = failure_at(store_, in_round(round_, kRoundFailed)); !status.ok()) return status;
    }
    const auto waited = steady_clock::now() - start_;
    if (waited >= timeout_) {
      return fail({StatusCode::timeout,
                   "rank " + std::to_string(rank_) + " of " + std::to_string(self_.size) + " has waited " +
                       seconds_since(start_) + " at the c10d store; " + names_of(missing()) + " did not join" + other_size() +
                       "; check that their processes run and use the same store (MASTER_ADDR, MASTER_PORT) and size"});
    }
    if (waited >= warn_interval_) {
      warn_interval_ *= 2;
      (void)std::fprintf(stderr, "shoal: startup: rank %d of %d has waited %s at the c10d store; %s did not join yet%s\n",
                         rank_, self_.size, seconds_since(start_).c_str(), names_of(missing()).c_str(), other_size().c_str());
    }
    return {};
  }

  /// If rank 0 has not answered: the size of the newest start at this store, if it differs. That start may be complete and
  /// not include this rank.
  std::string other_size() {
    const std::int64_t newest = store_.add(kRounds, 0);
    if (newest == 0 || newest == round_ || !store_.check({entry(newest, 0)})) return {};
    const int size = member_of(get(entry(newest, 0))).size;
    return size == self_.size ? "" : " (the newest start at this store has world size " + std::to_string(size) + ")";
  }

  /// Ranks without an entry in the newest round; includes rank 0 if it has not answered this rank.
  std::vector<int> missing() {
    std::vector<int> ranks;
    const bool answered = rank_ == 0 || store_.check({welcome(rank_, self_.attempt)});
    if (!answered) ranks.push_back(0);
    for (int rank = 1; rank < self_.size; ++rank) {
      if (rank != rank_ && (answered ? !store_.check({entry(round_, rank)}) : store_.add(joins(rank), 0) == 0))
        ranks.push_back(rank);
    }
    return ranks;
  }

  Status two_processes(const std::string& other) const {
    return {StatusCode::mismatch, "rank " + std::to_string(rank_) + " was given to two processes: " + self_.process + " and " +
                                      member_of(other).process + "; give every process a RANK of its own"};
  }

  static Status sizes_differ(int rank, const Member& member, int other_rank, const Member& other) {
    const auto name = [](int number, const Member& one) {
      return "rank " + std::to_string(number) + " (" + one.process + ") has world size " + std::to_string(one.size);
    };
    return {StatusCode::mismatch,
            name(rank, member) + ", " + name(other_rank, other) + "; start all ranks with the same WORLD_SIZE"};
  }

  void fail_round(std::int64_t round, const Status& status) {
    set(in_round(round, kRoundFailed), std::to_string(static_cast<int>(status.code())) + " " + status.message());
  }

  void answer(int rank, std::int64_t attempt) { set(welcome(rank, attempt), std::to_string(round_)); }
  [[nodiscard]] milliseconds slice() const {
    const auto left = std::chrono::duration_cast<milliseconds>(std::min<steady_clock::duration>(timeout_, warn_interval_) -
                                                               (steady_clock::now() - start_));
    return std::clamp(left, milliseconds(1), kStoreSlice);
  }
  void set(const std::string& key, const std::string& value) {
    store_.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  std::string get(const std::string& key) { return store_.get_to_str(key); }

  c10d::Store& store_;
  const int rank_;
  const milliseconds timeout_;
  milliseconds warn_interval_;
  Member self_;
  const steady_clock::time_point start_ = steady_clock::now();
  std::int64_t round_ = 0;  ///< the round in which this rank has its entry
};

}  // namespace

bool StoreWait::arrives(const std::string& key, milliseconds time) {
  constexpr microseconds kLongestPause = kSignalPeriod / 2;
  const auto until = steady_clock::now() + time;
  while (!store_.check({key})) {
    const auto left = std::chrono::ceil<microseconds>(until - steady_clock::now());
    if (left <= microseconds(0)) return false;
    std::this_thread::sleep_for(std::min(pause_, left));
    pause_ = std::min(pause_ + pause_ / 4, kLongestPause);
    if (interpreter().run_signal_handlers == nullptr) continue;
    if (const std::optional<Interruption> interruption = interpreter().run_signal_handlers()) throw Interruption(*interruption);
  }
  return true;
}

Status failure_at(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return {};
  std::istringstream text(store.get_to_str(key));
  int code = 0;
  std::string message;
  text >> code >> std::ws;
  std::getline(text, message);
  const bool known = code > static_cast<int>(StatusCode::ok) && code <= static_cast<int>(StatusCode::internal);
  return {known ? static_cast<StatusCode>(code) : StatusCode::internal, message};
}

Result<StartRound> join_start_round(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout) {
  if (size <= 1 || rank < 0 || rank >= size) return StartRound{store, 0};  // create() reports invalid arguments
  Joining joining(*store, rank, size, timeout);
  try {
    const Result<std::int64_t> round = joining.join();
    if (!round.ok()) return round.status();
    return StartRound{c10::make_intrusive<c10d::PrefixStore>(prefix_of(*round), store), *round};
  } catch (const Interruption& interruption) {
    (void)joining.fail({StatusCode::aborted, "rank " + std::to_string(rank) + " aborted: " + reason_of(interruption)});
    std::rethrow_exception(interruption.exception);
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, "the c10d store failed: " + plain_message(error));
  }
}

}  // namespace shoal::torch
