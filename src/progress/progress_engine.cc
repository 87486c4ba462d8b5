#include "src/progress/progress_engine.h"

#include <algorithm>
#include <utility>

#include "src/progress/drive.h"
#include "src/progress/driver_lock.h"
#include "src/progress/progress_thread.h"

namespace shoal {

using internal::Operation;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestWithoutCheck = std::chrono::milliseconds(10);
/// Passes between reading control messages and passing them on, while data moves.
constexpr int kPassesBeforeControl = 16;

}  // namespace

int ranks_per_core(const ProgressEngineParts& parts) {
  const int node = parts.topology.node_of_rank[static_cast<std::size_t>(parts.rank)];
  const auto local = static_cast<int>(parts.topology.ranks_of_node(node).size());
  const int cores = std::max(parts.cores, 1);
  return (local + cores - 1) / cores;
}

bool may_spin(const ProgressEngineParts& parts) {
  if (parts.wait != WaitPolicy::automatic) return parts.wait == WaitPolicy::spin;
  return ranks_per_core(parts) <= 1;
}

ProgressEngine::ProgressEngine(ProgressEngineParts parts)
    : parts_(std::move(parts)),
      may_spin_(shoal::may_spin(parts_)),
      early_(parts_.rank, parts_.early_bytes, parts_.control.get()),
      control_messages_(parts_.control.get(), clients_, early_, parts_.topology.ranks()),
      router_(parts_.transports, parts_.links, parts_.transport_of_link, parts_.topology.ranks(), parts_.spills_tiles, clients_,
              early_, control_messages_),
      caller_waiter_(may_spin_, /*yields=*/true, parts_.wait, ranks_per_core(parts_)) {
  caller_descriptors_.reserve(1 + kMaxWaitFds);
  running_.reserve(8);
}

ProgressEngine::~ProgressEngine() = default;

Status ProgressEngine::status() const {
  return gate_.can_wake() ? Status()
                          : Status(StatusCode::system_error, "start-up: no file descriptor for an eventfd; raise ulimit -n");
}

std::size_t ProgressEngine::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& transport : parts_.transports) bytes += transport->memory_bytes();
  if (parts_.control != nullptr) bytes += parts_.control->memory_bytes();
  return bytes;
}

Status ProgressEngine::attach(ProgressClient& client) {
  const DriverLock lock(*this);
  if (!early_.overflow().ok()) return early_.overflow();
  if (Status status = clients_.add(client); !status.ok()) return status;
  running_.reserve(clients_.all().size());  // now, not in a call
  router_.attach(client);
  early_.pass_to(client);
  control_messages_.peers().report_all(client);
  return {};
}

bool ProgressEngine::detach(ProgressClient& client) {
  std::erase(running_, &client);
  clients_.remove(client);
  const bool last = clients_.all().empty();
  router_.detach(client, /*others=*/!last);
  if (last && parts_.control != nullptr) {
    parts_.control->send_goodbye();
    parts_.control->finish();
  }
  return last;
}

std::vector<int> ProgressEngine::present() {
  const DriverLock lock(*this);
  control_messages_.set_due();
  check();  // reads the control messages that have arrived by now
  std::vector<int> ranks;
  for (int rank = 0; rank < parts_.topology.ranks(); ++rank) {
    // A broken link may be detected before the report of the death that broke it.
    const Wire* wire = router_.wire_to(rank);
    const bool connected = wire == nullptr || wire->link->status().ok();
    if (control_messages_.peers().is_present(rank) && connected) ranks.push_back(rank);
  }
  return ranks;
}

Group ProgressEngine::next_group_of(const std::vector<int>& members) {
  // Other numbers than those of groups that are made without a failure, so that names differ.
  constexpr std::uint32_t kAfterFailures = 0x80000000;
  Group group = Group::whole(parts_.rank, parts_.topology).subset(members, kAfterFailures + clients_.made_before(members));
  group.is_meeting = true;
  return group;
}

void ProgressEngine::leave_to_parent() noexcept {
  left_to_parent_ = true;
  for (const auto& transport : parts_.transports) transport->leave_to_parent();
  if (parts_.control != nullptr) parts_.control->leave_to_parent();
  for (ProgressClient* client : clients_.all()) client->leave_to_parent();
}

void ProgressEngine::post(std::span<Operation* const> operations) {
  inbox_.put(operations);
  // seq_cst everywhere here: either the driver sees the inbox before it sleeps or leaves, or this thread sees that it does.
  gate_.wake();
  if (!gate_.is_driven()) call_thread(true);
}

// Without a progress thread, calls in flight that no caller waits for would never end.
void ProgressEngine::call_thread(bool for_calls) {
  const Status called = ProgressThread::instance().notify(this);
  if (called.ok() || !for_calls) return;
  const DriverLock lock(*this);
  drain_inbox();
  for (ProgressClient* client : running_) client->close(called);
}

inline void ProgressEngine::mark_running(ProgressClient& client) {
  if (client.running) return;
  client.running = true;
  running_.push_back(&client);
}

bool ProgressEngine::try_run(Operation* operation) {
  const DriverLock lock(*this, std::try_to_lock);
  if (!lock.owns()) return false;
  ProgressClient& client = *operation->client();
  client.enqueue(operation);
  drive_started(lock, client, *operation);
  return true;
}

