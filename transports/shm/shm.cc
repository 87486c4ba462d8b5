#include "transports/shm/shm.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "transports/shm/arena.h"
#include "transports/shm/bell.h"
#include "transports/shm/host_memory.h"
#include "transports/shm/link.h"
#include "transports/shm/peer_watch.h"
#include "transports/shm/process_memory.h"
#include "transports/shm/rendezvous.h"
#include "transports/shm/segment.h"

namespace shoal {

namespace {

using namespace shm;

/// Idle calls of progress() between two checks of the pidfds, which show dead processes: seldom enough to cost nothing, often
/// enough to detect a death within a millisecond of spinning.
constexpr unsigned kIdleCallsPerLifeCheck = 4096;
/// What epoll reports for this rank's bell; peers are reported by their position in the group.
constexpr std::uint64_t kOwnBell = ~std::uint64_t{0};

constexpr std::size_t kMaxTileBytes = std::size_t{64} << 20;
constexpr int kMaxSlots = 4096;
constexpr std::size_t kMaxWindowBytes = std::size_t{1} << 30;

class ShmTransport final : public Transport {
 public:
  ShmTransport(const ShmOptions& options, Listener listener, Bell bell, Descriptor epoll)
      : options_(options),
        address_(listener.address()),
        listener_(std::move(listener)),
        bell_(std::move(bell)),
        epoll_(std::move(epoll)),
        owner_(::getpid()) {}

  ~ShmTransport() override {
    // A forked child that drops its copy must not close the parent's end.
    if (session_ == nullptr || ::getpid() != owner_) return;
    // Releases this rank's last tiles to ShmLink::peer_closed().
    segment().block(position_).closed.store(kClosed, std::memory_order_release);
    // Read by the peers' progress() and prepare_wait(); seq_cst, so that the later checks which peers sleep cannot pass it.
    segment().header().closures.fetch_add(1, std::memory_order_seq_cst);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (i != position_) wake_if_sleeping(segment().block(i), session_->bell);
    }
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "shm"; }
  [[nodiscard]] bool tiles_are_costly() const noexcept override { return false; }
  [[nodiscard]] std::string address() const override { return address_; }

  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                                     ConnectDeadline time_limit) override {
    if (connected_) return Status(StatusCode::invalid_argument, "shm: connect() was called twice");
    connected_ = true;
    if (Status status = sort_ranks(peers, addresses); !status.ok()) return status;
    const GroupSettings settings{options_.job_id,
                                 {options_.tile_bytes, static_cast<std::size_t>(options_.slots)},
                                 round_up(options_.window_bytes, SegmentLayout::kPageBytes)};
    const Arena* const arena = Arena::instance();
    const RankCard card{bell_.name(), own_identity(), options_.single_copy ? own_mark() : ProcessMark(),
                        arena != nullptr ? arena->file() : ArenaFile()};
    std::vector<std::string> by_position(ranks_.size());
    for (std::size_t i = 0; i < peers.size(); ++i) by_position[position_of(peers[i])] = addresses[i];
    Result<Group> group = meet(listener_, by_position, settings, ranks_, position_, card, std::move(time_limit));
    if (!group.ok()) return group.status();  // the listener stays open: late peers wait until other ranks report the cause
    listener_ = Listener();                  // no more connections are expected
    session_ = std::make_shared<Session>(std::move(group).value(), std::move(bell_), options_.link_memory_bytes);
    session_->position = position_;
    session_->own = &segment().block(position_);
    watch_peers();
    prepare_arenas();
    try_memory();

    std::vector<std::unique_ptr<Link>> links;
    for (const int peer : peers) links.push_back(std::make_unique<ShmLink>(session_, peer, position_of(peer), position_));
    session_->polled.reserve(links.size());
    session_->active.reserve(links.size());
    if (links.size() <= kFewLinks) {
      for (ShmLink* link : session_->links) session_->poll(*link);
    }
    return links;
  }

