#include "src/plan/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "src/base/hash.h"
#include "src/schedule/layout.h"
#include "src/schedule/units.h"

namespace shoal {
namespace {

constexpr std::size_t kMinTileBytes = 8 * 1024;         // below this the cost of a tile exceeds what pipelining gains
constexpr std::size_t kMinCostlyTileBytes = 32 * 1024;  // where a tile costs system calls on both sides
constexpr std::size_t kTilesPerMessage = 4;             // enough for sender and receiver to overlap
constexpr std::uint32_t kNoInstruction = ~std::uint32_t{0};

std::string_view text(const char* name) { return name == nullptr ? std::string_view() : std::string_view(name); }

bool has_peer(StepOp op) { return op == StepOp::send || op == StepOp::recv || op == StepOp::recv_reduce; }
bool reads_source(StepOp op) { return op != StepOp::recv; }
bool writes_target(StepOp op) { return op != StepOp::send; }
bool reads_target(StepOp op) { return op == StepOp::reduce; }

// In place, one buffer lies in the other.
struct InPlace {
  Buffer whole = Buffer::output;  // the larger, or either
  std::size_t offset_bytes = 0;   // of the other in it
};

InPlace in_place_of(const Collective& collective, int ranks, int rank) {
  const CollectiveKind kind = collective.kind;
  const bool whole_input = kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::scatter;
  return {whole_input ? Buffer::input : Buffer::output, share_offset_bytes(collective, ranks, rank)};
}

// Slices of a Program in bytes, with the smaller buffer renamed to its place in the larger where the call is in place.
struct Resolver {
  ChunkLayout layout;
  bool in_place;
  InPlace shared;

