// The group's thread: hands tiles to the host's engine, handles deadlines, and releases the streams after a failure. It sleeps
// until it is notified or a deadline passes.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/partition.h"
#include "src/communicator/communicator_impl.h"
#include "src/cuda/device_group.h"
#include "src/cuda/device_words.h"

namespace shoal::cuda {
namespace {

/// After a failure flags are raised again in this interval until the streams have completed all calls: other ranks' streams
/// may still write old values.
constexpr std::chrono::milliseconds kReleaseAgain{2};

/// How long a lookout keeps the host's engine watching before the thread checks whether it is still needed.
constexpr std::chrono::milliseconds kLookout{250};
/// Tag of the message by which a rank ends its own lookout. The group's communicator carries no other messages.
constexpr int kLookoutTag = 1;

}  // namespace

StreamCall::~StreamCall() {
  if (event == nullptr) return;
  const std::scoped_lock lock(state->events_mutex);
  state->events.push_back(event);
}

void GroupState::note(const Status& cause) {
  if (noted || !failure.ok()) return;
  noted = cause;
  news.notify_one();
}

void GroupState::look_at(StreamCall& call) {
  if (call.ended) return;
  const auto happened = api->has_happened(call.event);
  if (happened.ok() && !*happened) return;
  call.ended = true;
  call.outcome = happened.ok() ? failure : happened.status();
  // A rank that aborts releases its streams, and they announce work that they have not done: then the result is invalid.
  if (call.outcome.ok() && board != nullptr) call.outcome = board->given_up(ranks_on_board);
  if (!call.outcome.ok()) note(call.outcome);
}

void GroupState::prune() {
  for (auto each = in_flight.begin(); each != in_flight.end();) {
    StreamCall& call = **each;
    look_at(call);
    // A call that has failed ends for its user before its stream has completed it; it stays here until then. So does a send
    // whose buffer is free again while the host still holds the message.
    const auto happened = call.ended ? api->has_happened(call.event) : Result<bool>(false);
    if ((!happened.ok() || *happened) && call.open_tiles == 0) {
      each = in_flight.erase(each);
    } else if (call.messages == 0) {
      return;  // later calls are no further
    } else {
      ++each;
    }
  }
}

Status wait_for(StreamCall& call) {
  GroupState& state = *call.state;
  {
    const std::scoped_lock lock(state.mutex);
    state.look_at(call);
    if (call.ended) return call.outcome;
  }
  const Status waited = state.api->wait_host(call.event);
  const std::scoped_lock lock(state.mutex);
  state.look_at(call);
  if (call.ended) return call.outcome;
  return waited.ok() ? Status(StatusCode::internal, "the stream completed the call, but its event did not happen") : waited;
}

Status DeviceGroup::status() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->failure.ok() && state_->noted ? *state_->noted : state_->failure;
}

void DeviceGroup::note_failure(const Status& cause) {
  const std::scoped_lock lock(state_->mutex);
  state_->note(cause);
}

void DeviceGroup::abort(const std::string& reason) { note_failure({StatusCode::aborted, reason}); }

void DeviceGroup::watch() {
  static_cast<void>(api_.use_device(device_));
  std::unique_lock lock(state_->mutex);
  while (!stopping_ || (state_->noted && state_->failure.ok())) {  // a failure is sent to the other ranks in any case
    if (state_->noted && state_->failure.ok()) {
      fail(lock);
      continue;
    }
    if (!state_->failure.ok()) {
      // These tiles are not started: the flags of all streams are raised.
      for (const Tile* tile : std::exchange(state_->arrived, {})) --tile->call->open_tiles;
      let_streams_go_on();
      state_->prune();
      if (state_->in_flight.empty() && state_->broken.empty()) {
        state_->news.wait(lock);
      } else {
        state_->news.wait_for(lock, kReleaseAgain);
      }
      continue;
    }
    if (!state_->arrived.empty()) {
      Tile& tile = *state_->arrived.front();
      state_->arrived.pop_front();
      ++with_engine_;
      lock.unlock();
      start_tile(tile);
      lock.lock();
      continue;
    }
    const auto now = Clock::now();
    state_->prune();
    if (looking_out_ && now >= looking_out_until_) {
      lock.unlock();
      stop_looking_out();
      lock.lock();
      looking_out_ = false;
      if (board_ != nullptr && !state_->noted && state_->failure.ok()) {
        if (const Status cause = board_->given_up(node_size_); !cause.ok()) state_->noted = cause;
      }
      continue;
    }
    if (!looking_out_ && !state_->in_flight.empty() && communicator_.size() > 1) {
      looking_out_ = true;
      looking_out_until_ = now + kLookout;
      lock.unlock();
      look_out();
      lock.lock();
      continue;
    }
    auto next = looking_out_ ? looking_out_until_ : Clock::time_point::max();
    for (const auto& call : state_->in_flight) {
      if (call->ended) continue;
      if (call->deadline <= now) state_->look_at(*call);
      if (call->ended) continue;
      next = std::min(next, call->deadline);
      if (call->deadline <= now && !state_->noted) state_->noted = late(*call);
    }
    if (state_->noted) continue;
    next_look_ = next;
    if (next == Clock::time_point::max()) {
      state_->news.wait(lock);
    } else {
      state_->news.wait_until(lock, next);
    }
  }
}

