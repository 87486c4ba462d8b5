// The checks of an Executor that need not run in every pass, and the texts of its error reports.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "src/runtime/executor.h"

namespace shoal {

using internal::Operation;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kWordsPatience = std::chrono::milliseconds(250);  // for a peer's report of the cause
// For data of a peer on another host that has sent a close notice: a network retransmits a lost packet after 0.2 s or more,
// and after twice as long where it is lost again.
constexpr auto kDataPatience = std::chrono::seconds(2);
constexpr auto kSignaturePatience = std::chrono::milliseconds(1);
constexpr std::size_t kMostWhereabouts = 4;  // late ranks for which a report says what they do instead

std::string describe_call(std::uint64_t sequence, const CallSignature& signature) {
  return fmt::format("call {} ({})", sequence, to_string(signature));
}

std::string for_so_long(const std::optional<Clock::duration>& waited) {
  return waited ? fmt::format(", for {:.1f} s", std::chrono::duration<double>(*waited).count()) : "";
}

std::string after(const std::optional<Clock::duration>& waited) {
  return waited ? fmt::format(" after {:.1f} s", std::chrono::duration<double>(*waited).count()) : "";
}

}  // namespace

std::optional<CallSignature> signature_in(const Arrival& head) {
  CallSignature signature;
  if (head.header.edge != kCallEdge || head.data.size() != sizeof signature) return std::nullopt;
  std::memcpy(&signature, head.data.data(), sizeof signature);
  return signature;
}

bool Executor::check() {
  if (closed()) return false;
  if (question_) {
    if (Clock::now() >= question_->until) fail(question_->otherwise);
    return closed();
  }
  bool moved = send_late_signatures();
  moved |= check_stray_calls() || check_links() || check_waits() || check_deadlines() || check_messages();
  return moved;
}

Executor::LinkState* Executor::link_to(int job_rank) noexcept {
  const int index = link_of_job_rank_[static_cast<std::size_t>(job_rank)];
  return index < 0 ? nullptr : &links_[static_cast<std::size_t>(index)];
}

void Executor::set_number_of(int job_rank, std::uint32_t number) {
  if (LinkState* state = link_to(job_rank); state != nullptr) state->their_number = number;
}

std::optional<std::uint32_t> Executor::number_of(int job_rank) noexcept {
  const LinkState* state = link_to(job_rank);
  return state == nullptr || state->their_number == kCommunicatorLimit ? std::nullopt : std::optional(state->their_number);
}

bool Executor::has_bound(int job_rank) noexcept {
  const LinkState* state = link_to(job_rank);
  return state != nullptr && (state->bound || messages_.has_bound(state->peer));
}

void Executor::take_spilled(int job_rank, SpillQueue& aside) {
  if (LinkState* state = link_to(job_rank); state != nullptr) state->aside = &aside;
}

void Executor::set_paused(int job_rank, bool paused) {
  if (LinkState* state = link_to(job_rank); state != nullptr) state->paused = paused;
}

bool Executor::uses(int job_rank) const noexcept {
  const int index = link_of_job_rank_[static_cast<std::size_t>(job_rank)];
  if (index < 0) return false;
  const LinkState& state = links_[static_cast<std::size_t>(index)];
  return !state.senders.empty() || !state.receivers.empty() || messages_.wants(state.peer);
}

bool Executor::is_paused(int job_rank) const noexcept {
  const int index = link_of_job_rank_[static_cast<std::size_t>(job_rank)];
  if (index < 0) return false;
  const LinkState& state = links_[static_cast<std::size_t>(index)];
  return (state.paused && !state.senders.empty()) || messages_.wants(state.peer);
}

void Executor::peer_left(int job_rank, std::span<const std::byte> its_calls) {
  const LinkState* state = link_to(job_rank);
  if (state == nullptr) return;
  left_[static_cast<std::size_t>(state->peer)] = true;
  if (auto calls = parse_history(its_calls)) last_calls_[state->peer] = *std::move(calls);
}

void Executor::peer_gone(int job_rank) {
  const LinkState* state = link_to(job_rank);
  if (state == nullptr) return;
  if (group_.is_meeting && !left_[static_cast<std::size_t>(state->peer)] && !absentee_) absentee_ = {state->peer, Clock::now()};
  left_[static_cast<std::size_t>(state->peer)] = true;
}

