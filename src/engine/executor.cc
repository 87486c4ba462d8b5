#include "src/engine/executor.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "src/engine/drive.h"
#include "src/engine/progress_thread.h"

namespace shoal {

using internal::LinkProgress;
using internal::Operation;

namespace {

constexpr std::uint32_t kCallEdge = 0xFFFFFFFF;   // TileHeader::edge of a signature
constexpr std::uint32_t kSignature = 0xFFFFFFFF;  // in place of an instruction's index: the tile is a signature
constexpr auto kGonePatience = std::chrono::milliseconds(250);
constexpr auto kSignaturePatience = std::chrono::milliseconds(1);
constexpr std::size_t kMaxFold = 256;
constexpr std::size_t kTilesInFlight = 64;  // that a link needs memory of; beyond, the queue grows once

using Clock = std::chrono::steady_clock;

std::string describe_call(std::uint64_t sequence, const CallSignature& signature) {
  return fmt::format("call {} ({})", sequence, to_string(signature));
}

std::optional<CallSignature> signature_in(const Arrival& head) {
  CallSignature signature;
  if (head.header.edge != kCallEdge || head.data.size() != sizeof signature) return std::nullopt;
  std::memcpy(&signature, head.data.data(), sizeof signature);
  return signature;
}

void drain_event(int fd) {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

void ring_event(int fd) {
  const std::uint64_t one = 1;
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace

Executor::Executor(ExecutorParts parts)
    : parts_(std::move(parts)),
      link_of_rank_(static_cast<std::size_t>(parts_.topology.ranks()), -1),
      links_(parts_.links.size()),
      kick_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      caller_waiter_(
          static_cast<int>(
              parts_.topology.ranks_of_node(parts_.topology.node_of_rank[static_cast<std::size_t>(parts_.rank)]).size()) <=
          parts_.cores) {
  std::size_t tile = std::numeric_limits<std::size_t>::max();
  for (std::size_t i = 0; i < parts_.links.size(); ++i) {
    links_[i].link = parts_.links[i].get();
    links_[i].taken = links_[i].link->sent_tiles();  // start-up may have used the link
    links_[i].outstanding.reserve(kTilesInFlight);
    link_of_rank_[static_cast<std::size_t>(links_[i].link->peer())] = static_cast<int>(i);
    tile = std::min(tile, links_[i].link->max_tile_bytes());
  }

  // Windows serve only where every rank sees every window.
  const int ranks = parts_.topology.ranks();
  for (const auto& transport : parts_.transports) {
    bool all = parts_.topology.nodes() == 1;
    for (int r = 0; all && r < ranks; ++r) all = !transport->shared_window(r).empty();
    if (!all || window_calls_.available()) continue;
    window_calls_ = WindowCalls(*transport, parts_.rank, ranks, *parts_.device);
  }
  plan_context_ = {&parts_.topology, parts_.rank, link_of_rank_, tile, window_calls_.one_shot_bytes()};
  caller_descriptors_.reserve(1 + kMaxWaitFds);
}

Executor::~Executor() {
  if (kick_fd_ >= 0) ::close(kick_fd_);
}

Operation* Executor::acquire(Plan* plan, std::unique_ptr<Plan> owned, Clock::time_point deadline, const void* input,
                             void* output) {
  Operation* operation = Operation::acquire(plan, std::move(owned));
  operation->reset(shared_from_this(), next_sequence_.fetch_add(1, std::memory_order_relaxed), deadline, input, output);
  return operation;
}

void Executor::post(Operation* operation) {
  operation->add_reference();
  in_flight_.fetch_add(1, std::memory_order_seq_cst);
  operation->next_in_inbox = inbox_.load(std::memory_order_relaxed);
  while (!inbox_.compare_exchange_weak(operation->next_in_inbox, operation, std::memory_order_seq_cst)) {
  }
  // seq_cst everywhere here: either the driver sees the inbox before it sleeps or leaves, or we see that it does.
  if (driver_sleeps_.exchange(false, std::memory_order_seq_cst)) ring_event(kick_fd_);
  if (!seat_.load(std::memory_order_seq_cst)) ProgressThread::instance().notify(this);
}

void Executor::run(Operation* operation) {
  if (!try_take_seat()) {
    post(operation);
    wait(operation, operation->deadline() + std::chrono::seconds(1));
    return;
  }
  // The seat is ours: no inbox, no wake-up, no other thread.
  operation->add_reference();
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  waiting_.push_back(operation);
  Executor* self = this;
  drive(std::span(&self, 1), caller_waiter_, -1, caller_descriptors_, Clock::time_point::max(),
        [&] { return operation->done(); });
  leave_seat();
}

void Executor::wait(Operation* operation, Clock::time_point deadline) {
  while (!operation->done() && Clock::now() < deadline) {
    if (!try_take_seat()) {
      operation->sleep_until(deadline);
      continue;
    }
    Executor* self = this;
    drive(std::span(&self, 1), caller_waiter_, -1, caller_descriptors_, deadline,
          [&] { return operation->done() || Clock::now() >= deadline; });
    leave_seat();
  }
}

void Executor::leave_seat() {
  do {
    if (closed()) check();
    seat_.store(false, std::memory_order_seq_cst);
    // closed() again: a close() that found the seat taken relies on us.
  } while (closed() && !announced_.load(std::memory_order_seq_cst) && try_take_seat());
  if (busy()) ProgressThread::instance().notify(this);
}

bool Executor::busy() const noexcept { return in_flight_.load(std::memory_order_seq_cst) != 0; }

void Executor::drain_inbox() {
  if (inbox_.load(std::memory_order_relaxed) == nullptr) return;
  // acquire: the posters' writes to their Operations.
  for (Operation* operation = inbox_.exchange(nullptr, std::memory_order_seq_cst); operation != nullptr;) {
    Operation* next = operation->next_in_inbox;
    waiting_.push_back(operation);
    operation = next;
  }
}

void Executor::start(Operation* operation) {
  ledger_[operation->sequence() % kLedgerSize] = operation->plan->signature;
  active_.push(operation);
  if (closed()) return;
  // The windows carry signature and data; the links have no part in it.
  if (window_calls_.takes(*operation->plan)) return window_calls_.push(operation);
  start_on_links(operation);
}

void Executor::start_on_links(Operation* operation) {
  for (std::uint32_t i = 0; i < operation->plan->links.size(); ++i) {
    LinkState& state = links_[operation->plan->links[i].link];
    state.senders.push({operation, i});
    state.receivers.push({operation, i});
  }
}

bool Executor::progress() {
  bool moved = false;
  drain_inbox();
  while (!waiting_.empty() && !window_calls_.undecided()) {
    const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const Operation* operation) { return operation->sequence() == next_start_; });
    if (next == waiting_.end()) break;
    Operation* operation = *next;
    *next = waiting_.back();
    waiting_.pop_back();
    ++next_start_;
    start(operation);
    moved = true;
  }
  if (closed()) return check() || moved;
  if (active_.empty()) return moved;

  moved |= advance_window_call();
  if (window_calls_.size() != active_.size()) {
    // Sends first: a transport may hold small tiles until progress(), to let them travel together.
    for (LinkState& state : links_) {
      while (!state.senders.empty() && advance_send(state)) moved = true;
    }
    for (const auto& transport : parts_.transports) moved |= transport->progress();
    for (LinkState& state : links_) {
      moved |= retire_sent(state);
      while (!state.receivers.empty() && advance_receive(state)) moved = true;
    }
    for (std::size_t i = 0; i < active_.size(); ++i) {
      while (advance_local(active_[i])) moved = true;
    }
  }
  return retire_completed() || moved;
}

void Executor::mark_done(Operation* operation, std::uint32_t instruction, std::size_t bytes) {
  operation->done_bytes[instruction] += bytes;
  if (operation->done_bytes[instruction] == operation->plan->instructions[instruction].size_bytes)
    --operation->open_instructions;
}

void Executor::mark_sent(Operation* operation, std::uint32_t plan_link, std::uint32_t instruction, std::size_t bytes) {
  if (instruction != kSignature) return mark_done(operation, instruction, bytes);
  LinkProgress& progress = operation->links[plan_link];
  progress.call_gone = true;
  if (progress.call_received) --operation->open_links;
}

bool Executor::retire_sent(LinkState& state) {
  bool moved = false;
  while (!state.outstanding.empty() && state.outstanding.front().ticket <= state.link->sent_tiles()) {
    const auto& sent = state.outstanding.front();
    mark_sent(sent.operation, sent.plan_link, sent.instruction, sent.bytes);
    state.outstanding.pop();
    moved = true;
  }
  return moved;
}

// One step of the call whose turn it is to send on this link: its signature, a tile, or the end of its turn.
bool Executor::advance_send(LinkState& state) {
  const auto [operation, plan_link] = state.senders.front();
  const Plan& plan = *operation->plan;
  LinkProgress& progress = operation->links[plan_link];
  const auto& sends = plan.links[plan_link].sends;
  if (progress.send_index == sends.size()) {
    if (!progress.call_sent) return send_signature(state);
    state.senders.pop();
    return true;
  }
  const auto sequence = static_cast<std::uint32_t>(operation->sequence());
  const std::uint32_t index = sends[progress.send_index];
  const Instruction& instruction = plan.instructions[index];
  const std::size_t tile = std::min(plan.tile_bytes, instruction.size_bytes - progress.send_issued_bytes);
  if (operation->allowed_bytes(index) < progress.send_issued_bytes + tile) return false;
  // Only now: signature and first tile share a packet. See send_late_signatures().
  if (!progress.call_sent) return send_signature(state);
  const TileHeader header{0, sequence, progress.send_index, static_cast<std::uint32_t>(tile), progress.send_issued_bytes};
  const std::byte* data = operation->at(instruction.source) + progress.send_issued_bytes;
  const bool taken =
      instruction.may_lend ? state.link->try_lend(header, {data, tile}) : state.link->try_send(header, {data, tile});
  if (!taken) return false;
  progress.send_issued_bytes += tile;
  if (progress.send_issued_bytes == instruction.size_bytes) {
    progress.send_issued_bytes = 0;
    ++progress.send_index;
  }
  taken_by_link(state, index, tile);
  return true;
}

// Tells the peer which call this rank is in. False where the link has no room.
bool Executor::send_signature(LinkState& state) {
  const auto [operation, plan_link] = state.senders.front();
  const auto bytes = std::as_bytes(std::span(&operation->plan->signature, 1));
  const TileHeader header{0, static_cast<std::uint32_t>(operation->sequence()), kCallEdge,
                          static_cast<std::uint32_t>(bytes.size()), 0};
  if (!state.link->try_send(header, bytes)) return false;
  operation->links[plan_link].call_sent = true;
  taken_by_link(state, kSignature, bytes.size());
  return true;
}

// A signature waits for the first tile, but not for long: the peer must learn that this rank is in the call, and in which.
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
  signatures_due_ = now + kSignaturePatience;  // for those that find no room
  bool moved = false;
  for (LinkState& state : links_) {
    if (waits(state)) moved |= send_signature(state);
  }
  return moved;
}

// The link has just taken a tile of the call whose turn it is: its memory is free now or later.
void Executor::taken_by_link(LinkState& state, std::uint32_t instruction, std::size_t bytes) {
  const auto [operation, plan_link] = state.senders.front();
  ++state.taken;
  if (state.outstanding.empty() && state.link->sent_tiles() >= state.taken) {
    mark_sent(operation, plan_link, instruction, bytes);
  } else {
    state.outstanding.push({operation, plan_link, instruction, bytes, state.taken});
  }
}

// One step of the call whose turn it is to receive on this link.
bool Executor::advance_receive(LinkState& state) {
  const auto [operation, plan_link] = state.receivers.front();
  const LinkProgress& progress = operation->links[plan_link];
  if (progress.call_received && progress.receive_index == operation->plan->links[plan_link].receives.size()) {
    state.receivers.pop();
    return true;
  }
  const Arrival* head = state.link->peek();
  if (head == nullptr) return false;
  if (head->header.sequence != static_cast<std::uint32_t>(operation->sequence()))
    return fail(out_of_step(state, *head, *operation));
  if (!progress.call_received) return receive_signature(state, operation, plan_link, *head);
  return receive_tile(state, operation, plan_link, *head);
}

bool Executor::receive_signature(LinkState& state, Operation* operation, std::uint32_t plan_link, const Arrival& head) {
  const auto theirs = signature_in(head);
  if (!theirs) return fail({StatusCode::internal, fmt::format("rank {} sent a tile before its signature", state.link->peer())});
  state.link->release();
  if (!(*theirs == operation->plan->signature)) {
    return fail(mismatch(operation->sequence(), operation->plan->signature, state.link->peer(), *theirs));
  }
  LinkProgress& progress = operation->links[plan_link];
  progress.call_received = true;
  if (progress.call_gone) --operation->open_links;
  return true;
}

bool Executor::receive_tile(LinkState& state, Operation* operation, std::uint32_t plan_link, const Arrival& head) {
  LinkProgress& progress = operation->links[plan_link];
  const std::uint32_t index = operation->plan->links[plan_link].receives[progress.receive_index];
  const Instruction& instruction = operation->plan->instructions[index];
  if (instruction.op == StepOp::recv_reduce) return fold(operation, index);

  const std::size_t done = operation->done_bytes[index];
  const std::size_t tile = std::min(operation->plan->tile_bytes, instruction.size_bytes - done);
  if (head.header.edge != progress.receive_index || head.header.offset_bytes != done || head.data.size() != tile) {
    return fail(
        {StatusCode::internal, fmt::format("rank {} sent an unexpected tile: edge {} offset {} size {}", state.link->peer(),
                                           head.header.edge, head.header.offset_bytes, head.data.size())});
  }
  if (operation->allowed_bytes(index) < done + tile) return false;
  parts_.device->copy(operation->at(instruction.target) + done, head.data.data(), tile);
  state.link->release();
  mark_done(operation, index, tile);
  if (operation->done_bytes[index] == instruction.size_bytes) ++progress.receive_index;
  return true;
}

// One tile of an n-way reduction, once it has come from every peer.
bool Executor::fold(Operation* operation, std::uint32_t index) {
  const Plan& plan = *operation->plan;
  const Instruction& instruction = plan.instructions[index];
  const std::size_t done = operation->done_bytes[index];
  const std::size_t tile = std::min(plan.tile_bytes, instruction.size_bytes - done);
  const std::span edges(plan.edges.data() + instruction.first_edge, instruction.edge_count);
  std::array<const std::byte*, kMaxFold + 1> operands;
  std::size_t count = 0;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    LinkState& state = links_[edges[i].link];
    const LinkProgress& progress = operation->links[edges[i].plan_link];
    if (state.receivers.empty() || state.receivers.front().operation != operation || !progress.call_received ||
        progress.receive_index != edges[i].edge) {
      return false;
    }
    const Arrival* head = state.link->peek();
    if (head == nullptr) return false;
    const TileHeader& header = head->header;
    if (header.sequence != static_cast<std::uint32_t>(operation->sequence())) return false;  // advance_receive will say so
    if (header.edge != edges[i].edge || header.offset_bytes != done || head->data.size() != tile) {
      return fail({StatusCode::internal, fmt::format("rank {} sent an unexpected tile: edge {} offset {} size {}",
                                                     state.link->peer(), header.edge, header.offset_bytes, head->data.size())});
    }
    if (i == instruction.own_position) operands[count++] = operation->at(instruction.source) + done;
    operands[count++] = head->data.data();
  }
  if (instruction.own_position == edges.size()) operands[count++] = operation->at(instruction.source) + done;
  if (operation->allowed_bytes(index) < done + tile) return false;

