#include "transports/tcp/reactor.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "transports/tcp/link.h"
#include "transports/tcp/rendezvous.h"

namespace shoal::tcp {
namespace {

// Up to this many links, reading each one's first socket is cheaper than a call of epoll.
constexpr std::size_t kDirectLinks = 2;
// epoll is called at least once in this many calls: further sockets, and links without a peek(), report only there.
constexpr unsigned kCollectEvery = 8;
// Lent memory is copied, so that its owner can continue, when this many calls in a row have found nothing to do. Until then
// the peer may acknowledge the tile.
constexpr unsigned kIdleCalls = 4;
constexpr long kCalmWatchMs = 1000;
constexpr long kClosingWatchMs = 100;
constexpr long kSoonMs = 10;  // after the kernel was out of memory
constexpr long kReconnectingWatchMs = 20;
// Between two calls of save_memory(). Less than kCalmWatchMs, so that a timer which is a little early counts.
constexpr std::chrono::milliseconds kSavePause{900};
// How long a rank that leaves waits for data that is in flight or lost, and the longest pause between two checks.
constexpr std::chrono::milliseconds kFlushTimeout{1000};
constexpr int kMostPauseMs = 10;

}  // namespace

Reactor::Reactor(std::size_t link_memory_bytes) noexcept : ring_memory_(link_memory_bytes) {}

Reactor::~Reactor() = default;

Result<std::shared_ptr<Reactor>> Reactor::make(std::size_t link_memory_bytes) {
  std::shared_ptr<Reactor> reactor(new Reactor(link_memory_bytes));
  reactor->epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!reactor->epoll_.valid()) return system_error("tcp: epoll_create1", errno);
  reactor->timer_ = Descriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!reactor->timer_.valid()) return system_error("tcp: timerfd_create", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (::epoll_ctl(reactor->epoll_.get(), EPOLL_CTL_ADD, reactor->timer_.get(), &event) != 0)
    return system_error("tcp: epoll_ctl", errno);
  reactor->owner_pid_ = ::getpid();
  return reactor;
}

Result<bool> Reactor::reconnect_by(std::unique_ptr<Rendezvous> rendezvous) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = this;  // neither a socket nor the timer
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, rendezvous->wait_fd(), &event) != 0)
    return system_error("tcp: epoll_ctl", errno);
  rendezvous_ = std::move(rendezvous);
  return true;
}

bool Reactor::watch(LinkSocket& socket) noexcept {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &socket;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.descriptor.get(), &event) == 0;
}

void Reactor::enrol(TcpLink& link) {
  const auto rank = static_cast<std::size_t>(link.peer());
  if (by_rank_.size() <= rank) by_rank_.resize(rank + 1);
  by_rank_[rank] = &link;
}

void Reactor::request(TcpLink& link, bool peer_too) {
  if (rendezvous_ == nullptr) return;
  rendezvous_->request(link.peer(), peer_too);
  rendezvous_due_ = true;
}

Result<bool> Reactor::add(TcpLink& link) {
  for (LinkSocket& socket : link.sockets().all()) {
    if (!watch(socket)) return system_error("tcp: epoll_ctl", errno);
  }
  links_.push_back(&link);
  deferred_.reserve(links_.size());
  lending_.reserve(links_.size());
  awaited_.reserve(links_.size());
  active_.reserve(links_.size());
  ring_memory_.expect_links(links_.size());
  std::size_t sockets = 0;
  for (TcpLink* known : links_) sockets += known->sockets().all().size();
  ready_.reserve(sockets);
  partial_.reserve(sockets);
  blocked_.reserve(sockets);
  lost_.reserve(sockets);
  for (LinkSocket& socket : link.sockets().all()) enqueue(socket);
  if (uses_check_sums_) link.sender().encoder().use_checksums();
  if (uses_packing_) link.sender().encoder().use_packing();
  if (timer_period_ms_ == 0) set_timer(kCalmWatchMs);
  return true;
}