void Executor::peer_died(int job_rank, const Status& how) {
  const LinkState* state = link_to(job_rank);
  if (state == nullptr) return;
  if (left_[static_cast<std::size_t>(state->peer)]) return;  // a call that still needs the peer fails in check_links()
  close(or_mismatch(died(state->peer, how)));
}

/// Also reports what this rank was in, for how long, and what the dead rank was in, where its flight record is on this host:
/// no other rank may know which call the death has interrupted.
Status Executor::died(int rank, const Status& how) {
  const auto now = Clock::now();
  std::string what = "no call";
  std::optional<Clock::duration> waited;
  if (active_.size() > 0) {
    what = describe_call(active_.front()->sequence(), active_.front()->signature);
    waited = active_.front()->watch.waited(now);
  } else if (!messages_.live().empty()) {
    what = Messages::describe(*messages_.live().front());
    waited = messages_.live().front()->watch.waited(now);
  } else if (next_start_ > 0) {
    what += fmt::format(" after {}", describe_call(next_start_ - 1, flight_record_.call(next_start_ - 1)));
  }
  return {StatusCode::peer_failed,
          fmt::format("{} died or lost its connection ({}); {} was in {}{}{}{}", name_of(rank), how.message(),
                      name_of(group_.rank), what, of_communicator(), for_so_long(waited), whereabouts(rank))};
}

Status Executor::taken_back_by(int job_rank) {
  return {StatusCode::aborted, fmt::format("{} closed its communicator and reclaimed a buffer that {} was reading{}",
                                           name_of(link_to(job_rank)->peer), name_of(group_.rank), while_in())};
}

// The peer that is asked may exit because of the mismatch, or this rank may abort. All ranks must report the first cause.
Status Executor::or_mismatch(const Status& consequence) const {
  return asking() && question_->otherwise.code() == StatusCode::mismatch ? question_->otherwise : consequence;
}

std::string Executor::while_in() {
  const std::string call = active_.empty() ? "no call" : describe_call(active_.front()->sequence(), active_.front()->signature);
  return fmt::format("; {} was in {}{}", name_of(group_.rank), call, of_communicator());
}

// A signature waits for the first tile, but only briefly: the peer must learn that this rank is in the call, and in which.
bool Executor::send_late_signatures() {
  const auto waits = [](LinkState& state) {
    if (state.senders.empty()) return false;
    const auto [operation, plan_link] = state.senders.front();
    return !operation->links[plan_link].call_sent;
  };
  if (std::none_of(links_.begin(), links_.end(), [&](LinkState& state) { return waits(state); })) {
    signatures_due_ = {};
    return false;
  }
  const auto now = Clock::now();
  if (signatures_due_ == Clock::time_point{}) signatures_due_ = now + kSignaturePatience;
  if (now < signatures_due_) return false;
  signatures_due_ = now + kSignaturePatience;  // the next attempt on links without room
  bool moved = false;
  for (LinkState& state : links_) {
    if (waits(state) && !state.paused) moved |= send_signature(state);
  }
  return moved;
}

// Checks signatures on links from which this rank waits for nothing: a peer whose call uses other links than this rank's is in
// another call.
bool Executor::check_stray_calls() {
  for (LinkState& state : links_) {
    if (!state.receivers.empty()) continue;
    const Arrival* head = this->head(state);
    if (head == nullptr) continue;
    const auto sequence = past_call(head->header.sequence);
    const auto theirs = signature_in(*head);
    if (!sequence || !theirs) continue;                       // a call that this rank has not made yet
    if (flight_record_.call(*sequence) == *theirs) continue;  // a zero-copy call that will fall back to the links
    disagree(state.peer, *sequence, mismatch(*sequence, flight_record_.call(*sequence), state.peer, *theirs));
    return true;
  }
  return false;
}

