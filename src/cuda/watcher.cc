// The group's thread: hands tiles to the host's engine, sees to deadlines, and lets the streams go on after a failure. It
// sleeps until there is news or a deadline.
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

/// After a failure flags are raised again this often until the streams are through: other ranks' streams may still write old
/// values.
constexpr std::chrono::milliseconds kReleaseAgain{2};

/// How long the host's engine is kept looking out before it is asked again whether that is still needed.
constexpr std::chrono::milliseconds kLookout{250};
/// Of the message by which a rank ends its own lookout. The group's communicator carries no others.
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
  // Who gives up lets its streams go on, and they announce what they have not done: such a result is none.
  if (call.outcome.ok() && board != nullptr) call.outcome = board->given_up(ranks_on_board);
  if (!call.outcome.ok()) note(call.outcome);
}

void GroupState::prune() {
  for (auto each = in_flight.begin(); each != in_flight.end();) {
    StreamCall& call = **each;
    look_at(call);
    // One that has failed ends for its user before its stream is through; it stays here until then. So does a send whose
    // buffer is free again while the host still holds the message.
    const auto happened = call.ended ? api->has_happened(call.event) : Result<bool>(false);
    if ((!happened.ok() || *happened) && call.open_tiles == 0) {
      each = in_flight.erase(each);
    } else if (call.messages == 0) {
      return;  // those behind it are no further
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
  return waited.ok() ? Status(StatusCode::internal, "the stream is through with the call, its event is not") : waited;
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
  while (!stopping_ || (state_->noted && state_->failure.ok())) {  // the other ranks hear of a failure in any case
    if (state_->noted && state_->failure.ok()) {
      fail(lock);
      continue;
    }
    if (!state_->failure.ok()) {
      // These are not handed over: their streams go on by flags that are raised for all.
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

/// The host's engine notices dead ranks while one of its calls is in flight, and streams that wait for a rank are none of its
/// calls. So while there are any, this rank waits for a message from anybody, which only it sends itself, in
/// stop_looking_out().
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

/// Ends everything in flight, then lets the streams go on as far as they may, then tells the other ranks and the engine. The
/// lock is held but for the last.
void DeviceGroup::fail(std::unique_lock<std::mutex>& lock) {
  for (const auto& call : state_->in_flight) state_->look_at(*call);  // what is through by now ends well
  state_->failure = *state_->noted;
  // Of several errors the first is the cause: another rank may have left because of it, which is all that is seen here.
  if (board_ != nullptr) {
    if (Status first = board_->given_up(node_size_); !first.ok()) state_->failure = first;
  }
  for (const auto& call : state_->in_flight) {
    if (call->ended) continue;
    call->ended = true;
    call->outcome = state_->failure;
  }
  // In this order: no rank may believe what this one's streams announce from here on, nor may its own kernels touch anything.
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

/// What the engine has in its hands stays as it is until it gives that up, which is soon after its communicators are closed: a
/// stream that went on would change what is on its way to another rank, for whom the call may still end well.
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

/// What to say of `call`, whose deadline has passed: which ranks have not come to it, or not through it.
Status DeviceGroup::late(const StreamCall& call) const {
  std::string text = fmt::format("{} was not done after {} s", call.name(), static_cast<double>(call.timeout.count()) / 1000);
  if (call.messages != 0) return {StatusCode::timeout, text + "; what the other rank does for it has not come"};
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
      text += fmt::format("; rank {} has made it, but its stream has not come through it", in_job);
      named = true;
    }
  }
  if (!named) text += "; the stream of this rank has not come through it";
  return {StatusCode::timeout, text};
}

}  // namespace shoal::cuda
