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
constexpr long kRejoiningWatchMs = 20;
// How long a rank that leaves waits for data that is in flight or lost, and the longest pause between two checks.
constexpr std::chrono::milliseconds kAnswerPatience{1000};
constexpr int kMostPauseMs = 10;

}  // namespace

Result<std::shared_ptr<Reactor>> Reactor::make() {
  std::shared_ptr<Reactor> reactor(new Reactor());
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
  event.data.ptr = this;  // neither a flow nor the timer
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, rendezvous->wait_fd(), &event) != 0)
    return system_error("tcp: epoll_ctl", errno);
  rendezvous_ = std::move(rendezvous);
  return true;
}

bool Reactor::watch(Flow& flow) noexcept {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &flow;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, flow.socket.get(), &event) == 0;
}

Result<bool> Reactor::add(TcpLink& link) {
  for (Flow& flow : link.flows()) {
    if (!watch(flow)) return system_error("tcp: epoll_ctl", errno);
  }
  links_.push_back(&link);
  holding_.reserve(links_.size());
  lending_.reserve(links_.size());
  wanted_.reserve(links_.size());
  std::size_t flows = 0;
  for (TcpLink* known : links_) flows += known->flows().size();
  ready_.reserve(flows);
  lost_.reserve(flows);
  for (Flow& flow : link.flows()) enqueue(flow);
  if (timer_period_ms_ == 0) set_timer(kCalmWatchMs);
  return true;
}

void Reactor::remove(TcpLink& link) noexcept {
  std::erase(links_, &link);
  std::erase(holding_, &link);
  std::erase(lending_, &link);
  std::erase(wanted_, &link);
  std::erase_if(ready_, [&](Flow* flow) { return flow->link == &link; });
  forget_lost(link);
}

TcpLink* Reactor::link_to(int rank) const noexcept {
  const auto found = std::find_if(links_.begin(), links_.end(), [&](const TcpLink* link) { return link->peer() == rank; });
  return found == links_.end() ? nullptr : *found;
}

void Reactor::lost(TcpLink& link, std::size_t flow, std::chrono::steady_clock::time_point silent_since) {
  const auto same = [&](const Lost& one) { return one.link == &link && one.flow == flow; };
  if (std::none_of(lost_.begin(), lost_.end(), same)) lost_.push_back({&link, flow, silent_since});
}

void Reactor::forget_lost(TcpLink& link) {
  std::erase_if(lost_, [&](const Lost& one) { return one.link == &link; });
  if (rendezvous_ != nullptr) rendezvous_->forget(link.peer());
}

void Reactor::rejoin() {
  for (const auto& [link, index, silent_since] : std::exchange(lost_, {})) {
    const Flow& flow = link->flows()[index];
    if (flow.down || flow.hung_up) rendezvous_->lose(link->peer(), index, silent_since);
  }
  rendezvous_->step(*this);
  set_timer(watch_period_ms());
}

std::optional<std::uint64_t> Reactor::give_up(int rank, std::size_t socket_index) {
  TcpLink* link = link_to(rank);
  if (link == nullptr) return {};
  return link->give_up(socket_index);
}

void Reactor::resume(int rank, std::size_t socket_index, Connection connection, std::uint64_t received) {
  if (TcpLink* link = link_to(rank)) link->resume(socket_index, std::move(connection), received);
  news_ = true;
}

void Reactor::lose_peer(int rank, const std::string& why) {
  if (TcpLink* link = link_to(rank)) link->lose_peer(why);
  news_ = true;
}

void Reactor::leave_to_parent() noexcept {
  if (rendezvous_ != nullptr) rendezvous_->leave_to_parent();
  for (TcpLink* link : links_) {
    for (Flow& flow : link->flows()) {
      flow.ended = true;
      flow.socket.reset();
    }
  }
}

void Reactor::forget(Flow& flow) noexcept {
  // The registration belongs to the open socket, which a forked child shares with its parent.
  if (in_owner()) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, flow.socket.get(), nullptr);
}

void Reactor::await_answers() {
  if (!in_owner() || !reconnects()) return;
  const auto failed = [this] {
    return std::any_of(links_.begin(), links_.end(), [](TcpLink* link) { return link->failed(); });
  };
  send_held();
  if (failed()) return;
  for (TcpLink* link : links_) link->ask();
  const auto start = std::chrono::steady_clock::now();
  for (int pause_ms = 1;; pause_ms = std::min(2 * pause_ms, kMostPauseMs)) {
    while (progress() && std::chrono::steady_clock::now() - start < kAnswerPatience) {
    }
    const auto now = std::chrono::steady_clock::now();
    const bool waits = std::any_of(links_.begin(), links_.end(), [&](TcpLink* link) { return link->awaits_answer(now); });
    if (!waits || failed() || now - start >= kAnswerPatience) break;
    // Unlike prepare_wait(), this ignores tiles that the caller will not take any more.
    pollfd waiting{epoll_.get(), POLLIN, 0};
    ::poll(&waiting, 1, pause_ms);
    collect();
  }
  for (TcpLink* link : links_) link->ask_no_more();
}

void Reactor::close_all() {
  await_answers();
  const std::vector<TcpLink*> links = links_;
  for (TcpLink* link : links) {
    link->close(Status(StatusCode::aborted, "this rank closed the transport"));
    remove(*link);
  }
  rendezvous_.reset();
}

void Reactor::enqueue(Flow& flow) {
  if (flow.queued) return;
  flow.queued = true;
  ready_.push_back(&flow);
}

