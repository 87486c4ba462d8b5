#include "src/progress/progress_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "src/base/event.h"
#include "src/diagnosis/straggler_detector.h"
#include "src/progress/drive.h"
#include "src/progress/driver_lock.h"
#include "src/progress/progress_client.h"
#include "src/progress/progress_thread.h"

namespace shoal {

using internal::Operation;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestWithoutCheck = std::chrono::milliseconds(10);

/// Whether poll found `fd` readable, or was not called. A descriptor that was not polled counts as not readable.
bool is_readable(std::span<const pollfd> polled, int fd) {
  const auto found = std::ranges::find(polled, fd, &pollfd::fd);
  return found == polled.end() ? polled.empty() : found->revents != 0;
}

}  // namespace

bool has_cores_to_spare(const ProgressEngineParts& parts) {
  const auto local = parts.topology.ranks_of_node(parts.topology.node_of_rank[static_cast<std::size_t>(parts.rank)]).size();
  return static_cast<int>(local) <= parts.cores;
}

ProgressEngine::ProgressEngine(ProgressEngineParts parts)
    : parts_(std::move(parts)),
      wire_of_rank_(static_cast<std::size_t>(parts_.topology.ranks()), -1),
      gone_(wire_of_rank_.size()),
      dead_(wire_of_rank_.size()),
      kick_(make_event()),
      cores_to_spare_(has_cores_to_spare(parts_)),
      caller_waiter_(cores_to_spare_) {
  for (std::size_t i = 0; i < parts_.links.size(); ++i) {
    Link* link = parts_.links[i].get();
    Wire& wire = wires_.emplace_back();
    wire.link = link;
    wire.transport = parts_.transport_of_link[i];
    wire.taken = link->sent_tiles();  // startup may have used the link
    wire.theirs[0];                   // the communicator of all ranks needs no bind()
    wire.unmade[{}] = 0;
    wire_of_rank_[static_cast<std::size_t>(link->peer())] = static_cast<int>(i);
  }
  caller_descriptors_.reserve(1 + kMaxWaitFds);
  running_.reserve(8);
}

Status ProgressEngine::status() const {
  return kick_.valid() ? Status()
                       : Status(StatusCode::system_error, "start-up: no file descriptor for an eventfd; raise ulimit -n");
}

ProgressEngine::~ProgressEngine() = default;

ProgressEngine::Wire* ProgressEngine::wire_to(int rank) noexcept {
  const int index = wire_of_rank_[static_cast<std::size_t>(rank)];
  return index < 0 ? nullptr : &wires_[static_cast<std::size_t>(index)];
}

std::size_t ProgressEngine::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& transport : parts_.transports) bytes += transport->memory_bytes();
  if (parts_.control != nullptr && parts_.control->transport() != nullptr) bytes += parts_.control->transport()->memory_bytes();
  return bytes;
}

std::uint32_t ProgressEngine::next_number() noexcept {
  const std::uint32_t given = numbers_given_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (given < kCommunicatorLimit) return given;
  numbers_given_.store(kCommunicatorLimit, std::memory_order_relaxed);
  return kCommunicatorLimit;
}

