#include "src/diagnosis/call_monitor.h"

#include <algorithm>
#include <utility>

namespace shoal {
namespace {

constexpr auto kReportTime = std::chrono::milliseconds(250);  // for a peer's report of the cause
// For data of a peer on another host that has sent a close notice: a network retransmits a lost packet after 0.2 s or more,
// and after twice as long where it is lost again.
constexpr auto kDataTime = std::chrono::seconds(2);

}  // namespace

CallMonitor::CallMonitor(const Group& group, const LastWaits& last_waits, const Options& options)
    : group_(group),
      flight_record_(options.flight_record),
      reaches_peers_(options.reaches_peers),
      reports_(group, flight_record_, last_waits),
      record_(flight_record_, group.id, group.rank, group.members, group.name.key),
      watchdog_(options.warn_after),
      straggler_detector_(group.rank, static_cast<int>(group.members.size())),
      left_(group.members.size()) {}

void CallMonitor::peer_left(int rank, std::span<const std::byte> its_calls) {
  note_left(rank);
  if (auto calls = parse_history(its_calls)) last_calls_[rank] = *std::move(calls);
}

void CallMonitor::peer_gone(int rank, Time now) {
  if (group_.is_meeting && !has_left(rank) && !missing_member_) missing_member_ = {rank, now};
  note_left(rank);
}

std::optional<Status> CallMonitor::peer_died(int rank, const Status& how, const std::optional<Occupation>& own,
                                             Time now) const {
  if (has_left(rank)) return std::nullopt;  // a call that still needs the peer fails by absent()
  Occupation idle;
  idle.what = "no call";
  if (next_call_ > 0) idle.what += " after " + describe_call(next_call_ - 1, record_.call(next_call_ - 1));
  return or_mismatch(reports_.died(rank, how, own.value_or(idle), now));
}

void CallMonitor::peer_waits(int rank, std::span<const std::byte> message, Time now) {
  const auto words = StragglerDetector::parse(message);
  if (!words) return;
  straggler_detector_.hear(rank, *words, now);
  compare_waits_at_ = 0;
}

std::optional<Status> CallMonitor::peer_disagrees(int rank, std::span<const std::byte> its_calls) const {
  const auto calls = parse_history(its_calls);
  const auto first = calls ? first_difference(*record_, *calls) : std::nullopt;
  return first ? std::optional(first_mismatch(rank, *first)) : std::nullopt;
}

std::optional<Status> CallMonitor::absent(int rank, Absence& absence, const Status& link, const Occupation& own,
                                          Time now) const {
  if (!absence.begun()) absence.since = now;
  // Data and close notice travel on different connections: data that was sent before the notice may arrive after it. And the
  // control plane may be about to deliver the reason for a broken link.
  if (now < absence_ends(rank, absence, link) && reaches_peers_) return std::nullopt;
  return has_left(rank) ? left_too_early(rank, own) : reports_.died(rank, link, own, now);
}

CallMonitor::Time CallMonitor::absence_ends(int rank, const Absence& absence, const Status& link) const {
  return absence.since + patience(rank, link);
}

/// How long a call may need a peer that is gone while no data of it arrives.
CallMonitor::Clock::duration CallMonitor::patience(int rank, const Status& link) const {
  const bool far = group_.topology.link_class(group_.rank, rank) == LinkClass::network;
  if (!far || !link.ok()) return kReportTime;
  const auto last = last_calls_.find(rank);  // a peer whose calls differ has not left while data of it was in flight
  const bool differs = last != last_calls_.end() && first_difference(*record_, last->second);
  return differs ? Clock::duration(kReportTime) : Clock::duration(kDataTime);
}

/// The peer left in order, as far as it knew. So it may have made another call in place of the one that needs it here.
Status CallMonitor::left_too_early(int rank, const Occupation& own) const {
  const auto last = last_calls_.find(rank);
  if (last != last_calls_.end() && !own.is_message) {
    if (const auto first = first_difference(*record_, last->second)) return first_mismatch(rank, *first);
  }
  return reports_.left_too_early(rank, own);
}

std::optional<int> CallMonitor::missing_member(Time now) const {
  return missing_member_ && now - missing_member_->since >= kReportTime ? std::optional(missing_member_->rank) : std::nullopt;
}

std::optional<std::uint64_t> CallMonitor::past_call(std::uint32_t wire_sequence) const noexcept {
  const auto ahead = static_cast<std::int32_t>(wire_sequence - static_cast<std::uint32_t>(next_call_));
  if (ahead >= 0 || ahead < -static_cast<std::int32_t>(kFlightRecordCalls)) return std::nullopt;
  return next_call_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(ahead));
}

std::optional<Disagreement> CallMonitor::stray_call(int rank, std::uint32_t wire_sequence, const CallSignature& theirs) const {
  const auto sequence = past_call(wire_sequence);
  if (!sequence) return std::nullopt;                          // a call that this rank has not made yet
  if (record_.call(*sequence) == theirs) return std::nullopt;  // a zero-copy call that will fall back to the links
  return Disagreement{rank, *sequence, record_.call(*sequence), *sequence, theirs};
}

