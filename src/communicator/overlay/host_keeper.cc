#include "src/communicator/overlay/host_keeper.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/event.h"
#include "src/base/quiet_thread.h"

namespace shoal {
namespace {

using Event = tcp::KeeperSockets::Event;

constexpr std::size_t kWatched = 2;  // processes: of any ranks that end at the same time, each is noticed by another
constexpr std::chrono::seconds kTakeOverTime{1};
constexpr std::string_view kEnded = "its process has ended";
constexpr std::string_view kMalformed = "it wrote a malformed control message into the shared memory";

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

// The threads of a process. Each holds still while a thread of the program calls fork(): what the child copies is whole, and
// the child can close its copies of the sockets.
class HostKeeper::Forks {
 public:
  static Forks& instance() {
    static Forks* const forks = [] {
      ::pthread_atfork([] { instance().prepare(); }, [] { instance().release(); },
                       [] {
                         for (HostKeeper* keeper : instance().keepers_) keeper->leave_to_parent();
                         instance().release();
                       });
      return new Forks;  // never destroyed: a child may be made at any time
    }();
    return *forks;
  }
  void add(HostKeeper* keeper) {
    const std::scoped_lock lock(mutex_);
    keepers_.push_back(keeper);
  }
  void remove(HostKeeper* keeper) {
    const std::scoped_lock lock(mutex_);
    std::erase(keepers_, keeper);
  }