  bool progress() override {
    if (session_ == nullptr) return false;
    bool moved = std::exchange(broke_while_waiting_, false);
    Session& session = *session_;
    if (session.own->rung.load(std::memory_order_relaxed) != 0) [[unlikely]]
      session.poll_those_that_rang();
    for (ShmLink* link : session.polled) {
      if (!link->progress()) continue;
      moved = true;
      session.note_active(*link);
    }
    if (session.polled.size() > kFewLinks) [[unlikely]]
      session.poll_less();
    // Acquires the `closed` words behind the count; written by a peer's destructor.
    if (segment().header().closures.load(std::memory_order_acquire) != known_closures_) moved |= take_closures();
    if (moved) {
      idle_calls_ = 0;
    } else if (++idle_calls_ >= kIdleCallsPerLifeCheck) {
      idle_calls_ = 0;
      watch_awaited();
      moved = drain_descriptors(/*awake=*/false);
    }
    return moved;
  }

  bool take_active(std::vector<Link*>& links) override {
    if (session_ == nullptr) return true;
    for (ShmLink* link : session_->active) {
      link->active = false;
      links.push_back(link);
    }
    session_->active.clear();
    return true;
  }

  [[nodiscard]] int wait_fd() const noexcept override { return epoll_.get(); }

  bool prepare_wait() override {
    if (session_ == nullptr) return true;
    // Read by wake_if_sleeping() in the peers. Sequentially consistent, as are the checks below and the peers' stores: one of
    // the two sides sees the other.
    segment().block(position_).sleeping.store(1, std::memory_order_seq_cst);
    // Orders the caller's next reads of the shared windows; pairs with the fence in notify_peers().
    full_fence();
    watch_awaited();
    bool news = broke_while_waiting_ || segment().header().closures.load(std::memory_order_seq_cst) != known_closures_ ||
                segment().block(position_).rung.load(std::memory_order_seq_cst) != 0;
    for (std::size_t i = 0; !news && i < session_->polled.size(); ++i) news = session_->polled[i]->news_before_sleep();
    if (news) stop_sleeping();
    return !news;
  }

  void finish_wait(bool readable) override {
    if (session_ == nullptr) return;
    stop_sleeping();
    if (readable) broke_while_waiting_ |= drain_descriptors(/*awake=*/true);
  }

  [[nodiscard]] std::span<std::byte> shared_window(int rank) noexcept override {
    const std::size_t position = position_of(rank);
    if (session_ == nullptr || position == ranks_.size() || ranks_[position] != rank) return {};
    return segment().window(position);
  }

  [[nodiscard]] std::span<std::byte> common_memory() noexcept override {
    return session_ == nullptr ? std::span<std::byte>() : segment().common();
  }
  [[nodiscard]] std::span<std::byte> notice_memory() noexcept override {
    return session_ == nullptr ? std::span<std::byte>() : segment().notices();
  }
  [[nodiscard]] int window_count() const noexcept override { return static_cast<int>(ranks_.size()); }

  [[nodiscard]] std::optional<std::uint64_t> shared_offset(const void* data, std::size_t bytes) const noexcept override {
    if (session_ == nullptr || session_->arena == nullptr || !session_->all_read_arenas()) return std::nullopt;
    return session_->arena->offset_of(data, bytes);
  }
  [[nodiscard]] std::byte* shared_memory(int rank, std::uint64_t offset, std::size_t bytes) noexcept override {
    const std::size_t position = position_of(rank);
    if (session_ == nullptr || position == ranks_.size() || ranks_[position] != rank) return nullptr;
    return session_->arenas[position].at(offset, bytes);
  }