  const Collective& call = plan.key.collective;
  std::byte* target = operation->at(instruction.target) + done;
  const std::span<const std::byte* const> all(operands.data(), count);
  if (instruction.average) {
    parts_.device->reduce_average(target, all, tile / size_of(call.type), call.type, plan.ranks);
  } else {
    parts_.device->reduce(target, all, tile / size_of(call.type), call.type, call.op);
  }
  for (const PlanEdge& edge : edges) links_[edge.link].link->release();
  mark_done(operation, index, tile);
  if (operation->done_bytes[index] == instruction.size_bytes) {
    for (const PlanEdge& edge : edges) ++operation->links[edge.plan_link].receive_index;
  }
  return true;
}

bool Executor::advance_local(Operation* operation) {
  const Plan& plan = *operation->plan;
  if (operation->next_local_step == plan.local_steps.size()) return false;
  const std::uint32_t index = plan.local_steps[operation->next_local_step];
  const Instruction& instruction = plan.instructions[index];
  const std::size_t done = operation->done_bytes[index];
  const std::size_t tile = std::min(plan.tile_bytes, instruction.size_bytes - done);
  if (operation->allowed_bytes(index) < done + tile) return false;
  std::byte* target = operation->at(instruction.target) + done;
  const std::byte* source = operation->at(instruction.source) + done;
  const Collective& call = plan.key.collective;
  if (instruction.op == StepOp::copy) {
    parts_.device->copy(target, source, tile);
  } else if (const std::array<const std::byte*, 2> operands{target, source}; instruction.average) {
    parts_.device->reduce_average(target, operands, tile / size_of(call.type), call.type, plan.ranks);
  } else {
    parts_.device->reduce(target, operands, tile / size_of(call.type), call.type, call.op);
  }
  mark_done(operation, index, tile);
  if (operation->done_bytes[index] == instruction.size_bytes) ++operation->next_local_step;
  return true;
}