// The call of a 32-bit sequence number on the wire, if this rank has made it and still remembers it.
std::optional<std::uint64_t> Executor::past_call(std::uint32_t wire_sequence) const noexcept {
  const auto ahead = static_cast<std::int32_t>(wire_sequence - static_cast<std::uint32_t>(next_start_));
  if (ahead >= 0 || ahead < -static_cast<std::int32_t>(kFlightRecordCalls)) return std::nullopt;
  return next_start_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(ahead));
}

// A peer's tile does not belong to the call that this rank waits for on their link. Either the two ranks had different
// partners in an earlier call, or the peer has finished a call that this rank is still in.
bool Executor::out_of_step(const LinkState& state, const Arrival& head, const Operation& operation) {
  const auto theirs = signature_in(head);
  const auto sequence = past_call(head.header.sequence);
  if (theirs && sequence && *sequence < operation.sequence()) {
    return disagree(state.peer, *sequence, mismatch(*sequence, flight_record_.call(*sequence), state.peer, *theirs));
  }
  return disagree(state.peer, operation.sequence(),
                  in_another_call(operation.sequence(), operation.signature, state.peer, head.header.sequence, theirs));
}

// Fails where a peer is gone that a call in flight still needs.
bool Executor::check_links() {
  // Not only where a call of this rank needs that peer: another rank that needs it may already be in the next shrink() without
  // it and never join this call.
  if (absentee_ && active_.size() > 0 && Clock::now() - absentee_->since >= kWordsPatience) {
    fail(left_too_early(absentee_->rank));
    return true;
  }
  const auto has_left = [&](int peer) { return left_[static_cast<std::size_t>(peer)]; };
  int left_in_window = -1;
  for (int peer = 0; peer_memory_calls_.size() > 0 && left_in_window < 0 && peer < group_.topology.ranks(); ++peer) {
    if (peer_memory_calls_.awaits(*peer_memory_calls_.front(), peer) && has_left(peer)) left_in_window = peer;
  }
  if (left_in_window < 0) {
    window_gone_since_ = {};
  } else if (window_gone_since_ == Clock::time_point{}) {
    window_gone_since_ = Clock::now();  // the peer may have left because of an error whose report is about to arrive here
  } else if (Clock::now() - window_gone_since_ >= kWordsPatience || engine_->control() == nullptr) {
    fail(left_too_early(left_in_window));
    return true;
  }
  for (LinkState& state : links_) {
    const int peer = state.peer;
    const bool needed = !state.senders.empty() || !state.receivers.empty() || !state.outstanding.empty();
    if (!needed || (state.link->status().ok() && !has_left(peer)) || state.link->peek() != nullptr) {
      if (!messages_.needs(peer)) state.gone_since = {};  // else next_check() would count it
      continue;
    }
    const auto now = Clock::now();
    if (state.gone_since == Clock::time_point{}) {
      state.gone_since = now;
      // Send this rank's call to all ranks at once: a rank that is in another call then detects the mismatch, instead of only
      // seeing that the peer has left.
      if (has_left(peer) && engine_->control() != nullptr && !active_.empty()) {
        const Operation& oldest = *active_.front();
        const Late late = late_ranks(oldest);
        StragglerDetector::Words words{oldest.sequence(), 0, {}, {}, oldest.signature};
        for (const int rank : late.absent) words.absent.insert(rank);
        for (const int rank : late.slow) words.slow.insert(rank);
        engine_->control()->send_wait(group_.name, group_.members, StragglerDetector::to_bytes(words));
      }
    }
    // Data and close notice travel on different connections: data that was sent before the notice may arrive after it. And the
    // control plane may be about to deliver the reason for a broken link.
    if (now - state.gone_since < time_limit_for(state) && engine_->control() != nullptr) continue;
    fail(has_left(peer) ? left_too_early(peer) : died(peer, state.link->status()));
    return true;
  }
  return false;
}

/// How long a call may wait for a peer that is gone while no data of it arrives.
Clock::duration Executor::time_limit_for(const LinkState& state) const {
  const bool far = group_.topology.link_class(group_.rank, state.peer) == LinkClass::network;
  if (!far || !state.link->status().ok()) return kWordsPatience;
  const auto last = last_calls_.find(state.peer);  // a peer whose calls differ has not left while data of it was in flight
  return last != last_calls_.end() && first_difference(*flight_record_, last->second) ? Clock::duration(kWordsPatience)
                                                                                      : Clock::duration(kDataPatience);
}

