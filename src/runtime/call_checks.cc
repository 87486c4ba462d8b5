#include "src/runtime/call_checks.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace shoal {

using internal::Operation;

namespace {

/// `started`: else it waits for its turn.
Occupation occupation_of(const Operation& operation, bool started, CallChecks::Time now) {
  const auto waited = operation.watch.waited(now);
  if (operation.is_message()) return {Messages::describe(operation), waited, true};
  return {describe_call(operation.sequence(), started ? operation.signature : operation.plan->signature), waited};
}

/// This rank could not connect a link, for example for lack of descriptors; the peer is not the cause.
bool is_own_failure(const Status& link) { return link.code() == StatusCode::system_error; }

}  // namespace

std::optional<CallProblem> CallChecks::check(Time now) {
  if (auto problem = check_unclaimed()) return problem;
  if (auto problem = check_members(now)) return problem;
  if (auto problem = check_links(now)) return problem;
  // After all control messages have been read: a peer that has aborted has sent the reason.
  if (auto disagreement = s_.monitor.take_disagreeing_wait()) return *disagreement;
  if (auto problem = check_deadlines(now)) return problem;
  return check_messages(now);
}

std::optional<CallProblem> CallChecks::check_unclaimed() {
  for (const Wire* wire : s_.router.active()) {
    LinkCalls::LinkState* state = s_.links.of_job_rank(wire->link->peer());
    const auto unclaimed = state == nullptr ? std::nullopt : s_.links.unclaimed_signature(*state);
    if (!unclaimed) continue;
    if (const auto stray = s_.monitor.stray_call(state->peer, unclaimed->first, unclaimed->second)) return *stray;
  }
  return std::nullopt;
}

// A peer is gone without which a call cannot end, whether or not there is a link to it.
std::optional<CallProblem> CallChecks::check_members(Time now) {
  if (const auto missing = s_.monitor.missing_member(now); missing && !s_.calls.started.empty())
    return s_.monitor.left_too_early(*missing, *occupation(now));
  int left = -1;  // a peer whose part in the call over windows is missing
  const int peers = s_.monitor.any_left() && s_.peer_memory_calls.size() > 0 ? s_.group.topology.ranks() : 0;
  for (int peer = 0; left < 0 && peer < peers; ++peer) {
    if (s_.monitor.has_left(peer) && s_.peer_memory_calls.awaits(*s_.peer_memory_calls.front(), peer)) left = peer;
  }
  if (left < 0) {
    window_absence_ = {};
    return std::nullopt;
  }
  // The peer may have left because of an error whose report is about to arrive here.
  return s_.monitor.absent(left, window_absence_, Status(), *occupation(now), now);
}

// A peer is gone that a call in flight still needs.
std::optional<CallProblem> CallChecks::check_links(Time now) {
  for (LinkCalls::LinkState* each : s_.links.in_use()) {
    LinkCalls::LinkState& state = *each;
    const bool left = s_.monitor.has_left(state.peer);
    if (!state.needed() || (state.link->status().ok() && !left) || state.link->peek() != nullptr) {
      if (!s_.messages.needs(state.peer)) state.absence = {};  // else next_check() would count it
      continue;
    }
    if (is_own_failure(state.link->status())) return state.link->status();
    // Sends this rank's call to all ranks at once: a rank that is in another call then detects the mismatch, instead of only
    // seeing that the peer has left.
    if (!state.absence.begun() && left && s_.control.plane() != nullptr) {
      const Operation& oldest = *s_.calls.started.front();
      s_.control.plane()->send_wait(s_.group.name, s_.group.members,
                                    CallMonitor::wait_message(oldest.sequence(), oldest.signature, late_ranks(oldest)));
    }
    auto cause = s_.monitor.absent(state.peer, state.absence, state.link->status(), *occupation(now), now);
    if (cause) return *std::move(cause);
  }
  return std::nullopt;
}

void CallChecks::report_wait(Time now) {
  RingQueue<Operation*>& started = s_.calls.started;
  if (started.empty()) return;
  const Operation& oldest = *started.front();
  auto first_deadline = oldest.deadline();
  for (std::size_t i = 1; i < started.size(); ++i) first_deadline = std::min(first_deadline, started[i]->deadline());
  if (!s_.monitor.waits(oldest.sequence(), first_deadline, now)) return;
  for (const CallMonitor::WaitMessage& message : s_.monitor.misses(oldest.signature, late_ranks(oldest), now))
    s_.control.plane()->send_wait(s_.group.name, message.receivers, message.bytes);
}

std::optional<CallProblem> CallChecks::check_deadlines(Time now) {
  report_wait(now);
  RingQueue<Operation*>& started = s_.calls.started;
  s_.monitor.watchdog().begin();
  for (std::size_t i = 0; i < started.size(); ++i) warn(*started[i], true, now);
  for (Operation* call : s_.calls.waiting) warn(*call, false, now);
  for (std::size_t i = 0; i < started.size(); ++i) {
    if (now >= s_.monitor.verdict_at(started[i]->deadline())) return timed_out(*started[i], true, now);
  }
  for (const Operation* call : s_.calls.waiting) {
    if (now >= s_.monitor.verdict_at(call->deadline())) return timed_out(*call, false, now);
  }
  return std::nullopt;
}