bool Executor::advance_window_call() {
  if (window_calls_.size() == 0) return false;
  const WindowCalls::Advance result = window_calls_.advance();
  if (result.odd_rank >= 0) {
    const Operation& operation = *window_calls_.front();
    return fail(mismatch(operation.sequence(), operation.plan->signature, result.odd_rank, result.theirs));
  }
  if (result.to_links != nullptr) start_on_links(result.to_links);
  return result.moved;
}

bool Executor::retire_completed() {
  bool moved = false;
  // Calls mostly end in order; one that ends early waits for its elders only to be reported, not to be done.
  for (std::size_t i = 0; i < active_.size();) {
    Operation* operation = active_[i];
    const bool complete = operation->open_instructions == 0 && operation->open_links == 0;
    if (!complete && !closed()) {
      ++i;
      continue;
    }
    // Its turns on the links may still stand in the queues although nothing is left to do there; let them end first.
    if (complete && !closed()) {
      bool queued = false;
      for (const PlanLink& link : operation->plan->links) {
        LinkState& state = links_[link.link];
        while (!state.senders.empty() && state.senders.front().operation == operation && advance_send(state)) {
        }
        while (!state.receivers.empty() && state.receivers.front().operation == operation && advance_receive(state)) {
        }
        queued |= (!state.senders.empty() && state.senders.front().operation == operation) ||
                  (!state.receivers.empty() && state.receivers.front().operation == operation);
      }
      if (queued) {
        ++i;
        continue;
      }
    }
    for (std::size_t k = i; k > 0; --k) active_[k] = active_[k - 1];
    active_.pop();
    finish(operation, complete ? Status() : status());
    moved = true;
  }
  return moved;
}

