#include "src/runtime/call_runner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace shoal {

using internal::Operation;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kCallsBetweenLooks = 32;  // before receive_and_end() looks for signatures of calls that have ended here
constexpr std::size_t kFarewellCalls = 4;         // listed in a close notice
constexpr int kExpressLooks = 100;                // polls; one or two microseconds

bool is_complete(const Operation& operation) { return operation.open_instructions == 0 && operation.open_links == 0; }

void finish(Operation* operation, const Status& outcome) {
  operation->finish(outcome);
  operation->drop_reference();
}

}  // namespace

CallRunner::CallRunner(std::shared_ptr<ProgressEngine> engine, const Group& group)
    : ProgressClient(group, group.name.is_whole() ? 0 : engine->clients().next_number()),
      engine_(std::move(engine)),
      control_(engine_->parts().control.get()),
      monitor_(group_, engine_->control_messages().last_waits(),
               {engine_->parts().flight_record, engine_->parts().warn_after, /*reaches_peers=*/control_ != nullptr}),
      trace_(group_),
      links_(*engine_, group_, number_, trace_),
      messages_(*engine_, group_, number_, links_),
      checks_(
          {group_, monitor_, calls_, links_, peer_memory_calls_, messages_, engine_->control_messages(), engine_->router()}) {
  find_windows();
}

CallRunner::~CallRunner() = default;

void CallRunner::find_windows() {
  if (group_.topology.nodes() != 1) return;
  // Windows serve only where every rank sees every window.
  const auto sees_all = [&](const std::unique_ptr<Transport>& transport) {
    return std::ranges::none_of(group_.members, [&](int member) { return transport->shared_window(member).empty(); });
  };
  const auto found = std::ranges::find_if(engine_->parts().transports, sees_all);
  if (found == engine_->parts().transports.end()) return;
  Transport& transport = **found;
  std::vector<std::span<std::byte>> windows;
  if (group_.name.is_whole()) {
    for (const int member : group_.members) windows.push_back(transport.shared_window(member));
  } else if (group_.members.size() > 1) {
    lease_ = PeerMemoryLease(PeerMemoryBoard(transport.common_memory(), transport.window_count()), group_.name.key,
                             group_.members.size());
    windows = lease_.windows();
  }
  if (!windows.empty())
    peer_memory_calls_ = PeerMemoryCalls(transport, std::move(windows), group_.members, group_.rank, *engine_->parts().device);
}

void CallRunner::enqueue(Operation* operation) {
  if (!operation->is_message()) return calls_.waiting.push_back(operation);
  monitor_.message_entered();
  messages_.enqueue(operation);
}

PeerMemoryCalls::Attempt CallRunner::run_at_once(const Plan& plan, const void* input, void* output) {
  using Attempt = PeerMemoryCalls::Attempt;
  const std::uint64_t sequence = monitor_.next_call();
  const CallSignature& signature = monitor_.entered(plan.signature, plan.signature_hash);
  Attempt attempt = Attempt::ended;
  if (plan.ranks != 1) {
    attempt =
        peer_memory_calls_.try_one_shot(plan, signature, sequence, input, output, engine_->may_spin() ? kExpressLooks : 1);
  } else if (input != nullptr && input != output) {  // every call of a single rank is a copy, and a broadcast not even that
    engine_->parts().device->copy(static_cast<std::byte*>(output), static_cast<const std::byte*>(input),
                                  plan.key.collective.message_bytes(1));
  }
  if (attempt == Attempt::ended) monitor_.ended(sequence + 1);
  return attempt;
}

void CallRunner::continue_with(Operation* operation, const CallChain& before, bool published) {
  operation->before = before;
  operation->signature = before.of(operation->plan->signature);
  operation->published = published;
  operation->add_reference();
  calls_.started.push(operation);
  peer_memory_calls_.push(operation);
}

void CallRunner::start(Operation* operation) {
  operation->before = monitor_.chain();
  operation->signature = monitor_.entered(operation->plan->signature, operation->plan->signature_hash);
  calls_.started.push(operation);
  if (closed()) return;
  // The windows carry signature and data; the call uses no link.
  if (peer_memory_calls_.takes(*operation->plan)) return peer_memory_calls_.push(operation);
  links_.start(operation);
}

bool CallRunner::start_and_send() {
  if (asking()) [[unlikely]]
    return false;
  bool moved = false;
  while (!calls_.waiting.empty() && !peer_memory_calls_.undecided()) {
    Operation* operation = calls_.take_waiting(monitor_.next_call());
    if (operation == nullptr) break;
    start(operation);
    moved = true;
  }
  if (closed()) return end_calls() || moved;
  if (messages_.size() != 0) {
    moved |= messages_.advance();
    moved |= finish_messages({});
    if (Status failure = messages_.take_failure(); !failure.ok()) fail(std::move(failure));
    engine_->router().note_stray();  // their tiles are found by TileRouter::route(), which looks at all links
  }
  if (calls_.started.empty()) return moved;

  moved |= advance_peer_memory();
  if (closed()) return end_calls() || moved;
  if (!on_links()) return retire_completed() || moved;
  return links_.send() || moved;
}

