#include "transports/loopback/loopback.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <shoal/limits.h>

#include "src/base/event.h"
#include "transports/loopback/channel.h"

namespace shoal {

namespace {

using namespace loopback;

/// A descriptor to wait on: readable when another thread calls wake(), or at a time set by arm().
class Alarm {
 public:
  Alarm()
      : event_(make_event()),
        timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (const int fd : {event_.get(), timer_.get()}) {
      epoll_event event{};
      event.events = EPOLLIN;
      ok_ &= ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
    }
  }

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] int fd() const noexcept { return epoll_.get(); }
  void wake() noexcept { ring_event(event_.get()); }
  void arm(std::optional<Clock::time_point> time) noexcept {
    itimerspec spec{};  // all zero disarms
    if (time) {
      const auto since = std::max<std::chrono::nanoseconds>(time->time_since_epoch(), std::chrono::nanoseconds(1));
      spec.it_value.tv_sec = static_cast<time_t>(since.count() / 1'000'000'000);
      spec.it_value.tv_nsec = static_cast<long>(since.count() % 1'000'000'000);
    }
    ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
  }
  void drain() noexcept {
    drain_event(event_.get());
    drain_event(timer_.get());  // a timer is read as an event is
  }

 private:
  Descriptor event_;
  Descriptor timer_;
  Descriptor epoll_;
  bool ok_ = true;
};

}  // namespace

/// State shared by all ends.
struct LoopbackHub::State {
  struct Rank {
    std::atomic<bool> sleeping{false};
    std::atomic<bool> killed{false};
    std::atomic<std::uint64_t> sent{0};
    Alarm alarm;
    bool made = false;       // guarded by mutex
    bool connected = false;  // guarded by mutex
    std::vector<std::byte> window_memory;
    std::span<std::byte> window;
  };
  /// The memory for notices of one node.
  struct Notices {
    std::size_t bytes = 0;
    std::vector<std::byte> memory;
    std::span<std::byte> span;
  };

  State(int ranks, const LoopbackOptions& the_options) : options(the_options), rank(static_cast<std::size_t>(ranks)) {
    for (Rank& r : rank) r.window = aligned(r.window_memory, options.window_bytes);
    common = aligned(common_memory, options.common_bytes);
    for (const int node : options.node_of_rank) {
      notices.resize(std::max(notices.size(), static_cast<std::size_t>(node) + 1));
      notices[static_cast<std::size_t>(node)].bytes += options.notice_bytes;
    }
    for (Notices& of_node : notices) of_node.span = aligned(of_node.memory, of_node.bytes);
    for (int from = 0; from < ranks; ++from) {
      for (int to = 0; to < ranks; ++to) {
        channels.push_back(from == to ? nullptr : std::make_unique<Channel>(options, from, to));
      }
    }
  }

  /// `bytes` bytes of `memory`, aligned to a page.
  static std::span<std::byte> aligned(std::vector<std::byte>& memory, std::size_t bytes) {
    constexpr std::size_t kPageBytes = 4096;
    if (bytes == 0) return {};
    memory.resize(bytes + kPageBytes - 1);
    void* start = memory.data();
    std::size_t space = memory.size();
    return {static_cast<std::byte*>(std::align(kPageBytes, bytes, start, space)), bytes};
  }

  [[nodiscard]] int ranks() const { return static_cast<int>(rank.size()); }
  /// Precondition: the options name nodes.
  [[nodiscard]] std::size_t node_of(int index) const {
    return static_cast<std::size_t>(options.node_of_rank[static_cast<std::size_t>(index)]);
  }
  Rank& at(int index) { return rank[static_cast<std::size_t>(index)]; }
  Channel& channel(int from, int to) {
    return *channels[static_cast<std::size_t>(from) * rank.size() + static_cast<std::size_t>(to)];
  }

  /// Wakes a rank that blocks or is about to block. `sleeping` changes only by exchanges, which have one total order. So
  /// either this exchange sees that the rank sleeps, or the rank's exchange in prepare_wait() acquires what the caller wrote
  /// before.
  void wake(int index) {
    Rank& r = at(index);
    if (r.sleeping.exchange(false, std::memory_order_acq_rel)) r.alarm.wake();
  }