/// The peer left in order, as far as it knew. So it may have made another call in place of the one that needs it here.
Status Executor::left_too_early(int peer) {
  if (const auto last = last_calls_.find(peer); last != last_calls_.end()) {
    if (const auto first = first_difference(*flight_record_, last->second)) return first_mismatch(peer, *first);
  }
  return {StatusCode::peer_failed,
          fmt::format("{} has destroyed its communicator, but {} still needs it in {}{}", name_of(peer), name_of(group_.rank),
                      describe_call(active_.front()->sequence(), active_.front()->signature), of_communicator())};
}

bool Executor::check_deadlines() {
  const auto now = Clock::now();
  if (active_.size() > 0) {
    Operation& oldest = *active_.front();
    flight_record_.wait(oldest.sequence(), false, now, [&](FlightRecordPage& page) {
      const Late late = late_ranks(oldest);
      page.absent = page.slow = {};
      for (const int rank : late.absent) page.absent.insert(rank);
      for (const int rank : late.slow) page.slow.insert(rank);
    });
    tell_wait(oldest, now);
  }
  watchdog_.begin();
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Operation& call = *active_[i];
    if (const auto waited = watchdog_.look(call.watch, call.deadline(), now))
      warn(*waited, describe_call(call.sequence(), call.signature), who_is_late(call));
  }
  for (Operation* call : waiting_) {
    if (const auto waited = watchdog_.look(call->watch, call->deadline(), now))
      warn(*waited, describe_call(call->sequence(), call->plan->signature), before_its_turn(*call));
  }
  for (std::size_t i = 0; i < active_.size(); ++i) {
    if (now < straggler_detector_.verdict_at(active_[i]->deadline())) continue;
    // Answers may have arrived since the last look, and another rank's report of the same timeout.
    engine_->poll_control();
    if (!closed()) fail({StatusCode::timeout, late_report(*active_[i])});
    return true;
  }
  for (const Operation* operation : waiting_) {
    if (now < straggler_detector_.verdict_at(operation->deadline())) continue;
    engine_->poll_control();
    if (!closed()) fail({StatusCode::timeout, late_turn_report(*operation)});
    return true;
  }
  return false;
}

// Checks messages that are late, or whose peer is gone.
bool Executor::check_messages() {
  const auto now = Clock::now();
  if (const auto& live = messages_.live(); !live.empty()) {
    const Operation& oldest = *live.front();
    const auto tell = [&](FlightRecordPage& page) {
      page.absent = page.slow = {};
      if (const int peer = oldest.message.peer; peer >= 0) page.slow.insert(peer);
      set_text(page.words, Messages::describe(oldest));
    };
    if (active_.size() == 0) flight_record_.wait(oldest.sequence(), true, now, tell);
  }
  watchdog_.begin();
  for (Operation* message : messages_.live()) {
    if (const auto waited = watchdog_.look(message->watch, message->deadline(), now))
      warn(*waited, Messages::describe(*message), why_late(*message));
  }
  for (Operation* operation : messages_.live()) {
    const internal::Message& m = operation->message;
    if (now >= operation->deadline()) {
      engine_->poll_control();  // a report about the peer may have arrived
      if (!closed())
        fail({StatusCode::timeout,
              fmt::format("{}{} timed out on {}{}{}", Messages::describe(*operation), of_communicator(), name_of(group_.rank),
                          after(operation->watch.waited(now)), why_late(*operation))});
      return true;
    }
    if (m.peer < 0 || m.peer == group_.rank) continue;
    LinkState& state = links_[static_cast<std::size_t>(link_of_rank_[static_cast<std::size_t>(m.peer)])];
    const bool left = left_[static_cast<std::size_t>(m.peer)];
    if ((state.link->status().ok() && !left) || state.link->peek() != nullptr) continue;
    if (state.gone_since == Clock::time_point{}) state.gone_since = now;
    if (now - state.gone_since < time_limit_for(state) && engine_->control() != nullptr) continue;
    fail(left ? Status(StatusCode::peer_failed,
                       fmt::format("{} has destroyed its communicator, but {} still needs it in {}{}", name_of(m.peer),
                                   name_of(group_.rank), Messages::describe(*operation), of_communicator()))
              : died(m.peer, state.link->status()));
    return true;
  }
  for (const Operation* operation : messages_.waiting()) {
    if (now < operation->deadline()) continue;
    fail({StatusCode::timeout, late_turn_report(*operation)});
    return true;
  }
  return false;
}