  [[nodiscard]] std::pair<PlanSlice, std::size_t> operator()(const Slice& slice) const {
    const ByteRange range = layout.bytes(slice);
    PlanSlice result{slice.buffer, range.offset_bytes};
    const Buffer inner = shared.whole == Buffer::output ? Buffer::input : Buffer::output;
    if (in_place && slice.buffer == inner) result = {shared.whole, range.offset_bytes + shared.offset_bytes};
    return {result, range.size_bytes};
  }
};

bool overlap(const PlanSlice& a, const PlanSlice& b, std::size_t a_bytes, std::size_t b_bytes) {
  return a.buffer == b.buffer && a.offset_bytes < b.offset_bytes + b_bytes && b.offset_bytes < a.offset_bytes + a_bytes;
}

// Appends what `later` has to wait for in `earlier`: one entry for each conflicting pair of slices.
void add_conflicts(const Instruction& earlier, std::uint32_t earlier_index, const Instruction& later,
                   std::vector<PlanDependency>& out) {
  const auto check = [&](const PlanSlice& a, const PlanSlice& b) {
    if (!overlap(a, b, earlier.size_bytes, later.size_bytes)) return;
    const auto shift = static_cast<std::int64_t>(b.offset_bytes) - static_cast<std::int64_t>(a.offset_bytes);
    const PlanDependency dependency{earlier_index, shift};
    for (const PlanDependency& known : out) {
      if (known.instruction == dependency.instruction && known.shift_bytes == dependency.shift_bytes) return;
    }
    out.push_back(dependency);
  };
  if (writes_target(earlier.op)) {
    if (reads_source(later.op)) check(earlier.target, later.source);
    if (writes_target(later.op) || reads_target(later.op)) check(earlier.target, later.target);
  }
  if (writes_target(later.op) && reads_source(earlier.op)) check(earlier.source, later.target);
}

std::uint64_t fingerprint(const Plan& plan, const Program& program, const PlanContext& context) {
  const std::string words = fmt::format("{} {} {} {} {} {}", plan.algorithm, context.topology->shape(), context.max_tile_bytes,
                                        context.network_tile_bytes, program.message_chunks, plan.zero_copy_move);
  return hash_of(std::as_bytes(std::span(words)));
}

// Uses only what both ends of a message know, since both must choose the same size. `one_size`: the same on every link.
std::size_t choose_tile(const PlanContext& context, int peer, std::size_t message_bytes, bool one_size) {
  const std::size_t part = (message_bytes / kTilesPerMessage + 4095) / 4096 * 4096;
  const std::size_t smallest = context.costly_tiles ? kMinCostlyTileBytes : kMinTileBytes;
  // Each tile over the network wakes the receiver that waits for it and ends in a packet of its own: fewer, larger tiles.
  const bool between_nodes = context.topology->link_class(context.rank, peer) == LinkClass::network;
  const std::size_t largest =
      between_nodes && !one_size ? std::max(context.max_tile_bytes, context.network_tile_bytes) : context.max_tile_bytes;
  return std::clamp(part, std::min(smallest, largest), largest);
}

}  // namespace

// Every call looks for its Plan: fields that lie side by side are read at once. What few calls have, counts and a forced
// algorithm, is compared last.
namespace {

template <typename Bytes>
Bytes bytes_at(const void* object, std::size_t offset_bytes) noexcept {
  Bytes bytes = 0;
  std::memcpy(&bytes, static_cast<const std::byte*>(object) + offset_bytes, sizeof bytes);
  return bytes;
}
static_assert(offsetof(Collective, op) == offsetof(Collective, type) + 1);
static_assert(offsetof(PlanKey, barrier) == offsetof(PlanKey, in_place) + 1);
static_assert(offsetof(PlanKey, averages) == offsetof(PlanKey, in_place) + 2);
static_assert(offsetof(PlanKey, integers) == offsetof(PlanKey, in_place) + 3);

std::uint64_t type_and_op(const PlanKey& key) noexcept {
  return bytes_at<std::uint16_t>(&key.collective, offsetof(Collective, type));
}
std::uint64_t flags(const PlanKey& key) noexcept { return bytes_at<std::uint32_t>(&key, offsetof(PlanKey, in_place)); }

}  // namespace

bool PlanKey::operator==(const PlanKey& other) const noexcept {
  const Collective& mine = collective;
  const Collective& theirs = other.collective;
  if (mine.count != theirs.count || mine.kind != theirs.kind || type_and_op(*this) != type_and_op(other) ||
      mine.root != theirs.root || flags(*this) != flags(other) || mine.counts.size() != theirs.counts.size() ||
      (algorithm == nullptr) != (other.algorithm == nullptr)) {
    return false;
  }
  if (mine.counts.empty() && algorithm == nullptr) return true;
  return std::ranges::equal(mine.counts, theirs.counts) && text(algorithm) == text(other.algorithm);
}

std::uint64_t PlanKey::hash() const noexcept {
  const auto mixed = [](std::uint64_t value) {
    value *= 0xD6E8FEB86659FD93ULL;
    return value ^ value >> 32;
  };
  const std::uint64_t rest = static_cast<std::uint64_t>(collective.kind) << 56 | type_and_op(*this) << 40 | flags(*this) << 32 |
                             static_cast<std::uint32_t>(collective.root);
  std::uint64_t h = mixed(collective.count * 0x9E3779B97F4A7C15ULL ^ rest);
  if (collective.counts.empty() && algorithm == nullptr) return h;
  for (const std::size_t element_count : collective.counts) h = mixed(h ^ element_count);
  return mixed(h ^ std::hash<std::string_view>()(text(algorithm)));
}

namespace {

/// Whether send `index` can be zero-copy: its memory stays with the peer until the peer releases the tiles.
///
/// It can where nothing overwrites the memory. It can also where a plain receive does and no other send sends the same bytes:
/// the data that is received was made from what this send carried, so it arrives after the release. It cannot where a fold
/// overwrites it: two ranks that exchange and fold in place would each wait for the other to fold first. Nor can scratch that
/// is reused: the data that is written there next does not depend on what was sent.
bool may_lend(const Plan& plan, std::uint32_t index) {
  const Instruction& send = plan.instructions[index];
  if (send.op != StepOp::send) return false;
  bool overwritten = false;
  for (std::uint32_t i = index + 1; i < plan.instructions.size(); ++i) {
    const Instruction& later = plan.instructions[i];
    if (!writes_target(later.op) || !overlap(send.source, later.target, send.size_bytes, later.size_bytes)) continue;
    if (later.op != StepOp::recv || send.source.buffer == Buffer::scratch) return false;
    overwritten = true;
  }
  return !overwritten || std::none_of(plan.instructions.begin(), plan.instructions.end(), [&](const Instruction& other) {
    return &other != &send && other.op == StepOp::send && overlap(send.source, other.source, send.size_bytes, other.size_bytes);
  });
}

/// The receive with which send `index` of an all_to_all keeps step, where the send has several tiles to carry between nodes.
///
/// Each rank has data for all ranks at once. Sent at once, it arrives at every host from all hosts at uneven rates, and in the
/// end hosts wait for some peers while their links are idle: 12 % of the time of 4 MiB on 4 nodes. So the ranks take turns.
/// The send to the rank at distance k ahead sends no more bytes than have arrived from the rank behind whose distance is the
/// largest below k. Distances fall along a chain of sends that wait for each other, and the sends to the nearest ranks wait
/// for no rank.
std::optional<std::uint32_t> kept_step_with(const PlanContext& context, const Plan& plan,
                                            std::span<const std::vector<int>> peers_of, std::uint32_t index) {
  const Instruction& send = plan.instructions[index];
  if (plan.key.collective.kind != CollectiveKind::all_to_all || plan.algorithm != "direct" || send.op != StepOp::send ||
      send.size_bytes < kTilesPerMessage * send.tile_bytes)
    return {};
  const auto on_wire = [&](std::uint32_t i) {
    return context.topology->link_class(context.rank, peers_of[i].front()) == LinkClass::network;
  };
  if (!on_wire(index)) return {};
  const auto steps = [&](int from, int to) { return (to - from + plan.ranks) % plan.ranks; };
  const int distance = steps(context.rank, peers_of[index].front());
  std::optional<std::uint32_t> nearest;
  int nearest_distance = 0;
  for (std::uint32_t i = 0; i < plan.instructions.size(); ++i) {
    if (plan.instructions[i].op != StepOp::recv || !on_wire(i)) continue;
    const int here = steps(peers_of[i].front(), context.rank);
    if (here >= distance || here <= nearest_distance) continue;
    nearest = i;
    nearest_distance = here;
  }
  return nearest;
}

/// Makes one Plan, step by step.
class PlanMaker {
 public:
  PlanMaker(const PlanContext& context, const PlanKey& key, const Program& program)
      : context_(context),
        key_(key),
        collective_(key.collective),
        program_(program),
        ranks_(context.topology->ranks()),
        resolve_{ChunkLayout(collective_, ranks_, context.rank, program.message_chunks), key.in_place,
                 in_place_of(collective_, ranks_, context.rank)},
        plan_link_of_(context.link_of_rank.size(), -1) {}