void ProgressEngine::drive_started(const DriverLock& /*lock*/, ProgressClient& client, const Operation& operation) {
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
  for (Operation* operation = inbox_.take(); operation != nullptr;) {
    Operation* next = operation->next_in_inbox;
    ProgressClient& client = *operation->client();
    client.enqueue(operation);
    mark_running(client);
    operation = next;
  }
}

ProgressEngine::Unfinished ProgressEngine::end_drive() {
  if (attention_.load(std::memory_order_relaxed)) check();
  if (!running_.empty()) return Unfinished::calls;
  return router_.has_records() || (unsent() && !clients_.all().empty()) ? Unfinished::sends : Unfinished::nothing;
}

void ProgressEngine::tend_to_closed() {
  attention_.store(true, std::memory_order_seq_cst);
  gate_.wake();
  const DriverLock lock(*this, std::try_to_lock);  // its destructor does all of it
}

bool ProgressEngine::progress() {
  drain_inbox();
  if (attention_.load(std::memory_order_relaxed)) return check();
  return move_data();
}

bool ProgressEngine::move_data() {
  bool moved = false;
  bool on_links = false;
  // Sends first: a transport may hold small tiles until progress(), to let them travel together.
  for (ProgressClient* client : running_) {
    moved |= client->start_and_send();
    on_links |= client->on_links();
  }
  if (std::exchange(transports_due_, false) || on_links || router_.has_records()) {
    for (const auto& transport : parts_.transports) moved |= transport->progress();
    router_.note_arrivals();
  }
  for (ProgressClient* client : running_) {
    if (client->on_links()) moved |= client->receive_and_end();
  }
  if (clients_.all().size() > 1 || router_.has_stray() || router_.has_records()) moved |= router_.route(running_, !moved);
  for (std::size_t i = 0; i < running_.size();) {
    ProgressClient& client = *running_[i];
    if (client.idle()) {
      client.running = false;
      running_[i] = running_.back();
      running_.pop_back();
    } else {
      ++i;
    }
  }
  return moved;
}

bool ProgressEngine::check_if_overdue() {
  if (++passes_ % kPassesBetweenLooks != 0) return false;
  const auto now = Clock::now();
  if (now - checked_at_ < kLongestWithoutCheck) return false;
  checked_at_ = now;
  control_messages_.set_due();
  return check();
}

bool ProgressEngine::check() {
  bool moved = handle_control();
  for (ProgressClient* client : running_) moved |= client->check();
  while (attention_.exchange(false, std::memory_order_seq_cst)) {
    for (std::size_t i = 0; i < clients_.all().size(); ++i) moved |= clients_.all()[i]->end_if_closed();
    std::erase_if(running_, [](ProgressClient* client) {
      client->running = !client->idle();
      return !client->running;
    });
  }
  return moved;
}

bool ProgressEngine::handle_control() {
  const bool moved = control_messages_.read_if_due();
  // A call that has all its data succeeds, although a peer has aborted since.
  for (int pass = 0; pass < kPassesBeforeControl && control_messages_.has_read() && !attention_.load(std::memory_order_relaxed);
       ++pass) {
    if (!move_data()) break;
  }
  control_messages_.pass_on();
  control_messages_.report_deaths();
  return moved;
}

int ProgressEngine::awaited_writer() const noexcept {
  int awaited = Transport::kNoWriter;
  for (const ProgressClient* client : running_) {
    const int writer = client->awaited_writer();
    if (writer == Transport::kNoWriter || writer == awaited) continue;
    awaited = awaited == Transport::kNoWriter ? writer : Transport::kAnyWriter;
  }
  return awaited;
}

bool ProgressEngine::prepare_wait() {
  bool clear = true;
  announced_writer_ = awaited_writer();
  if (waits_for_peers()) {
    for (const auto& transport : parts_.transports) transport->await_writer(announced_writer_);
    // Tiles of calls that have not started here yet: nothing can be done about them, and unseen they would prevent sleep.
    router_.active();
    for (const auto& transport : parts_.transports) transports_due_ |= !transport->prepare_wait();
    clear = !transports_due_;
    clear &= control_messages_.prepare_wait();
  }
  gate_.announce_sleep();
  return clear && inbox_.empty() && !attention_.load(std::memory_order_seq_cst) && !gate_.is_wanted(std::memory_order_seq_cst);
}

void ProgressEngine::finish_wait(std::span<const pollfd> polled) {
  gate_.end_sleep(polled);
  for (const auto& transport : parts_.transports) transport->finish_wait(is_readable(polled, transport->wait_fd()));
  control_messages_.finish_wait(polled);
}

void ProgressEngine::append_wait_fds(std::vector<pollfd>& out) const {
  gate_.append_wait_fd(out);
  if (!waits_for_peers()) return;
  for (const auto& transport : parts_.transports) {
    if (transport->wait_fd() >= 0) out.push_back({transport->wait_fd(), POLLIN, 0});
  }
  control_messages_.append_wait_fd(out);
}

Clock::time_point ProgressEngine::next_check() const noexcept {
  auto until = Clock::now() + std::chrono::seconds(1);
  for (const ProgressClient* client : running_) until = std::min(until, client->next_check());
  return until;
}

}  // namespace shoal
