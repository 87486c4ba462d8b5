#include "src/runtime/peer_memory_calls.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "src/base/cpu_relax.h"

namespace shoal {

using internal::Operation;

namespace {

// How long a rank waits for peers that still write into its memory. A peer that died or was stopped never clears its flag.
constexpr auto kWritersPatience = std::chrono::milliseconds(250);

/// The buffer in which the caller's data lies.
Buffer input_of(const Plan& plan) {
  return plan.key.collective.kind == CollectiveKind::broadcast ? Buffer::output : Buffer::input;
}
/// The transport finds no memory for a place that the rank has published.
Status unreachable(int rank) {
  return {
      StatusCode::peer_failed,
      fmt::format("the shared memory of rank {} cannot be reached: its process has ended, this process has no descriptor or "
                  "address space left, or the memory of rank {} is corrupt",
                  rank, rank)};
}
std::uint64_t flag_of(const Operation& operation) { return operation.sequence() + 1; }

/// The size of an element of a call in progress, whose type has been checked: never 0.
std::size_t element_bytes(DataType type) { return std::max<std::size_t>(size_of(type), 1); }

/// First element of the share that `rank` folds; shares start on whole cache lines.
std::size_t share_start(std::size_t count, DataType type, int rank, int ranks) {
  const std::size_t line = 64 / element_bytes(type);
  const std::size_t lines = (count + line - 1) / line;
  const auto parts = static_cast<std::size_t>(ranks);
  const auto part = static_cast<std::size_t>(rank);
  return std::min(count, (lines / parts * part + std::min(part, lines % parts)) * line);
}

}  // namespace

PeerMemoryCalls::PeerMemoryCalls(Transport& transport, std::vector<std::span<std::byte>> windows, std::vector<int> members,
                                 int rank, const Device& device)
    : transport_(&transport),
      device_(&device),
      rank_(rank),
      windows_(std::move(windows)),
      members_(std::move(members)),
      everybody_(members_.size() == static_cast<std::size_t>(transport.window_count())),
      room_(windows_.front().size()),
      inputs_(windows_.size()),
      outputs_(windows_.size()),
      operands_(windows_.size()) {}

void PeerMemoryCalls::push(Operation* operation) {
  calls_.push(operation);
  if (!operation->plan->one_shot_window) undecided_ = true;
}

void PeerMemoryCalls::clear() {
  const bool reached = !calls_.empty() && meets(*calls_.front()->plan) && calls_.front()->published;
  calls_.clear();
  undecided_ = false;
  met_in_ = nullptr;
  if (!reached) return;
  // Sequentially consistent, as are begin_writing()'s accesses: either the peer sees this, or the loop below sees the peer.
  window_guard(window(rank_)).store(kGuardRevoked, std::memory_order_seq_cst);
  const auto somebody_writes = [&] {
    return std::ranges::any_of(
        windows_, [&](const auto& each) { return (window_guard(each).load(std::memory_order_seq_cst) & kGuardWriting) != 0; });
  };
  const auto until = std::chrono::steady_clock::now() + kWritersPatience;
  while (somebody_writes() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

bool PeerMemoryCalls::begin_writing() noexcept {
  window_guard(window(rank_)).store(kGuardWriting, std::memory_order_seq_cst);
  const bool welcome = std::ranges::all_of(
      windows_, [](const auto& each) { return (window_guard(each).load(std::memory_order_seq_cst) & kGuardRevoked) == 0; });
  if (!welcome) end_writing();
  return welcome;
}

void PeerMemoryCalls::end_writing() noexcept {
  // release: what has been written comes before.
  window_guard(window(rank_)).store(0, std::memory_order_release);
}

PeerMemoryCalls::Advance PeerMemoryCalls::advance() {
  if (calls_.empty()) return {};
  missing_ = -1;
  Operation* operation = calls_.front();
  return operation->plan->one_shot_window ? advance_one_shot(operation) : advance_zero_copy(operation);
}

PeerMemoryCalls::Attempt PeerMemoryCalls::try_one_shot(const Plan& plan, const CallSignature& signature, std::uint64_t sequence,
                                                       const void* input, void* output, int looks) {
  const void* given = input_of(plan) == Buffer::output ? output : input;
  const Contribution mine{plan, signature, sequence + 1, static_cast<const std::byte*>(given), static_cast<std::byte*>(output)};
  Advance late_or_odd;  // advance_one_shot() finds the mismatch again
  const auto try_often = [&](auto&& attempt) {
    for (int look = 1; !attempt(); ++look) {
      if (late_or_odd.odd_rank >= 0 || look >= looks) return false;
      if (look > kLooksAtOnce) cpu_relax();
    }
    return true;
  };
  if (!try_often([&] { return try_publish(mine, late_or_odd); })) return Attempt::held;
  const bool taken = try_often([&] { return take_all(mine, late_or_odd); });
  // Only now: the fence in it would delay the polls until the peers' caches have given up this rank's line.
  notify();
  return taken ? Attempt::ended : Attempt::published;
}

PeerMemoryCalls::Advance PeerMemoryCalls::advance_one_shot(Operation* operation) {
  const Plan& plan = *operation->plan;
  const Contribution mine{plan, operation->signature, flag_of(*operation), operation->at({input_of(plan), 0}),
                          operation->at({Buffer::output, 0})};
  Advance result;
  if (!operation->published) {
    if (!try_publish(mine, result)) return result;
    notify();
    operation->published = true;
    result.moved = true;
  }
  if (take_all(mine, result)) {
    end(operation);
    result.moved = true;
  }
  return result;
}

bool PeerMemoryCalls::try_publish(const Contribution& mine, Advance& result) {
  const PeerMemoryPart& part = mine.plan.peer_memory_part;
  // A peer has finished a call when it has begun the next one: what served call k is free when all peers have begun k + 1.
  const std::uint64_t used_again_after = part.place == OneShotPlace::large ? 2 : kOneShotSlots;
  const std::uint64_t needed = one_shots_ < used_again_after ? 0 : one_shots_ + 2 - used_again_after;
  if (met_ < needed) {
    while (met_ < one_shots_ && meet_next(result)) continue;
    if (met_ < needed) return false;
  }
  if (part.gives_bytes != 0) {
    std::memcpy(one_shot_data(window(rank_), room_, one_shots_, part.place), mine.input, part.gives_bytes);
  }
  OneShotSlot& slot = one_shot_slot(window(rank_), one_shots_);
  slot.signature.store(mine.signature);
  // release: orders payload and signature before the flag, for the peers' acquire in has_come().
  slot.flag.store(mine.flag, std::memory_order_release);
  // Copies the own part while the peers poll the slot.
  if (!part.folds && part.own_take >= 0) {
    const PeerMemoryPart::Take& own = part.takes[static_cast<std::size_t>(part.own_take)];
    std::byte* target = mine.output + own.output_offset_bytes;
    const std::byte* source = mine.input + own.offset_bytes;
    if (own.size_bytes != 0 && target != source) std::memcpy(target, source, own.size_bytes);
  }
  return true;
}

bool PeerMemoryCalls::has_come(std::size_t rank, const OneShotSlot& slot, std::uint64_t flag, const CallSignature& signature,
                               Advance& result) const noexcept {
  const std::uint64_t seen = slot.flag.load(std::memory_order_acquire);
  if (seen < flag) return false;
  const CallSignature theirs = slot.signature.load();
  if (seen == flag && theirs == signature) return true;
  result.set_odd(rank, seen, theirs, flag, signature);
  return false;
}

bool PeerMemoryCalls::meet_next(Advance& result) noexcept {
  const OneShotSlot& own = one_shot_slot(window(rank_), met_);
  const std::uint64_t flag = own.flag.load(std::memory_order_relaxed);  // only this rank writes it
  const CallSignature ours = own.signature.load();
  for (std::size_t r = 0; r < windows_.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    if (has_come(r, one_shot_slot(windows_[r], met_), flag, ours, result)) continue;
    if (result.odd_rank < 0) return misses(r);
    // A rank that waits for no peer may already be writing the slot again, once it has begun all calls before the slot's next
    // one. Then it is too late to read its signature of this call.
    const OneShotSlot& last = one_shot_slot(windows_[r], met_ + kOneShotSlots - 1);
    if (last.flag.load(std::memory_order_relaxed) <= flag) return false;
    result.odd_rank = -1;
  }
  ++met_;
  return true;
}

bool PeerMemoryCalls::take_all(const Contribution& mine, Advance& result) {
  const PeerMemoryPart& part = mine.plan.peer_memory_part;
  for (std::size_t i = 0; i < part.takes.size(); ++i) {
    const PeerMemoryPart::Take& take = part.takes[i];
    if (static_cast<int>(take.rank) == rank_) {
      operands_[i] = mine.input + take.offset_bytes;
      continue;
    }
    const std::span<std::byte> theirs = windows_[take.rank];
    const auto come = [&] { return has_come(take.rank, one_shot_slot(theirs, one_shots_), mine.flag, mine.signature, result); };
    if (!come()) {
      // Is the rank in another call, which uses no such slot? Or has it entered this call and gone on since the check above?
      const ZeroCopySlot& other = meeting_slot(theirs, meetings_);
      const std::uint64_t entered = other.entered.load(std::memory_order_acquire);
      if (result.odd_rank >= 0 || entered < mine.flag) return misses(take.rank);
      if (!come()) {
        if (result.odd_rank < 0) result.set_odd(take.rank, entered, other.signature, mine.flag, mine.signature);
        return false;
      }
    }
    operands_[i] = one_shot_data(theirs, room_, one_shots_, part.place) + take.offset_bytes;
  }
  if (part.takes.size() == windows_.size()) {
    // Before the peers can write the slots of earlier calls again.
    while (met_ < one_shots_) {
      if (!meet_next(result)) return false;
    }
    met_ = one_shots_ + 1;
  }
  if (part.folds && !part.takes.empty()) {
    reduce(mine.plan, mine.output, {operands_.data(), part.takes.size()},
           part.takes.front().size_bytes / element_bytes(mine.plan.key.collective.type));
  } else {
    for (std::size_t i = 0; i < part.takes.size(); ++i) {
      const PeerMemoryPart::Take& take = part.takes[i];
      if (take.size_bytes == 0 || static_cast<int>(i) == part.own_take) continue;
      std::memcpy(mine.output + take.output_offset_bytes, operands_[i], take.size_bytes);
    }
  }
  ++one_shots_;
  return true;
}

PeerMemoryCalls::Advance PeerMemoryCalls::advance_zero_copy(Operation* operation) {
  Advance result;
  if (!operation->published) {
    if (!may_enter()) return result;
    enter(operation);
    result.moved = true;
  }
  const auto to_links = [&] {
    ++meetings_;
    calls_.pop();
    undecided_ = false;
    operation->published = false;
    result.to_links = operation;
    result.moved = true;
    return result;
  };
  if (met_in_ != operation) {
    if (meeting_slot(window(rank_), meetings_).input == ZeroCopySlot::kOrdinary) return to_links();
    if (!all_entered(operation, result)) return result.to_links != nullptr ? to_links() : result;
    undecided_ = false;  // no call has been pushed since
    begin_part(operation);
    result.moved = true;
  }
  ZeroCopySlot& mine = meeting_slot(window(rank_), meetings_);
  const std::uint64_t flag = flag_of(*operation);
  if (mine.left.load(std::memory_order_relaxed) < flag) {  // only this rank writes it
    if (!begin_writing()) return result;                   // a peer has aborted: its report will arrive
    const bool done = operation->plan->zero_copy_reduce ? fold_some(operation) : move_some(operation);
    end_writing();
    result.moved = true;
    if (!done) return result;
    // release: orders this rank's writes into the peers' outputs, for the acquire below.
    mine.left.store(flag, std::memory_order_release);
    notify();
  }
  for (std::size_t r = 0; r < windows_.size(); ++r) {
    if (meeting_slot(windows_[r], meetings_).left.load(std::memory_order_acquire) >= flag) continue;
    misses(r);
    return result;
  }
  ++meetings_;
  met_in_ = nullptr;
  end(operation);
  result.moved = true;
  return result;
}

void PeerMemoryCalls::begin_part(Operation* operation) {
  met_in_ = operation;
  const Collective& call = operation->plan->key.collective;
  if (operation->plan->zero_copy_reduce)
    folded_elements_ = share_start(call.count, call.type, rank_, static_cast<int>(windows_.size()));
}

/// The slot is free: a rank that has entered the last zero-copy call has decided the one before it. Without this check a rank
/// with unreachable buffers could run ahead, since it waits for no peer.
bool PeerMemoryCalls::may_enter() noexcept {
  for (std::size_t r = 0; last_meeting_ != 0 && r < windows_.size(); ++r) {
    if (meeting_slot(windows_[r], meetings_ + 1).entered.load(std::memory_order_acquire) < last_meeting_) return misses(r);
  }
  return true;
}

/// Writes into this rank's slot where the buffers of the call lie.
void PeerMemoryCalls::enter(Operation* operation) {
  const Plan& plan = *operation->plan;
  ZeroCopySlot& mine = meeting_slot(window(rank_), meetings_);
  const auto output = place_of(plan, operation->at({Buffer::output, 0}), plan.buffers.output_bytes);
  const auto input =
      input_of(plan) == Buffer::output ? output : place_of(plan, operation->at({Buffer::input, 0}), plan.buffers.input_bytes);
  mine.input = input && output ? *input : ZeroCopySlot::kOrdinary;
  mine.output = output.value_or(ZeroCopySlot::kOrdinary);
  mine.signature = operation->signature;
  // release: orders the rest of the slot, and what the caller wrote into its input, for the peers' acquire in all_entered().
  last_meeting_ = flag_of(*operation);
  mine.entered.store(last_meeting_, std::memory_order_release);
  notify();
  operation->published = true;
  // Local moves need no peer, so they are done while the peers poll the slot. Should the call have to use the links, they are
  // done twice.
  move_ = 0;
  moved_bytes_ = 0;
  std::size_t room = kLocalBytes;
  for (const auto& moves = plan.moves; move_ < moves.size() && moves[move_].way == PeerMemoryMove::Way::local; ++move_) {
    moved_bytes_ = std::min(room, moves[move_].size_bytes);
    static_cast<void>(move(operation, moves[move_], 0, moved_bytes_));  // cannot fail
    room -= moved_bytes_;
    if (moved_bytes_ < moves[move_].size_bytes) return;  // move_some() continues
    moved_bytes_ = 0;
  }
}

std::optional<std::uint64_t> PeerMemoryCalls::place_of(const Plan& plan, const std::byte* data, std::size_t bytes) const {
  if (bytes == 0) return 0;  // no peer uses it
  if (const auto offset = transport_->shared_offset(data, bytes)) return offset;
  const auto address = reinterpret_cast<std::uint64_t>(data);
  if (!plan.private_memory || (address & ZeroCopySlot::kAddress) != 0 || !transport_->reaches_all_memory()) return std::nullopt;
  return address | ZeroCopySlot::kAddress;
}

bool PeerMemoryCalls::all_entered(Operation* operation, Advance& result) {
  const std::size_t bytes = operation->plan->key.collective.input_bytes();
  const std::uint64_t flag = flag_of(*operation);
  const CallSignature& ours = operation->signature;
  bool all = true;
  for (std::size_t r = 0; r < windows_.size(); ++r) {
    ZeroCopySlot& theirs = meeting_slot(windows_[r], meetings_);
    const std::uint64_t seen = theirs.entered.load(std::memory_order_acquire);
    if (seen < flag) {
      const OneShotSlot& other = one_shot_slot(windows_[r], one_shots_);
      const std::uint64_t begun = other.flag.load(std::memory_order_acquire);
      // Is the rank in another call? Or has it entered this one and gone on since the check above?
      if (begun >= flag && theirs.entered.load(std::memory_order_acquire) < flag)
        result.set_odd(r, begun, other.signature.load(), flag, ours);
      if (all) all = misses(r);
      continue;
    }
    if (seen > flag || !(theirs.signature == ours)) {
      result.set_odd(r, seen, theirs.signature, flag, ours);
      return false;
    }
    if (theirs.input == ZeroCopySlot::kOrdinary) {
      result.to_links = operation;
      return false;
    }
    if (operation->plan->zero_copy_move) continue;  // move() checks the places
    if (static_cast<int>(r) == rank_) {
      inputs_[r] = operation->at({Buffer::input, 0});
      outputs_[r] = operation->at({Buffer::output, 0});
      continue;
    }
    const auto found = [&](std::uint64_t place, auto& where) {
      const bool ordinary = (place & ZeroCopySlot::kAddress) != 0;
      where = ordinary ? nullptr : transport_->shared_memory(members_[r], place, bytes);
      return ordinary || where != nullptr;
    };
    if (!found(theirs.input, inputs_[r]) || !found(theirs.output, outputs_[r])) {
      failure_ = unreachable(static_cast<int>(r));
      return false;
    }
  }
  return all;
}

/// Folds a bounded part of this rank's share; true when all of it is done.
bool PeerMemoryCalls::fold_some(Operation* operation) {
  const Plan& plan = *operation->plan;
  const Collective& call = plan.key.collective;
  const std::size_t element = size_of(call.type);
  const auto ranks = static_cast<int>(windows_.size());
  const std::size_t end = share_start(call.count, call.type, rank_ + 1, ranks);
  const std::size_t stop = std::min(end, folded_elements_ + kBytesPerPass / element);
  const bool cached = call.input_bytes() <= kCachedBytes;
  // What has just been read is in the caches; to write past them would cost more there.
  const auto stays = [&](std::size_t r) { return cached || outputs_[r] == inputs_[r]; };
  const auto own = static_cast<std::size_t>(rank_);
  const bool asks_kernel = std::ranges::count(inputs_, nullptr) + std::ranges::count(outputs_, nullptr) > 0;
  if (asks_kernel) read_.resize(windows_.size() * kReadBytes);
  const auto address = [&](std::uint64_t place) { return place & ~ZeroCopySlot::kAddress; };
  while (folded_elements_ < stop) {
    const std::size_t count = std::min((asks_kernel ? kReadBytes : kBlockBytes) / element, stop - folded_elements_);
    const std::size_t bytes = count * element;
    const std::size_t at = folded_elements_ * element;
    const auto kept = [&](std::size_t r) { return asks_kernel ? read_.data() + r * kReadBytes : block_.data(); };
    for (std::size_t r = 0; r < inputs_.size() && failure_.ok(); ++r) {
      operands_[r] = inputs_[r] != nullptr ? inputs_[r] + at : kept(r);
      if (inputs_[r] == nullptr)
        failure_ = transport_->copy_from(members_[r], address(meeting_slot(windows_[r], meetings_).input) + at, kept(r), bytes);
    }
    if (!failure_.ok()) return false;
    std::byte* folded = stays(own) ? outputs_[own] + at : kept(own);
    reduce(plan, folded, operands_, count);
    for (std::size_t r = 0; r < outputs_.size() && failure_.ok(); ++r) {
      if (outputs_[r] == nullptr) {
        failure_ = transport_->copy_to(members_[r], address(meeting_slot(windows_[r], meetings_).output) + at, folded, bytes);
      } else if (!stays(r)) {
        device_->stream(outputs_[r] + at, folded, bytes);
      } else if (r != own) {
        device_->copy(outputs_[r] + at, folded, bytes);
      }
    }
    if (!failure_.ok()) return false;
    folded_elements_ += count;
  }
  return folded_elements_ == end;
}

/// Moves as many bytes as fit between two checks of deadlines and failures; true when all moves are done.
bool PeerMemoryCalls::move_some(Operation* operation) {
  const std::vector<PeerMemoryMove>& moves = operation->plan->moves;
  std::size_t room = kBytesPerPass;
  for (; move_ < moves.size(); ++move_, moved_bytes_ = 0) {
    const std::size_t bytes = std::min(room, moves[move_].size_bytes - moved_bytes_);
    if (bytes > 0) failure_ = move(operation, moves[move_], moved_bytes_, bytes);
    if (!failure_.ok()) return false;
    room -= bytes;
    moved_bytes_ += bytes;
    if (moved_bytes_ < moves[move_].size_bytes) return false;
  }
  return true;
}

Status PeerMemoryCalls::move(Operation* operation, const PeerMemoryMove& what, std::size_t done_bytes, std::size_t bytes) {
  const bool reads = what.way == PeerMemoryMove::Way::read;
  const bool writes = what.way == PeerMemoryMove::Way::write;
  // This rank may lack the buffer that it does not use: the root alone has the output of a gather.
  const std::byte* source = reads ? nullptr : operation->at({input_of(*operation->plan), what.source_bytes}) + done_bytes;
  std::byte* target = writes ? nullptr : operation->at({Buffer::output, what.target_bytes}) + done_bytes;
  if (reads || writes) {
    const auto peer = static_cast<int>(what.peer);
    const ZeroCopySlot& theirs = meeting_slot(window(peer), meetings_);
    const std::uint64_t place =
        (reads ? theirs.input : theirs.output) + (reads ? what.source_bytes : what.target_bytes) + done_bytes;
    if ((place & ZeroCopySlot::kAddress) != 0) {
      const std::uint64_t address = place & ~ZeroCopySlot::kAddress;
      return reads ? transport_->copy_from(member(peer), address, target, bytes)
                   : transport_->copy_to(member(peer), address, source, bytes);
    }
    std::byte* shared = transport_->shared_memory(member(peer), place, bytes);
    if (shared == nullptr) return unreachable(peer);
    if (reads) {
      source = shared;
    } else {
      target = shared;
    }
  }
  if (source != target) device_->copy(target, source, bytes);  // the same: in place
  return {};
}

void PeerMemoryCalls::reduce(const Plan& plan, std::byte* target, std::span<const std::byte* const> operands,
                             std::size_t count) const {
  const Collective& call = plan.key.collective;
  if (count == 0) return;  // the call was only for its signatures
  if (call.op == ReduceOp::avg) {
    device_->reduce_average(target, operands, count, call.type, plan.ranks);
  } else {
    device_->reduce(target, operands, count, call.type, call.op);
  }
}

void PeerMemoryCalls::end(Operation* operation) {
  calls_.pop();
  operation->open_instructions = 0;
  operation->open_links = 0;
}

bool PeerMemoryCalls::awaits(const Operation& operation, int rank) noexcept {
  if (calls_.empty() || calls_.front() != &operation || rank == rank_) return false;
  const auto has_begun = [&](std::uint64_t count, std::uint64_t flag) {
    return one_shot_slot(window(rank), count).flag.load(std::memory_order_acquire) >= flag;
  };
  const std::uint64_t flag = flag_of(operation);
  if (operation.plan->one_shot_window) {
    // Not published: peers are so far behind that no slot is free.
    if (!operation.published) return !has_begun(met_, one_shot_slot(window(rank_), met_).flag.load(std::memory_order_relaxed));
    const auto& takes = operation.plan->peer_memory_part.takes;
    const bool needed = std::ranges::any_of(takes, [&](const auto& take) { return static_cast<int>(take.rank) == rank; });
    return needed && !has_begun(one_shots_, flag);
  }
  if (!operation.published) return false;
  const ZeroCopySlot& slot = meeting_slot(window(rank), meetings_);
  return (met_in_ == &operation ? slot.left : slot.entered).load(std::memory_order_acquire) < flag;
}

}  // namespace shoal
