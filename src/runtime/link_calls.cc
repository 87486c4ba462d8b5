#include "src/runtime/link_calls.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <fmt/format.h>

namespace shoal {

using internal::LinkProgress;
using internal::Operation;

namespace {

constexpr std::uint32_t kSignature = 0xFFFFFFFF;  // in place of an instruction's index: the tile is a signature
constexpr std::size_t kTilesInFlight = 64;        // whose memory one link may still need; beyond, the queue grows once
constexpr std::size_t kCallsInFlight = 8;         // for which that queue has room from the first of them on
constexpr int kTilesPerPass = 16;                 // sent on one link before arrived tiles are handled
constexpr auto kSignatureWait = std::chrono::milliseconds(1);

void mark_done(Operation* operation, std::uint32_t instruction, std::size_t bytes) {
  operation->done_bytes[instruction] += bytes;
  if (operation->done_bytes[instruction] == operation->plan->instructions[instruction].size_bytes)
    --operation->open_instructions;
}

void mark_sent(Operation* operation, std::uint32_t plan_link, std::uint32_t instruction, std::size_t bytes) {
  if (instruction != kSignature) return mark_done(operation, instruction, bytes);
  LinkProgress& progress = operation->links[plan_link];
  progress.call_gone = true;
  if (progress.call_received) --operation->open_links;
}

// Whether the peer takes no data: the link still needs this rank's memory, or has no room for what could be sent.
bool holds_back(LinkCalls::LinkState& state, const Operation& operation) {
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

std::optional<CallSignature> signature_in(const Arrival& head) {
  CallSignature signature;
  if (head.header.edge != kCallEdge || head.data.size() != sizeof signature) return std::nullopt;
  std::memcpy(&signature, head.data.data(), sizeof signature);
  return signature;
}

LinkCalls::LinkCalls(ProgressEngine& engine, const Group& group, std::uint32_t number, const CallTrace& trace)
    : router_(engine.router()),
      clients_(engine.clients()),
      device_(*engine.parts().device),
      group_(group),
      number_(number),
      trace_(trace),
      tile_bytes_(engine.parts().tile_bytes),
      network_tile_bytes_(std::numeric_limits<std::size_t>::max()),
      costly_tiles_(group.topology.nodes() > 1),
      link_of_rank_(group.members.size(), -1),
      link_of_job_rank_(static_cast<std::size_t>(engine.parts().topology.ranks()), -1) {
  links_.reserve(group_.members.size());
  in_use_.reserve(group_.members.size());
  operands_.reserve(group_.members.size());
  for (int rank = 0; rank < group_.topology.ranks(); ++rank) {
    Wire* wire = router_.wire_to(group_.members[static_cast<std::size_t>(rank)]);
    if (wire == nullptr) continue;
    link_of_job_rank_[static_cast<std::size_t>(wire->link->peer())] = static_cast<int>(links_.size());
    link_of_rank_[static_cast<std::size_t>(rank)] = static_cast<int>(links_.size());
    LinkState& state = links_.emplace_back();
    state.link = wire->link;
    state.wire = wire;
    state.peer = rank;
    state.bound = group_.name.is_whole();
    state.requested = wire->link->connected();
    tile_bytes_ = std::min(tile_bytes_, wire->link->max_tile_bytes());
    costly_tiles_ |= engine.parts().transports[wire->transport]->tiles_are_costly();
    if (group_.topology.link_class(group_.rank, rank) == LinkClass::network)
      network_tile_bytes_ = std::min(network_tile_bytes_, wire->link->max_tile_bytes());
  }
}

void LinkCalls::describe(PlanContext& context) const noexcept {
  context.link_of_rank = link_of_rank_;
  context.max_tile_bytes = tile_bytes_;
  context.network_tile_bytes = network_tile_bytes_;
  context.costly_tiles = costly_tiles_;
}

bool LinkCalls::uses_transport(std::uint32_t transport, const Plan* plan) const noexcept {
  if (plan == nullptr)
    return std::ranges::any_of(links_, [&](const LinkState& state) { return state.wire->transport == transport; });
  return std::ranges::any_of(plan->links, [&](const PlanLink& link) { return links_[link.link].wire->transport == transport; });
}

std::size_t LinkCalls::spilled_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const LinkState& state : links_) bytes += state.spilled == nullptr ? 0 : state.spilled->bytes();
  return bytes;
}

void LinkCalls::start(Operation* operation) {
  operation->on_links = true;
  ++size_;
  for (std::uint32_t i = 0; i < operation->plan->links.size(); ++i) {
    LinkState& state = links_[operation->plan->links[i].link];
    state.request(/*peer_too=*/true);  // its part of the Program names this rank
    if (operation->plan->links[i].speaks) {
      // Allocates when the link is first used, or for more tiles than before: a rank may have thousands of links that carry a
      // tile in each call.
      if (state.outstanding.empty())
        state.outstanding.reserve(std::min(kTilesInFlight, kCallsInFlight * operation->plan->links[i].tiles));
      state.senders.push({operation, i});
    }
    if (operation->plan->links[i].hears) state.receivers.push({operation, i});
    use(state);
  }
}

bool LinkCalls::send() {
  bool moved = false;
  for (LinkState* state : in_use_) {
    for (int tiles = 0; tiles < kTilesPerPass; ++tiles) {
      if (state->senders.empty() || !advance_send(*state)) break;
      moved = true;
    }
  }
  return moved;
}

bool LinkCalls::receive() {
  bool moved = false;
  std::size_t kept = 0;
  for (LinkState* state : in_use_) {
    moved |= retire_sent(*state);
    for (int tiles = 0; tiles < kMostTilesInARow && !state->receivers.empty() && advance_receive(*state); ++tiles) moved = true;
    state->in_use = state->needed() || state->absence.begun();
    if (state->in_use) in_use_[kept++] = state;
  }
  in_use_.resize(kept);
  return moved;
}

bool LinkCalls::work_locally(Operation* operation) {
  bool moved = false;
  for (int tiles = 0; tiles < kMostTilesInARow && operation->on_links && advance_local(operation); ++tiles) moved = true;
  return moved;
}

bool LinkCalls::end_turns(Operation* operation) {
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
  return !queued;
}

void LinkCalls::abort() {
  for (LinkState* state : in_use_) {
    if (!state->outstanding.empty()) state->link->keep_copies();
    state->senders.clear();
    state->receivers.clear();
    state->outstanding.clear();
  }
}

bool LinkCalls::report(CallProblem problem) {
  if (!problem_) problem_ = std::move(problem);
  return false;
}

bool LinkCalls::report_unexpected(const LinkState& state, const Arrival& head) {
  return report(Status(StatusCode::internal,
                       fmt::format("{} sent an unexpected tile: edge {} offset {} size {}", group_.name_of(state.peer),
                                   head.header.edge, head.header.offset_bytes, head.data.size())));
}

inline const Arrival* LinkCalls::head(LinkState& state) const noexcept {
  if (state.spilled != nullptr && !state.spilled->empty()) return state.spilled->front();
  const Arrival* arrival = state.link->peek();
  if (arrival == nullptr || arrival->header.communicator == state.their_number) return arrival;
  router_.note_stray();
  return nullptr;
}

inline void LinkCalls::release(LinkState& state) {
  state.absence = {};  // data that the peer sent before it left is still arriving
  if (state.spilled == nullptr || state.spilled->empty()) return state.link->release();
  if (state.spilled->pop()) router_.send_control(*state.wire, state.their_number, LinkControl::resume);
}

bool LinkCalls::retire_sent(LinkState& state) {
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
bool LinkCalls::advance_send(LinkState& state) {
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
  const bool taken = instruction.may_lend && clients_.alone() ? state.link->try_lend(header, {data, tile})
                                                              : state.link->try_send(header, {data, tile});
  if (!taken) return false;
  progress.send_issued_bytes += tile;
  if (progress.send_issued_bytes == instruction.size_bytes) {
    progress.send_issued_bytes = 0;
    ++progress.send_index;
  }
  taken_by_link(state, index, tile);
  if (Recorder::on() && group_.topology.link_class(group_.rank, state.peer) == LinkClass::network) [[unlikely]] {
    trace_.add(*operation, state.peer, Stage::wire, tile, Time::clock::now());
  }
  return true;
}

// Sends this rank's signature of the call to the peer. False where the link has no room.
bool LinkCalls::send_signature(LinkState& state) {
  const auto [operation, plan_link] = state.senders.front();
  CallSignature& said = operation->links[plan_link].said;
  said = operation->before.of(operation->plan->links[plan_link].signature);
  const auto bytes = std::as_bytes(std::span(&said, 1));
  if (!state.bound && !router_.bind(*state.wire, number_, group_.name)) return false;
  state.bound = true;
  const TileHeader header{number_, static_cast<std::uint32_t>(operation->sequence()), kCallEdge,
                          static_cast<std::uint32_t>(bytes.size()), 0};
  if (!state.link->try_send(header, bytes)) return false;
  operation->links[plan_link].call_sent = true;
  taken_by_link(state, kSignature, bytes.size());
  return true;
}

// The link has just taken a tile of the call whose turn it is: the tile's memory is free now or later.
void LinkCalls::taken_by_link(LinkState& state, std::uint32_t instruction, std::size_t bytes) {
  const auto [operation, plan_link] = state.senders.front();
  const std::uint64_t ticket = ++state.wire->taken;
  if (state.outstanding.empty() && state.link->sent_tiles() >= ticket) {
    mark_sent(operation, plan_link, instruction, bytes);
  } else {
    state.outstanding.push({operation, plan_link, instruction, bytes, ticket});
  }
}

// One step of the call whose turn it is to receive on this link.
bool LinkCalls::advance_receive(LinkState& state) {
  const auto [operation, plan_link] = state.receivers.front();
  const LinkProgress& progress = operation->links[plan_link];
  if (progress.call_received && progress.receive_index == operation->plan->links[plan_link].receives.size()) {
    state.receivers.pop();
    return true;
  }
  const Arrival* head = this->head(state);
  if (head == nullptr) return false;
  if (head->header.sequence != static_cast<std::uint32_t>(operation->sequence()))
    return report(
        Disagreement{state.peer, operation->sequence(), operation->signature, head->header.sequence, signature_in(*head)});
  if (!progress.call_received) return receive_signature(state, operation, plan_link, *head);
  return receive_tile(state, operation, plan_link, *head);
}

bool LinkCalls::receive_signature(LinkState& state, Operation* operation, std::uint32_t plan_link, const Arrival& head) {
  const auto theirs = signature_in(head);
  if (!theirs) {
    return report(Status(StatusCode::internal, fmt::format("{} sent a tile before its signature", group_.name_of(state.peer))));
  }
  release(state);
  const PlanLink& link = operation->plan->links[plan_link];
  if (!(*theirs == operation->before.of(link.expected))) {
    const std::uint64_t sequence = operation->sequence();
    return report(Disagreement{state.peer, sequence, operation->before.of(link.signature), sequence, theirs});
  }
  LinkProgress& progress = operation->links[plan_link];
  progress.call_received = true;
  if (progress.call_gone) --operation->open_links;
  return true;
}

bool LinkCalls::receive_tile(LinkState& state, Operation* operation, std::uint32_t plan_link, const Arrival& head) {
  LinkProgress& progress = operation->links[plan_link];
  const std::uint32_t index = operation->plan->links[plan_link].receives[progress.receive_index];
  const Instruction& instruction = operation->plan->instructions[index];
  if (instruction.op == StepOp::recv_reduce) return fold(operation, index);

  const std::size_t done = operation->done_bytes[index];
  const std::size_t tile = std::min(instruction.tile_bytes, instruction.size_bytes - done);
  if (head.header.edge != progress.receive_index || head.header.offset_bytes != done || head.data.size() != tile) {
    return report_unexpected(state, head);
  }
  if (operation->allowed_bytes(index) < done + tile) return false;
  const Recorder::Time begin = Recorder::now_if_on();
  device_.copy(operation->at(instruction.target) + done, head.data.data(), tile);
  if (head.lent && !state.link->intact()) return report(ReclaimedTile{state.peer});
  release(state);
  mark_done(operation, index, tile);
  if (Recorder::on()) [[unlikely]]
    trace_.add(*operation, state.peer, Stage::node_gather, tile, begin);
  if (operation->done_bytes[index] == instruction.size_bytes) ++progress.receive_index;
  return true;
}

// Folds one tile of an n-way reduction, once that tile has arrived from every peer.
bool LinkCalls::fold(Operation* operation, std::uint32_t index) {
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
      return report_unexpected(state, *head);
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
    device_.reduce_average(target, operands_, tile / size_of(call.type), call.type, plan.ranks);
  } else {
    device_.reduce(target, operands_, tile / size_of(call.type), call.type, call.op);
  }
  for (const PlanEdge& edge : edges) {
    LinkState& state = links_[edge.link];
    if (head(state)->lent && !state.link->intact()) return report(ReclaimedTile{state.peer});
    release(state);
  }
  mark_done(operation, index, tile);
  if (Recorder::on()) [[unlikely]]
    trace_.add(*operation, links_[edges[0].link].peer, Stage::node_reduce, tile, begin);
  if (operation->done_bytes[index] == instruction.size_bytes) {
    for (const PlanEdge& edge : edges) ++operation->links[edge.plan_link].receive_index;
  }
  return true;
}

bool LinkCalls::advance_local(Operation* operation) {
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
    device_.copy(target, source, tile);
  } else if (const std::array<const std::byte*, 2> operands{target, source}; instruction.average) {
    device_.reduce_average(target, operands, tile / size_of(call.type), call.type, plan.ranks);
  } else {
    device_.reduce(target, operands, tile / size_of(call.type), call.type, call.op);
  }
  mark_done(operation, index, tile);
  if (operation->done_bytes[index] == instruction.size_bytes) ++operation->next_local_step;
  return true;
}

