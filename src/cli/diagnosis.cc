#include "src/cli/diagnosis.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>

#include "src/diagnosis/signature.h"

namespace shoal {
namespace {

using Life = RankView::Life;

constexpr std::size_t kNamedRanks = 8;
constexpr std::size_t kNamedCalls = 4;

bool has_failed(const RankView& rank) {
  return std::ranges::any_of(rank.communicators, [](const auto& each) { return each.cause.has_value(); });
}

/// Where a rank is: "in call 12 (...)", "between its calls, after call 11 (...)".
std::string whereabouts(const RankView& rank) {
  const CommunicatorView* latest = nullptr;
  for (const CommunicatorView& each : rank.communicators) {
    if (each.in_call()) return "in " + words_for_call(each, each.current());
    if (each.messages_open) return each.message.empty() ? "in a send or recv" : fmt::format("in a {}", each.message);
    if (each.started > 0 && (latest == nullptr || each.number == 0)) latest = &each;
  }
  if (latest == nullptr) return "before its first call";
  return "between its calls, after " + words_for_call(*latest, latest->started - 1);
}

std::string which_process(const RankView& rank) {
  return fmt::format("rank {} (process {} on {})", rank.rank, rank.pid, rank.host);
}

/// A rank that waits, and the communicator in which it waits.
struct Waiter {
  const RankView* rank;
  const CommunicatorView* communicator;
};

std::vector<Waiter> waiters(const JobView& job, double wait_limit_s) {
  std::vector<Waiter> all;
  for (const RankView& rank : job.seen) {
    if (rank.life == Life::dead) continue;
    for (const CommunicatorView& each : rank.communicators) {
      if (each.wait && !each.cause && each.wait->seconds >= wait_limit_s) all.push_back({&rank, &each});
    }
  }
  // The longest wait is closest to the cause.
  std::ranges::sort(all, std::greater{}, [](const Waiter& one) { return one.communicator->wait->seconds; });
  return all;
}

/// "; ranks 0 and 1 have waited for it for 20 s in call 12 (...); rank 2 has waited for it for 15 s in call 13 (...)": the
/// calls with the longest waits first; empty if no rank waits for `rank`.
std::string who_waits_for(const std::vector<Waiter>& all, int rank) {
  struct Call {
    const CommunicatorView* communicator;  ///< of the rank that has waited longest in it
    std::set<int> ranks;
  };
  std::vector<Call> calls;
  for (const auto& [waiter, communicator] : all) {
    const auto& wait = *communicator->wait;
    const auto means = [&, c = communicator](int each) { return job_rank(*c, each) == rank; };
    if (!std::ranges::any_of(wait.absent, means) && !std::ranges::any_of(wait.slow, means)) continue;
    const auto same = std::ranges::find_if(calls, [&, c = communicator](const Call& call) {
      const auto& longer = *call.communicator->wait;
      return !wait.is_message && !longer.is_message && call.communicator->name == c->name && longer.sequence == wait.sequence;
    });
    (same == calls.end() ? calls.emplace_back(Call{communicator, {}}) : *same).ranks.insert(waiter->rank);
  }
  std::string text;
  for (const auto& [communicator, ranks] : std::span(calls).first(std::min(calls.size(), kNamedCalls))) {
    const auto& wait = *communicator->wait;
    text += fmt::format("; {} {} waited for it for {:.1f} s in {}", words_for_ranks({ranks.begin(), ranks.end()}),
                        ranks.size() == 1 ? "has" : "have", wait.seconds,
                        wait.is_message ? "a " + communicator->message : words_for_call(*communicator, wait.sequence));
  }
  if (calls.size() > kNamedCalls) text += fmt::format("; so have ranks in {} more calls", calls.size() - kNamedCalls);
  return text;
}

Diagnosis the_dead(const JobView& job, const std::vector<Waiter>& all) {
  std::vector<int> gone;
  for (const RankView& rank : job.seen) {
    if (rank.life == Life::dead && !has_failed(rank)) gone.push_back(rank.rank);
  }
  if (gone.empty()) return {};
  const RankView& first = *job.find(gone.front());
  if (gone.size() == 1) {
    return {fmt::format("{} exited without closing its communicator, {}{}", which_process(first), whereabouts(first),
                        who_waits_for(all, first.rank)),
            "find out why it exited: see its output, and dmesg for the kernel's out-of-memory killer"};
  }
  const bool everybody = gone.size() == job.seen.size();
  return {
      fmt::format("{}{} exited without closing their communicators; {} {}", everybody ? "all ranks seen on this host, " : "",
                  words_for_ranks(gone), which_process(first), whereabouts(first)),
      "they were killed, or their programs ended without destroying the communicators; see the launcher's output"};
}

Diagnosis the_first_error(const JobView& job) {
  const RankView* who = nullptr;
  const CommunicatorView* where = nullptr;
  for (const RankView& rank : job.seen) {
    for (const CommunicatorView& each : rank.communicators) {
      if (each.cause && (where == nullptr || each.cause->at_ns < where->cause->at_ns)) who = &rank, where = &each;
    }
  }
  if (where == nullptr) return {};
  return {fmt::format("{} failed first of the ranks seen on this host, with {}: {}", which_process(*who),
                      to_string(where->cause->code), where->cause->text),
          {}};
}

Diagnosis the_stopped(const JobView& job, const std::vector<Waiter>& all) {
  std::vector<int> stopped;
  for (const RankView& rank : job.seen) {
    if (rank.life == Life::stopped) stopped.push_back(rank.rank);
  }
  if (stopped.empty()) return {};
  const RankView& first = *job.find(stopped.front());
  const std::string others = stopped.size() == 1 ? "" : fmt::format(" ({} are stopped)", words_for_ranks(stopped));
  return {fmt::format("{} is stopped by a signal or a debugger{}, {}{}", which_process(first), others, whereabouts(first),
                      who_waits_for(all, first.rank)),
          fmt::format("kill -CONT {} continues it", first.pid)};
}

/// Finds two ranks that have recorded different signatures for the same call.
Diagnosis the_different(const JobView& job, const std::vector<Waiter>& all) {
  for (const auto& [rank, communicator] : all) {
    if (communicator->wait->is_message) continue;
    const std::uint64_t sequence = communicator->wait->sequence;
    const auto mine = communicator->call(sequence);
    for (const RankView& other : job.seen) {
      for (const CommunicatorView& its : other.communicators) {
        const auto theirs = its.name == communicator->name ? its.call(sequence) : std::nullopt;
        if (!mine || !theirs || *mine == *theirs) continue;
        return {fmt::format("rank {} is in {}, but {} made call {} a {} (different {})", rank->rank,
                            words_for_call(*communicator, sequence), which_process(other), sequence, to_string(*theirs),
                            difference(*mine, *theirs)),
                "every rank must make the same calls in the same order"};
      }
    }
  }
  return {};
}

/// Follows the waits from rank to rank, to a rank that does not wait.
Diagnosis the_one_behind(const JobView& job, const std::vector<Waiter>& all) {
  if (all.empty()) return {};
  std::set<int> met;
  Waiter at = all.front();
  for (;;) {
    met.insert(at.rank->rank);
    const auto& wait = *at.communicator->wait;
    const bool absent = !wait.absent.empty();
    const auto& awaited = absent ? wait.absent : wait.slow;
    const std::string call =
        wait.is_message ? fmt::format("a {}", at.communicator->message) : words_for_call(*at.communicator, wait.sequence);
    if (awaited.empty()) {
      return {fmt::format("{} has waited for {:.1f} s in {}, but names no rank: other ranks have not received its data",
                          which_process(*at.rank), wait.seconds, call),
              "run shoal doctor on the other hosts of the job"};
    }
    // Of several ranks, one that does not wait itself.
    int who = job_rank(*at.communicator, awaited.front());
    const Waiter* next = nullptr;
    for (const int each : awaited) {
      const int its_rank = job_rank(*at.communicator, each);
      const auto waits = std::ranges::find_if(all, [&](const Waiter& one) { return one.rank->rank == its_rank; });
      if (waits != all.end()) {
        if (next == nullptr) next = &*waits;
        continue;
      }
      who = its_rank;
      next = nullptr;
      break;
    }
    if (next != nullptr && !met.contains(next->rank->rank)) {
      at = *next;
      continue;
    }
    const RankView* seen = job.find(who);
    if (seen == nullptr) {
      const auto node = static_cast<std::size_t>(who) < job.node_of_rank.size()
                            ? fmt::format(" on node {} of the job", job.node_of_rank[static_cast<std::size_t>(who)])
                            : std::string();
      return {fmt::format("rank {}{}, which is not seen from this host, {} {}{}", who, node,
                          absent ? "is not in" : "has not sent its data of", call, who_waits_for(all, who)),
              "run shoal doctor on its host; if it finds no problem there, check the network between the hosts"};
    }
    if (next != nullptr || !absent) {
      return {fmt::format("all ranks seen on this host are in their calls, but data of rank {} is missing{}", who,
                          who_waits_for(all, who)),
              "the network or the memory between the ranks is slow or stuck"};
    }
    const char* does = seen->letter == 'R'   ? "computes"
                       : seen->letter == 'D' ? "waits for a disk"
                                             : "sleeps or waits outside of shoal";
    return {fmt::format("{} is not in {}: it is {} and {}{}", which_process(*seen), call, whereabouts(*seen), does,
                        who_waits_for(all, who)),
            fmt::format("gdb -p {0} or py-spy dump --pid {0} shows what it does", seen->pid)};
  }
}

}  // namespace

int job_rank(const CommunicatorView& communicator, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  return at < communicator.members.size() ? communicator.members[at] : rank;
}

std::string words_for_ranks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  std::string text = "ranks ";
  const std::size_t named = std::min(ranks.size(), kNamedRanks);
  for (std::size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

std::string words_for_call(const CommunicatorView& communicator, std::uint64_t sequence) {
  const auto signature = communicator.call(sequence);
  std::string text = fmt::format("call {}", sequence);
  if (signature) text += fmt::format(" ({})", to_string(*signature));
  if (communicator.number != 0) text += fmt::format(" of the group of {}", words_for_ranks(communicator.members));
  return text;
}

Diagnosis diagnose(const JobView& job, double wait_limit_s) {
  const std::vector<Waiter> all = waiters(job, wait_limit_s);
  for (const auto& look : {+[](const JobView&j, const std::vector<Waiter>&w) { return the_dead(j, w); },
                           +[](const JobView&j, const std::vector<Waiter>&) { return the_first_error(j); },
                           +[](const JobView&j, const std::vector<Waiter>&w) { return the_stopped(j, w); },
                           +[](const JobView&j, const std::vector<Waiter>&w) { return the_different(j, w); },
                           +[](const JobView&j, const std::vector<Waiter>&w) { return the_one_behind(j, w); }}) {
    if (Diagnosis found = look(job, all); !found.sentence.empty()) return found;
  }
  return {};
}

}  // namespace shoal