std::optional<Disagreement> CallMonitor::take_disagreeing_wait() {
  std::optional<Disagreement> found;
  if (next_call_ < compare_waits_at_) return found;
  compare_waits_at_ = kNever;
  straggler_detector_.each_heard([&](int rank, const StragglerDetector::Words& words) {
    if (words.sequence >= next_call_ && words.sequence != StragglerDetector::kNoCall)
      compare_waits_at_ = std::min(compare_waits_at_, words.sequence + 1);
    const bool known = words.sequence < next_call_ && next_call_ - words.sequence <= kFlightRecordCalls;
    if (!known || found || record_.call(words.sequence) == words.call) return;
    found = Disagreement{rank, words.sequence, record_.call(words.sequence), words.sequence, words.call};
  });
  return found;
}

Status CallMonitor::first_mismatch(int rank, const NumberedCall& theirs) const {
  return reports_.disagreement({rank, theirs.sequence, record_.call(theirs.sequence), theirs.sequence, theirs.signature});
}

// A rank that needs no data of peers continues with later calls and may be found in one of those. Which call it made in place
// of this rank's is in its flight record, where that is on this host. Otherwise this rank sends its own calls to the peer; the
// peer closes with the first call that differs, and this rank receives that cause.
std::optional<Status> CallMonitor::disagrees(const Disagreement& what, bool waits, Time now) {
  // Either the two ranks had different partners in an earlier call, or the peer has finished a call that this rank is still in.
  const auto past = past_call(static_cast<std::uint32_t>(what.its_sequence));
  const bool earlier = what.theirs && past && *past < what.sequence;
  const Disagreement found = earlier ? Disagreement{what.peer, *past, record_.call(*past), *past, what.theirs} : what;
  Status report = reports_.disagreement(found);
  const int job_rank = group_.members[static_cast<std::size_t>(what.peer)];
  if (const auto calls = flight_record_ == nullptr ? std::nullopt : flight_record_->calls_of(job_rank, group_.name.key)) {
    const auto first = first_difference(*record_, *calls);
    return first && first->sequence <= found.sequence ? first_mismatch(what.peer, *first) : std::move(report);
  }
  if (!waits) return report;  // no call would wait for the answer
  return await_report(std::move(report), now);
}

std::optional<Status> CallMonitor::await_report(Status otherwise, Time now) {
  if (!reaches_peers_) return otherwise;
  question_ = {std::move(otherwise), now + kReportTime};
  return std::nullopt;
}

std::optional<Status> CallMonitor::unanswered(Time now) const {
  return question_ && now >= question_->until ? std::optional(question_->otherwise) : std::nullopt;
}

Status CallMonitor::or_mismatch(const Status& consequence) const {
  return question_ && question_->otherwise.code() == StatusCode::mismatch ? question_->otherwise : consequence;
}

std::vector<std::byte> CallMonitor::history(std::size_t most) const { return to_bytes(latest_calls(*record_, most)); }

bool CallMonitor::waits(std::uint64_t oldest, Time first_deadline, Time now) {
  record_due_ = record_.wait(oldest, false, now);
  report_due_ = reaches_peers_ && straggler_detector_.due(oldest, first_deadline, now);
  return record_due_ || report_due_;
}

std::vector<CallMonitor::WaitMessage> CallMonitor::misses(const CallSignature& call, const Late& late, Time now) {
  if (std::exchange(record_due_, false)) record_.set_late(late.absent, late.slow);
  if (!std::exchange(report_due_, false)) return {};
  StragglerDetector::Words words = straggler_detector_.tell(late, now);
  words.call = call;
  StragglerDetector::Receivers to = straggler_detector_.receivers(words, late);
  std::vector<WaitMessage> messages;
  const auto add = [&](std::vector<int> receivers) {
    if (!receivers.empty()) messages.push_back({StragglerDetector::to_bytes(words), std::move(receivers)});
  };
  const auto of_job = [&](std::vector<int> ranks) {
    for (int& rank : ranks) rank = group_.members[static_cast<std::size_t>(rank)];
    return ranks;
  };
  if (to.all) add(group_.members);
  words.asks = 0;
  add(of_job(std::move(to.told)));
  words.asks = 1;
  add(of_job(std::move(to.asked)));
  return messages;
}

std::vector<std::byte> CallMonitor::wait_message(std::uint64_t sequence, const CallSignature& call, const Late& late) {
  return StragglerDetector::to_bytes({sequence, 0, set_of(late.absent), set_of(late.slow), call});
}

bool CallMonitor::message_waits(std::uint64_t number, Time now) { return record_.wait(number, true, now); }

void CallMonitor::record_message(int peer, const std::string& what) {
  record_.set_late({}, {&peer, peer >= 0 ? 1U : 0U});
  set_text(record_->words, what);
}

std::string CallMonitor::why_late(std::uint64_t sequence, const Late& late, Time now) const {
  return reports_.late(straggler_detector_.verdict(sequence, late), now);
}

CallMonitor::Time CallMonitor::next_check() const {
  if (question_) return question_->until;
  const Time next = straggler_detector_.next();
  return missing_member_ ? std::min(next, missing_member_->since + kReportTime) : next;
}

}  // namespace shoal