  /// Closes all channels of a rank and wakes all ranks.
  void close(int index, bool deliver) {
    for (int other = 0; other < ranks(); ++other) {
      if (other == index) continue;
      channel(index, other).close(deliver);
      channel(other, index).close(deliver);
    }
    for (int other = 0; other < ranks(); ++other) wake(other);
  }

  const LoopbackOptions options;
  std::mutex mutex;  ///< used during start-up only
  std::condition_variable arrivals;
  std::vector<Rank> rank;
  std::vector<std::byte> common_memory;
  std::span<std::byte> common;
  std::vector<Notices> notices;                    ///< by node
  std::vector<std::unique_ptr<Channel>> channels;  ///< by sender, then receiver; null for a rank to itself
};

namespace {

using State = LoopbackHub::State;

class LoopbackLink final : public Link {
 public:
  LoopbackLink(std::shared_ptr<State> state, std::shared_ptr<std::vector<LoopbackLink*>> registry, int rank, int peer)
      : state_(std::move(state)),
        registry_(std::move(registry)),
        rank_(rank),
        peer_(peer),
        out_(state_->channel(rank, peer)),
        in_(state_->channel(peer, rank)) {
    registry_->push_back(this);
  }
  ~LoopbackLink() override { std::erase(*registry_, this); }

  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return state_->options.tile_bytes; }

  bool try_send(const TileHeader& header, std::span<const std::byte> data) override {
    if (!status_.ok()) return false;
    switch (out_.offer(header, data)) {
      case Channel::Offer::broken:
        return false;
      case Channel::Offer::full:
        waits_ = true;
        return false;
      case Channel::Offer::refused:
        refused_ = true;
        return false;
      case Channel::Offer::taken:
        break;
    }
    waits_ = refused_ = false;
    state_->wake(peer_);
    State::Rank& own = state_->at(rank_);
    const std::uint64_t sent = own.sent.fetch_add(1) + 1;
    if (rank_ == state_->options.kill_rank && sent == state_->options.kill_after_tiles) kill(*state_, rank_);
    return true;
  }
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return out_.copied(); }

  void keep_copies() override { out_.copy_all(); }

  [[nodiscard]] const Arrival* peek() noexcept override {
    if (shown_) return &*shown_;
    if (state_->at(rank_).killed) return nullptr;
    look();
    shown_ = in_.show();
    return shown_ ? &*shown_ : nullptr;
  }
  void release() noexcept override {
    if (!shown_) return;
    shown_.reset();
    in_.release();
    ++released_;
    state_->wake(peer_);
  }
  [[nodiscard]] const Status& status() const noexcept override { return status_; }

  bool progress() {
    bool moved = std::exchange(refused_, false);
    const Channel::View view = look();
    if (view.arrived > arrived_) {
      arrived_ = view.arrived;
      moved = true;
    }
    if (waits_ && out_.has_room()) {
      waits_ = false;
      moved = true;
    }
    if (const std::uint64_t copied = out_.copied(); copied > copied_) {
      copied_ = copied;
      moved = true;
    }
    if (status_.ok() && broken(view)) {
      const bool own = state_->at(rank_).killed;
      status_ = Status(StatusCode::peer_failed, own ? "rank " + std::to_string(rank_) + " (this one) was killed"
                                                    : "rank " + std::to_string(peer_) + " closed the connection");
      moved = true;
    }
    return moved;
  }

  /// Whether progress() or peek() has something new; otherwise lowers `due` to the time at which the next tile is due.
  bool news(std::optional<Clock::time_point>& due) {
    if (refused_) return true;
    const Channel::View view = look();
    if (view.next_due) due = due ? std::min(*due, *view.next_due) : *view.next_due;
    return view.arrived > arrived_ || (!shown_ && view.arrived > released_) || (waits_ && out_.has_room()) ||
           out_.copied() > copied_ || (status_.ok() && broken(view));
  }

  /// Whether the link has ended, once.
  [[nodiscard]] bool take_end() { return !status_.ok() && !std::exchange(end_taken_, true); }

  bool active = false;  ///< take_active() is to report it

  static void kill(State& state, int rank) {
    state.at(rank).killed = true;
    state.close(rank, /*deliver=*/true);
  }

 private:
  Channel::View look() {
    const Channel::View view = in_.look();
    if (view.copied_some) state_->wake(peer_);  // the peer may wait for its memory to become free
    return view;
  }
  [[nodiscard]] bool broken(const Channel::View& view) const { return view.closed || state_->at(rank_).killed; }