void Reactor::remove(TcpLink& link) noexcept {
  if (link_to(link.peer()) == &link) by_rank_[static_cast<std::size_t>(link.peer())] = nullptr;
  if (std::erase(links_, &link) > 0 && link.receiver().has_unseen_tile()) count_unseen(-1);
  std::erase(deferred_, &link.sender());
  std::erase(lending_, &link.sender());
  std::erase(awaited_, &link.receiver());
  std::erase(active_, &link);
  for (auto* sockets : {&ready_, &partial_, &blocked_})
    std::erase_if(*sockets, [&](const LinkSocket* socket) { return socket->link == &link; });
  forget_lost(link);
}

TcpLink* Reactor::link_to(int rank) const noexcept {
  const auto at = static_cast<std::size_t>(rank);
  return at < by_rank_.size() ? by_rank_[at] : nullptr;
}

void Reactor::note_lost(LinkSocket& socket, std::chrono::steady_clock::time_point silent_since) {
  const auto same = [&](const Lost& one) { return one.socket == &socket; };
  if (std::none_of(lost_.begin(), lost_.end(), same)) lost_.push_back({&socket, silent_since});
  rendezvous_due_ = true;
}

void Reactor::forget_lost(TcpLink& link) {
  std::erase_if(lost_, [&](const Lost& one) { return one.socket->link == &link; });
  if (rendezvous_ != nullptr) rendezvous_->forget(link.peer());
}

void Reactor::reconnect() {
  rendezvous_due_ = false;
  for (const auto& [socket, silent_since] : std::exchange(lost_, {})) {
    if (socket->down || socket->hung_up) rendezvous_->reconnect(socket->link->peer(), socket->index, silent_since);
  }
  rendezvous_->step(*this);
  set_timer(watch_period_ms());
}

std::optional<std::uint64_t> Reactor::give_up(int rank, std::size_t socket_index) {
  TcpLink* link = link_to(rank);
  if (link == nullptr) return {};
  return link->repair().give_up(socket_index);
}

void Reactor::resume(int rank, std::size_t socket_index, Connection connection, std::uint64_t received) {
  if (TcpLink* link = link_to(rank)) link->repair().resume(socket_index, std::move(connection), received);
  unreported_ = true;
}

void Reactor::on_peer_lost(int rank, const std::string& why) {
  if (TcpLink* link = link_to(rank)) link->sockets().on_peer_lost(why);
  unreported_ = true;
}

void Reactor::open(PeerSockets sockets) {
  TcpLink* link = link_to(sockets.rank);
  if (link == nullptr) return;
  if (Status opened = link->open(std::move(sockets.address), std::move(sockets.sockets)); !opened.ok())
    link->close(std::move(opened));
  unreported_ = true;
}

void Reactor::on_not_connected(int rank, const Status& why) {
  TcpLink* link = link_to(rank);
  if (link == nullptr) return;
  const bool by_peer = why.code() == StatusCode::peer_failed;
  link->close(by_peer ? link->sockets().status().peer_failed("cannot be connected: " + why.message()) : why);
  unreported_ = true;
}

void Reactor::leave_to_parent() noexcept {
  if (rendezvous_ != nullptr) rendezvous_->leave_to_parent();
  for (TcpLink* link : links_) {
    for (LinkSocket& socket : link->sockets().all()) {
      socket.ended = true;
      socket.descriptor.reset();
    }
  }
}

void Reactor::forget(LinkSocket& socket) noexcept {
  // The registration belongs to the open socket, which a forked child shares with its parent.
  if (in_owner()) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.descriptor.get(), nullptr);
}

void Reactor::flush_links() {
  if (!in_owner() || !reconnects()) return;
  const auto failed = [this] {
    return std::any_of(links_.begin(), links_.end(), [](TcpLink* link) { return link->sockets().status().peer_has_failed(); });
  };
  send_deferred();
  if (failed()) return;
  for (TcpLink* link : links_) link->flush().start();
  const auto start = std::chrono::steady_clock::now();
  for (int pause_ms = 1;; pause_ms = std::min(2 * pause_ms, kMostPauseMs)) {
    while (progress() && std::chrono::steady_clock::now() - start < kFlushTimeout) {
    }
    const auto now = std::chrono::steady_clock::now();
    const bool waits = std::any_of(links_.begin(), links_.end(), [&](TcpLink* link) { return link->flush().is_pending(now); });
    if (!waits || failed() || now - start >= kFlushTimeout) break;
    // Unlike prepare_wait(), this ignores tiles that the caller will not take any more.
    pollfd waiting{epoll_.get(), POLLIN, 0};
    ::poll(&waiting, 1, pause_ms);
    collect();
  }
  for (TcpLink* link : links_) link->flush().end();
}