Status ProgressEngine::attach(ProgressClient& executor) {
  const std::uint32_t number = executor.number();
  const GroupName& name = executor.group().name;
  const DriverLock lock(*this);
  Status refused = overflow_;
  if (number == kCommunicatorLimit) {
    refused = {StatusCode::unsupported,
               fmt::format("this process has made {} communicators; no number is left for another", kCommunicatorLimit - 1)};
  } else if (by_name_.contains(name) || is_retired(name)) {
    refused = {StatusCode::internal, fmt::format("the name {:x} of a new communicator is in use", name.key)};
  }
  if (!refused.ok()) return refused;
  attached_.push_back(&executor);
  by_number_.emplace(number, &executor);
  by_name_.emplace(name, &executor);
  running_.reserve(attached_.size());  // now, not in a call
  for (Wire& wire : wires_) take_early_tiles(wire, executor);
  if (const auto early = early_.find(name); early != early_.end()) {
    for (const auto& [rank, calls] : early->second.left) executor.peer_left(rank, calls);
    for (const auto& [rank, what] : early->second.waits) executor.peer_waits(rank, what);
    if (!early->second.abort.ok()) executor.close(early->second.abort);
    early_bytes_ -= early->second.bytes;
    early_.erase(early);
  }
  for (int rank = 0; rank < parts_.topology.ranks(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (gone_[at]) executor.peer_gone(rank);
    if (!dead_[at].ok()) executor.peer_died(rank, dead_[at]);
  }
  return {};
}

void ProgressEngine::detach(ProgressClient& executor) {
  std::erase(attached_, &executor);
  std::erase(running_, &executor);
  by_number_.erase(executor.number());
  by_name_.erase(executor.group().name);
  retire(executor.group().name);
  for (const int member : executor.group().members) {
    Wire* wire = wire_to(member);
    if (wire == nullptr) continue;
    if (const auto number = executor.number_of(member)) forget_number(*wire, *number);
    if (!attached_.empty() && executor.has_bound(member)) say(*wire, executor.number(), LinkControl::unbind);
  }
  send_words();
  if (!attached_.empty() || parts_.control == nullptr) return;
  parts_.control->send_goodbye();
  parts_.control->finish();
}

std::vector<int> ProgressEngine::present() {
  const DriverLock lock(*this);
  control_due_ = true;
  check();  // reads the control messages that have arrived by now
  std::vector<int> ranks;
  for (int rank = 0; rank < parts_.topology.ranks(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    // A broken link may be detected before the report of the death that broke it.
    const Wire* wire = wire_to(rank);
    const bool connected = wire == nullptr || wire->link->status().ok();
    if (!gone_[at] && dead_[at].ok() && connected) ranks.push_back(rank);
  }
  return ranks;
}

Group ProgressEngine::next_group_of(const std::vector<int>& members) {
  std::uint32_t made_before = 0;
  {
    const std::scoped_lock lock(groups_mutex_);
    made_before = groups_made_[members]++;
  }
  // Other numbers than those of groups that are made without a failure, so that names differ.
  constexpr std::uint32_t kAfterFailures = 0x80000000;
  Group group = Group::whole(*this).subset(members, kAfterFailures + made_before);
  group.is_meeting = true;
  return group;
}

void ProgressEngine::leave_to_parent() noexcept {
  left_to_parent_ = true;
  for (const auto& transport : parts_.transports) transport->leave_to_parent();
  if (parts_.control != nullptr && parts_.control->transport() != nullptr) parts_.control->transport()->leave_to_parent();
  for (ProgressClient* executor : attached_) executor->leave_to_parent();
}

void ProgressEngine::wake_driver() noexcept {
  if (driver_sleeps_.exchange(false, std::memory_order_seq_cst)) ring_event(kick_.get());
}

void ProgressEngine::post(std::span<Operation* const> operations) {
  for (std::size_t i = 0; i + 1 < operations.size(); ++i) operations[i]->next_in_inbox = operations[i + 1];
  Operation* const first = operations.front();
  Operation* const last = operations.back();
  last->next_in_inbox = inbox_.load(std::memory_order_relaxed);
  while (!inbox_.compare_exchange_weak(last->next_in_inbox, first, std::memory_order_seq_cst)) {
  }
  // seq_cst everywhere here: either the driver sees the inbox before it sleeps or leaves, or this thread sees that it does.
  wake_driver();
  if (!driven_.load(std::memory_order_seq_cst)) call_thread(true);
}

// Without a progress thread, calls in flight that no caller waits for would never end.
void ProgressEngine::call_thread(bool for_calls) {
  const Status called = ProgressThread::instance().notify(this);
  if (called.ok() || !for_calls) return;
  const DriverLock lock(*this);
  drain_inbox();
  for (ProgressClient* executor : running_) executor->close(called);
}

inline void ProgressEngine::admit(Operation* operation) {
  ProgressClient& executor = *operation->client();
  executor.enqueue(operation);
  mark_running(executor);
}

inline void ProgressEngine::mark_running(ProgressClient& executor) {
  if (executor.running) return;
  executor.running = true;
  running_.push_back(&executor);
}

bool ProgressEngine::try_run(Operation* operation) {
  const DriverLock lock(*this, std::try_to_lock);
  if (!lock.owns()) return false;
  admit(operation);
  ProgressEngine* self = this;
  drive(std::span(&self, 1), caller_waiter_, -1, caller_descriptors_, Clock::time_point::max(),
        [&] { return operation->done() || driver_wanted(); });
  return true;
}

void ProgressEngine::run_locked([[maybe_unused]] DriverLock lock, ProgressClient& client, const Operation& operation) {
  mark_running(client);
  ProgressEngine* self = this;
  drive(std::span(&self, 1), caller_waiter_, -1, caller_descriptors_, Clock::time_point::max(),
        [&] { return operation.done() || driver_wanted(); });
}

bool ProgressEngine::try_drive(const Operation& operation, Clock::time_point deadline) {
  const DriverLock lock(*this, std::try_to_lock);
  if (!lock.owns()) return false;
  ProgressEngine* self = this;
  drive(std::span(&self, 1), caller_waiter_, -1, caller_descriptors_, deadline,
        [&] { return operation.done() || driver_wanted() || Clock::now() >= deadline; });
  return true;
}

void ProgressEngine::drain_inbox() {
  if (inbox_.load(std::memory_order_relaxed) == nullptr) return;
  // acquire: the posters' writes to their Operations.
  for (Operation* operation = inbox_.exchange(nullptr, std::memory_order_seq_cst); operation != nullptr;) {
    Operation* next = operation->next_in_inbox;
    admit(operation);
    operation = next;
  }
}

void ProgressEngine::lock_driver() {
  if (try_lock_driver()) return;
  drivers_waiting_.fetch_add(1, std::memory_order_seq_cst);
  while (!try_lock_driver()) {
    wake_driver();
    std::this_thread::yield();
  }
  drivers_waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void ProgressEngine::unlock_driver() {
  bool calls = false;
  bool unfinished = false;
  do {
    if (attention_.load(std::memory_order_relaxed)) check();
    calls = !running_.empty();
    unfinished = calls || !words_.empty() || (unsent() && !attached_.empty());
    driven_.store(false, std::memory_order_seq_cst);
    // Once more: a thread that closed a client while this one drove relies on it.
  } while (attention_.load(std::memory_order_seq_cst) && try_lock_driver());
  // seq_cst: either this thread sees what has been posted to the inbox, or the poster sees that no thread drives.
  if (unfinished || inbox_.load(std::memory_order_seq_cst) != nullptr) call_thread(calls);
}

void ProgressEngine::tend_to_closed() {
  attention_.store(true, std::memory_order_seq_cst);
  wake_driver();
  const DriverLock lock(*this, std::try_to_lock);  // its destructor does all of it
}

bool ProgressEngine::progress() {
  drain_inbox();
  if (attention_.load(std::memory_order_relaxed)) return check();
  bool moved = false;
  bool on_links = false;
  // Sends first: a transport may hold small tiles until progress(), to let them travel together.
  for (ProgressClient* executor : running_) {
    moved |= executor->start_and_send();
    on_links |= executor->on_links();
  }
  if (std::exchange(transports_due_, false) || on_links || !words_.empty()) {
    for (const auto& transport : parts_.transports) moved |= transport->progress();
  }
  for (ProgressClient* executor : running_) {
    if (executor->on_links()) moved |= executor->receive_and_end();
  }
  if (attached_.size() > 1 || stray_ || !words_.empty()) moved |= route(!moved);
  for (std::size_t i = 0; i < running_.size();) {
    ProgressClient& executor = *running_[i];
    if (executor.idle()) {
      executor.running = false;
      running_[i] = running_.back();
      running_.pop_back();
    } else {
      ++i;
    }
  }
  return moved;
}

bool ProgressEngine::poll_control() {
  control_due_ = false;
  if (parts_.control == nullptr) return false;
  messages_.clear();
  const bool moved = parts_.control->poll(messages_);
  for (const ControlPlane::Message& message : messages_) hear(message);
  return moved;
}

void ProgressEngine::hear(const ControlPlane::Message& message) {
  using Kind = ControlPlane::Message::Kind;
  const auto rank = static_cast<std::size_t>(message.rank);
  if (message.kind == Kind::waits) {
    if (const auto words = StragglerDetector::parse(message.payload); words && words->sequence != StragglerDetector::kNoCall)
      waits_[message.rank] = {message.group.short_form(), words->sequence, words->call, Clock::now()};
  }
  if (message.kind == Kind::goodbye) {
    gone_[rank] = true;
    for (ProgressClient* executor : attached_) executor->peer_gone(message.rank);
  } else if (message.kind == Kind::death) {
    dead_[rank] = message.status;
    deaths_pending_ = true;
  } else if (ProgressClient* executor = find(message.group); executor != nullptr) {
    if (message.kind == Kind::abort) executor->close(message.status);
    if (message.kind == Kind::farewell) executor->peer_left(message.rank, message.payload);
    if (message.kind == Kind::waits) executor->peer_waits(message.rank, message.payload);
    if (message.kind == Kind::calls) executor->peer_disagrees(message.rank, message.payload);
  } else if (!is_retired(message.group)) {
    hear_early(message);
  }
}

/// Keeps a control message for a communicator that is not made here yet.
void ProgressEngine::hear_early(const ControlPlane::Message& message) {
  using Kind = ControlPlane::Message::Kind;
  const bool closes = message.kind == Kind::abort;
  if (!closes && message.kind != Kind::farewell && message.kind != Kind::waits) return;
  const std::size_t bytes = kEarlyRecordBytes + message.payload.size() + message.status.message().size();
  if (const auto known = early_.find(message.group); known != early_.end() && !known->second.abort.ok()) return;
  if (!has_early_room(bytes)) {
    // A wait is sent again. But without a close notice or an abort this rank would wait until its deadline.
    if (message.kind != Kind::waits) refuse(message.rank, message.group);
    return;
  }
  Early& early = early_[message.group];
  if (closes) early.abort = message.status;
  std::vector<std::byte>* kept = nullptr;
  if (message.kind == Kind::farewell) kept = &early.left[message.rank];
  if (message.kind == Kind::waits) kept = &early.waits[message.rank];
  const std::size_t before = kept == nullptr || kept->empty() ? 0 : kEarlyRecordBytes + kept->size();
  if (kept != nullptr) *kept = message.payload;
  early.bytes += bytes - before;
  early_bytes_ += bytes - before;
}

/// There is no room for what `rank` sends for a communicator that is not made here yet. That communicator fails on the sender
/// now, and here as soon as it is made.
void ProgressEngine::refuse(int rank, const GroupName& name) {
  Early& early = early_[name];
  if (!early.abort.ok()) return;
  early.abort = {StatusCode::unsupported,
                 fmt::format("rank {} of the job has sent more than rank {} keeps ({} bytes) for groups that rank {} has not "
                             "made yet, the last of them communicator {:x}; make the groups on all ranks before calls",
                             rank, parts_.rank, parts_.early_bytes, parts_.rank, name.short_form())};
  if (parts_.control != nullptr) parts_.control->send_abort(name, std::span(&rank, 1), early.abort);
  if (++refused_ > kMaxRefused && overflow_.ok()) overflow_ = early.abort;
}

const ProgressEngine::Wait* ProgressEngine::last_wait(int job_rank) const {
  const auto found = waits_.find(job_rank);
  return found == waits_.end() ? nullptr : &found->second;
}

bool ProgressEngine::check_after_pause() {
  const auto now = Clock::now();
  if (now - checked_at_ < kLongestWithoutCheck) return false;
  checked_at_ = now;
  control_due_ = true;
  return check();
}

bool ProgressEngine::check() {
  bool moved = control_due_ && poll_control();
  if (std::exchange(deaths_pending_, false)) {
    for (std::size_t rank = 0; rank < dead_.size(); ++rank) {
      for (ProgressClient* executor : attached_) {
        if (!dead_[rank].ok()) executor->peer_died(static_cast<int>(rank), dead_[rank]);
      }
    }
  }
  for (ProgressClient* executor : running_) moved |= executor->check();
  while (attention_.exchange(false, std::memory_order_seq_cst)) {
    for (std::size_t i = 0; i < attached_.size(); ++i) moved |= attached_[i]->end_if_closed();
    std::erase_if(running_, [](ProgressClient* executor) {
      executor->running = !executor->idle();
      return !executor->running;
    });
  }
  return moved;
}

bool ProgressEngine::prepare_wait() {
  bool clear = true;
  if (waits_for_peers()) {
    // Peek at tiles of calls that have not started here yet: nothing can be done about them, and unseen they would prevent
    // sleep.
    for (const Wire& wire : wires_) static_cast<void>(wire.link->peek());
    for (const auto& transport : parts_.transports) transports_due_ |= !transport->prepare_wait();
    clear = !transports_due_;
    if (parts_.control != nullptr && parts_.control->transport() != nullptr) {
      control_due_ |= !parts_.control->transport()->prepare_wait() || parts_.control->due();
      clear &= !control_due_;
    }
  }
  driver_sleeps_.store(true, std::memory_order_seq_cst);
  return clear && inbox_.load(std::memory_order_seq_cst) == nullptr && !attention_.load(std::memory_order_seq_cst) &&
         drivers_waiting_.load(std::memory_order_seq_cst) == 0;
}

void ProgressEngine::finish_wait(std::span<const pollfd> polled) {
  driver_sleeps_.store(false, std::memory_order_relaxed);
  if (is_readable(polled, kick_.get())) drain_event(kick_.get());
  for (const auto& transport : parts_.transports) transport->finish_wait(is_readable(polled, transport->wait_fd()));
  if (parts_.control == nullptr || parts_.control->transport() == nullptr) return;
  Transport& control = *parts_.control->transport();
  const bool readable = is_readable(polled, control.wait_fd());
  control.finish_wait(readable);
  control_due_ |= readable;
}

void ProgressEngine::append_wait_fds(std::vector<pollfd>& out) const {
  out.push_back({kick_.get(), POLLIN, 0});
  if (!waits_for_peers()) return;
  for (const auto& transport : parts_.transports) {
    if (transport->wait_fd() >= 0) out.push_back({transport->wait_fd(), POLLIN, 0});
  }
  if (parts_.control != nullptr && parts_.control->transport() != nullptr) {
    out.push_back({parts_.control->transport()->wait_fd(), POLLIN, 0});
  }
}

Clock::time_point ProgressEngine::next_check() const noexcept {
  auto until = Clock::now() + std::chrono::seconds(1);
  for (const ProgressClient* executor : running_) until = std::min(until, executor->next_check());
  return until;
}

}  // namespace shoal