  std::shared_ptr<State> state_;
  std::shared_ptr<std::vector<LoopbackLink*>> registry_;
  int rank_;
  int peer_;
  Channel& out_;
  Channel& in_;
  std::optional<Arrival> shown_;
  std::uint64_t released_ = 0;
  std::uint64_t arrived_ = 0;  ///< tiles that progress() has reported
  std::uint64_t copied_ = 0;   ///< sent_tiles() that progress() has reported
  bool waits_ = false;         ///< a send found no room
  bool refused_ = false;       ///< a send was refused although there was room: the next try may succeed at once
  bool end_taken_ = false;
  Status status_;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<State> state, int rank) : state_(std::move(state)), rank_(rank) {}
  ~LoopbackTransport() override {
    if (!connected_) return;
    state_->close(rank_, /*deliver=*/false);
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "loopback"; }
  [[nodiscard]] bool tiles_are_costly() const noexcept override { return false; }
  [[nodiscard]] std::string address() const override { return "loopback:" + std::to_string(rank_); }

  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                     ConnectDeadline time_limit) override {
    if (connected_) return Status(StatusCode::invalid_argument, "loopback: connect() was called twice");
    if (peers.size() != addresses.size()) {
      return Status(StatusCode::invalid_argument, "loopback: connect() got " + std::to_string(peers.size()) + " peers but " +
                                                      std::to_string(addresses.size()) + " addresses");
    }
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (peers[i] < 0 || peers[i] >= state_->ranks() || peers[i] == rank_) {
        return Status(StatusCode::invalid_argument, "loopback: rank " + std::to_string(peers[i]) + " is no peer in a hub of " +
                                                        std::to_string(state_->ranks()) + " ranks");
      }
      if (addresses[i] != "loopback:" + std::to_string(peers[i])) {
        return Status(StatusCode::invalid_argument,
                      "loopback: \"" + addresses[i] + "\" is not the address of rank " + std::to_string(peers[i]));
      }
    }
    connected_ = true;
    std::unique_lock lock(state_->mutex);
    state_->at(rank_).connected = true;
    state_->arrivals.notify_all();
    const auto met = [&] { return std::ranges::all_of(peers, [&](int peer) { return state_->at(peer).connected; }); };
    while (!state_->arrivals.wait_until(lock, time_limit.next(), met)) {
      if (Status status = time_limit.check(); !status.ok()) return status;
      if (Clock::now() < time_limit.deadline()) continue;
      std::string text = "loopback: these ranks did not connect by the deadline:";
      for (const int peer : peers) {
        if (!state_->at(peer).connected) text += " " + std::to_string(peer);
      }
      return Status(StatusCode::timeout, text);
    }
    std::vector<std::unique_ptr<Link>> links;
    for (const int peer : peers) links.push_back(std::make_unique<LoopbackLink>(state_, links_, rank_, peer));
    lock.unlock();
    if (rank_ == state_->options.kill_rank && state_->options.kill_after_tiles == 0) LoopbackLink::kill(*state_, rank_);
    return links;
  }

  bool progress() override {
    bool moved = false;
    for (LoopbackLink* link : *links_) {
      if (!link->progress()) continue;
      moved = link->active = true;
    }
    return moved;
  }
  bool take_active(std::vector<Link*>& links) override {
    for (LoopbackLink* link : *links_) {
      if (std::exchange(link->active, false)) links.push_back(link);
    }
    return true;
  }

  [[nodiscard]] int wait_fd() const noexcept override { return state_->at(rank_).alarm.fd(); }
  bool prepare_wait() override {
    State::Rank& own = state_->at(rank_);
    own.sleeping.exchange(true, std::memory_order_acq_rel);  // pairs with State::wake()
    std::optional<Clock::time_point> due;
    bool news = false;
    for (LoopbackLink* link : *links_) news |= link->news(due);
    if (news) {
      own.sleeping.exchange(false, std::memory_order_acq_rel);
      return false;
    }
    own.alarm.arm(due);
    return true;
  }
  void finish_wait(bool readable) override {
    State::Rank& own = state_->at(rank_);
    own.sleeping.exchange(false, std::memory_order_acq_rel);
    if (readable) own.alarm.drain();
  }

  [[nodiscard]] std::span<std::byte> shared_window(int rank) noexcept override {
    if (rank < 0 || rank >= state_->ranks()) return {};
    return state_->at(rank).window;
  }
  [[nodiscard]] std::span<std::byte> common_memory() noexcept override { return state_->common; }
  [[nodiscard]] int window_count() const noexcept override { return state_->ranks(); }
  [[nodiscard]] std::span<std::byte> notice_memory() noexcept override {
    return state_->notices.empty() ? std::span<std::byte>() : state_->notices[state_->node_of(rank_)].span;
  }
  /// Of the peers that share notice_memory().
  void take_ended(std::vector<Link*>& links, bool) override {
    if (state_->notices.empty()) return;
    for (LoopbackLink* link : *links_) {
      if (state_->node_of(link->peer()) == state_->node_of(rank_) && link->take_end()) links.push_back(link);
    }
  }
  void wake(std::span<const int> ranks) override { notify(ranks); }
  void notify_peers() override {
    for (const LoopbackLink* link : *links_) state_->wake(link->peer());
  }

  void notify(std::span<const int> ranks) override {
    for (const int rank : ranks) {
      if (rank != rank_) state_->wake(rank);
    }
  }

  /// The channels that this end receives from, and its window.
  [[nodiscard]] std::size_t memory_bytes() const noexcept override {
    const LoopbackOptions& options = state_->options;
    return static_cast<std::size_t>(state_->ranks() - 1) * static_cast<std::size_t>(options.capacity_tiles) *
               options.tile_bytes +
           options.window_bytes;
  }

 private:
  std::shared_ptr<State> state_;
  int rank_;
  bool connected_ = false;
  std::shared_ptr<std::vector<LoopbackLink*>> links_ = std::make_shared<std::vector<LoopbackLink*>>();  ///< links that exist
};

}  // namespace

