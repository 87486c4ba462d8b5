// The links of shared memory, and which of their rings this rank polls.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/event.h"
#include "transports/shm/arena.h"
#include "transports/shm/doorbells.h"
#include "transports/shm/rendezvous.h"
#include "transports/shm/ring.h"
#include "transports/shm/segment.h"
#include "transports/transport.h"

namespace shoal::shm {

/// A rank polls the rings of up to so many peers all the time. Of more, it polls those that it uses.
inline constexpr std::size_t kFewLinks = 8;
/// In so many calls of progress() an unused ring is found, and no longer polled.
inline constexpr unsigned kUnusedCalls = 64;

/// Smaller payloads are copied: that costs less than waiting until the peer has read them.
inline constexpr std::size_t kReferenceFromBytes = 4096;

/// Orders all earlier writes of this thread before its later reads. ThreadSanitizer does not support fences, so there it is
/// an atomic operation of the same ordering.
inline void full_fence() noexcept {
#ifdef SHOAL_TSAN
  static std::atomic<int> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Wakes the rank of `block` if it blocks or is about to.
inline void wake_if_sleeping(RankBlock& block, int wake_fd) noexcept {
  // Pairs with the store in ShmTransport::prepare_wait(): the caller has published something seq_cst before. So either this
  // load sees that the rank sleeps, or that rank's last check sees what was published.
  if (block.sleeping.load(std::memory_order_seq_cst) == 0) return;
  // The exchange lets only one peer write to the eventfd. It needs no ordering: nothing else depends on it.
  if (block.sleeping.exchange(0, std::memory_order_relaxed) == 0) return;
  ring_event(wake_fd);
}

/// RankBlock::awaits: the rank at `position` alone, any, none.
constexpr std::uint32_t writer_at(std::size_t position) noexcept { return static_cast<std::uint32_t>(position) + 2; }
inline constexpr std::uint32_t kAwaitsAny = 0;
inline constexpr std::uint32_t kAwaitsNone = 1;

/// The same, if that rank awaits the one at `writer`, which has written to shared memory and executed a full fence since.
///
/// Where the word read here is that of a later sleep, the fence in that sleep's prepare_wait() has come first: the caller has
/// checked what it waits for after it, and has seen this rank's write or not needed it.
inline void wake_if_awaiting(RankBlock& block, std::size_t writer, int wake_fd) noexcept {
  if (block.sleeping.load(std::memory_order_seq_cst) == 0) return;
  // The load above acquires what the rank has written there before.
  const std::uint32_t awaits = block.awaits.load(std::memory_order_relaxed);
  if (awaits == kAwaitsAny || awaits == writer_at(writer)) wake_if_sleeping(block, wake_fd);
}

class ShmLink;

/// State that a transport shares with its links, so that either may be destroyed first.
struct Session {
  Group group;
  const Arena* arena = nullptr;   ///< of this process
  std::vector<ArenaView> arenas;  ///< by position; empty views where a rank has none or it could not be mapped
  std::vector<ShmLink*> links;    ///< links that exist
  RankBlock* own = nullptr;       ///< of this rank
  std::vector<ShmLink*> polled;   ///< of them, those whose rings progress() looks at
  std::vector<ShmLink*> active;   ///< since the last take_active()
  std::vector<ShmLink*> ended;    ///< since the last take_ended()
  unsigned calls = 0;             ///< of poll_less()

  void poll(ShmLink& link);
  void begin_polling(ShmLink& link);
  void poll_those_that_rang();
  /// For each call of progress() with many polled rings: stops polling what has not been used lately.
  void poll_less();
  void note_active(ShmLink& link);
};

class ShmLink final : public Link {
 public:
  ShmLink(std::shared_ptr<Session> session, int peer, std::size_t position, std::size_t own_position)
      : session_(std::move(session)),
        peer_(peer),
        position_(position),
        tile_bytes_(segment().layout().ring.tile_bytes),
        sender_(segment().ring(own_position, position), segment().layout().ring),
        receiver_(segment().ring(position, own_position), segment().layout().ring, session_->arenas[position]),
        own_position_(own_position),
        doorbell_(segment().block(position), own_position),
        peer_block_(segment().block(position)),
        peer_wake_fd_(session_->group.members[position].wake.get()) {
    session_->links.push_back(this);
  }
  ~ShmLink() override {
    for (auto* list : {&session_->links, &session_->polled, &session_->active, &session_->ended}) std::erase(*list, this);
  }

  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return tile_bytes_; }

  bool try_send(const TileHeader& header, std::span<const std::byte> data) override {
    return publish(header, data, std::nullopt);
  }
  bool try_lend(const TileHeader& header, std::span<const std::byte> data) override {
    return publish(header, data, reference_to(data));
  }
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return sender_.sent(); }

  void keep_copies() noexcept override {
    sender_.take_back();
    full_fence();
  }