void Executor::finish(Operation* operation, const Status& outcome) {
  // First: whoever sees the outcome may destroy the communicator, and must not find this call in flight.
  in_flight_.fetch_sub(1, std::memory_order_seq_cst);
  operation->finish(outcome);
  operation->drop_reference();
}

bool Executor::fail(Status cause) {
  // What looks wrong here may be the consequence of what a peer has already reported: its words come first.
  bool moved = false;
  if (parts_.control != nullptr && !closed()) {
    if (Status earlier = parts_.control->poll(&moved);
        earlier.code() != StatusCode::ok && earlier.code() != StatusCode::peer_failed) {
      cause = std::move(earlier);
    }
  }
  close(cause);
  return false;  // for the advance functions: nothing more to do here
}

void Executor::close(const Status& cause) {
  {
    const std::scoped_lock lock(cause_mutex_);
    if (!cause_.ok()) return;
    cause_ = cause;
  }
  closed_.store(true, std::memory_order_seq_cst);
  // Whoever drives sees it and tells the peers; where nobody does, this thread does it now.
  if (driver_sleeps_.exchange(false, std::memory_order_seq_cst)) ring_event(kick_fd_);
  if (try_take_seat()) leave_seat();
}

Status Executor::status() const {
  if (!closed()) return {};
  const std::scoped_lock lock(cause_mutex_);
  return cause_;
}