void Reactor::close_all() {
  flush_links();
  for (TcpLink* link : std::vector(by_rank_)) {
    if (link == nullptr) continue;
    link->close(Status(StatusCode::aborted, "this rank closed the transport"));
    remove(*link);
  }
  rendezvous_.reset();
}

void Reactor::enqueue(LinkSocket& socket) {
  if (socket.queued) return;
  socket.queued = true;
  ready_.push_back(&socket);
}

void Reactor::defer(TileSender& sender) {
  if (sender.deferred) return;
  sender.deferred = true;
  deferred_.push_back(&sender);
}

void Reactor::note_lent(TileSender& sender) {
  if (sender.lending) return;
  sender.lending = true;
  lending_.push_back(&sender);
}

bool Reactor::copy_lent() {
  bool moved = false;
  std::erase_if(lending_, [&](TileSender* sender) {
    moved |= sender->copy_sent_lent();
    sender->lending = sender->window().has_lent();
    return !sender->lending;
  });
  return moved;
}

void Reactor::await_tile(TileReceiver& receiver) {
  if (receiver.awaited) return;
  receiver.awaited = true;
  awaited_.push_back(&receiver);
}

void Reactor::forget_awaited() noexcept {
  for (TileReceiver* receiver : awaited_) receiver->awaited = false;
  awaited_.clear();
}

bool Reactor::send_deferred() {
  bool moved = false;
  for (TileSender* sender : deferred_) moved |= sender->send_deferred();
  deferred_.clear();
  return moved;
}

void Reactor::retry_soon() noexcept {
  retries_soon_ = true;
  set_timer(watch_period_ms());
}

void Reactor::note_active(TcpLink& link) noexcept {
  if (!std::exchange(link.receiver().active, true)) active_.push_back(&link);
}

void Reactor::note_partial(LinkSocket& socket) noexcept {
  if (!std::exchange(socket.partial, true)) partial_.push_back(&socket);
}

void Reactor::note_blocked(LinkSocket& socket) noexcept {
  if (!std::exchange(socket.was_blocked, true)) blocked_.push_back(&socket);
}

bool Reactor::any_blocked() noexcept {
  std::erase_if(blocked_, [](LinkSocket* socket) {
    socket->was_blocked = socket->blocked;
    return !socket->blocked;
  });
  return !blocked_.empty();
}

void Reactor::take_active(std::vector<Link*>& links) {
  for (TcpLink* link : active_) {
    link->receiver().active = false;
    links.push_back(link);
  }
  active_.clear();
}

void Reactor::note_closing(TcpLink& link) noexcept {
  unreported_ = true;
  note_active(link);
  set_timer(watch_period_ms());
}

long Reactor::watch_period_ms() const noexcept {
  if (rendezvous_ != nullptr && rendezvous_->busy()) return kReconnectingWatchMs;
  const bool closing = std::any_of(links_.begin(), links_.end(), [](TcpLink* link) {
    const LinkStatus& status = link->sockets().status();
    return status.closing() && !status.has_ended();
  });
  return retries_soon_ ? kSoonMs : closing ? kClosingWatchMs : kCalmWatchMs;
}

bool Reactor::progress() {
  bool moved = send_deferred();
  moved |= read_ready();
  bool ask_epoll = ++calls_since_collect_ >= kCollectEvery;
  if (!moved) {
    const bool few = awaited_.size() <= kDirectLinks && !any_blocked();
    if (few) moved = read_awaited();
    ask_epoll |= !few;
  }
  forget_awaited();
  if (ask_epoll) {
    moved |= collect();
    moved |= read_ready();
  }
  if (rendezvous_due_) reconnect();
  moved |= unreported_;
  unreported_ = false;
  if (lending_.empty()) return moved;
  idle_calls_ = moved ? 0 : idle_calls_ + 1;
  return idle_calls_ < kIdleCalls ? moved : copy_lent();
}