bool LinkCalls::send_late_signatures(Time now) {
  const auto waits = [](LinkState* state) {
    if (state->senders.empty() || !state->link->connected()) return false;
    const auto [operation, plan_link] = state->senders.front();
    return !operation->links[plan_link].call_sent;
  };
  if (std::ranges::none_of(in_use_, waits)) {
    signatures_due_ = {};
    return false;
  }
  if (signatures_due_ == Time{}) signatures_due_ = now + kSignatureWait;
  if (now < signatures_due_) return false;
  signatures_due_ = now + kSignatureWait;  // the next attempt on links without room
  bool moved = false;
  for (LinkState* state : in_use_) {
    if (waits(state) && !state->paused) moved |= send_signature(*state);
  }
  return moved;
}

std::optional<std::pair<std::uint32_t, CallSignature>> LinkCalls::unclaimed_signature(LinkState& state) const {
  if (!state.receivers.empty()) return std::nullopt;
  const Arrival* head = this->head(state);
  const auto signature = head == nullptr ? std::nullopt : signature_in(*head);
  return signature ? std::optional(std::pair(head->header.sequence, *signature)) : std::nullopt;
}

std::vector<const LinkCalls::LinkState*> LinkCalls::unconnected(const Operation& operation) const {
  std::vector<const LinkState*> found;
  const auto add = [&](const LinkState* state) {
    if (state != nullptr && !state->link->connected()) found.push_back(state);
  };
  if (operation.is_message()) {
    if (operation.message.peer >= 0) add(const_cast<LinkCalls*>(this)->of_rank(operation.message.peer));
  } else if (operation.on_links) {
    for (const PlanLink& link : operation.plan->links) add(&links_[link.link]);
  }
  return found;
}

void LinkCalls::add_late(const Operation& operation, Late& late) {
  for (std::size_t i = 0; i < operation.links.size(); ++i) {
    LinkState& state = links_[operation.plan->links[i].link];
    if (!operation.links[i].call_received || !state.link->connected()) {
      late.absent.push_back(state.peer);
    } else if ((operation.links[i].receive_index < operation.plan->links[i].receives.size() && head(state) == nullptr) ||
               holds_back(state, operation)) {
      late.slow.push_back(state.peer);
    }
  }
}

}  // namespace shoal