  [[nodiscard]] bool reaches_all_memory() const noexcept override {
    if (reaches_all_memory_ || session_ == nullptr) return reaches_all_memory_;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      // Acquires nothing: see try_memory().
      if (segment().block(i).reaches_memory.load(std::memory_order_relaxed) == 0) return false;
    }
    return reaches_all_memory_ = true;
  }
  Status copy_from(int rank, std::uint64_t address, std::byte* target, std::size_t bytes) override {
    const std::size_t position = position_of(rank);
    int error = read_process(segment().block(position).card.mark.pid, address, target, bytes);
    // Checked after the read: the identifier may have belonged to another process meanwhile.
    if (error == 0) error = watch_->check(position);
    return error == 0 ? Status() : memory_error("reading", position, bytes, error);
  }
  Status copy_to(int rank, std::uint64_t address, const std::byte* source, std::size_t bytes) override {
    const std::size_t position = position_of(rank);
    int error = watch_->check(position);
    if (error == 0) error = write_process(segment().block(position).card.mark.pid, address, source, bytes);
    return error == 0 ? Status() : memory_error("writing", position, bytes, error);
  }

  void await_writer(int rank) noexcept override {
    if (session_ == nullptr) return;
    awaited_position_ = rank >= 0 ? position_of(rank) : ranks_.size();
    if (awaited_position_ < ranks_.size() && ranks_[awaited_position_] != rank) awaited_position_ = ranks_.size();
    const std::uint32_t awaits = rank == kAnyWriter  ? kAwaitsAny
                                 : rank == kNoWriter ? kAwaitsNone
                                                     : writer_at(awaited_position_);
    // Ordered before `sleeping` by the store in prepare_wait().
    segment().block(position_).awaits.store(awaits, std::memory_order_relaxed);
  }
  void notify_peers() override {
    if (session_ == nullptr) return;
    // Orders the caller's writes to its window before the checks which peers sleep; pairs with the fence in prepare_wait().
    full_fence();
    for (const ShmLink* link : session_->links) link->notify_peer();
  }

  void notify(std::span<const int> ranks) override {
    if (session_ == nullptr) return;
    full_fence();  // as in notify_peers()
    for (const int rank : ranks) {
      const std::size_t i = position_of(rank);
      if (i != position_) wake_if_awaiting(segment().block(i), position_, session_->bell);
    }
  }

  void wake(std::span<const int> ranks) override {
    if (session_ == nullptr) return;
    for (const int rank : ranks) {
      const std::size_t i = position_of(rank);
      if (i != position_) wake_if_sleeping(segment().block(i), session_->bell);
    }
  }

  void take_ended(std::vector<Link*>& links, bool look) override {
    if (session_ == nullptr) return;
    if (segment().header().closures.load(std::memory_order_acquire) != known_closures_) broke_while_waiting_ |= take_closures();
    if (look) broke_while_waiting_ |= drain_descriptors(/*awake=*/false);
    links.insert(links.end(), session_->ended.begin(), session_->ended.end());
    session_->ended.clear();
  }

  [[nodiscard]] Result<std::unique_ptr<HostMemory>> open_memory() const {
    if (session_ == nullptr) return Status(StatusCode::invalid_argument, "shm: the transport is not connected");
    Result<Bell> bell = Bell::create();
    if (!bell.ok()) return bell.status();
    return std::make_unique<HostMemory>(segment(), *watch_, position_, std::move(bell).value());
  }

  /// This rank's share of the segment: the rings into which it sends when all are in use, its own window, and its part of the
  /// common memory and of that for notices.
  [[nodiscard]] std::size_t memory_bytes() const noexcept override {
    if (session_ == nullptr) return 0;
    return session_->link_memory.most_bytes() + segment().layout().window_bytes + SegmentLayout::kCommonBytesPerRank +
           SegmentLayout::kNoticeBytesPerRank;
  }

 private:
  /// Fills ranks_ and position_ from the list of peers.
  Status sort_ranks(std::span<const int> peers, std::span<const std::string> addresses) {
    if (peers.size() != addresses.size()) {
      return {StatusCode::invalid_argument, "shm: connect() got " + std::to_string(peers.size()) + " peers but " +
                                                std::to_string(addresses.size()) + " addresses"};
    }
    if (peers.size() >= static_cast<std::size_t>(kMaxHostRanks)) {
      return {StatusCode::invalid_argument, "shm: a group of " + std::to_string(peers.size() + 1) +
                                                " ranks is larger than the " + std::to_string(kMaxHostRanks) +
                                                " that can share memory (shoal/limits.h)"};
    }
    ranks_.assign(peers.begin(), peers.end());
    ranks_.push_back(options_.rank);
    std::sort(ranks_.begin(), ranks_.end());
    if (std::adjacent_find(ranks_.begin(), ranks_.end()) != ranks_.end() || ranks_[0] < 0) {
      return {StatusCode::invalid_argument,
              "shm: the peers of rank " + std::to_string(options_.rank) + " must be distinct ranks from 0 on, without itself"};
    }
    position_ = position_of(options_.rank);
    return {};
  }

  [[nodiscard]] std::size_t position_of(int rank) const {
    return static_cast<std::size_t>(std::lower_bound(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  }

  /// Adds pidfds of peers to wait_fd(); this rank's bell is there from the start.
  void watch_peers() {
    awaited_position_ = ranks_.size();
    watch_ = std::make_unique<PeerWatch>(segment(), session_->bell, position_, epoll_.get(), std::move(session_->group.lives));
    // A few are all watched from the start: then the number of descriptors stays the same.
    for (std::size_t i = 0; ranks_.size() <= PeerWatch::kMostWatches + 1 && i < ranks_.size(); ++i) {
      if (i != position_) watch_->await(i);
    }
  }

  /// Before a sleep, and now and then without one: watches the peers for which this rank waits.
  void watch_awaited() {
    watch_->begin_sleep();
    for (const ShmLink* link : session_->polled) {
      if (link->used && !link->broken()) watch_->await(link->position());
    }
    if (awaited_position_ < ranks_.size() && awaited_position_ != position_) watch_->await(awaited_position_);
    watch_->check_others();
  }

  /// Prepares the views of the peers' arenas. Where this rank could not map one, all ranks copy.
  void prepare_arenas() {
    session_->arena = Arena::instance();
    session_->reserve = make_reserve();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const ArenaFile file = i == position_ ? ArenaFile() : segment().block(i).card.arena;
      session_->arenas.emplace_back(file, session_->reserve);
    }
    // Needs no ordering: a peer that reads it sends references through the ring, and only this rank resolves them.
    if (can_map_arenas()) segment().block(position_).reads_arenas.store(1, std::memory_order_relaxed);
  }

  /// Each rank tests one peer, the next one that has an arena. The system permits access by the user, the groups, the
  /// privileges and a setting of the process that is accessed. If it permits it to each rank for the next one, all have the
  /// same user, groups and privileges, and none forbids it: then every rank may access all others.
  [[nodiscard]] bool can_map_arenas() const {
    std::size_t bytes = 0;
    bool tested = false;
    for (std::size_t step = 1; step < ranks_.size(); ++step) {
      const RankCard& card = segment().block((position_ + step) % ranks_.size()).card;
      if (card.arena.size_bytes == 0) continue;
      bytes += card.arena.size_bytes;
      if (!card.process.is_valid_for(segment().block(position_).card.process)) return false;  // other numbers in /proc
      Descriptor opened;
      if (!std::exchange(tested, true) && open_arena(card.arena, opened) != 0) return false;
    }
    rlimit limit{};
    // A mapping that grows takes at most twice the size.
    return ::getrlimit(RLIMIT_AS, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur / 2);
  }

  /// Tests whether this rank may copy from and to the memory of all peers. Without a pidfd the end of a process is not
  /// detected: its identifier could then mean another process, into which this rank must not write.
  void try_memory() {
    if (!options_.single_copy) return;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (i != position_ && (!watch_->can_watch(i) || !reaches(segment().block(i).card.mark))) return;
    }
    // Needs no ordering: it only shows what this rank can do with addresses that it receives from now on.
    segment().block(position_).reaches_memory.store(1, std::memory_order_relaxed);
  }

  /// The error for the memory of the peer at `position`, with the system's text.
  [[nodiscard]] Status memory_error(const char* what, std::size_t position, std::size_t bytes, int error) const {
    return {error == ESRCH || error == EFAULT ? StatusCode::peer_failed : StatusCode::system_error,
            "shm: " + std::string(what) + " " + std::to_string(bytes) + " bytes of the memory of rank " +
                std::to_string(ranks_[position]) + ": " + std::strerror(error) +
                "; SHOAL_SINGLE_COPY=0 switches such copies off"};
  }

  /// Marks the links whose peers have closed their ends or died. True where one was marked.
  bool take_closures() {
    known_closures_ = segment().header().closures.load(std::memory_order_acquire);
    bool any = false;
    for (ShmLink* link : session_->links) {
      const std::uint32_t closed = link->ended ? kOpen : link->peer_closed();
      if (closed == kOpen) continue;
      const std::string rank = "rank " + std::to_string(link->peer());
      any |= note_end(*link, closed == kDied ? "the process of " + rank + " has ended" : rank + " closed the connection");
    }
    watch_->follow_ring();
    return any;
  }

  /// True where the link was not broken before.
  bool note_end(ShmLink& link, std::string how) {
    link.ended = true;
    session_->ended.push_back(&link);
    const bool breaks = !link.broken();
    if (breaks) link.fail(std::move(how));
    return breaks;
  }

  /// Breaks the links to processes that have ended. True where a link broke. `awake`: also takes a ring of the bell. Before a
  /// sleep that has been announced, it may be the only wake-up.
  bool drain_descriptors(bool awake) {
    // First, so that ranks that have closed their ends are no longer watched when their processes end.
    bool any = segment().header().closures.load(std::memory_order_acquire) != known_closures_ && take_closures();
    epoll_event events[16];
    const int count = ::epoll_wait(epoll_.get(), events, std::size(events), 0);
    bool ended = false;
    for (int i = 0; i < count; ++i) {
      const std::size_t position = events[i].data.u64;
      if (position == kOwnBell) {
        if (awake) session_->bell.drain();
        continue;
      }
      watch_->on_readable(position);
      ended = true;
    }
    if (ended) any |= take_closures();
    return any;
  }

  void stop_sleeping() noexcept {
    // A peer that sees this store late rings once more, which ends one later wait early.
    segment().block(position_).sleeping.store(0, std::memory_order_relaxed);
  }

  [[nodiscard]] const Segment& segment() const noexcept { return session_->group.segment; }

  ShmOptions options_;
  std::string address_;
  Listener listener_;
  Bell bell_;  ///< moves to the session
  Descriptor epoll_;
  pid_t owner_;
  bool connected_ = false;
  std::vector<int> ranks_;  ///< the group, sorted
  std::size_t position_ = 0;
  std::shared_ptr<Session> session_;  ///< null until connected, as the next one
  std::unique_ptr<PeerWatch> watch_;
  std::size_t awaited_position_ = 0;         ///< of the one writer that this rank awaits; the number of ranks: none or any
  mutable bool reaches_all_memory_ = false;  ///< cached result of reaches_all_memory()
  std::uint32_t known_closures_ = 0;
  unsigned idle_calls_ = 0;
  bool broke_while_waiting_ = false;  ///< finish_wait() saw a link break; the next progress() reports it
};