bool Executor::check() {
  bool moved = false;
  if (parts_.control != nullptr && !closed()) {
    if (Status cause = parts_.control->poll(&moved); !cause.ok()) fail(std::move(cause));
  }
  if (!closed()) moved |= send_late_signatures();
  if (!closed()) moved |= check_stray_calls() || check_links() || check_deadlines();
  if (closed()) {
    if (!announced_.exchange(true) && parts_.control != nullptr) parts_.control->send_abort(status());
    for (LinkState& state : links_) {
      state.senders.clear();
      state.receivers.clear();
      state.outstanding.clear();
    }
    window_calls_.clear();
    moved |= retire_completed();
    for (Operation* operation : std::exchange(waiting_, {})) {
      finish(operation, status());
      moved = true;
    }
  }
  return moved;
}

// Signatures on links where this rank waits for nothing: a peer whose call uses other links than ours is in another call.
bool Executor::check_stray_calls() {
  for (LinkState& state : links_) {
    if (!state.receivers.empty()) continue;
    const Arrival* head = state.link->peek();
    if (head == nullptr) continue;
    const auto sequence = past_call(head->header.sequence);
    const auto theirs = signature_in(*head);
    if (!sequence || !theirs) continue;                         // a call that we have not made yet
    if (ledger_[*sequence % kLedgerSize] == *theirs) continue;  // a shared fold that will take the links
    fail(mismatch(*sequence, ledger_[*sequence % kLedgerSize], state.link->peer(), *theirs));
    return true;
  }
  return false;
}