  [[nodiscard]] const Arrival* peek() noexcept override {
    if (const Arrival* arrival = receiver_.peek(); arrival != nullptr) return arrival;
    session_->poll(*this);  // the caller waits for this peer
    return nullptr;
  }
  [[nodiscard]] bool intact() noexcept override {
    full_fence();
    return receiver_.intact();
  }
  void release() noexcept override {
    if (receiver_.release()) wake_if_sleeping(peer_block_, peer_wake_fd_);
  }
  [[nodiscard]] const Status& status() const noexcept override { return status_; }

  /// True where a tile arrived, room appeared that a send waits for, or the link broke.
  bool progress() {
    bool moved = receiver_.take_arrivals();
    if (sender_.take_releases()) moved = true;
    if (receiver_.broken() && !broken_) [[unlikely]]
      moved = fail_by_corrupt_tile();
    return moved;
  }
  [[nodiscard]] bool news_before_sleep() noexcept {
    return receiver_.news_before_sleep() || sender_.releases_before_sleep() || (receiver_.broken() && !broken_);
  }
  [[nodiscard]] bool peer_closed() const noexcept {
    // Acquires the peer's last tiles: a rank that sees the word set sees every tile sent before (ShmTransport's destructor).
    return peer_block_.closed.load(std::memory_order_acquire) != 0;
  }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  void fail(std::string message) {
    broken_ = true;
    status_ = Status(StatusCode::peer_failed, std::move(message));
    session_->note_active(*this);
  }
  [[nodiscard]] bool is_used_by_sender() const noexcept { return sender_.waits(); }

  // For Session.
  bool polled = false;
  bool active = false;
  bool ended = false;  ///< its peer has ended or closed its end
  bool used = false;   ///< lately a peek() has found nothing
  void notify_peer() const noexcept { wake_if_awaiting(peer_block_, own_position_, peer_wake_fd_); }
  [[nodiscard]] std::size_t position() const noexcept { return position_; }

 private:
  /// True.
  [[gnu::noinline]] bool fail_by_corrupt_tile() {
    fail("rank " + std::to_string(peer_) + " wrote a tile into the shared memory that is larger than the " +
         std::to_string(tile_bytes_) + " bytes of a slot, or lies outside its arena; its memory is corrupt");
    return true;
  }
  [[nodiscard]] const Segment& segment() const noexcept { return session_->group.segment; }
  bool publish(const TileHeader& header, std::span<const std::byte> data, std::optional<std::uint64_t> reference) {
    if (broken_) return false;
    if (!sender_.try_send(header, data, reference)) {
      session_->poll(*this);  // for room
      return false;
    }
    if (reference) session_->poll(*this);  // for its end
    doorbell_.ring_unless_polled();
    wake_if_sleeping(peer_block_, peer_wake_fd_);
    return true;
  }
  /// Offset in this process's arena at which the peer can read `data`; nullopt where it has to be copied.
  [[nodiscard]] std::optional<std::uint64_t> reference_to(std::span<const std::byte> data) const noexcept {
    if (data.size() < kReferenceFromBytes || session_->arena == nullptr) return std::nullopt;
    // Needs no ordering: it only shows whether the peer can resolve references that are sent from now on.
    if (peer_block_.reads_arenas.load(std::memory_order_relaxed) == 0) return std::nullopt;
    return session_->arena->offset_of(data.data(), data.size());
  }

  std::shared_ptr<Session> session_;
  int peer_;
  std::size_t position_;
  std::size_t tile_bytes_;
  RingSender sender_;
  RingReceiver receiver_;
  std::size_t own_position_;
  Doorbell doorbell_;
  RankBlock& peer_block_;
  int peer_wake_fd_;
  bool broken_ = false;
  Status status_;
};

inline void Session::poll(ShmLink& link) {
  link.used = true;
  if (!link.polled) [[unlikely]]
    begin_polling(link);
}

[[gnu::noinline]] inline void Session::begin_polling(ShmLink& link) {
  link.polled = true;
  start_polling(*own, link.position());
  polled.push_back(&link);
}

[[gnu::noinline]] inline void Session::poll_those_that_rang() {
  answer_doorbells(*own, group.members.size(), [this](std::size_t position) {
    const auto found = std::ranges::find(links, position, &ShmLink::position);
    if (found != links.end()) poll(**found);
  });
}

[[gnu::noinline]] inline void Session::poll_less() {
  if (++calls % kUnusedCalls != 0) return;
  std::erase_if(polled, [this](ShmLink* link) {
    if (std::exchange(link->used, false) || link->is_used_by_sender()) return false;
    stop_polling(*own, link->position());
    link->polled = link->news_before_sleep();
    if (link->polled) start_polling(*own, link->position());
    return !link->polled;
  });
}

inline void Session::note_active(ShmLink& link) {
  if (!std::exchange(link.active, true)) active.push_back(&link);
}

}  // namespace shoal::shm