  Result<std::unique_ptr<Plan>> make() {
    if (Status status = check_steps(); !status.ok()) return status;
    copy_key();
    add_instructions();
    set_directions();
    add_edges();
    add_dependencies();
    for (std::uint32_t i = 0; i < plan_->instructions.size(); ++i) plan_->instructions[i].may_lend = may_lend(*plan_, i);
    if (context_.window_room.large_bytes > 0) choose_peer_memory();
    sign();
    sign_links();
    return std::move(plan_);
  }

 private:
  [[nodiscard]] Status check_steps() const {
    for (std::size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (step.lane >= program_.lanes)
        return {StatusCode::internal, fmt::format("{}: lane {} out of range", program_.algorithm, step.lane)};
      if (has_peer(step.op) && (step.peer < 0 || step.peer >= ranks_ || step.peer == context_.rank)) {
        return {StatusCode::internal,
                fmt::format("{}: step {} of rank {} names peer {}", program_.algorithm, s, context_.rank, step.peer)};
      }
    }
    return {};
  }

  void copy_key() {
    plan_->forced_algorithm = text(key_.algorithm);
    plan_->key = key_;
    plan_->counts.assign(collective_.counts.begin(), collective_.counts.end());
    plan_->key.collective.counts = plan_->counts;
    plan_->key.algorithm = key_.algorithm == nullptr ? nullptr : plan_->forced_algorithm.c_str();
    plan_->algorithm = program_.algorithm;
    plan_->ranks = ranks_;
    plan_->buffers = call_buffers(collective_, ranks_, context_.rank);
    plan_->scratch_bytes = program_.scratch_chunks * resolve_.layout.scratch_chunk_bytes();
  }

  PlanLink& link_to(int peer) {
    auto& index = plan_link_of_[static_cast<std::size_t>(peer)];
    if (index < 0) {
      index = static_cast<std::int32_t>(plan_->links.size());
      plan_->links.emplace_back().link = static_cast<std::uint32_t>(context_.link_of_rank[static_cast<std::size_t>(peer)]);
    }
    return plan_->links[static_cast<std::size_t>(index)];
  }

