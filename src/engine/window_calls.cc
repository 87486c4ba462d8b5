#include "src/engine/window_calls.h"

#include <algorithm>
#include <cstring>

#include "src/engine/cpu_relax.h"

namespace shoal {

using internal::Operation;

namespace {

PlanSlice input_of(const Plan& plan) { return {plan.key.in_place ? Buffer::output : Buffer::input, 0}; }
std::uint64_t flag_of(const Operation& operation) { return operation.sequence() + 1; }

/// First element of the share that `rank` folds; shares start on whole cache lines.
std::size_t share_start(std::size_t count, DataType type, int rank, int ranks) {
  const std::size_t line = 64 / size_of(type);
  const std::size_t lines = (count + line - 1) / line;
  const auto parts = static_cast<std::size_t>(ranks);
  const auto part = static_cast<std::size_t>(rank);
  return std::min(count, (lines / parts * part + std::min(part, lines % parts)) * line);
}

}  // namespace

WindowCalls::WindowCalls(Transport& transport, int rank, int ranks, const Device& device)
    : transport_(&transport),
      device_(&device),
      rank_(rank),
      inputs_(static_cast<std::size_t>(ranks)),
      outputs_(static_cast<std::size_t>(ranks)),
      operands_(static_cast<std::size_t>(ranks)) {
  for (int r = 0; r < ranks; ++r) windows_.push_back(transport.shared_window(r));
}

std::size_t WindowCalls::one_shot_bytes() const noexcept { return available() ? one_shot_capacity(window(0).size()) : 0; }

void WindowCalls::push(Operation* operation) {
  calls_.push(operation);
  if (!operation->plan->one_shot_window) undecided_ = true;
}

void WindowCalls::clear() {
  calls_.clear();
  undecided_ = false;
  folding_ = nullptr;
}

WindowCalls::Advance WindowCalls::advance() {
  if (calls_.empty()) return {};
  Operation* operation = calls_.front();
  return operation->plan->one_shot_window ? advance_one_shot(operation) : advance_shared_fold(operation);
}

bool WindowCalls::try_one_shot(const Plan& plan, std::uint64_t sequence, const void* input, void* output, int looks) {
  const Contribution mine{plan, sequence + 1, static_cast<const std::byte*>(plan.key.in_place ? output : input),
                          static_cast<std::byte*>(output)};
  publish(mine);
  Advance late_or_odd;  // the ordinary way will find that again
  int look = 1;
  bool folded = fold_all(mine, late_or_odd);
  for (; !folded && late_or_odd.odd_rank < 0 && look < looks; ++look) {
    if (look > kLooksAtOnce) cpu_relax();
    folded = fold_all(mine, late_or_odd);
  }
  // Only now: the fence in it would hold the looks back until the peers' caches have given up our line.
  transport_->notify_peers();
  return folded;
}

WindowCalls::Advance WindowCalls::advance_one_shot(Operation* operation) {
  const Contribution mine{*operation->plan, flag_of(*operation), operation->at(input_of(*operation->plan)),
                          operation->at({Buffer::output, 0})};
  Advance result;
  if (!operation->published) {
    publish(mine);
    transport_->notify_peers();
    operation->published = true;
    result.moved = true;
  }
  if (fold_all(mine, result)) {
    end(operation);
    result.moved = true;
  }
  return result;
}

void WindowCalls::publish(const Contribution& mine) {
  OneShotSlot& slot = one_shot_slot(window(rank_), one_shots_);
  const std::size_t bytes = mine.plan.key.collective.input_bytes();
  if (bytes != 0) std::memcpy(slot.data(bytes), mine.input, bytes);
  slot.signature = mine.plan.signature;
  // release: orders payload and signature before the flag, for the peers' acquire in fold_all().
  slot.flag.store(mine.flag, std::memory_order_release);
}

bool WindowCalls::fold_all(const Contribution& mine, Advance& result) {
  const Collective& call = mine.plan.key.collective;
  const std::size_t bytes = call.input_bytes();
  for (std::size_t r = 0; r < windows_.size(); ++r) {
    if (static_cast<int>(r) == rank_) {
      operands_[r] = mine.input;
      continue;
    }
    OneShotSlot& theirs = one_shot_slot(windows_[r], one_shots_);
    const std::uint64_t seen = theirs.flag.load(std::memory_order_acquire);
    if (seen < mine.flag) {
      const MeetingSlot& other = meeting_slot(windows_[r], meetings_);
      if (other.entered.load(std::memory_order_acquire) >= mine.flag) result.set_odd(r, other.signature);
      return false;
    }
    if (seen > mine.flag || !(theirs.signature == mine.plan.signature)) {
      result.set_odd(r, theirs.signature);
      return false;
    }
    operands_[r] = theirs.data(bytes);
  }
  reduce(mine.plan, mine.output, operands_, call.count);
  ++one_shots_;
  return true;
}

WindowCalls::Advance WindowCalls::advance_shared_fold(Operation* operation) {
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
  if (folding_ != operation) {
    if (meeting_slot(window(rank_), meetings_).input == MeetingSlot::kOrdinary) return to_links();
    if (!all_entered(operation, result)) return result.to_links != nullptr ? to_links() : result;
    undecided_ = false;  // nothing has been pushed since
    folding_ = operation;
    folded_elements_ = share_start(operation->plan->key.collective.count, operation->plan->key.collective.type, rank_,
                                   static_cast<int>(windows_.size()));
    result.moved = true;
  }
  MeetingSlot& mine = meeting_slot(window(rank_), meetings_);
  const std::uint64_t flag = flag_of(*operation);
  if (mine.left.load(std::memory_order_relaxed) < flag) {  // only we write it
    result.moved = true;
    if (!fold_some(operation)) return result;
    // release: orders our writes into the peers' outputs, for the acquire below.
    mine.left.store(flag, std::memory_order_release);
    transport_->notify_peers();
  }
  for (const auto& each : windows_) {
    if (meeting_slot(each, meetings_).left.load(std::memory_order_acquire) < flag) return result;
  }
  ++meetings_;
  folding_ = nullptr;
  end(operation);
  result.moved = true;
  return result;
}

/// The slot is free: whoever is in the last meeting has decided the one before it. A rank whose buffers are ordinary ones could
/// otherwise run ahead, since it waits for nobody.
bool WindowCalls::may_enter() const noexcept {
  return last_meeting_ == 0 || std::all_of(windows_.begin(), windows_.end(), [&](const auto& each) {
           return meeting_slot(each, meetings_ + 1).entered.load(std::memory_order_acquire) >= last_meeting_;
         });
}

/// Says where the buffers of the call lie.
void WindowCalls::enter(Operation* operation) {
  const Plan& plan = *operation->plan;
  const std::size_t bytes = plan.key.collective.input_bytes();
  MeetingSlot& mine = meeting_slot(window(rank_), meetings_);
  const auto input = transport_->shared_offset(operation->at(input_of(plan)), bytes);
  const auto output = transport_->shared_offset(operation->at({Buffer::output, 0}), bytes);
  mine.input = input && output ? *input : MeetingSlot::kOrdinary;
  mine.output = output.value_or(MeetingSlot::kOrdinary);
  mine.signature = plan.signature;
  // release: orders the rest of the slot, and what the caller wrote into its input, for the peers' acquire in all_entered().
  last_meeting_ = flag_of(*operation);
  mine.entered.store(last_meeting_, std::memory_order_release);
  transport_->notify_peers();
  operation->published = true;
}

bool WindowCalls::all_entered(Operation* operation, Advance& result) {
  const std::size_t bytes = operation->plan->key.collective.input_bytes();
  const std::uint64_t flag = flag_of(*operation);
  bool all = true;
  for (std::size_t r = 0; r < windows_.size(); ++r) {
    MeetingSlot& theirs = meeting_slot(windows_[r], meetings_);
    const std::uint64_t seen = theirs.entered.load(std::memory_order_acquire);
    if (seen < flag) {
      const OneShotSlot& other = one_shot_slot(windows_[r], one_shots_);
      if (other.flag.load(std::memory_order_acquire) >= flag) result.set_odd(r, other.signature);
      all = false;
      continue;
    }
    if (seen > flag || !(theirs.signature == operation->plan->signature)) {
      result.set_odd(r, theirs.signature);
      return false;
    }
    if (theirs.input == MeetingSlot::kOrdinary) {
      result.to_links = operation;
      return false;
    }
    if (static_cast<int>(r) == rank_) {
      inputs_[r] = operation->at(input_of(*operation->plan));
      outputs_[r] = operation->at({Buffer::output, 0});
      continue;
    }
    inputs_[r] = transport_->shared_memory(static_cast<int>(r), theirs.input, bytes);
    outputs_[r] = transport_->shared_memory(static_cast<int>(r), theirs.output, bytes);
    if (inputs_[r] == nullptr || outputs_[r] == nullptr) {
      // Only a rank whose memory has been overwritten names such places.
      result.set_odd(r, theirs.signature);
      return false;
    }
  }
  return all;
}

/// A bounded part of this rank's share; true when all of it is done.
bool WindowCalls::fold_some(Operation* operation) {
  const Plan& plan = *operation->plan;
  const Collective& call = plan.key.collective;
  const std::size_t element = size_of(call.type);
  const auto ranks = static_cast<int>(windows_.size());
  const std::size_t end = share_start(call.count, call.type, rank_ + 1, ranks);
  const std::size_t stop = std::min(end, folded_elements_ + kBytesPerPass / element);
  const bool cached = call.input_bytes() <= kCachedBytes;
  const auto own = static_cast<std::size_t>(rank_);
  while (folded_elements_ < stop) {
    const std::size_t count = std::min(kBlockBytes / element, stop - folded_elements_);
    const std::size_t at = folded_elements_ * element;
    for (std::size_t r = 0; r < inputs_.size(); ++r) operands_[r] = inputs_[r] + at;
    std::byte* folded = cached ? outputs_[own] + at : block_.data();
    reduce(plan, folded, operands_, count);
    for (std::size_t r = 0; r < outputs_.size(); ++r) {
      if (!cached) {
        device_->stream(outputs_[r] + at, folded, count * element);
      } else if (r != own) {
        device_->copy(outputs_[r] + at, folded, count * element);
      }
    }
    folded_elements_ += count;
  }
  return folded_elements_ == end;
}

void WindowCalls::reduce(const Plan& plan, std::byte* target, std::span<const std::byte* const> operands,
                         std::size_t count) const {
  const Collective& call = plan.key.collective;
  if (count == 0) return;  // only the agreement counted
  if (call.op == ReduceOp::avg) {
    device_->reduce_average(target, operands, count, call.type, plan.ranks);
  } else {
    device_->reduce(target, operands, count, call.type, call.op);
  }
}

void WindowCalls::end(Operation* operation) {
  calls_.pop();
  operation->open_instructions = 0;
  operation->open_links = 0;
}

bool WindowCalls::awaits(const Operation& operation, int rank) noexcept {
  if (calls_.empty() || calls_.front() != &operation || !operation.published || rank == rank_) return false;
  const std::uint64_t flag = flag_of(operation);
  if (operation.plan->one_shot_window)
    return one_shot_slot(window(rank), one_shots_).flag.load(std::memory_order_acquire) < flag;
  const MeetingSlot& slot = meeting_slot(window(rank), meetings_);
  return (folding_ == &operation ? slot.left : slot.entered).load(std::memory_order_acquire) < flag;
}

}  // namespace shoal