/// The host's engine detects dead ranks only while one of its calls is in flight, and streams that wait for a rank are no
/// calls of the engine. So while there are any, this rank has a receive from any rank in flight, for a message that only the
/// rank itself sends, in stop_looking_out().
void DeviceGroup::look_out() {
  CallOptions options;
  options.timeout = std::chrono::hours(24);
  auto work = all_->recv_async(lookout_bytes_.data(), 1, DataType::uint8, kAnySource, kLookoutTag, options);
  if (!work.ok()) return note_failure(work.status());
  lookout_ = *work;
  static_cast<void>(lookout_.on_completion([this](const Status& outcome) {
    if (!outcome.ok()) note_failure(outcome);
  }));
}

void DeviceGroup::stop_looking_out() {
  if (lookout_.is_completed()) return;  // it has failed
  static_cast<void>(all_->send(lookout_bytes_.data() + 1, 1, DataType::uint8, all_->rank(), kLookoutTag));
  static_cast<void>(lookout_.wait());
}

/// Ends all calls in flight, then releases the streams as far as they may continue, then reports to the other ranks and the
/// engine. The lock is held except for the last step.
void DeviceGroup::fail(std::unique_lock<std::mutex>& lock) {
  for (const auto& call : state_->in_flight) state_->look_at(*call);  // calls that are complete by now succeed
  state_->failure = *state_->noted;
  // Of several errors the first is the cause: another rank may have left because of it, and this rank sees only that.
  if (board_ != nullptr) {
    if (Status first = board_->given_up(node_size_); !first.ok()) state_->failure = first;
  }
  for (const auto& call : state_->in_flight) {
    if (call->ended) continue;
    call->ended = true;
    call->outcome = state_->failure;
  }
  // In this order: no rank may trust what this rank's streams announce from here on, nor may its own kernels access any
  // memory.
  if (board_ != nullptr) board_->give_up(node_rank_, state_->failure);
  std::atomic_ref(words_->cancelled.value).store(1);
  let_streams_go_on();
  const Status cause = state_->failure;
  lock.unlock();
  internal::CommunicatorImpl::of(*all_).executor().close(cause);
  if (rail_ != nullptr) internal::CommunicatorImpl::of(*rail_).executor().close(cause);
  internal::CommunicatorImpl::of(*mail_).executor().close(cause);
  lock.lock();
}

/// Streams that wait for tiles stay blocked until the engine has ended them, which is soon after its communicators are closed.
/// A stream that continued would change data on its way to another rank, for which the call may still succeed.
void DeviceGroup::let_streams_go_on() {
  constexpr std::uint32_t kFarAhead = 1U << 30;  // as in Board::release
  if (board_ != nullptr) board_->release(node_rank_, node_size_, tick_.load());
  if (with_engine_ != 0) return;
  for (auto& done : words_->tile_done) std::atomic_ref(done.value).store(piece_.load() + kFarAhead);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t beyond = static_cast<std::uint32_t>(lanes_[lane].used.load()) + kFarAhead;
    for (auto& done : words_->chunk_done[lane]) std::atomic_ref(done.value).store(beyond);
  }
}

/// The error for `call`, whose deadline has passed: which ranks have not made it, or have not completed it.
Status DeviceGroup::late(const StreamCall& call) const {
  std::string text = fmt::format("{} did not complete in {} s", call.name(), static_cast<double>(call.timeout.count()) / 1000);
  if (call.messages != 0) return {StatusCode::timeout, text + "; the other rank's part of it has not arrived"};
  bool named = false;
  for (int rank = 0; board_ != nullptr && rank < node_size_; ++rank) {
    if (rank == node_rank_) continue;
    const auto last = board_->last_signed(rank);
    const int in_job = node_ranks_[static_cast<std::size_t>(rank)];
    if (!last || last->first < call.sequence) {
      text += last ? fmt::format("; rank {} is in call {}, {}", in_job, last->first, to_string(last->second))
                   : fmt::format("; rank {} has made no call", in_job);
      named = true;
    } else if (!kernels::reached(std::atomic_ref(*board_->flag(node_rank_, rank)).load(), call.last_tick)) {
      text += fmt::format("; rank {} has made it, but its stream has not completed it", in_job);
      named = true;
    }
  }
  if (!named) text += "; the stream of this rank has not completed it";
  return {StatusCode::timeout, text};
}

}  // namespace shoal::cuda