void Reactor::hold(TcpLink& link) {
  if (link.held) return;
  link.held = true;
  holding_.push_back(&link);
}

void Reactor::note_lent(TcpLink& link) {
  if (link.lending) return;
  link.lending = true;
  lending_.push_back(&link);
}

bool Reactor::keep_lent() {
  bool moved = false;
  std::erase_if(lending_, [&](TcpLink* link) {
    moved |= link->keep_sent();
    link->lending = link->has_lent();
    return !link->lending;
  });
  return moved;
}

void Reactor::want(TcpLink& link) {
  if (link.wanted) return;
  link.wanted = true;
  wanted_.push_back(&link);
}

void Reactor::forget_wanted() noexcept {
  for (TcpLink* link : wanted_) link->wanted = false;
  wanted_.clear();
}

bool Reactor::send_held() {
  bool moved = false;
  for (TcpLink* link : holding_) moved |= link->send_held();
  holding_.clear();
  return moved;
}

void Reactor::watch_soon() noexcept {
  soon_ = true;
  set_timer(watch_period_ms());
}

void Reactor::note_closing() noexcept {
  news_ = true;
  set_timer(watch_period_ms());
}

long Reactor::watch_period_ms() const noexcept {
  if (rendezvous_ != nullptr && rendezvous_->busy()) return kRejoiningWatchMs;
  const bool closing = std::any_of(links_.begin(), links_.end(), [](const TcpLink* link) { return link->closing(); });
  return soon_ ? kSoonMs : closing ? kClosingWatchMs : kCalmWatchMs;
}

bool Reactor::progress() {
  bool moved = send_held();
  moved |= read_ready();
  bool ask_epoll = ++calls_since_collect_ >= kCollectEvery;
  if (!moved) {
    const bool few = wanted_.size() <= kDirectLinks &&
                     std::none_of(links_.begin(), links_.end(), [](const TcpLink* link) { return link->blocked(); });
    if (few) moved = read_wanted();
    ask_epoll |= !few;
  }
  forget_wanted();
  if (ask_epoll) {
    moved |= collect();
    moved |= read_ready();
  }
  if (!lost_.empty()) rejoin();
  moved |= news_;
  news_ = false;
  if (lending_.empty()) return moved;
  idle_calls_ = moved ? 0 : idle_calls_ + 1;
  return idle_calls_ < kIdleCalls ? moved : keep_lent();
}

bool Reactor::read_ready() {
  bool moved = false;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    Flow& flow = *ready_[i];
    moved |= flow.link->receive(flow);
    if (flow.readable && flow.link->has_room(flow)) {
      ready_[kept++] = &flow;
    } else {
      flow.queued = false;
    }
  }
  ready_.resize(kept);
  return moved;
}

bool Reactor::read_wanted() {
  bool moved = false;
  for (TcpLink* link : wanted_) {
    Flow& flow = link->flows().front();
    if (flow.queued || !link->has_room(flow)) continue;
    moved |= link->receive(flow);
    if (flow.readable && link->has_room(flow)) enqueue(flow);
  }
  return moved;
}

bool Reactor::collect() {
  calls_since_collect_ = 0;
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool moved = false;
  bool rejoining = false;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t what = events[i].events;
    if (events[i].data.ptr == nullptr) {
      moved |= watch_links();
      rejoining |= rendezvous_ != nullptr && rendezvous_->busy();
      continue;
    }
    if (events[i].data.ptr == this) {
      rejoining = true;
      continue;
    }
    Flow& flow = *static_cast<Flow*>(events[i].data.ptr);
    if (flow.ended || flow.down) continue;
    if ((what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) flow.link->hang_up(flow);
    if ((what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      flow.readable = true;
      if (flow.link->has_room(flow)) {
        enqueue(flow);
        moved = true;
      }
    }
    if ((what & EPOLLOUT) != 0 && flow.blocked) moved |= flow.link->send_more(flow);
  }
  if (rejoining) rejoin();  // last: the events above belong to the sockets that it may replace
  return moved;
}

bool Reactor::prepare_wait() {
  forget_wanted();  // a caller that sleeps waits for all links
  news_ |= send_held();
  news_ |= keep_lent();
  if (!lost_.empty()) rejoin();
  if (!ready_.empty() || news_) return false;
  if (std::any_of(links_.begin(), links_.end(), [](const TcpLink* link) { return link->has_news(); })) return false;
  for (TcpLink* link : links_) {
    for (Flow& flow : link->flows()) link->await_front(flow);
  }
  return true;  // what epoll already knows makes wait_fd() readable at once
}

void Reactor::finish_wait(bool readable) { news_ |= readable && collect(); }

bool Reactor::watch_links() {
  std::uint64_t ticks = 0;
  while (::read(timer_.get(), &ticks, sizeof ticks) < 0 && errno == EINTR) {
  }
  bool moved = false;
  soon_ = false;
  for (TcpLink* link : links_) moved |= link->watch();
  set_timer(watch_period_ms());
  return moved;
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
  for (TcpLink* link : links_) link->use_check_sums();
}

void Reactor::use_packing() noexcept {
  for (TcpLink* link : links_) link->use_packing();
}

std::size_t Reactor::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const TcpLink* link : links_) bytes += link->memory_bytes();
  return bytes;
}

bool Reactor::in_owner() const noexcept { return ::getpid() == owner_pid_; }

}  // namespace shoal::tcp