bool Reactor::read_ready() {
  bool moved = false;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    LinkSocket& socket = *ready_[i];
    moved |= socket.link->receive(socket);
    if (socket.readable && socket.has_room()) {
      ready_[kept++] = &socket;
    } else {
      socket.queued = false;
    }
  }
  ready_.resize(kept);
  return moved;
}

bool Reactor::read_awaited() {
  bool moved = false;
  for (TileReceiver* receiver : awaited_) {
    LinkSocket& socket = receiver->first_socket();
    if (socket.queued || !socket.has_room()) continue;
    moved |= receiver->receive(socket);
    if (socket.readable && socket.has_room()) enqueue(socket);
  }
  return moved;
}

bool Reactor::collect() {
  calls_since_collect_ = 0;
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool moved = false;
  bool reconnects = false;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t what = events[i].events;
    if (events[i].data.ptr == nullptr) {
      moved |= watch_links();
      reconnects |= rendezvous_ != nullptr && rendezvous_->busy();
      continue;
    }
    if (events[i].data.ptr == this) {
      reconnects = true;
      continue;
    }
    LinkSocket& socket = *static_cast<LinkSocket*>(events[i].data.ptr);
    if (socket.is_closed()) continue;
    if ((what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) socket.link->sockets().hang_up(socket);
    if ((what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      socket.readable = true;
      if (socket.has_room()) {
        enqueue(socket);
        moved = true;
      }
    }
    if ((what & EPOLLOUT) != 0 && socket.blocked) moved |= socket.link->send_more(socket);
  }
  if (reconnects) reconnect();  // last: the events above belong to the sockets that it may replace
  if (ring_memory_.is_urgent()) give_back_memory();
  return moved;
}

bool Reactor::prepare_wait() {
  forget_awaited();  // a caller that sleeps waits for all links
  unreported_ |= send_deferred();
  unreported_ |= copy_lent();
  if (rendezvous_due_) reconnect();
  if (!ready_.empty() || unreported_ || unseen_ != 0) return false;
  for (LinkSocket* socket : partial_) {
    socket->partial = false;
    socket->await_front();
  }
  partial_.clear();
  return true;  // what epoll already knows makes wait_fd() readable at once
}

void Reactor::finish_wait(bool readable) { unreported_ |= readable && collect(); }

bool Reactor::watch_links() {
  std::uint64_t ticks = 0;
  while (::read(timer_.get(), &ticks, sizeof ticks) < 0 && errno == EINTR) {
  }
  bool moved = false;
  retries_soon_ = false;
  for (TcpLink* link : links_) moved |= link->watch();
  save_memory();
  set_timer(watch_period_ms());
  return moved;
}

// About once a second.
void Reactor::save_memory() {
  const auto now = std::chrono::steady_clock::now();
  if (now - saved_at_ < kSavePause) return;
  saved_at_ = now;
  const bool saves = std::exchange(gave_back_, false) || ring_memory_.is_over();
  for (TcpLink* link : links_) link->save_memory(saves);
  if (ring_memory_.is_over()) give_back_memory();
}

void Reactor::give_back_memory() noexcept {
  if (!in_owner()) return;  // a forked child shares the memory with its parent
  gave_back_ = true;
  ring_memory_.visit([](LinkRings& rings) { rings.link()->give_back(); });
}

void Reactor::set_timer(long period_ms) noexcept {
  if (period_ms == timer_period_ms_ || !in_owner()) return;  // a forked child shares the timer with its parent
  timer_period_ms_ = period_ms;
  itimerspec spec{};
  spec.it_interval = {period_ms / 1000, period_ms % 1000 * 1'000'000};
  spec.it_value = spec.it_interval;
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Reactor::use_check_sums() noexcept {
  uses_check_sums_ = true;
  for (TcpLink* link : links_) link->sender().encoder().use_checksums();
}

void Reactor::use_packing() noexcept {
  uses_packing_ = true;
  for (TcpLink* link : links_) link->sender().encoder().use_packing();
}

std::size_t Reactor::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const TcpLink* link : links_) bytes += link->memory_bytes();
  return bytes;
}

bool Reactor::in_owner() const noexcept { return ::getpid() == owner_pid_; }

}  // namespace shoal::tcp