Status check_options(const ShmOptions& options) {
  const auto bad = [](const std::string& what, auto value, const char* range) {
    return Status(StatusCode::invalid_argument,
                  "shm: " + what + " " + std::to_string(value) + " is out of range, use " + range);
  };
  if (options.rank < 0) return bad("rank", options.rank, "0 or more");
  if (options.tile_bytes < 1 || options.tile_bytes > kMaxTileBytes)
    return bad("tile_bytes", options.tile_bytes, "1 .. 67108864");
  if (options.slots < 2 || options.slots > kMaxSlots) return bad("slots", options.slots, "2 .. 4096");
  if (options.window_bytes > kMaxWindowBytes) return bad("window_bytes", options.window_bytes, "0 .. 1073741824");
  return {};
}

}  // namespace

Result<std::unique_ptr<shm::HostMemory>> open_host_memory(const Transport& transport) {
  return static_cast<const ShmTransport&>(transport).open_memory();
}

bool shm_peers_see_end() { return open_own_process().valid(); }

Result<std::unique_ptr<Transport>> make_shm_transport(const ShmOptions& options) {
  if (Status status = check_options(options); !status.ok()) return status;
  Result<Bell> bell = Bell::create();
  if (!bell.ok()) return bell.status();
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return system_error("shm: epoll_create1", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kOwnBell;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, bell->descriptor(), &event) != 0) return system_error("shm: epoll_ctl", errno);
  Result<Listener> listener = Listener::create(options.rank, options.job_id);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<Transport>(
      std::make_unique<ShmTransport>(options, std::move(listener).value(), std::move(bell).value(), std::move(epoll)));
}

}  // namespace shoal