  void add_instructions() {
    // With one link class all tiles are of one size anyway.
    const bool one_size = program_.folds_across_links && context_.topology->nodes() < ranks_;
    const bool averages = reduces(collective_.kind) && collective_.op == ReduceOp::avg;
    const std::vector<std::uint32_t> units = units_of_steps(*context_.topology, program_);
    std::vector<std::uint32_t> instruction_of_unit(units.size(), kNoInstruction);
    for (std::size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      const auto [slice, bytes] = resolve_(reads_source(step.op) ? step.source : step.target);
      // A link that a call uses always carries its signature, even where there are no bytes to move.
      if (has_peer(step.op)) link_to(step.peer);
      if (bytes == 0) continue;
      // In place, the data to copy may be at its target already.
      const auto same = [](const PlanSlice& a, const PlanSlice& b) {
        return a.buffer == b.buffer && a.offset_bytes == b.offset_bytes;
      };
      if (step.op == StepOp::copy && same(slice, resolve_(step.target).first)) continue;

      Instruction instruction;
      instruction.op = step.op;
      instruction.size_bytes = bytes;
      instruction.tile_bytes = choose_tile(context_, has_peer(step.op) ? step.peer : context_.rank, bytes, one_size);
      instruction.average = averages && step.completes;
      if (reads_source(step.op)) instruction.source = slice;
      if (writes_target(step.op)) instruction.target = resolve_(step.target).first;

      // A recv_reduce onto the target of earlier ones in its lane joins their fold.
      std::uint32_t& joined = instruction_of_unit[units[s]];
      if (joined != kNoInstruction) {
        plan_->instructions[joined].average |= instruction.average;
        peers_of_[joined].push_back(step.peer);
        link_to(step.peer).receives.push_back(joined);
      } else {
        joined = add_instruction(instruction, step);
      }
    }
  }

  std::uint32_t add_instruction(const Instruction& instruction, const Step& step) {
    const auto index = static_cast<std::uint32_t>(plan_->instructions.size());
    plan_->instructions.push_back(instruction);
    lane_of_.push_back(step.lane);
    peers_of_.emplace_back();
    if (has_peer(step.op)) {
      peers_of_.back().push_back(step.peer);
      PlanLink& link = link_to(step.peer);
      (step.op == StepOp::send ? link.sends : link.receives).push_back(index);
      if (step.op == StepOp::send) {
        const std::size_t tile = std::max<std::size_t>(instruction.tile_bytes, 1);
        link.tiles += static_cast<std::uint32_t>((instruction.size_bytes + tile - 1) / tile);
      }
    } else {
      plan_->local_steps.push_back(index);
    }
    return index;
  }

  void set_directions() {
    for (PlanLink& link : plan_->links) {
      // Both ends decide alike: they know each other's shares.
      const bool one_way = has_root(collective_.kind) && link.sends.empty() != link.receives.empty();
      link.speaks = !one_way || link.receives.empty();
      link.hears = !one_way || link.sends.empty();
    }
  }

  /// Edges: the k-th message on each link, per direction. Folds list theirs in ascending rank order with the own operand
  /// between.
  void add_edges() {
    for (std::size_t i = 0; i < plan_->instructions.size(); ++i) {
      Instruction& instruction = plan_->instructions[i];
      std::vector<int>& peers = peers_of_[i];
      std::sort(peers.begin(), peers.end());
      instruction.first_edge = static_cast<std::uint32_t>(plan_->edges.size());
      instruction.edge_count = static_cast<std::uint32_t>(peers.size());
      instruction.own_position =
          static_cast<std::uint32_t>(std::lower_bound(peers.begin(), peers.end(), context_.rank) - peers.begin());
      for (const int peer : peers) {
        const auto plan_link = static_cast<std::uint32_t>(plan_link_of_[static_cast<std::size_t>(peer)]);
        const PlanLink& link = plan_->links[plan_link];
        const auto& order = instruction.op == StepOp::send ? link.sends : link.receives;
        const auto position = std::find(order.begin(), order.end(), static_cast<std::uint32_t>(i)) - order.begin();
        plan_->edges.push_back({link.link, plan_link, static_cast<std::uint32_t>(position)});
      }
    }
  }