// The call that a 32-bit sequence number on the wire means, if we have made it and still know it.
std::optional<std::uint64_t> Executor::past_call(std::uint32_t wire_sequence) const noexcept {
  const auto ahead = static_cast<std::int32_t>(wire_sequence - static_cast<std::uint32_t>(next_start_));
  if (ahead >= 0 || ahead < -static_cast<std::int32_t>(kLedgerSize)) return std::nullopt;
  return next_start_ + static_cast<std::uint64_t>(static_cast<std::int64_t>(ahead));
}

// A peer's tile does not belong to the call that we wait for on its link: either one of us had other partners in an earlier
// call, or the peer is done with a call that we are still in.
Status Executor::out_of_step(const LinkState& state, const Arrival& head, const Operation& operation) const {
  const auto theirs = signature_in(head);
  const auto sequence = past_call(head.header.sequence);
  if (theirs && sequence && *sequence < operation.sequence()) {
    return mismatch(*sequence, ledger_[*sequence % kLedgerSize], state.link->peer(), *theirs);
  }
  return {StatusCode::mismatch,
          fmt::format("rank {} is in {}, but rank {} is in call {}{}; every rank must make the same calls in the same order",
                      parts_.rank, describe_call(operation.sequence(), operation.plan->signature), state.link->peer(),
                      head.header.sequence, theirs ? fmt::format(" ({})", to_string(*theirs)) : "")};
}

// Peers that are gone while a call in flight still needs them.
bool Executor::check_links() {
  const auto has_left = [&](int peer) { return parts_.control != nullptr && parts_.control->has_left(peer); };
  if (window_calls_.size() > 0) {
    for (int peer = 0; peer < parts_.topology.ranks(); ++peer) {
      if (!window_calls_.awaits(*window_calls_.front(), peer) || !has_left(peer)) continue;
      fail(left_too_early(peer));
      return true;
    }
  }
  for (LinkState& state : links_) {
    if (state.senders.empty() && state.receivers.empty() && state.outstanding.empty()) continue;
    const int peer = state.link->peer();
    if ((state.link->status().ok() && !has_left(peer)) || state.link->peek() != nullptr) continue;
    const auto now = Clock::now();
    if (state.gone_since == Clock::time_point{}) state.gone_since = now;
    // Data and farewell travel on different wires: what was sent before the farewell may come after it, and the control plane
    // may be about to bring the reason for a break.
    if (now - state.gone_since < kGonePatience && parts_.control != nullptr) continue;
    fail(has_left(peer) ? left_too_early(peer)
                        : Status(StatusCode::peer_failed, fmt::format("rank {} died or lost its connection ({})", peer,
                                                                      state.link->status().message())));
    return true;
  }
  return false;
}

Status Executor::left_too_early(int peer) {
  return {StatusCode::peer_failed,
          fmt::format("rank {} has destroyed its communicator, but rank {} still needs it in {}", peer, parts_.rank,
                      describe_call(active_.front()->sequence(), active_.front()->plan->signature))};
}

bool Executor::check_deadlines() {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < active_.size(); ++i) {
    if (now < active_[i]->deadline()) continue;
    fail({StatusCode::timeout, late_report(*active_[i])});
    return true;
  }
  return false;
}

Clock::time_point Executor::next_check() const noexcept {
  auto until = Clock::now() + std::chrono::seconds(1);
  auto& active = const_cast<RingQueue<Operation*>&>(active_);
  for (std::size_t i = 0; i < active.size(); ++i) until = std::min(until, active[i]->deadline());
  for (const LinkState& state : links_) {
    if (state.gone_since != Clock::time_point{}) until = std::min(until, state.gone_since + kGonePatience);
  }
  if (signatures_due_ != Clock::time_point{}) until = std::min(until, signatures_due_);
  return until;
}

