#include "src/runtime/executor.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "src/base/deadline.h"
#include "src/progress/driver_lock.h"
#include "src/progress/progress_thread.h"
#include "src/runtime/call_group.h"

namespace shoal {

using internal::LinkProgress;
using internal::Operation;

namespace {

constexpr std::uint32_t kSignature = 0xFFFFFFFF;  // in place of an instruction's index: the tile is a signature
constexpr std::size_t kTilesInFlight = 64;        // whose memory one link may still need; beyond, the queue grows once

constexpr int kTilesPerPass = 16;                 // sent on one link before arrived tiles are handled
constexpr std::uint64_t kCallsBetweenLooks = 32;  // before receive_and_end() looks for signatures of calls that have ended here
constexpr std::size_t kFarewellCalls = 4;         // listed in a close notice
constexpr int kExpressLooks = 100;                // polls; one or two microseconds

using Clock = std::chrono::steady_clock;

bool is_complete(const Operation& operation) { return operation.open_instructions == 0 && operation.open_links == 0; }

}  // namespace

Result<std::shared_ptr<Executor>> Executor::create(std::shared_ptr<ProgressEngine> engine, Group group) {
  std::shared_ptr<Executor> executor(new Executor(std::move(engine), std::move(group)));
  if (Status status = executor->engine_->attach(*executor); !status.ok()) return status;
  return executor;
}

Executor::Executor(std::shared_ptr<ProgressEngine> engine, Group group)
    : ProgressClient(group, group.name.is_whole() ? 0 : engine->next_number()),
      engine_(std::move(engine)),
      link_of_rank_(group_.members.size(), -1),
      link_of_job_rank_(static_cast<std::size_t>(engine_->topology().ranks()), -1),
      left_(group_.members.size()),
      messages_(*engine_, group_, number_),
      flight_record_(engine_->flight_record(), group_.id, group_.rank, group_.members, group_.name.key),
      watchdog_(engine_->warn_after()),
      straggler_detector_(group_.rank, static_cast<int>(group_.members.size())) {
  std::size_t tile = engine_->tile_bytes();
  std::size_t network_tile = std::numeric_limits<std::size_t>::max();
  bool costly_tiles = group_.topology.nodes() > 1;
  links_.reserve(group_.members.size());
  operands_.reserve(group_.members.size());
  for (int rank = 0; rank < group_.topology.ranks(); ++rank) {
    ProgressEngine::Wire* wire = engine_->wire_to(group_.members[static_cast<std::size_t>(rank)]);
    if (wire == nullptr) continue;
    link_of_job_rank_[static_cast<std::size_t>(wire->link->peer())] = static_cast<int>(links_.size());
    link_of_rank_[static_cast<std::size_t>(rank)] = static_cast<int>(links_.size());
    LinkState& state = links_.emplace_back();
    state.link = wire->link;
    state.wire = wire;
    state.peer = rank;
    state.bound = group_.name.is_whole();
    state.outstanding.reserve(kTilesInFlight);
    tile = std::min(tile, wire->link->max_tile_bytes());
    costly_tiles |= engine_->transports()[wire->transport]->tiles_are_costly();
    if (group_.topology.link_class(group_.rank, rank) == LinkClass::network) {
      network_tile = std::min(network_tile, wire->link->max_tile_bytes());
    }
  }

  find_windows();
  plan_context_ = {&group_.topology, group_.rank, link_of_rank_, tile, network_tile, peer_memory_calls_.room(), costly_tiles};
}

Executor::~Executor() = default;

void Executor::find_windows() {
  if (group_.topology.nodes() != 1) return;
  // Windows serve only where every rank sees every window.
  const auto sees_all = [&](const std::unique_ptr<Transport>& transport) {
    return std::ranges::none_of(group_.members, [&](int member) { return transport->shared_window(member).empty(); });
  };
  const auto found = std::ranges::find_if(engine_->transports(), sees_all);
  if (found == engine_->transports().end()) return;
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
    peer_memory_calls_ = PeerMemoryCalls(transport, std::move(windows), group_.members, group_.rank, engine_->device());
}

Operation* Executor::acquire(Plan* plan, std::unique_ptr<Plan> owned, Clock::time_point deadline, const void* input,
                             void* output) {
  Operation* operation = Operation::acquire(plan, std::move(owned));
  // Before the call has a number: all later calls would wait for a numbered call that never starts.
  if (!operation->take_scratch()) {
    operation->release();
    return nullptr;
  }
  operation->reset(shared_from_this(), next_sequence_.fetch_add(1, std::memory_order_relaxed), deadline, input, output);
  return operation;
}

Operation* Executor::acquire_message(const internal::Message& message, Clock::time_point deadline) {
  Operation* operation = Operation::acquire(&message_plan_, nullptr);
  operation->reset(shared_from_this(), next_message_.fetch_add(1, std::memory_order_relaxed), deadline, nullptr, nullptr);
  operation->set_message(message);
  return operation;
}

void Executor::post(Operation* operation) {
  if (CallGroup::open()) return CallGroup::add(operation, false);
  operation->add_reference();
  engine_->post(operation);
}

void Executor::post_late(Operation* operation) {
  const auto executor = std::static_pointer_cast<Executor>(operation->client());  // `operation` may hold the last reference
  if (!executor->closed()) return executor->engine_->post(operation);
  executor->finish(operation, executor->status());
}

void Executor::run(Operation* operation) {
  if (CallGroup::open()) return CallGroup::add(operation, true);
  operation->add_reference();
  if (!engine_->try_run(operation)) engine_->post(operation);
  wait_to_the_end(operation);
}

std::optional<Status> Executor::try_express(Plan& plan, std::chrono::milliseconds timeout, const void* input, void* output) {
  const bool alone = plan.ranks == 1;
  if ((!alone && (!plan.one_shot_window || !peer_memory_calls_.available())) || plan.meter != nullptr || CallGroup::open())
    return std::nullopt;
  DriverLock lock(*engine_, std::try_to_lock);
  if (!lock.owns()) return std::nullopt;
  std::uint64_t sequence = next_start_;
  // The number is taken last: other threads number their calls without the lock.
  if (engine_->busy() || closed() || !next_sequence_.compare_exchange_strong(sequence, sequence + 1, std::memory_order_relaxed))
    return std::nullopt;
  const CallChain before = chain_;
  const CallSignature& signature = enter(sequence, plan);
  ++next_start_;
  if (alone) {  // every call is a copy, and a broadcast not even that
    if (input != nullptr && input != output) {
      engine_->device().copy(static_cast<std::byte*>(output), static_cast<const std::byte*>(input),
                             plan.key.collective.message_bytes(1));
    }
    flight_record_.end();
    return Status();
  }
  const auto attempt =
      peer_memory_calls_.try_one_shot(plan, signature, sequence, input, output, engine_->cores_to_spare() ? kExpressLooks : 1);
  if (attempt == PeerMemoryCalls::Attempt::ended) {
    flight_record_.end();
    return Status();
  }
  // A peer is late: from here on this is an ordinary call.
  Operation* operation = Operation::acquire(&plan, nullptr);  // without scratch: calls over windows use none
  operation->reset(shared_from_this(), sequence, deadline_after(timeout), input, output);
  operation->before = before;
  operation->signature = signature;
  operation->published = attempt == PeerMemoryCalls::Attempt::published;
  operation->add_reference();
  active_.push(operation);
  peer_memory_calls_.push(operation);
  engine_->run_locked(std::move(lock), *this, *operation);
  wait_to_the_end(operation);
  Status outcome = operation->outcome();
  operation->drop_reference();
  return outcome;
}

// The driver ends the call at its deadline, or a little later where the driver itself is delayed. The call's buffers are in
// use until then.
void Executor::wait_to_the_end(Operation* operation) {
  if (!operation->done()) wait(operation, Clock::time_point::max());
}

void Executor::wait(Operation* operation, Clock::time_point deadline) {
  if (CallGroup::open()) CallGroup::flush();
  if (Operation::in_callback()) return;   // the callback would wait for itself
  if (engine_->left_to_parent()) return;  // no thread of this process ends the call
  // Another thread may keep the call in an open group without end. Once posted, it ends by its deadline or abort() at the
  // latest. It still starts in its turn.
  if (operation->take_from_group()) post_late(operation);
  while (!operation->done() && Clock::now() < deadline) {
    if (engine_->driver_wanted()) {
      std::this_thread::yield();
    } else if (!engine_->try_drive(*operation, deadline)) {
      operation->sleep_until(deadline);
    }
  }
}

void Executor::start(Operation* operation) {
  operation->before = chain_;
  operation->signature = enter(operation->sequence(), *operation->plan);
  active_.push(operation);
  if (closed()) return;
  // The windows carry signature and data; the call uses no link.
  if (peer_memory_calls_.takes(*operation->plan)) return peer_memory_calls_.push(operation);
  start_on_links(operation);
}

void Executor::start_on_links(Operation* operation) {
  operation->on_links = true;
  ++calls_on_links_;
  for (std::uint32_t i = 0; i < operation->plan->links.size(); ++i) {
    LinkState& state = links_[operation->plan->links[i].link];
    if (operation->plan->links[i].speaks) state.senders.push({operation, i});
    if (operation->plan->links[i].hears) state.receivers.push({operation, i});
  }
}

bool Executor::start_and_send() {
  if (asking()) [[unlikely]]
    return false;
  bool moved = false;
  while (!waiting_.empty() && !peer_memory_calls_.undecided()) {
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
  if (closed()) return end_calls() || moved;
  if (messages_.size() != 0) {
    moved |= messages_.advance();
    moved |= finish_messages({});
    if (Status failure = messages_.take_failure(); !failure.ok()) fail(std::move(failure));
    engine_->note_stray();  // their tiles are found by ProgressEngine::route(), which looks at all links
  }
  if (active_.empty()) return moved;

  moved |= advance_window_call();
  if (closed()) return end_calls() || moved;
  if (!on_links()) return retire_completed() || moved;
  for (LinkState& state : links_) {
    for (int tiles = 0; tiles < kTilesPerPass; ++tiles) {
      if (state.senders.empty() || !advance_send(state)) break;
      moved = true;
    }
  }
  return moved;
}

bool Executor::receive_and_end() {
  if (asking()) [[unlikely]]
    return false;
  bool moved = false;
  if (!closed()) {
    for (LinkState& state : links_) {
      moved |= retire_sent(state);
      for (int tiles = 0; tiles < kMostTilesInARow && !state.receivers.empty() && advance_receive(state); ++tiles) moved = true;
    }
    for (std::size_t i = 0; i < active_.size(); ++i) {
      for (int tiles = 0; tiles < kMostTilesInARow && active_[i]->on_links && advance_local(active_[i]); ++tiles) moved = true;
    }
  }
  // While calls succeed one after the other, no wait lasts long enough for check() to run.
  if (next_start_ - strays_looked_for_ >= kCallsBetweenLooks && !closed()) {
    strays_looked_for_ = next_start_;
    moved |= check_stray_calls();
  }
  if (closed()) return end_calls() || moved;
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
  if (state.paused) return false;
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
  const std::size_t tile = std::min(instruction.tile_bytes, instruction.size_bytes - progress.send_issued_bytes);
  if (operation->allowed_bytes(index) < progress.send_issued_bytes + tile) return false;
  // Not earlier: signature and first tile share a packet. See send_late_signatures().
  if (!progress.call_sent) return send_signature(state);
  const TileHeader header{number_, sequence, progress.send_index, static_cast<std::uint32_t>(tile), progress.send_issued_bytes};
  const std::byte* data = operation->at(instruction.source) + progress.send_issued_bytes;
  const bool taken = instruction.may_lend && engine_->alone() ? state.link->try_lend(header, {data, tile})
                                                              : state.link->try_send(header, {data, tile});
  if (!taken) return false;
  progress.send_issued_bytes += tile;
  if (progress.send_issued_bytes == instruction.size_bytes) {
    progress.send_issued_bytes = 0;
    ++progress.send_index;
  }
  taken_by_link(state, index, tile);
  if (Recorder::on() && group_.topology.link_class(group_.rank, state.peer) == LinkClass::network) [[unlikely]] {
    record(*operation, state.peer, Stage::wire, tile, Clock::now());
  }
  return true;
}

// Sends this rank's signature of the call to the peer. False where the link has no room.
bool Executor::send_signature(LinkState& state) {
  const auto [operation, plan_link] = state.senders.front();
  CallSignature& said = operation->links[plan_link].said;
  said = operation->before.of(operation->plan->links[plan_link].signature);
  const auto bytes = std::as_bytes(std::span(&said, 1));
  if (!state.bound && !engine_->bind(*state.wire, number_, group_.name)) return false;
  state.bound = true;
  const TileHeader header{number_, static_cast<std::uint32_t>(operation->sequence()), kCallEdge,
                          static_cast<std::uint32_t>(bytes.size()), 0};
  if (!state.link->try_send(header, bytes)) return false;
  operation->links[plan_link].call_sent = true;
  taken_by_link(state, kSignature, bytes.size());
  return true;
}

// The link has just taken a tile of the call whose turn it is: the tile's memory is free now or later.
void Executor::taken_by_link(LinkState& state, std::uint32_t instruction, std::size_t bytes) {
  const auto [operation, plan_link] = state.senders.front();
  const std::uint64_t ticket = ++state.wire->taken;
  if (state.outstanding.empty() && state.link->sent_tiles() >= ticket) {
    mark_sent(operation, plan_link, instruction, bytes);
  } else {
    state.outstanding.push({operation, plan_link, instruction, bytes, ticket});
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
  const Arrival* head = this->head(state);
  if (head == nullptr) return false;
  if (head->header.sequence != static_cast<std::uint32_t>(operation->sequence())) return out_of_step(state, *head, *operation);
  if (!progress.call_received) return receive_signature(state, operation, plan_link, *head);
  return receive_tile(state, operation, plan_link, *head);
}

bool Executor::receive_signature(LinkState& state, Operation* operation, std::uint32_t plan_link, const Arrival& head) {
  const auto theirs = signature_in(head);
  if (!theirs)
    return fail({StatusCode::internal, fmt::format("{} sent a tile before its signature{}", name_of(state.peer), while_in())});
  release(state);
  const PlanLink& link = operation->plan->links[plan_link];
  if (!(*theirs == operation->before.of(link.expected))) {
    return disagree(state.peer, operation->sequence(),
                    mismatch(operation->sequence(), operation->before.of(link.signature), state.peer, *theirs));
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
  const std::size_t tile = std::min(instruction.tile_bytes, instruction.size_bytes - done);
  if (head.header.edge != progress.receive_index || head.header.offset_bytes != done || head.data.size() != tile) {
    return fail(unexpected_tile(state, head));
  }
  if (operation->allowed_bytes(index) < done + tile) return false;
  const Recorder::Time begin = Recorder::now_if_on();
  engine_->device().copy(operation->at(instruction.target) + done, head.data.data(), tile);
  if (head.lent && !state.link->intact()) return await_words(taken_back_by(state.link->peer()));
  release(state);
  mark_done(operation, index, tile);
  if (Recorder::on()) [[unlikely]]
    record(*operation, state.peer, Stage::node_gather, tile, begin);
  if (operation->done_bytes[index] == instruction.size_bytes) ++progress.receive_index;
  return true;
}

// Folds one tile of an n-way reduction, once that tile has arrived from every peer.
bool Executor::fold(Operation* operation, std::uint32_t index) {
  const Plan& plan = *operation->plan;
  const Instruction& instruction = plan.instructions[index];
  const std::size_t done = operation->done_bytes[index];
  const std::size_t tile = std::min(instruction.tile_bytes, instruction.size_bytes - done);
  const std::span edges(plan.edges.data() + instruction.first_edge, instruction.edge_count);
  operands_.clear();
  for (std::size_t i = 0; i < edges.size(); ++i) {
    LinkState& state = links_[edges[i].link];
    const LinkProgress& progress = operation->links[edges[i].plan_link];
    if (state.receivers.empty() || state.receivers.front().operation != operation || !progress.call_received ||
        progress.receive_index != edges[i].edge) {
      return false;
    }
    const Arrival* head = this->head(state);
    if (head == nullptr) return false;
    const TileHeader& header = head->header;
    if (header.sequence != static_cast<std::uint32_t>(operation->sequence())) return false;  // advance_receive() will report it
    if (header.edge != edges[i].edge || header.offset_bytes != done || head->data.size() != tile) {
      return fail(unexpected_tile(state, *head));
    }
    if (i == instruction.own_position) operands_.push_back(operation->at(instruction.source) + done);
    operands_.push_back(head->data.data());
  }
  if (instruction.own_position == edges.size()) operands_.push_back(operation->at(instruction.source) + done);
  if (operation->allowed_bytes(index) < done + tile) return false;

  const Recorder::Time begin = Recorder::now_if_on();
  const Collective& call = plan.key.collective;
  std::byte* target = operation->at(instruction.target) + done;
  if (instruction.average) {
    engine_->device().reduce_average(target, operands_, tile / size_of(call.type), call.type, plan.ranks);
  } else {
    engine_->device().reduce(target, operands_, tile / size_of(call.type), call.type, call.op);
  }
  for (const PlanEdge& edge : edges) {
    LinkState& state = links_[edge.link];
    if (head(state)->lent && !state.link->intact()) return await_words(taken_back_by(state.link->peer()));
    release(state);
  }
  mark_done(operation, index, tile);
  if (Recorder::on()) [[unlikely]]
    record(*operation, links_[edges[0].link].peer, Stage::node_reduce, tile, begin);
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
  const std::size_t tile = std::min(instruction.tile_bytes, instruction.size_bytes - done);
  if (operation->allowed_bytes(index) < done + tile) return false;
  std::byte* target = operation->at(instruction.target) + done;
  const std::byte* source = operation->at(instruction.source) + done;
  const Collective& call = plan.key.collective;
  if (instruction.op == StepOp::copy) {
    engine_->device().copy(target, source, tile);
  } else if (const std::array<const std::byte*, 2> operands{target, source}; instruction.average) {
    engine_->device().reduce_average(target, operands, tile / size_of(call.type), call.type, plan.ranks);
  } else {
    engine_->device().reduce(target, operands, tile / size_of(call.type), call.type, call.op);
  }
  mark_done(operation, index, tile);
  if (operation->done_bytes[index] == instruction.size_bytes) ++operation->next_local_step;
  return true;
}

bool Executor::advance_window_call() {
  if (peer_memory_calls_.size() == 0) return false;
  const Recorder::Time begin = Recorder::now_if_on();
  const Operation* call = peer_memory_calls_.front();
  const PeerMemoryCalls::Advance result = peer_memory_calls_.advance();
  if (Recorder::on() && result.moved && call->open_instructions == 0) [[unlikely]] {
    const bool folds = call->plan->zero_copy_reduce || call->plan->peer_memory_part.folds;
    record(*call, group_.rank, folds ? Stage::node_reduce : Stage::node_gather, call->plan->key.collective.input_bytes(),
           begin);
  }
  if (result.odd_rank >= 0) {
    return disagree(result.odd_rank, result.sequence,
                    result.its_sequence == result.sequence
                        ? mismatch(result.sequence, result.ours, result.odd_rank, result.theirs)
                        : in_another_call(result.sequence, result.ours, result.odd_rank, result.its_sequence, result.theirs));
  }
  if (Status failure = peer_memory_calls_.take_failure(); !failure.ok()) {
    // Where the peer has died, the report of its death is about to arrive.
    Status told(failure.code(), failure.message() + while_in());
    return failure.code() == StatusCode::peer_failed ? await_words(std::move(told)) : fail(std::move(told));
  }
  if (result.to_links != nullptr) start_on_links(result.to_links);
  return result.moved;
}

bool Executor::finish_messages(const Status& outcome) {
  if (messages_.ended().empty()) return false;
  std::vector<Operation*>& ended = messages_.ended();
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (outcome.ok()) flight_record_.end_message();
    finish(ended[i], outcome);
  }
  ended.clear();
  return true;
}

void Executor::take_message(int job_rank, const Arrival& arrival) {
  LinkState& state = *link_to(job_rank);
  state.gone_since = {};  // data that the peer sent before its close notice is still arriving
  Status status = messages_.take(state.peer, arrival);
  finish_messages({});
  if (!status.ok()) fail(std::move(status));
}

// Ends completed calls only: a callback or another thread may close this communicator meanwhile, and links and windows need
// the memory of unfinished calls until end_calls().
bool Executor::retire_completed() {
  if (asking()) [[unlikely]]
    return false;  // a thread must drive until the answer arrives
  bool moved = false;
  // Calls mostly end in order; a call that completes early does not wait for earlier calls.
  for (std::size_t i = 0; i < active_.size();) {
    Operation* operation = active_[i];
    if (!is_complete(*operation)) {
      ++i;
      continue;
    }
    // The call's turns may still be queued on links although nothing is left to do there; end these first.
    if (operation->on_links) {
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
    if (operation->on_links) --calls_on_links_;
    flight_record_.end();
    finish(operation, Status());
    moved = true;
  }
  return moved;
}

void Executor::finish(Operation* operation, const Status& outcome) {
  operation->finish(outcome);
  operation->drop_reference();
}

// By value, since poll_control() may replace the status that the caller passes.
bool Executor::fail(Status cause) {  // NOLINT(performance-unnecessary-value-param)
  // The failure seen here may be a consequence of one that a peer has already reported: the peer's report comes first.
  if (!closed()) engine_->poll_control();
  close(cause);
  return false;  // for the advance functions: nothing more to do here
}

void Executor::close(const Status& cause) {
  {
    const std::scoped_lock lock(cause_mutex_);
    if (!cause_.ok()) return;
    cause_ = cause;
    flight_record_.fail(cause);
  }
  closed_.store(true, std::memory_order_seq_cst);
  engine_->tend_to_closed();
  const std::scoped_lock lock(hook_mutex_);
  for (const auto& [owner, hook] : close_hooks_) hook(cause);
}

void Executor::on_close(const void* owner, std::function<void(const Status&)> hook) {
  const std::scoped_lock lock(hook_mutex_);
  if (!hook) {
    close_hooks_.erase(owner);
    return;
  }
  if (closed()) {
    // close() may still be waiting for hook_mutex_: it would call a stored hook a second time.
    close_hooks_.erase(owner);
    return hook(status());
  }
  close_hooks_[owner] = std::move(hook);
}

Status Executor::status() const {
  if (!closed()) return {};
  const std::scoped_lock lock(cause_mutex_);
  return cause_;
}

bool Executor::end_calls() {
  if (!std::exchange(announced_, true) && engine_->control() != nullptr) {
    engine_->control()->send_abort(group_.name, group_.members, status());
  }
  for (LinkState& state : links_) {
    // The link stays in use, but the buffers of these calls belong to the caller again.
    if (!state.outstanding.empty()) state.link->keep_copies();
    state.senders.clear();
    state.receivers.clear();
    state.outstanding.clear();
  }
  peer_memory_calls_.clear();
  bool moved = !active_.empty();
  while (!active_.empty()) {
    Operation* operation = active_.front();
    active_.pop();
    if (operation->on_links) --calls_on_links_;
    const bool complete = is_complete(*operation);
    if (complete) flight_record_.end();
    finish(operation, complete ? Status() : status());
  }
  for (Operation* operation : std::exchange(waiting_, {})) {
    finish(operation, status());
    moved = true;
  }
  messages_.give_up();
  return finish_messages(status()) || moved;
}

void Executor::leave_to_parent() {
  // Some other thread, which does not exist here, may have held the mutex.
  const std::unique_lock lock(cause_mutex_, std::try_to_lock);
  if (lock.owns_lock() && cause_.ok())
    cause_ = {StatusCode::aborted, "the communicator belongs to the parent process; this process is its child by fork()"};
  announced_ = true;
  closed_.store(true);
  lease_.abandon();
}

void Executor::shut_down() {
  if (engine_->left_to_parent()) return;
  DriverLock lock(*engine_);
  engine_->progress();  // calls that are complete by now succeed; drains the inbox
  if (!idle() && !closed()) {
    close(or_mismatch(
        {StatusCode::aborted, fmt::format("{} destroyed its communicator with calls in flight", name_of(group_.rank))}));
  }
  if (closed()) {
    end_calls();
  } else {
    if (engine_->control() != nullptr)
      engine_->control()->send_farewell(group_.name, group_.members, to_bytes(latest_calls(*flight_record_, kFarewellCalls)));
    const std::scoped_lock lock(cause_mutex_);
    cause_ = {StatusCode::aborted, "the communicator has been destroyed"};
    announced_ = true;
    closed_.store(true, std::memory_order_release);
  }
  lease_.leave();
  engine_->detach(*this);
  const bool last = engine_->deserted();
  // The connections end later, so that the peers read the close notice first.
  lock.unlock();
  if (last) ProgressThread::instance().remove(engine_.get());
}

namespace {

template <typename Used>
std::string names_of(std::span<const std::unique_ptr<Transport>> transports, Used used) {
  std::string names;
  for (std::uint32_t t = 0; t < transports.size(); ++t) {
    if (used(t)) names += (names.empty() ? "" : "+") + std::string(transports[t]->name());
  }
  return names.empty() ? "local" : names;
}

}  // namespace

std::string Executor::transports_of(const Plan& plan) const {
  if (plan.one_shot_window && peer_memory_calls_.available()) return std::string(peer_memory_calls_.transport_name());
  return names_of(engine_->transports(), [&](std::uint32_t t) {
    return std::any_of(plan.links.begin(), plan.links.end(),
                       [&](const PlanLink& link) { return links_[link.link].wire->transport == t; });
  });
}

std::string Executor::transports() const {
  return names_of(engine_->transports(), [&](std::uint32_t t) {
    return std::any_of(links_.begin(), links_.end(), [&](const LinkState& state) { return state.wire->transport == t; });
  });
}

std::vector<int> Executor::present() const {
  const std::vector<int> there = engine_->present();
  std::vector<int> members;
  std::ranges::copy_if(group_.members, std::back_inserter(members),
                       [&](int job_rank) { return std::ranges::binary_search(there, job_rank); });
  return members;
}

std::size_t Executor::spilled_bytes() const {
  // A callback's thread holds a driver lock already, and in a child of fork() the thread that holds it may not exist.
  if (Operation::in_callback() || engine_->left_to_parent()) return 0;
  const DriverLock lock(*engine_);
  std::size_t bytes = 0;
  for (const LinkState& state : links_) bytes += state.aside == nullptr ? 0 : state.aside->bytes();
  return bytes;
}

void Executor::record(const internal::Operation& operation, int peer, Stage in_node, std::size_t bytes, Recorder::Time begin) {
  const bool network = group_.topology.link_class(group_.rank, peer) == LinkClass::network;
  Recorder::add({.begin = begin == Recorder::Time() ? std::chrono::steady_clock::now() : begin,  // switched on meanwhile
                 .end = std::chrono::steady_clock::now(),
                 .call = operation.sequence(),
                 .message_bytes = operation.plan->key.collective.message_bytes(group_.topology.ranks()),
                 .bytes = bytes,
                 .communicator = record_number_,
                 .thread = 0,
                 .stage = network ? Stage::wire : in_node});
}

}  // namespace shoal