Clock::time_point Executor::next_check() const noexcept {
  if (question_) return question_->until;
  auto until = Clock::now() + std::chrono::seconds(1);
  auto& active = const_cast<RingQueue<Operation*>&>(active_);
  for (std::size_t i = 0; i < active.size(); ++i)
    until = std::min({until, straggler_detector_.verdict_at(active[i]->deadline()), active[i]->watch.next});
  for (const Operation* operation : messages_.live()) until = std::min({until, operation->deadline(), operation->watch.next});
  for (const Operation* operation : waiting_)
    until = std::min({until, straggler_detector_.verdict_at(operation->deadline()), operation->watch.next});
  for (const Operation* operation : messages_.waiting()) until = std::min(until, operation->deadline());
  for (const LinkState& state : links_) {
    if (state.gone_since != Clock::time_point{}) until = std::min(until, state.gone_since + time_limit_for(state));
  }
  if (window_gone_since_ != Clock::time_point{}) until = std::min(until, window_gone_since_ + kWordsPatience);
  if (absentee_ && active_.size() > 0) until = std::min(until, absentee_->since + kWordsPatience);
  if (signatures_due_ != Clock::time_point{}) until = std::min(until, signatures_due_);
  if (active_.size() > 0) until = std::min(until, straggler_detector_.next());
  return until;
}

Status Executor::mismatch(std::uint64_t sequence, const CallSignature& mine, int peer, const CallSignature& theirs) const {
  if (const std::string pair = pair_difference(mine, name_of(group_.rank), theirs, name_of(peer)); !pair.empty()) {
    return {StatusCode::mismatch,
            fmt::format("call {}{} differs between ranks: {}, {}; what a rank sends to a peer must be what the peer receives",
                        sequence, of_communicator(), to_string(mine), pair)};
  }
  return {StatusCode::mismatch,
          fmt::format("call {}{} differs between ranks: {} is in {}, {} is in {} (different {}); every rank must make the same "
                      "calls in the same order",
                      sequence, of_communicator(), name_of(group_.rank), to_string(mine), name_of(peer), to_string(theirs),
                      difference(mine, theirs))};
}

// The error for a peer that is in another call than `sequence`, the call of this rank.
Status Executor::in_another_call(std::uint64_t sequence, const CallSignature& mine, int peer, std::uint64_t its_sequence,
                                 const std::optional<CallSignature>& theirs) const {
  return {StatusCode::mismatch,
          fmt::format("{} is in {}{}, but {} is in call {}{}; every rank must make the same calls in the same order",
                      name_of(group_.rank), describe_call(sequence, mine), of_communicator(), name_of(peer), its_sequence,
                      theirs ? fmt::format(" ({})", to_string(*theirs)) : "")};
}

Status Executor::first_mismatch(int peer, const NumberedCall& theirs) const {
  return mismatch(theirs.sequence, flight_record_.call(theirs.sequence), peer, theirs.signature);
}

// `peer` was found in another call than this rank; `words` is the report about call `sequence`. But a rank that needs no data
// of peers continues with later calls and may be found in one of those. Which call it made in place of this rank's is in its
// flight record, where that is on this host. Otherwise this rank sends its own calls to the peer; the peer closes with the
// first call that differs, and this rank receives that cause.
bool Executor::disagree(int peer, std::uint64_t sequence, Status words) {
  if (!closed()) engine_->poll_control();  // as in fail()
  if (closed() || question_) return false;
  const int job_rank = group_.members[static_cast<std::size_t>(peer)];
  if (const auto calls =
          engine_->flight_record() == nullptr ? std::nullopt : engine_->flight_record()->calls_of(job_rank, group_.name.key)) {
    const auto first = first_difference(*flight_record_, *calls);
    return fail(first && first->sequence <= sequence ? first_mismatch(peer, *first) : std::move(words));
  }
  if (engine_->control() == nullptr || active_.empty()) return fail(std::move(words));  // no call would wait for the answer
  engine_->control()->send_calls(group_.name, job_rank, to_bytes(latest_calls(*flight_record_)));
  return await_words(std::move(words));
}