bool CallRunner::receive_and_end() {
  if (asking()) [[unlikely]]
    return false;
  bool moved = false;
  if (!closed()) {
    moved = links_.receive();
    for (std::size_t i = 0; i < calls_.started.size(); ++i) moved |= links_.work_locally(calls_.started[i]);
    if (links_.has_problem()) [[unlikely]]
      settle(*links_.take_problem(), /*found_in_call=*/true);
  }
  // While calls succeed one after the other, no wait lasts long enough for check() to run.
  if (monitor_.next_call() - unclaimed_checked_at_ >= kCallsBetweenLooks && !closed()) {
    unclaimed_checked_at_ = monitor_.next_call();
    if (const auto problem = checks_.check_unclaimed()) {
      settle(*problem, /*found_in_call=*/false);
      moved = true;
    }
  }
  if (closed()) return end_calls() || moved;
  return retire_completed() || moved;
}

bool CallRunner::check() {
  if (closed()) return false;
  const auto now = Clock::now();
  if (monitor_.asks()) {
    if (const auto cause = monitor_.unanswered(now)) fail(*cause);
    return closed();
  }
  const bool moved = links_.send_late_signatures(now);
  const auto problem = checks_.check(now);
  if (!problem) return moved;
  settle(*problem, /*found_in_call=*/false);
  return true;
}

bool CallRunner::advance_peer_memory() {
  if (peer_memory_calls_.size() == 0) return false;
  const Recorder::Time begin = Recorder::now_if_on();
  const Operation* call = peer_memory_calls_.front();
  const PeerMemoryCalls::Advance result = peer_memory_calls_.advance();
  if (Recorder::on() && result.moved && call->open_instructions == 0) [[unlikely]] {
    const bool folds = call->plan->zero_copy_reduce || call->plan->peer_memory_part.folds;
    trace_.add(*call, group_.rank, folds ? Stage::node_reduce : Stage::node_gather, call->plan->key.collective.input_bytes(),
               begin);
  }
  if (result.odd_rank >= 0) {
    disagree({result.odd_rank, result.sequence, result.ours, result.its_sequence, result.theirs});
    return false;
  }
  if (const Status failure = peer_memory_calls_.take_failure(); !failure.ok()) {
    Status cause(failure.code(), failure.message() + while_in_call());
    // Where the peer has died, the report of its death is about to arrive.
    if (failure.code() == StatusCode::peer_failed) {
      await_report(std::move(cause));
    } else {
      fail(std::move(cause));
    }
    return false;
  }
  if (result.to_links != nullptr) links_.start(result.to_links);
  return result.moved;
}

void CallRunner::settle(const CallProblem& problem, bool found_in_call) {
  if (const auto* disagreement = std::get_if<Disagreement>(&problem)) return disagree(*disagreement);
  if (const auto* reclaimed = std::get_if<ReclaimedTile>(&problem)) return await_report(reclaimed_by(reclaimed->peer));
  const auto& cause = std::get<Status>(problem);
  fail(found_in_call ? Status(cause.code(), cause.message() + while_in_call()) : cause);
}

std::string CallRunner::while_in_call() { return monitor_.reports().was_in(checks_.occupation(Clock::now())); }

// Ends completed calls only: a callback or another thread may close this communicator meanwhile, and links and windows need
// the memory of unfinished calls until end_calls().
bool CallRunner::retire_completed() {
  if (asking()) [[unlikely]]
    return false;  // a thread must drive until the answer arrives
  bool moved = false;
  // Calls mostly end in order; a call that completes early does not wait for earlier calls.
  RingQueue<Operation*>& started = calls_.started;
  for (std::size_t i = 0; i < started.size();) {
    Operation* operation = started[i];
    // The call's turns may still be queued on links although nothing is left to do there; end these first.
    if (!is_complete(*operation) || (operation->on_links && !links_.end_turns(operation))) {
      ++i;
      continue;
    }
    calls_.take_started(i);
    if (operation->on_links) links_.ended();
    monitor_.ended(started.empty() ? monitor_.next_call() : started.front()->sequence());
    finish(operation, Status());
    moved = true;
  }
  if (links_.has_problem()) [[unlikely]]
    settle(*links_.take_problem(), /*found_in_call=*/true);
  return moved;
}

bool CallRunner::finish_messages(const Status& outcome) {
  if (messages_.ended().empty()) return false;
  std::vector<Operation*>& ended = messages_.ended();
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (outcome.ok()) monitor_.message_ended();
    finish(ended[i], outcome);
  }
  ended.clear();
  return true;
}