Result<LoopbackHub> LoopbackHub::create(int ranks, const LoopbackOptions& options) {
  const auto bad = [](const std::string& what) { return Status(StatusCode::invalid_argument, "loopback: " + what); };
  if (ranks < 1 || ranks > kMaxHostRanks) return bad("a hub has 1 .. " + std::to_string(kMaxHostRanks) + " ranks");
  if (options.tile_bytes < 1 || options.tile_bytes > (std::size_t{64} << 20)) return bad("tile_bytes must be 1 .. 64 MiB");
  if (options.capacity_tiles < 2 || options.capacity_tiles > 4096) return bad("capacity_tiles must be 2 .. 4096");
  if (options.mean_delay.count() < 0) return bad("mean_delay must not be negative");
  if (!(options.refuse_probability >= 0 && options.refuse_probability <= 0.9))
    return bad("refuse_probability must be 0 .. 0.9");
  if (!options.node_of_rank.empty() && options.node_of_rank.size() != static_cast<std::size_t>(ranks))
    return bad("node_of_rank must have a node for each rank, or none");
  if (std::ranges::any_of(options.node_of_rank, [&](int node) { return node < 0 || node >= ranks; }))
    return bad("nodes must be numbered from 0, below the number of ranks");
  if (options.kill_rank < -1 || options.kill_rank >= ranks) return bad("kill_rank must be a rank of the hub or -1");
  auto state = std::make_shared<State>(ranks, options);
  for (const State::Rank& rank : state->rank) {
    if (!rank.alarm.ok()) return bad("cannot create eventfd, timerfd and epoll descriptors; raise the limit (ulimit -n)");
  }
  return LoopbackHub(std::move(state));
}

Result<std::unique_ptr<Transport>> LoopbackHub::make_transport(int rank) {
  if (rank < 0 || rank >= state_->ranks()) {
    return Status(StatusCode::invalid_argument, "loopback: rank " + std::to_string(rank) + " is outside a hub of " +
                                                    std::to_string(state_->ranks()) + " ranks");
  }
  const std::lock_guard lock(state_->mutex);
  if (std::exchange(state_->at(rank).made, true)) {
    return Status(StatusCode::invalid_argument, "loopback: the end of rank " + std::to_string(rank) + " exists already");
  }
  return std::unique_ptr<Transport>(std::make_unique<LoopbackTransport>(state_, rank));
}

void LoopbackHub::kill(int rank) {
  if (rank >= 0 && rank < state_->ranks()) LoopbackLink::kill(*state_, rank);
}

}  // namespace shoal
