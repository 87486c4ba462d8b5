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

// By what both ends of a message know: they must come to the same. `one_size`: whatever the link.
std::size_t choose_tile(const PlanContext& context, int peer, std::size_t message_bytes, bool one_size) {
  const std::size_t part = (message_bytes / kTilesPerMessage + 4095) / 4096 * 4096;
  const std::size_t smallest = context.costly_tiles ? kMinCostlyTileBytes : kMinTileBytes;
  // Each tile over the network wakes whoever waits for it and ends in a packet of its own: fewer, larger ones.
  const bool between_nodes = context.topology->link_class(context.rank, peer) == LinkClass::network;
  const std::size_t largest =
      between_nodes && !one_size ? std::max(context.max_tile_bytes, context.network_tile_bytes) : context.max_tile_bytes;
  return std::clamp(part, std::min(smallest, largest), largest);
}

}  // namespace

// Finding a Plan is on the way of every call: what lies side by side is read at once, and what few calls have, counts and an
// algorithm of their own, is looked at last.
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

/// Whether send `index` can leave its memory with the peer until that releases the tiles.
///
/// It can where nothing overwrites the memory. It can also where a plain receive does and no other send sends the same bytes:
/// what comes there was made from what this send carried, so it comes after the release. It cannot where a fold overwrites it:
/// two ranks that exchange and fold in place would each wait for the other to fold first.
/// Nor can scratch that is used again: what comes there next has nothing to do with what was sent.
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

/// The receive that send `index` of an all_to_all keeps step with, where it has several tiles to carry between nodes.
///
/// Each rank has something for all others at once. Sent at once, it comes to every host from all others at uneven rates, and in
/// the end hosts wait for some while their wires are idle: 12 % of the time of 4 MiB on 4 nodes. So ranks go round: no more
/// goes to the k-th next than has come from the one that is, of those before this rank, the next nearer. Distances fall along
/// such a chain of sends that wait, and the nearest wait for nobody.
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

}  // namespace

