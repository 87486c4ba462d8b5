// The links of shared memory, and which of their rings this rank polls.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transports/shm/arena.h"
#include "transports/shm/arena_view.h"
#include "transports/shm/bell.h"
#include "transports/shm/doorbells.h"
#include "transports/shm/link_memory.h"
#include "transports/shm/rendezvous.h"
#include "transports/shm/ring.h"
#include "transports/shm/segment.h"
#include "transports/shm/waking.h"
#include "transports/transport.h"

namespace shoal::shm {

/// A rank polls the rings of up to so many peers all the time. Of more, it polls those that it uses.
inline constexpr std::size_t kFewLinks = 8;
/// In so many calls of progress() an unused ring is found, and no longer polled.
inline constexpr unsigned kUnusedCalls = 64;

/// Smaller payloads are copied: that costs less than waiting until the peer has read them.
inline constexpr std::size_t kReferenceFromBytes = 4096;

class ShmLink;

/// State that a transport shares with its links, so that either may be destroyed first.
struct Session {
  Session(Group joined, Bell own, std::size_t link_memory_bytes)
      : group(std::move(joined)),
        bell(std::move(own)),
        link_memory(link_memory_bytes, group.segment.layout().ranks - 1, group.segment.layout().ring) {}

  Group group;
  Bell bell;                      ///< of this rank
  LinkMemory link_memory;         ///< of the rings into which this rank sends
  const Arena* arena = nullptr;   ///< of this process
  Descriptor reserve;             ///< for mapping an arena where the process has no other one left
  std::vector<ArenaView> arenas;  ///< by position; empty views where a rank has none
  std::size_t readers = 0;        ///< so many ranks, by position, are known to be able to map the arenas of their peers
  std::vector<ShmLink*> links;    ///< links that exist
  std::size_t position = 0;       ///< of this rank
  RankBlock* own = nullptr;       ///< of this rank
  std::vector<ShmLink*> polled;   ///< of them, those whose rings progress() looks at
  std::vector<ShmLink*> active;   ///< since the last take_active()
  std::vector<ShmLink*> ended;    ///< since the last take_ended()
  unsigned calls = 0;             ///< of poll_less()

  /// Whether every rank of the group can map the arenas of all its peers. Cheap.
  [[nodiscard]] bool all_read_arenas() noexcept {
    const std::size_t ranks = group.segment.layout().ranks;
    // Acquires nothing: a peer that reads an offset maps the arena itself.
    while (readers < ranks && group.segment.block(readers).reads_arenas.load(std::memory_order_relaxed) != 0) ++readers;
    return readers == ranks;
  }
  [[nodiscard]] RankBits polls() const noexcept { return group.segment.polls(position); }
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
        sender_(segment().ring(own_position, position), segment().layout().ring, &session_->link_memory),
        receiver_(segment().ring(position, own_position), segment().layout().ring, session_->arenas[position]),
        own_position_(own_position),
        doorbell_(segment(), position, own_position),
        peer_block_(segment().block(position)) {
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
    if (receiver_.release()) wake_if_sleeping(peer_block_, session_->bell);
  }
  [[nodiscard]] const Status& status() const noexcept override { return status_; }

  /// True where a tile arrived, room appeared that a send waits for, or the link broke.
  bool progress() {
    bool moved = receiver_.take_arrivals();
    if (sender_.take_releases()) moved = true;
    if (receiver_.broken() && !broken_) [[unlikely]]
      moved = fail_by_tile();
    return moved;
  }
  [[nodiscard]] bool news_before_sleep() noexcept {
    return receiver_.news_before_sleep() || sender_.releases_before_sleep() || (receiver_.broken() && !broken_);
  }
  /// RankBlock::closed of the peer.
  [[nodiscard]] std::uint32_t peer_closed() const noexcept {
    // Acquires the peer's last tiles: a rank that sees the word set sees every tile sent before (ShmTransport's destructor).
    return peer_block_.closed.load(std::memory_order_acquire);
  }
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  void fail(std::string message, StatusCode code = StatusCode::peer_failed) {
    broken_ = true;
    status_ = Status(code, std::move(message));
    session_->note_active(*this);
  }
  [[nodiscard]] bool is_used_by_sender() const noexcept { return sender_.waits(); }

  // For Session.
  bool polled = false;
  bool active = false;
  bool ended = false;  ///< its peer has ended or closed its end
  bool used = false;   ///< lately a peek() has found nothing
  void notify_peer() const noexcept { wake_if_awaiting(peer_block_, own_position_, session_->bell); }
  [[nodiscard]] std::size_t position() const noexcept { return position_; }

 private:
  /// True.
  [[gnu::noinline]] bool fail_by_tile() {
    if (const int error = session_->arenas[position_].error(); error != 0) {
      fail("mapping the memory of rank " + std::to_string(peer_) + " for a tile: " + std::strerror(error),
           error == ESRCH ? StatusCode::peer_failed : StatusCode::system_error);
      return true;
    }
    fail("rank " + std::to_string(peer_) + " wrote a tile into the shared memory that is larger than the " +
         std::to_string(tile_bytes_) +
         " bytes of a slot, outside its arena, or in a ring of another size; its memory is corrupt");
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
    wake_if_sleeping(peer_block_, session_->bell);
    return true;
  }
  /// Offset in this process's arena at which the peer can read `data`; nullopt where it has to be copied.
  [[nodiscard]] std::optional<std::uint64_t> reference_to(std::span<const std::byte> data) const noexcept {
    if (data.size() < kReferenceFromBytes || session_->arena == nullptr || !session_->all_read_arenas()) return std::nullopt;
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
  start_polling(polls(), link.position());
  polled.push_back(&link);
}

[[gnu::noinline]] inline void Session::poll_those_that_rang() {
  answer_doorbells(*own, group.segment.rang(position), group.segment.layout().ranks, [this](std::size_t sender) {
    const auto found = std::ranges::find(links, sender, &ShmLink::position);
    if (found != links.end()) poll(**found);
  });
}

[[gnu::noinline]] inline void Session::poll_less() {
  if (++calls % kUnusedCalls != 0) return;
  std::erase_if(polled, [this](ShmLink* link) {
    if (std::exchange(link->used, false) || link->is_used_by_sender()) return false;
    stop_polling(polls(), link->position());
    link->polled = link->news_before_sleep();
    if (link->polled) start_polling(polls(), link->position());
    return !link->polled;
  });
}

inline void Session::note_active(ShmLink& link) {
  if (!std::exchange(link.active, true)) active.push_back(&link);
}

}  // namespace shoal::shm