 private:
  void prepare() {
    mutex_.lock();
    for (HostKeeper* keeper : keepers_) keeper->mutex_.lock();
  }
  void release() {
    for (HostKeeper* keeper : keepers_) keeper->mutex_.unlock();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<HostKeeper*> keepers_;
};

Result<std::unique_ptr<HostKeeper>> HostKeeper::start(Parts parts) {
  std::unique_ptr<HostKeeper> keeper(new HostKeeper(std::move(parts)));
  if (Status status = keeper->begin(); !status.ok()) return status;
  return keeper;
}

HostKeeper::HostKeeper(Parts parts)
    : parts_(std::move(parts)), control_(*parts_.table, parts_.rank, parts_.options, Clock::now()), wake_event_(make_event()) {
  Forks::instance().add(this);
}

Status HostKeeper::begin() {
  if (!wake_event_.valid()) return system_error("start-up: an eventfd for control messages", errno);
  const std::scoped_lock lock(mutex_);
  if (Status status = sockets().begin(std::move(parts_.addresses), [this] { return control_.redirect(); }); !status.ok())
    return status;
  step(Clock::now());  // so that the first keeper is known
  try {
    thread_ = quiet_thread([this] { loop(); });
  } catch (const std::system_error& error) {
    return system_error("start-up: the thread for control messages", error.code().value());
  }
  return {};
}

HostKeeper::~HostKeeper() {
  Forks::instance().remove(this);
  if (left_to_parent_) {
    static_cast<void>(new std::thread(std::move(thread_)));  // it runs in the parent: nothing to join here
    return;
  }
  {
    const std::scoped_lock lock(mutex_);
    stops_ = true;
    wake();
  }
  if (thread_.joinable()) thread_.join();
}

void HostKeeper::leave_to_parent() noexcept {
  left_to_parent_ = true;
  sockets().leave_to_parent();
  processes_.clear();
  wake_event_.reset();
}

void HostKeeper::loop() {
  ::pthread_setname_np(::pthread_self(), "shoal-control");
  std::unique_lock lock(mutex_);
  while (!stops_) {
    step(Clock::now());
    progressed_.notify_all();
    sleep(lock);
  }
}

void HostKeeper::sleep(std::unique_lock<std::mutex>& lock) {
  const Time now = Clock::now();
  descriptors_.clear();
  descriptors_.push_back({wake_event_.get(), POLLIN, 0});
  HostBoard* const board = parts_.board.get();
  if (board != nullptr) descriptors_.push_back({board->wait_fd(), POLLIN, 0});
  for (const auto& [rank, process] : processes_) descriptors_.push_back({process.get(), POLLIN, 0});
  sockets().append_wait_fds(descriptors_, now);
  const Time until = std::min(control_.next_time(), sockets().next_time());
  if (board != nullptr) board->announce_sleep();
  const bool news = board != nullptr && (board->has_news() || board->claim().term != seen_claim_.term);
  const auto left = news || until <= now ? std::chrono::nanoseconds(0) : std::chrono::nanoseconds(until - now);
  const timespec timeout{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
  sleeps_ = true;
  lock.unlock();
  const int ready =
      ::ppoll(descriptors_.data(), descriptors_.size(), until == Time::max() && !news ? nullptr : &timeout, nullptr);
  lock.lock();
  sleeps_ = false;
  const bool any = ready > 0;
  if (any && descriptors_[0].revents != 0) drain_event(wake_event_.get());
  if (board != nullptr) board->end_sleep(any && descriptors_[1].revents != 0);
}

// Under the lock.
void HostKeeper::wake() {
  if (std::exchange(sleeps_, false)) ring_event(wake_event_.get());
}

void HostKeeper::step(Time now) {
  look(now);
  read_board(now);
  watch_processes(now);
  sockets().step(now);
  while (const auto event = sockets().take_event()) {
    handle(*event, now);
    act(now);
  }
  look(now);
}

void HostKeeper::look(Time now) {
  seen_claim_ = claim();
  control_.look(seen_claim_, now);
  act(now);
}

void HostKeeper::act(Time now) {
  HostBoard* const board = parts_.board.get();
  while (!control_.actions().empty()) {
    OverlayActions actions = std::exchange(control_.actions(), {});
    if (actions.claim) {
      if (board == nullptr) own_claim_ = {*actions.claim, parts_.rank, 0};
      if (board == nullptr || board->try_claim(*actions.claim)) claimed_at_ = now;
      seen_claim_ = claim();
      control_.look(seen_claim_, now);
    }
    if (actions.beat && board != nullptr) board->beat();
    for (const OverlayMessage& message : actions.publish) {
      publish(message);
      parts_.deliver(message);
    }
    for (const auto& [host, bytes] : actions.send) {
      for (const int rank : parts_.table->ranks_of(host)) sockets().send(rank, *bytes);
    }
    for (const Endpoint& peer : actions.disconnect) sockets().disconnect(peer.rank, now);
    // The other hosts take this one for dead, and would end each new connection.
    if (!leaving_ && !control_.facts().is_present(parts_.rank)) continue;
    for (const Endpoint& peer : actions.connect) sockets().connect(peer.rank, now);
  }
}

void HostKeeper::publish(const OverlayMessage& message) {
  if (parts_.board == nullptr) return;
  const auto* routed = std::get_if<RoutedMessage>(&message);
  if (routed == nullptr) return parts_.board->write(message);
  if (routed->to != parts_.rank) parts_.board->write(message, routed->to);
}

void HostKeeper::read_board(Time now) {
  if (parts_.board == nullptr || !parts_.board->has_news()) return;
  HostBoard::News news;
  parts_.board->read(news);
  take(news, now);
}

void HostKeeper::take(HostBoard::News& news, Time now) {
  for (const auto& [writer, message] : news.messages) {
    if (const auto fresh = control_.on_board(message, now)) parts_.deliver(*fresh);
    act(now);
  }
  for (const int rank : news.malformed) {
    control_.on_process_ended(rank, bytes_of(kMalformed), now);
    act(now);
  }
  // It has missed messages; the facts are all that it needs to take over.
  for (const int rank : news.returned) {
    for (const OverlayMessage& fact : control_.facts().all()) parts_.board->write(fact, rank);
  }
}

void HostKeeper::handle(const Event& event, Time now) {
  const Endpoint peer{parts_.table->host_of(event.rank), event.rank};
  switch (event.kind) {
    case Event::Kind::connected:
      return control_.on_connected(peer);
    case Event::Kind::lost:
      return control_.on_lost(peer, event.silent_for, now);
    case Event::Kind::refused:
      return control_.on_refused(peer, now);
    case Event::Kind::silent:
      return control_.on_silent(peer, now);
    case Event::Kind::unanswered:
      return control_.on_unanswered(peer, now);
    case Event::Kind::redirected:
      return control_.on_redirected(peer, event.keeper, now);
    case Event::Kind::message:
      break;
  }
  if (control_.on_message(peer.host, event.bytes, now)) return;
  sockets().disconnect(peer.rank, now);
  control_.on_lost(peer, Time::duration::zero(), now);
}

void HostKeeper::watch_processes(Time now) {
  if (parts_.board == nullptr) return;
  std::vector<int> ended;
  for (const auto& [rank, process] : processes_) {
    pollfd life{process.get(), POLLIN, 0};
    if (::poll(&life, 1, 0) > 0) ended.push_back(rank);
  }
  for (bool again = true; again;) {
    for (const int rank : std::exchange(ended, {})) on_process_ended(rank, now);
    std::vector<int> ranks = control_.facts().present_ranks(parts_.table->host_of(parts_.rank));
    const auto next = std::ranges::upper_bound(ranks, parts_.rank);
    std::rotate(ranks.begin(), next, ranks.end());
    std::erase(ranks, parts_.rank);
    ranks.resize(std::min(ranks.size(), kWatched));
    std::erase_if(processes_, [&](const auto& each) { return std::ranges::find(ranks, each.first) == ranks.end(); });
    for (const int rank : ranks) {
      if (processes_.contains(rank)) continue;
      Descriptor process;
      const int error = parts_.board->open_process(rank, process);
      if (error == ESRCH) ended.push_back(rank);
      if (error == 0) processes_[rank] = std::move(process);
    }
    again = !ended.empty();
  }
}

void HostKeeper::on_process_ended(int rank, Time now) {
  HostBoard::News news;
  parts_.board->read_from(rank, news);
  take(news, now);
  control_.on_process_ended(rank, bytes_of(kEnded), now);
  act(now);
}

void HostKeeper::read_now() {
  const std::scoped_lock lock(mutex_);
  if (left_to_parent_) return;
  step(Clock::now());
  wake();  // it may sleep on connections that have ended
}

void HostKeeper::write(const OverlayMessage& message) {
  const std::scoped_lock lock(mutex_);
  const Time now = Clock::now();
  look(now);
  if (parts_.board != nullptr) {
    const std::optional<int> keeper = control_.redirect();
    if (!std::holds_alternative<RoutedMessage>(message)) {
      parts_.board->write(message);
    } else if (keeper) {
      parts_.board->write(message, *keeper);
    }
  }
  static_cast<void>(control_.on_board(message, now));
  act(now);
  wake();  // for what could not be sent at once
}

void HostKeeper::leave(const OverlayMessage& goodbye) {
  const std::scoped_lock lock(mutex_);
  const Time now = Clock::now();
  look(now);
  if (parts_.board != nullptr) parts_.board->write(goodbye);
  // Either the keeper, which leaves at the same time, reads the message; or this rank reads now that the keeper has left, and
  // takes over. It cannot do that once its own HostControl knows that it leaves.
  read_board(now);
  look(now);
  leaving_ = true;
  static_cast<void>(control_.on_board(goodbye, now));
  act(now);
  wake();
}

std::vector<int> HostKeeper::unconnected_hosts() const {
  std::vector<int> missing = neighbours(parts_.table->host_of(parts_.rank), control_.facts().ended());
  const std::vector<int> connected = control_.connected_hosts();
  std::erase_if(missing, [&](int host) { return std::ranges::binary_search(connected, host); });
  return missing;
}

bool HostKeeper::has_passed_on() const {
  if (!control_.is_keeper()) return true;
  // Another rank of this host takes over, which knows all that is on the board.
  const bool has_successor = control_.redirect().has_value();
  return sockets().is_flushed() && (has_successor || unconnected_hosts().empty());
}

void HostKeeper::finish(Time deadline) {
  std::unique_lock lock(mutex_);
  if (left_to_parent_) return;
  control_.flush();
  act(Clock::now());
  wake();
  Time until = deadline;
  if (control_.is_keeper() && Clock::now() - claimed_at_ < kTakeOverTime) until = std::max(until, claimed_at_ + kTakeOverTime);
  progressed_.wait_until(lock, until, [this] { return has_passed_on(); });
  sockets().leave(Clock::now());
  wake();
  progressed_.wait_until(lock, until, [this] { return sockets().has_ended_all(); });
}

Status HostKeeper::wait_connected(ConnectDeadline time_limit) {
  const Time begin = Clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    const std::vector<int> missing = control_.is_keeper() ? unconnected_hosts() : std::vector<int>();
    if (missing.empty()) return {};
    if (Clock::now() >= time_limit.deadline()) {
      std::vector<int> ranks;
      for (const int host : missing) ranks.push_back(parts_.table->ranks_of(host).front());
      return {StatusCode::timeout,
              fmt::format("tcp: rank {} did not connect within {:.1f} s (control messages between hosts)",
                          fmt::join(ranks, ", rank "), std::chrono::duration<double>(Clock::now() - begin).count())};
    }
    lock.unlock();
    if (Status status = time_limit.check(); !status.ok()) return status;
    lock.lock();
    progressed_.wait_until(lock, time_limit.next());
  }
}

std::size_t HostKeeper::memory_bytes() const {
  const std::scoped_lock lock(mutex_);
  return sockets().memory_bytes();
}

}  // namespace shoal