Result<std::unique_ptr<Plan>> make_plan(const PlanContext& context, const PlanKey& key, const Program& program) {
  auto plan = std::make_unique<Plan>();
  plan->forced_algorithm = text(key.algorithm);
  plan->key = key;
  plan->counts.assign(key.collective.counts.begin(), key.collective.counts.end());
  plan->key.collective.counts = plan->counts;
  plan->key.algorithm = key.algorithm == nullptr ? nullptr : plan->forced_algorithm.c_str();
  plan->algorithm = program.algorithm;
  plan->ranks = context.topology->ranks();
  plan->buffers = call_buffers(key.collective, plan->ranks, context.rank);

  const Collective& collective = key.collective;
  const Resolver resolve{ChunkLayout(collective, plan->ranks, context.rank, program.message_chunks), key.in_place,
                         in_place_of(collective, plan->ranks, context.rank)};
  plan->scratch_bytes = program.scratch_chunks * resolve.layout.scratch_chunk_bytes();

  for (std::size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    if (step.lane >= program.lanes)
      return Status(StatusCode::internal, fmt::format("{}: lane {} out of range", program.algorithm, step.lane));
    if (has_peer(step.op) && (step.peer < 0 || step.peer >= plan->ranks || step.peer == context.rank)) {
      return Status(StatusCode::internal,
                    fmt::format("{}: step {} of rank {} names peer {}", program.algorithm, s, context.rank, step.peer));
    }
  }
  // With one link class all tiles are of one size anyway.
  const bool one_size = program.folds_across_links && context.topology->nodes() < plan->ranks;
  const std::vector<std::uint32_t> units = units_of_steps(*context.topology, program);
  std::vector<std::uint32_t> instruction_of_unit(units.size(), kNoInstruction);
  std::vector<std::uint32_t> lane_of;                                       // lane of each instruction
  std::vector<std::int32_t> plan_link_of(context.link_of_rank.size(), -1);  // rank -> index in plan->links
  std::vector<std::vector<int>> peers_of;                                   // ranks of each instruction's edges
  const auto link_entry = [&](int peer) -> PlanLink& {
    auto& index = plan_link_of[static_cast<std::size_t>(peer)];
    if (index < 0) {
      index = static_cast<std::int32_t>(plan->links.size());
      plan->links.push_back({static_cast<std::uint32_t>(context.link_of_rank[static_cast<std::size_t>(peer)]), {}, {}, {}, {}});
    }
    return plan->links[static_cast<std::size_t>(index)];
  };

  const bool averages = reduces(collective.kind) && collective.op == ReduceOp::avg;
  for (std::size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    const auto [slice, bytes] = resolve(reads_source(step.op) ? step.source : step.target);
    // A link that a call uses always carries its signature, even where there are no bytes to move.
    if (has_peer(step.op)) link_entry(step.peer);
    if (bytes == 0) continue;
    // In place, what should be copied may lie there already.
    const auto same = [](const PlanSlice& a, const PlanSlice& b) {
      return a.buffer == b.buffer && a.offset_bytes == b.offset_bytes;
    };
    if (step.op == StepOp::copy && same(slice, resolve(step.target).first)) continue;

    Instruction instruction;
    instruction.op = step.op;
    instruction.size_bytes = bytes;
    instruction.tile_bytes = choose_tile(context, has_peer(step.op) ? step.peer : context.rank, bytes, one_size);
    instruction.average = averages && step.completes;
    if (reads_source(step.op)) instruction.source = slice;
    if (writes_target(step.op)) instruction.target = resolve(step.target).first;

    // A recv_reduce onto what those before it in this lane folded into joins that fold.
    if (const std::uint32_t joined = instruction_of_unit[units[s]]; joined != kNoInstruction) {
      Instruction& fold = plan->instructions[joined];
      fold.average |= instruction.average;
      peers_of[joined].push_back(step.peer);
      link_entry(step.peer).receives.push_back(joined);
      continue;
    }

    const auto index = static_cast<std::uint32_t>(plan->instructions.size());
    plan->instructions.push_back(instruction);
    instruction_of_unit[units[s]] = index;
    lane_of.push_back(step.lane);
    peers_of.emplace_back();
    if (has_peer(step.op)) {
      peers_of.back().push_back(step.peer);
      PlanLink& link = link_entry(step.peer);
      (step.op == StepOp::send ? link.sends : link.receives).push_back(index);
    } else {
      plan->local_steps.push_back(index);
    }
  }

  for (PlanLink& link : plan->links) {
    // Both ends see the same: they know each other's shares.
    const bool one_way = has_root(collective.kind) && link.sends.empty() != link.receives.empty();
    link.speaks = !one_way || link.receives.empty();
    link.hears = !one_way || link.sends.empty();
  }

  // Edges: the k-th message on each link, per direction. Folds list theirs in ascending rank order with the own operand
  // between.
  for (std::size_t i = 0; i < plan->instructions.size(); ++i) {
    Instruction& instruction = plan->instructions[i];
    std::vector<int>& peers = peers_of[i];
    std::sort(peers.begin(), peers.end());
    instruction.first_edge = static_cast<std::uint32_t>(plan->edges.size());
    instruction.edge_count = static_cast<std::uint32_t>(peers.size());
    instruction.own_position =
        static_cast<std::uint32_t>(std::lower_bound(peers.begin(), peers.end(), context.rank) - peers.begin());
    for (const int peer : peers) {
      const auto plan_link = static_cast<std::uint32_t>(plan_link_of[static_cast<std::size_t>(peer)]);
      const PlanLink& link = plan->links[plan_link];
      const auto& order = instruction.op == StepOp::send ? link.sends : link.receives;
      const auto position = std::find(order.begin(), order.end(), static_cast<std::uint32_t>(i)) - order.begin();
      plan->edges.push_back({link.link, plan_link, static_cast<std::uint32_t>(position)});
    }
  }

  // Dependencies: conflicts within a lane, in program order, and what is kept step with. The earlier of two dependencies is
  // implied by the later where a chain exists; the lists are short enough not to care.
  std::vector<PlanDependency> found;
  std::vector<std::vector<std::uint32_t>> by_lane(program.lanes);
  for (std::uint32_t i = 0; i < plan->instructions.size(); ++i) {
    auto& lane = by_lane[lane_of[i]];
    found.clear();
    for (const std::uint32_t earlier : lane) add_conflicts(plan->instructions[earlier], earlier, plan->instructions[i], found);
    if (const auto receive = kept_step_with(context, *plan, peers_of, i)) found.push_back({*receive, 0});
    plan->instructions[i].first_dependency = static_cast<std::uint32_t>(plan->dependencies.size());
    plan->instructions[i].dependency_count = static_cast<std::uint32_t>(found.size());
    plan->dependencies.insert(plan->dependencies.end(), found.begin(), found.end());
    lane.push_back(i);
  }

  for (std::uint32_t i = 0; i < plan->instructions.size(); ++i) plan->instructions[i].may_lend = may_lend(*plan, i);

  if (context.window_room.large_bytes > 0) {
    auto part = peer_memory_part(collective, program.algorithm, plan->ranks, context.rank, context.window_room);
    plan->one_shot_window = part.has_value();
    if (part) plan->peer_memory_part = *std::move(part);
    plan->zero_copy_reduce =
        program.algorithm == kFoldsInPlace && collective.kind == CollectiveKind::all_reduce && collective.count > 0;
    // An algorithm that the call names is run as it is written.
    plan->zero_copy_move = !plan->one_shot_window && key.algorithm == nullptr && moves_serve(collective, *context.topology);
    if (plan->zero_copy_move) plan->moves = peer_memory_moves(collective, plan->ranks, context.rank);
    plan->private_memory = plan->zero_copy_move || (plan->zero_copy_reduce && fold_reaches_all(collective, *context.topology));
  }
  plan->signature = {key.barrier ? CollectiveKind::barrier : collective.kind,
                     key.averages ? key.integers : collective.type,
                     key.averages ? ReduceOp::avg : collective.op,
                     static_cast<std::uint8_t>(collective.counts.empty() ? 0 : 1),
                     collective.root,
                     collective.count / key.parts_of_number(),
                     0};
  plan->signature.plan_fingerprint = fingerprint(*plan, program, context);
  if (!collective.counts.empty()) {
    // In an all_to_all every rank has counts of its own.
    const bool shared = collective.kind != CollectiveKind::all_to_all;
    if (!shared) plan->signature.count = 0;
    const auto bytes = std::as_bytes(collective.counts);
    const std::uint64_t counts_hash = shared ? hash_of(bytes) : 0;
    plan->signature.plan_fingerprint =
        (plan->signature.plan_fingerprint << 32) | ((counts_hash ^ counts_hash >> 32) & 0xFFFFFFFF);
  }
  plan->signature_hash = hash_of(std::as_bytes(std::span(&plan->signature, 1)));
  for (std::size_t peer = 0; peer < plan_link_of.size(); ++peer) {
    if (plan_link_of[peer] < 0) continue;
    PlanLink& link = plan->links[static_cast<std::size_t>(plan_link_of[peer])];
    link.signature = link.expected = plan->signature;
    if (collective.kind != CollectiveKind::all_to_all || collective.counts.empty()) continue;
    const std::size_t sends = collective.counts[peer];
    const std::size_t receives = collective.counts[static_cast<std::size_t>(plan->ranks) + peer];
    link.signature = between_two(plan->signature, sends, receives);
    link.expected = between_two(plan->signature, receives, sends);
  }
  return plan;
}

}  // namespace shoal