  /// Dependencies: conflicts within a lane, in program order, and the receives of kept_step_with(). The earlier of two
  /// dependencies is implied by the later where a chain exists; the lists are short, so it stays.
  void add_dependencies() {
    std::vector<PlanDependency> found;
    std::vector<std::vector<std::uint32_t>> by_lane(program_.lanes);
    for (std::uint32_t i = 0; i < plan_->instructions.size(); ++i) {
      auto& lane = by_lane[lane_of_[i]];
      found.clear();
      for (const std::uint32_t earlier : lane)
        add_conflicts(plan_->instructions[earlier], earlier, plan_->instructions[i], found);
      if (const auto receive = kept_step_with(context_, *plan_, peers_of_, i)) found.push_back({*receive, 0});
      plan_->instructions[i].first_dependency = static_cast<std::uint32_t>(plan_->dependencies.size());
      plan_->instructions[i].dependency_count = static_cast<std::uint32_t>(found.size());
      plan_->dependencies.insert(plan_->dependencies.end(), found.begin(), found.end());
      lane.push_back(i);
    }
  }

  void choose_peer_memory() {
    auto part = peer_memory_part(collective_, program_.algorithm, ranks_, context_.rank, context_.window_room);
    plan_->one_shot_window = part.has_value();
    if (part) plan_->peer_memory_part = *std::move(part);
    plan_->zero_copy_reduce =
        program_.algorithm == kFoldsInPlace && collective_.kind == CollectiveKind::all_reduce && collective_.count > 0;
    // A forced algorithm runs as its Program is written.
    plan_->zero_copy_move =
        !plan_->one_shot_window && key_.algorithm == nullptr && moves_serve(collective_, *context_.topology);
    if (plan_->zero_copy_move) plan_->moves = peer_memory_moves(collective_, ranks_, context_.rank);
    plan_->private_memory =
        plan_->zero_copy_move || (plan_->zero_copy_reduce && fold_reaches_all(collective_, *context_.topology));
  }

  void sign() {
    CallSignature& signature = plan_->signature;
    signature = {key_.barrier ? CollectiveKind::barrier : collective_.kind,
                 key_.averages ? key_.integers : collective_.type,
                 key_.averages ? ReduceOp::avg : collective_.op,
                 static_cast<std::uint8_t>(collective_.counts.empty() ? 0 : 1),
                 collective_.root,
                 collective_.count / key_.parts_of_number(),
                 0};
    signature.plan_fingerprint = fingerprint(*plan_, program_, context_);
    if (!collective_.counts.empty()) {
      // In an all_to_all every rank has counts of its own.
      const bool shared = collective_.kind != CollectiveKind::all_to_all;
      if (!shared) signature.count = 0;
      const std::uint64_t counts_hash = shared ? hash_of(std::as_bytes(collective_.counts)) : 0;
      signature.plan_fingerprint = (signature.plan_fingerprint << 32) | ((counts_hash ^ counts_hash >> 32) & 0xFFFFFFFF);
    }
    plan_->signature_hash = hash_of(std::as_bytes(std::span(&signature, 1)));
  }

  void sign_links() {
    for (std::size_t peer = 0; peer < plan_link_of_.size(); ++peer) {
      if (plan_link_of_[peer] < 0) continue;
      PlanLink& link = plan_->links[static_cast<std::size_t>(plan_link_of_[peer])];
      link.signature = link.expected = plan_->signature;
      if (collective_.kind != CollectiveKind::all_to_all || collective_.counts.empty()) continue;
      const std::size_t sends = collective_.counts[peer];
      const std::size_t receives = collective_.counts[static_cast<std::size_t>(ranks_) + peer];
      link.signature = between_two(plan_->signature, sends, receives);
      link.expected = between_two(plan_->signature, receives, sends);
    }
  }

  const PlanContext& context_;
  const PlanKey& key_;
  const Collective& collective_;
  const Program& program_;
  const int ranks_;
  const Resolver resolve_;
  std::unique_ptr<Plan> plan_ = std::make_unique<Plan>();
  std::vector<std::int32_t> plan_link_of_;  // rank -> index in plan_->links; -1: none
  std::vector<std::uint32_t> lane_of_;      // lane of each instruction
  std::vector<std::vector<int>> peers_of_;  // ranks of each instruction's edges
};

}  // namespace

Result<std::unique_ptr<Plan>> make_plan(const PlanContext& context, const PlanKey& key, const Program& program) {
  return PlanMaker(context, key, program).make();
}

}  // namespace shoal