void CallRunner::take_message(int job_rank, const Arrival& arrival) {
  LinkCalls::LinkState& state = *links_.of_job_rank(job_rank);
  state.absence = {};  // data that the peer sent before its close notice is still arriving
  Status status = messages_.take(state.peer, arrival);
  finish_messages({});
  if (!status.ok()) fail(std::move(status));
}

LinkUse CallRunner::use_of(int job_rank) const noexcept {
  const LinkCalls::LinkState* state = links_.of_job_rank(job_rank);
  if (state == nullptr) return LinkUse::none;
  if ((state->paused && !state->senders.empty()) || messages_.wants(state->peer)) return LinkUse::paused;
  return state->senders.empty() && state->receivers.empty() ? LinkUse::none : LinkUse::waits;
}

void CallRunner::on_control(const ControlPlane::Message& message) {
  using Kind = ControlPlane::Message::Kind;
  if (message.kind == Kind::abort) return close(message.status);
  const ClientLink* link = link_to(message.rank);
  if (link == nullptr) return;
  const auto now = Clock::now();
  std::optional<Status> cause;
  if (message.kind == Kind::farewell) monitor_.peer_left(link->peer, message.payload);
  if (message.kind == Kind::goodbye) monitor_.peer_gone(link->peer, now);
  if (message.kind == Kind::waits) monitor_.peer_waits(link->peer, message.payload, now);
  if (message.kind == Kind::calls) cause = monitor_.peer_disagrees(link->peer, message.payload);
  if (message.kind == Kind::death) cause = monitor_.peer_died(link->peer, message.status, checks_.occupation(now), now);
  if (cause) close(*cause);
}

Status CallRunner::reclaimed_by(int rank) {
  return {StatusCode::aborted, fmt::format("{} closed its communicator and reclaimed a buffer that {} was reading{}",
                                           group_.name_of(rank), group_.name_of(group_.rank), while_in_call())};
}

void CallRunner::lent_tile_reclaimed(int job_rank) { fail(reclaimed_by(link_to(job_rank)->peer)); }

// By value, since poll_control() may replace the status that the caller passes.
void CallRunner::fail(Status cause) {  // NOLINT(performance-unnecessary-value-param)
  // The failure seen here may be a consequence of one that a peer has already reported: the peer's report comes first.
  if (!closed()) engine_->control_messages().poll();
  close(cause);
}

void CallRunner::disagree(const Disagreement& what) {
  if (!closed()) engine_->control_messages().poll();  // as in fail()
  if (closed() || monitor_.asks()) return;
  if (const auto cause = monitor_.disagrees(what, /*waits=*/!calls_.started.empty(), Clock::now())) return close(*cause);
  control_->send_calls(group_.name, group_.members[static_cast<std::size_t>(what.peer)], monitor_.history());
}

void CallRunner::await_report(Status otherwise) {
  if (!closed()) engine_->control_messages().poll();
  if (closed() || monitor_.asks()) return;
  if (const auto cause = monitor_.await_report(std::move(otherwise), Clock::now())) close(*cause);
}

void CallRunner::close(const Status& cause) {
  if (!closing_.set(cause)) return;
  monitor_.failed(cause);
  closed_.store(true, std::memory_order_seq_cst);
  engine_->tend_to_closed();
  closing_.call_hooks(cause);
}

bool CallRunner::end_calls() {
  const Status cause = closing_.get();
  if (!std::exchange(announced_, true) && control_ != nullptr) control_->send_abort(group_.name, group_.members, cause);
  links_.abort();
  peer_memory_calls_.clear();
  bool moved = !calls_.started.empty();
  while (!calls_.started.empty()) {
    Operation* operation = calls_.started.front();
    calls_.started.pop();
    if (operation->on_links) links_.ended();
    finish(operation, is_complete(*operation) ? Status() : cause);
  }
  for (Operation* operation : std::exchange(calls_.waiting, {})) {
    finish(operation, cause);
    moved = true;
  }
  messages_.give_up();
  return finish_messages(cause) || moved;
}

void CallRunner::leave_to_parent() {
  closing_.set_if_free(
      {StatusCode::aborted, "the communicator belongs to the parent process; this process is its child by fork()"});
  announced_ = true;
  closed_.store(true);
  lease_.abandon();
}

bool CallRunner::leave() {
  engine_->progress();  // calls that are complete by now succeed; drains the inbox
  if (!idle() && !closed()) {
    close(monitor_.or_mismatch(
        {StatusCode::aborted, fmt::format("{} destroyed its communicator with calls in flight", group_.name_of(group_.rank))}));
  }
  if (closed()) {
    end_calls();
  } else {
    if (control_ != nullptr) control_->send_farewell(group_.name, group_.members, monitor_.history(kFarewellCalls));
    closing_.set({StatusCode::aborted, "the communicator has been destroyed"});
    announced_ = true;
    closed_.store(true, std::memory_order_release);
  }
  lease_.leave();
  return engine_->detach(*this);
}

}  // namespace shoal