bool Executor::prepare_wait() {
  bool clear = true;
  for (const auto& transport : parts_.transports) clear &= transport->prepare_wait();
  if (parts_.control != nullptr && parts_.control->transport() != nullptr) clear &= parts_.control->transport()->prepare_wait();
  driver_sleeps_.store(true, std::memory_order_seq_cst);
  return clear && inbox_.load(std::memory_order_seq_cst) == nullptr;
}

void Executor::finish_wait() {
  driver_sleeps_.store(false, std::memory_order_relaxed);
  drain_event(kick_fd_);
  for (const auto& transport : parts_.transports) transport->finish_wait();
  if (parts_.control != nullptr && parts_.control->transport() != nullptr) parts_.control->transport()->finish_wait();
}

void Executor::append_wait_fds(std::vector<pollfd>& out) const {
  out.push_back({kick_fd_, POLLIN, 0});
  for (const auto& transport : parts_.transports) {
    if (transport->wait_fd() >= 0) out.push_back({transport->wait_fd(), POLLIN, 0});
  }
  if (parts_.control != nullptr && parts_.control->transport() != nullptr) {
    out.push_back({parts_.control->transport()->wait_fd(), POLLIN, 0});
  }
}

Status Executor::mismatch(std::uint64_t sequence, const CallSignature& mine, int peer, const CallSignature& theirs) const {
  return {StatusCode::mismatch,
          fmt::format(
              "call {} differs between ranks: rank {} is in {}, rank {} is in {} (different {}); every rank must make the same "
              "calls in the same order",
              sequence, parts_.rank, to_string(mine), peer, to_string(theirs), difference(mine, theirs))};
}

std::string Executor::late_report(const Operation& operation) {
  std::string absent;
  std::string slow;
  const auto name = [](std::string& list, int rank) { list += (list.empty() ? "rank " : ", rank ") + std::to_string(rank); };
  for (int peer = 0; peer < parts_.topology.ranks(); ++peer) {
    if (window_calls_.awaits(operation, peer)) name(absent, peer);
  }
  for (std::size_t i = 0; !operation.published && i < operation.links.size(); ++i) {
    const int peer = links_[operation.plan->links[i].link].link->peer();
    if (!operation.links[i].call_received) {
      name(absent, peer);
    } else if (operation.links[i].receive_index < operation.plan->links[i].receives.size()) {
      name(slow, peer);
    }
  }
  std::string report =
      fmt::format("{} timed out on rank {}", describe_call(operation.sequence(), operation.plan->signature), parts_.rank);
  if (!absent.empty()) report += fmt::format("; not in the call: {}", absent);
  if (!slow.empty()) report += fmt::format("; in the call but data still missing: {}", slow);
  if (absent.empty() && slow.empty()) report += "; everything has come in, but peers have not taken all of our data";
  return report;
}

void Executor::shut_down() {
  const auto close_if_busy = [this] {
    if (busy())
      close({StatusCode::aborted, fmt::format("rank {} destroyed its communicator with calls in flight", parts_.rank)});
  };
  while (!try_take_seat()) {
    // A driver is at work; closing makes it leave soon, and one with nothing left to do is about to.
    close_if_busy();
    std::this_thread::yield();
  }
  drain_inbox();
  close_if_busy();
  if (closed()) {
    check();
  } else {
    if (parts_.control != nullptr) parts_.control->send_farewell();
    const std::scoped_lock lock(cause_mutex_);
    cause_ = {StatusCode::aborted, "the communicator has been destroyed"};
    announced_.store(true);
    closed_.store(true, std::memory_order_release);
  }
  // Later ends of the connections: the peers see them after the farewell.
  seat_.store(false, std::memory_order_seq_cst);
}

std::string Executor::transports_of(const Plan& plan) const {
  if (plan.one_shot_window && window_calls_.available()) return std::string(window_calls_.transport_name());
  std::string names;
  for (std::uint32_t t = 0; t < parts_.transports.size(); ++t) {
    const bool used = std::any_of(plan.links.begin(), plan.links.end(),
                                  [&](const PlanLink& link) { return parts_.transport_of_link[link.link] == t; });
    if (used) names += (names.empty() ? "" : "+") + std::string(parts_.transports[t]->name());
  }
  return names.empty() ? "local" : names;
}

std::size_t Executor::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& transport : parts_.transports) bytes += transport->memory_bytes();
  if (parts_.control != nullptr && parts_.control->transport() != nullptr) bytes += parts_.control->transport()->memory_bytes();
  return bytes;
}

}  // namespace shoal