// A peer has reported, or is about to report, why this communicator closes. Without such a report the cause is `otherwise`.
bool Executor::await_words(Status otherwise) {
  if (!closed()) engine_->poll_control();
  if (closed() || question_) return false;
  if (engine_->control() == nullptr) return fail(std::move(otherwise));
  question_ = {std::move(otherwise), Clock::now() + kWordsPatience};
  return false;
}

void Executor::peer_disagrees(int job_rank, std::span<const std::byte> its_calls) {
  const LinkState* state = link_to(job_rank);
  const auto calls = parse_history(its_calls);
  if (state == nullptr || !calls) return;
  if (const auto first = first_difference(*flight_record_, *calls)) close(first_mismatch(state->peer, *first));
}

std::string Executor::late_report(const Operation& operation) {
  return fmt::format("{}{} timed out on {}{}{}", describe_call(operation.sequence(), operation.signature), of_communicator(),
                     name_of(group_.rank), after(operation.watch.waited(Clock::now())), who_is_late(operation));
}

std::string Executor::late_turn_report(const Operation& operation) {
  return fmt::format(
      "{}{} timed out on {}{}{}",
      operation.is_message() ? Messages::describe(operation) : describe_call(operation.sequence(), operation.plan->signature),
      of_communicator(), name_of(group_.rank), after(operation.watch.waited(Clock::now())), before_its_turn(operation));
}

// Calls start in order, and so do messages. Either the one before is in flight, or another thread has its number and has not
// posted it.
std::string Executor::before_its_turn(const Operation& operation) {
  const bool message = operation.is_message();
  if (!message && !active_.empty()) {
    return fmt::format(" before its turn; the earlier {} has not ended{}",
                       describe_call(active_.front()->sequence(), active_.front()->signature), who_is_late(*active_.front()));
  }
  return fmt::format(
      " before its turn; the {} before it has not been started: is it between group_begin() and group_end() of another thread?",
      message ? "message" : "call");
}

void Executor::warn(Clock::duration waited, const std::string& what, const std::string& why) const {
  fmt::print(stderr, "shoal: rank {} has waited {:.1f} s in {}{}{}\n", group_.rank,
             std::chrono::duration<double>(waited).count(), what, of_communicator(), why);
}

void Executor::tell_wait(const Operation& oldest, Clock::time_point now) {
  if (engine_->control() == nullptr) return;
  auto deadline = oldest.deadline();
  for (std::size_t i = 1; i < active_.size(); ++i) deadline = std::min(deadline, active_[i]->deadline());
  if (!straggler_detector_.due(oldest.sequence(), deadline, now)) return;
  StragglerDetector::Words words = straggler_detector_.tell(late_ranks(oldest), now);
  words.call = oldest.signature;
  engine_->control()->send_wait(group_.name, group_.members, StragglerDetector::to_bytes(words));
}

void Executor::peer_waits(int job_rank, std::span<const std::byte> what) {
  const LinkState* state = link_to(job_rank);
  const auto words = StragglerDetector::parse(what);
  if (state != nullptr && words) straggler_detector_.hear(state->peer, *words, Clock::now());
}

// Signatures travel with data, so two ranks that disagree may both wait for the other's signature, or not need it. Therefore
// the calls in the peers' wait messages are compared here. This happens after all control messages have been read: a peer that
// has aborted has sent the reason.
bool Executor::check_waits() {
  std::optional<int> odd;
  NumberedCall theirs;
  straggler_detector_.each_heard([&](int rank, const StragglerDetector::Words& words) {
    const bool known = words.sequence < next_start_ && next_start_ - words.sequence <= kFlightRecordCalls;
    if (!known || odd || flight_record_.call(words.sequence) == words.call) return;
    odd = rank;
    theirs = {words.sequence, words.call};
  });
  if (!odd) return false;
  disagree(*odd, theirs.sequence, first_mismatch(*odd, theirs));
  return true;
}

