#include "src/diagnosis/call_reports.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal {
namespace {

using Duration = std::chrono::steady_clock::duration;

constexpr std::size_t kMostWhereabouts = 4;  // ranks for which a clause says what they do instead

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::string describe_call(std::uint64_t sequence, const CallSignature& signature) {
  return fmt::format("call {} ({})", sequence, to_string(signature));
}

CallReports::CallReports(const Group& group, std::shared_ptr<FlightRecord> flight_record, const LastWaits& last_waits)
    : group_(group), flight_record_(std::move(flight_record)), last_waits_(last_waits) {}

Status CallReports::disagreement(const Disagreement& d) const {
  if (d.its_sequence != d.sequence || !d.theirs) {
    return {StatusCode::mismatch,
            fmt::format("{} is in {}{}, but {} is in call {}{}; every rank must make the same calls in the same order",
                        own_name(), describe_call(d.sequence, d.ours), group_.in_words(), name_of(d.peer), d.its_sequence,
                        d.theirs ? fmt::format(" ({})", to_string(*d.theirs)) : "")};
  }
  if (const std::string pair = pair_difference(d.ours, own_name(), *d.theirs, name_of(d.peer)); !pair.empty()) {
    return {StatusCode::mismatch,
            fmt::format("call {}{} differs between ranks: {}, {}; what a rank sends to a peer must be what the peer receives",
                        d.sequence, group_.in_words(), to_string(d.ours), pair)};
  }
  return {StatusCode::mismatch,
          fmt::format("call {}{} differs between ranks: {} is in {}, {} is in {} (different {}); every rank must make the same "
                      "calls in the same order",
                      d.sequence, group_.in_words(), own_name(), to_string(d.ours), name_of(d.peer), to_string(*d.theirs),
                      difference(d.ours, *d.theirs))};
}

Status CallReports::died(int rank, const Status& how, const Occupation& own, Time now) const {
  return {StatusCode::peer_failed,
          fmt::format("{} died or lost its connection ({}); {} was in {}{}{}{}", name_of(rank), how.message(), own_name(),
                      own.what, group_.in_words(), own.waited ? fmt::format(", for {:.1f} s", seconds(*own.waited)) : "",
                      whereabouts(rank, now))};
}

Status CallReports::left_too_early(int rank, const Occupation& own) const {
  return {StatusCode::peer_failed, fmt::format("{} has destroyed its communicator, but {} still needs it in {}{}",
                                               name_of(rank), own_name(), own.what, group_.in_words())};
}

Status CallReports::timed_out(const Occupation& own, const std::string& why) const {
  return {StatusCode::timeout, fmt::format("{}{} timed out on {}{}{}", own.what, group_.in_words(), own_name(),
                                           own.waited ? fmt::format(" after {:.1f} s", seconds(*own.waited)) : "", why)};
}

std::string CallReports::warning(const Occupation& own, const std::string& why) const {
  return fmt::format("shoal: rank {} has waited {:.1f} s in {}{}{}\n", group_.rank,
                     seconds(own.waited.value_or(Duration::zero())), own.what, group_.in_words(), why);
}

std::string CallReports::late(const StragglerDetector::Verdict& verdict, Time now) const {
  std::string report;
  const auto add = [&](const char* what, const std::vector<int>& ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) report += (i == 0 ? fmt::format("; {}: ", what) : ", ") + name_of(ranks[i]);
  };
  add("not in the call", verdict.absent);
  add("in the call but data still missing", verdict.slow);
  add("waiting in turn", verdict.waiting);
  std::vector<int> late = verdict.absent;
  late.insert(late.end(), verdict.slow.begin(), verdict.slow.end());
  for (std::size_t i = 0; i < std::min(late.size(), kMostWhereabouts); ++i)
    report += late.size() == 1 ? chain_of_waits(late[i], now) : whereabouts(late[i], now);
  return report.empty() ? "; all data has arrived, but peers have not taken all data of this rank" : report;
}

std::string CallReports::message_late(bool is_send, int peer, Time now) const {
  return (is_send ? "; the receiver has not taken all of it" : "; no matching message has arrived in full") +
         (peer < 0 || peer == group_.rank ? std::string() : chain_of_waits(peer, now));
}

std::string CallReports::waits_for(const std::string& message, int peer, Time now) const {
  return fmt::format("; {} waits for {}", own_name(), message) +
         (peer < 0 || peer == group_.rank ? std::string() : chain_of_waits(peer, now));
}

std::string CallReports::not_started(bool is_message, const std::optional<Occupation>& earlier, const std::string& why) const {
  if (earlier) return fmt::format(" before its turn; the earlier {} has not ended{}", earlier->what, why);
  return fmt::format(
      " before its turn; the {} before it has not been started: is it between group_begin() and group_end() of another thread?",
      is_message ? "message" : "call");
}

std::string CallReports::was_in(const std::optional<Occupation>& own) const {
  return fmt::format("; {} was in {}{}", own_name(), own ? own->what : "no call", group_.in_words());
}

Whereabouts CallReports::where(int job_rank, Time now) const {
  if (flight_record_ != nullptr) {
    if (Whereabouts found = flight_record_->whereabouts(job_rank, group_.name.key); !found.text.empty()) return found;
  }
  const LastWait* wait = last_waits_.of(job_rank);
  if (wait == nullptr) return {};
  return {fmt::format("reported {:.1f} s ago that it waits in {} of communicator {:x}", seconds(now - wait->at),
                      describe_call(wait->sequence, wait->call), wait->communicator)};
}

std::string CallReports::whereabouts(int rank, Time now) const {
  const std::string text = where(group_.members[static_cast<std::size_t>(rank)], now).text;
  return text.empty() ? text : fmt::format("; {}: {}", name_of(rank), text);
}

std::string CallReports::chain_of_waits(int rank, Time now) const {
  std::vector<int> seen{group_.members[static_cast<std::size_t>(group_.rank)]};
  std::vector<std::string> links;
  std::optional<int> next = group_.members[static_cast<std::size_t>(rank)];
  while (next && std::find(seen.begin(), seen.end(), *next) == seen.end()) {
    const Whereabouts found = where(*next, now);
    if (found.text.empty()) break;
    links.push_back(fmt::format("; {}: {}", name_of_job_rank(*next), found.text));
    seen.push_back(*next);
    next = found.waits_for;
  }
  if (links.size() <= kMostWhereabouts) return fmt::format("{}", fmt::join(links, ""));
  return fmt::format("{}; {} ranks wait in turn{}", links.front(), links.size() - 2, links.back());
}

std::string CallReports::name_of_job_rank(int job_rank) const {
  const auto member = std::find(group_.members.begin(), group_.members.end(), job_rank);
  if (member == group_.members.end()) return fmt::format("rank {} of the job", job_rank);
  return name_of(static_cast<int>(member - group_.members.begin()));
}

}  // namespace shoal