// Messages that are late, or whose peer is gone.
std::optional<CallProblem> CallChecks::check_messages(Time now) {
  if (s_.calls.started.empty() && !s_.messages.live().empty()) {
    const Operation* awaited = s_.messages.awaited();
    const Operation& waits = awaited != nullptr ? *awaited : *s_.messages.live().front();
    if (s_.monitor.message_waits(waits.sequence(), now))
      s_.monitor.record_message(waits.message.peer, Messages::describe(waits));
  }
  s_.monitor.watchdog().begin();
  for (Operation* message : s_.messages.live()) warn(*message, true, now);
  for (Operation* message : s_.messages.live()) {
    if (now >= message->deadline()) return timed_out(*message, true, now);
    LinkCalls::LinkState* state = message->message.peer < 0 ? nullptr : s_.links.of_rank(message->message.peer);
    if (state == nullptr || (state->link->status().ok() && !s_.monitor.has_left(state->peer)) || state->link->peek() != nullptr)
      continue;
    if (is_own_failure(state->link->status())) return state->link->status();
    s_.links.use(*state);  // so that next_check() sees the absence
    auto cause = s_.monitor.absent(state->peer, state->absence, state->link->status(), occupation_of(*message, true, now), now);
    if (cause) return *std::move(cause);
  }
  for (const Operation* message : s_.messages.waiting()) {
    if (now >= message->deadline()) return timed_out(*message, false, now);
  }
  return std::nullopt;
}

void CallChecks::warn(Operation& operation, bool started, Time now) {
  if (!s_.monitor.watchdog().look(operation.watch, operation.deadline(), now)) return;
  fmt::print(stderr, "{}",
             s_.monitor.reports().warning(occupation_of(operation, started, now),
                                          started ? why_late(operation, now) : why_not_started(operation, now)));
}

Status CallChecks::timed_out(const Operation& operation, bool started, Time now) {
  s_.control.poll();  // answers may have arrived since the last look, and another rank's report of the same timeout
  return s_.monitor.reports().timed_out(occupation_of(operation, started, now),
                                        started ? why_late(operation, now) : why_not_started(operation, now));
}

CallChecks::Time CallChecks::next_check() const noexcept {
  if (s_.monitor.asks()) return s_.monitor.next_check();
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  const RingQueue<Operation*>& started = s_.calls.started;
  for (std::size_t i = 0; i < started.size(); ++i)
    until = std::min({until, s_.monitor.verdict_at(started[i]->deadline()), started[i]->watch.next});
  for (const Operation* call : s_.calls.waiting)
    until = std::min({until, s_.monitor.verdict_at(call->deadline()), call->watch.next});
  for (const Operation* message : s_.messages.live()) until = std::min({until, message->deadline(), message->watch.next});
  for (const Operation* message : s_.messages.waiting()) until = std::min(until, message->deadline());
  for (const LinkCalls::LinkState* state : s_.links.in_use()) {
    if (state->absence.begun())
      until = std::min(until, s_.monitor.absence_ends(state->peer, state->absence, state->link->status()));
  }
  if (window_absence_.begun()) until = std::min(until, s_.monitor.absence_ends(s_.group.rank, window_absence_, Status()));
  if (const auto due = s_.links.signatures_due()) until = std::min(until, *due);
  return started.empty() ? until : std::min(until, s_.monitor.next_check());
}

Late CallChecks::late_ranks(const Operation& operation) {
  Late late;
  for (int peer = 0; peer < s_.group.topology.ranks(); ++peer) {
    if (s_.peer_memory_calls.awaits(operation, peer)) late.absent.push_back(peer);
  }
  if (late.absent.empty() && !operation.published) s_.links.add_late(operation, late);
  return late;
}

std::optional<Occupation> CallChecks::occupation(Time now) {
  if (!s_.calls.started.empty()) return occupation_of(*s_.calls.started.front(), true, now);
  if (!s_.messages.live().empty()) return occupation_of(*s_.messages.live().front(), true, now);
  return std::nullopt;
}

std::string CallChecks::why_late(const Operation& operation, Time now) {
  if (operation.is_message()) {
    const CallReports& reports = s_.monitor.reports();
    const Operation* awaited = s_.messages.awaited();
    const bool elsewhere = awaited != nullptr && !operation.awaited();
    return reports.message_late(operation.message.is_send, operation.message.peer, now) + connecting(operation, now) +
           (elsewhere ? reports.waits_for(Messages::describe(*awaited), awaited->message.peer, now) : std::string());
  }
  return s_.monitor.why_late(operation.sequence(), late_ranks(operation), now) + connecting(operation, now);
}

std::string CallChecks::connecting(const Operation& operation, Time now) const {
  constexpr std::size_t kMostNamed = 4;
  const auto links = s_.links.unconnected(operation);
  std::string text;
  for (std::size_t i = 0; i < std::min(links.size(), kMostNamed); ++i) {
    text += fmt::format("; connecting to {}, for {:.1f} s", s_.group.name_of(links[i]->peer),
                        std::chrono::duration<double>(now - links[i]->requested_at).count());
  }
  if (links.size() > kMostNamed) text += fmt::format("; and to {} more ranks", links.size() - kMostNamed);
  return text;
}

// Calls start in order, and so do messages. Either the one before is in flight, or another thread has its number and has not
// posted it.
std::string CallChecks::why_not_started(const Operation& operation, Time now) {
  if (operation.is_message() || s_.calls.started.empty())
    return s_.monitor.reports().not_started(operation.is_message(), std::nullopt, "");
  const Operation& earlier = *s_.calls.started.front();
  return s_.monitor.reports().not_started(false, occupation_of(earlier, true, now), why_late(earlier, now));
}

}  // namespace shoal