namespace {

// Whether the peer takes no data: the link still needs this rank's memory, or has no room for what could be sent.
template <typename State>
bool holds_back(State& state, const Operation& operation) {
  for (std::size_t i = 0; i < state.outstanding.size(); ++i) {
    if (state.outstanding[i].operation == &operation) return true;
  }
  if (state.senders.empty() || state.senders.front().operation != &operation) return false;
  const auto plan_link = state.senders.front().plan_link;
  const auto& progress = operation.links[plan_link];
  const auto& sends = operation.plan->links[plan_link].sends;
  if (progress.send_index == sends.size()) return !progress.call_sent;
  const auto& instruction = operation.plan->instructions[sends[progress.send_index]];
  const std::size_t tile = std::min(instruction.tile_bytes, instruction.size_bytes - progress.send_issued_bytes);
  return operation.allowed_bytes(sends[progress.send_index]) >= progress.send_issued_bytes + tile;
}

}  // namespace

Late Executor::late_ranks(const Operation& operation) {
  Late late;
  for (int peer = 0; peer < group_.topology.ranks(); ++peer) {
    if (peer_memory_calls_.awaits(operation, peer)) late.absent.push_back(peer);
  }
  const bool over_links = late.absent.empty() && !operation.published;
  for (std::size_t i = 0; over_links && i < operation.links.size(); ++i) {
    const int peer = links_[operation.plan->links[i].link].peer;
    if (!operation.links[i].call_received) {
      late.absent.push_back(peer);
    } else if (LinkState& state = links_[operation.plan->links[i].link];
               (operation.links[i].receive_index < operation.plan->links[i].receives.size() && head(state) == nullptr) ||
               holds_back(state, operation)) {
      late.slow.push_back(peer);
    }
  }
  return late;
}

std::string Executor::who_is_late(const Operation& operation) {
  const StragglerDetector::Verdict verdict = straggler_detector_.verdict(operation.sequence(), late_ranks(operation));
  std::string report;
  const auto add = [&](const char* what, const std::vector<int>& ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) report += (i == 0 ? fmt::format("; {}: ", what) : ", ") + name_of(ranks[i]);
  };
  add("not in the call", verdict.absent);
  add("in the call but data still missing", verdict.slow);
  add("waiting in turn", verdict.waiting);
  std::vector<int> late = verdict.absent;
  late.insert(late.end(), verdict.slow.begin(), verdict.slow.end());
  for (std::size_t i = 0; i < std::min(late.size(), kMostWhereabouts); ++i) report += whereabouts(late[i]);
  return report.empty() ? "; all data has arrived, but peers have not taken all data of this rank" : report;
}

std::string Executor::why_late(const Operation& message) const {
  const internal::Message& m = message.message;
  return (m.is_send ? "; the receiver has not taken all of it" : "; no matching message has arrived in full") +
         (m.peer < 0 || m.peer == group_.rank ? std::string() : whereabouts(m.peer));
}

std::string Executor::whereabouts(int rank) const {
  const int job_rank = group_.members[static_cast<std::size_t>(rank)];
  if (const auto& flight_record = engine_->flight_record(); flight_record != nullptr) {
    if (const std::string words = flight_record->whereabouts(job_rank, group_.name.key); !words.empty())
      return fmt::format("; {}: {}", name_of(rank), words);
  }
  const ProgressEngine::Wait* wait = engine_->last_wait(job_rank);
  if (wait == nullptr) return {};
  return fmt::format("; {}: reported {:.1f} s ago that it waits in {} of communicator {:x}", name_of(rank),
                     std::chrono::duration<double>(Clock::now() - wait->at).count(), describe_call(wait->sequence, wait->call),
                     wait->communicator);
}

Status Executor::unexpected_tile(const LinkState& state, const Arrival& head) {
  return {StatusCode::internal, fmt::format("{} sent an unexpected tile: edge {} offset {} size {}{}", name_of(state.peer),
                                            head.header.edge, head.header.offset_bytes, head.data.size(), while_in())};
}

}  // namespace shoal
