// A ring of tile slots between exactly one sender and one receiver, in memory that both have mapped.
//
// The receiver polls the sequence word of the next slot. The word shares its line with the header and with payloads of up to
// 32 bytes, so a small tile costs the transfer of one cache line. Larger payloads start on a line of their own, where SIMD
// loads are aligned.
//
// A payload that lies in the sender's arena (arena.h) is not copied: the slot has its offset, and the receiver reads it in
// place.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "transports/shm/arena_view.h"
#include "transports/shm/copy_choice.h"
#include "transports/shm/link_memory.h"
#include "transports/shm/ring_layout.h"
#include "transports/shm/streaming_copy.h"
#include "transports/transport.h"

namespace shoal::shm {

inline constexpr std::size_t kStreamFromBytes = 4096;  ///< smaller payloads are always copied by ordinary stores

/// Addresses of the counters and slots of a ring, for both ends.
class RingView {
 public:
  /// `slots`: in use; use_slots() changes it.
  RingView(std::byte* memory, RingShape shape, std::size_t slots) noexcept
      : memory_(memory), slot_bytes_(shape.slot_bytes()), slots_(slots), tile_bytes_(shape.tile_bytes) {}

  [[nodiscard]] RingControl& control() const noexcept { return *reinterpret_cast<RingControl*>(memory_); }
  [[nodiscard]] SlotLine& slot(std::size_t position) const noexcept {
    return *reinterpret_cast<SlotLine*>(memory_ + sizeof(RingControl) + position * slot_bytes_);
  }
  [[nodiscard]] static std::byte* payload(SlotLine& slot, std::size_t size_bytes) noexcept {
    return size_bytes <= kInlineBytes ? slot.payload : reinterpret_cast<std::byte*>(&slot + 1);
  }
  [[nodiscard]] std::size_t next(std::size_t position) const noexcept { return position + 1 == slots_ ? 0 : position + 1; }
  [[nodiscard]] std::size_t slots() const noexcept { return slots_; }
  void use_slots(std::size_t slots) noexcept { slots_ = slots; }
  [[nodiscard]] std::size_t tile_bytes() const noexcept { return tile_bytes_; }

 private:
  std::byte* memory_;
  std::size_t slot_bytes_;
  std::size_t slots_;
  std::size_t tile_bytes_;
};

/// The sending end. Thread rule: one thread at a time.
///
/// The caller wakes a sleeping receiver after a successful try_send(). The publication is a sequentially consistent store,
/// and the check whether the receiver sleeps must be a sequentially consistent load: see Waiting in README.md.
class RingSender {
 public:
  /// `limit` decides at the first tile how many slots the ring uses; null: all. It outlives the sender.
  RingSender(std::byte* memory, RingShape shape, LinkMemory* limit = nullptr) noexcept
      : ring_(memory, shape, 0), most_slots_(shape.slots), limit_(limit) {}

  /// Copies the tile into the next slot, or stores `reference` there, the offset of the payload in the arena. Then publishes
  /// it; false where all slots are taken.
  bool try_send(const TileHeader& header, std::span<const std::byte> data,
                std::optional<std::uint64_t> reference = std::nullopt) noexcept {
    if (!has_room() && !start()) {
      wants_room_ = true;
      start_waiting();
      return false;
    }
    wants_room_ = false;
    SlotLine& slot = ring_.slot(position_);
    slot.header = header;
    if (reference) {
      std::memcpy(slot.payload, &*reference, sizeof *reference);
      if (!referring()) free_before_ = sent_;
      referred_ = sent_ + 1;
      start_waiting();
    } else if (!data.empty()) {
      copy(RingView::payload(slot, data.size()), data);
    }
    // Orders header and payload before the word that RingReceiver::visible() reads with acquire. Sequentially consistent, so
    // that the caller's next load of the receiver's `sleeping` word cannot pass it.
    slot.sequence.store(word_of(sent_, reference.has_value()), std::memory_order_seq_cst);
    position_ = ring_.next(position_);
    ++sent_;
    if (!referring()) stop_waiting();
    return true;
  }

  /// Whether take_releases() has to be called: for room, or for the end of references.
  [[nodiscard]] bool waits() const noexcept { return waits_; }
  /// Whether a send found no room, and take_releases() has seen none since.
  [[nodiscard]] bool waits_for_room() const noexcept { return wants_room_; }
  /// True where the receiver has released tiles, and a send waits for that room or memory has become free thereby.
  bool take_releases() noexcept {
    if (!waits_) return false;
    const std::uint64_t before = known_released_;
    if (!look_at_releases()) return false;
    const bool room = std::exchange(wants_room_, false);
    const bool freed = referred_ > before;
    if (!referring()) stop_waiting();
    return room || freed;
  }
  /// Whether take_releases() would find something; ordered after this rank's `sleeping` word was set.
  [[nodiscard]] bool releases_before_sleep() const noexcept {
    // Pairs with the seq_cst store in RingReceiver::release(): either this load sees the release, or the receiver sees that
    // this rank sleeps.
    return waits_ && ring_.control().released.load(std::memory_order_seq_cst) != known_released_;
  }

  /// How many tiles no longer need their memory, as far as take_releases() has seen.
  [[nodiscard]] std::uint64_t sent() const noexcept { return referring() ? std::max(free_before_, known_released_) : sent_; }
  /// Reclaims the memory to which tiles that are not released refer. The caller orders its later writes to that memory after
  /// this store: a peer that sees such a write also sees the store.
  void take_back() noexcept {
    if (referring()) ring_.control().taken_back.store(sent_, std::memory_order_seq_cst);
  }
  /// How large payloads are copied at present.
  [[nodiscard]] CopyWay copy_way() const noexcept { return choice_.chosen(); }

 private:
  void copy(std::byte* target, std::span<const std::byte> data) noexcept {
    if (data.size() >= kStreamFromBytes && choice_.chosen() == CopyWay::streaming) {
      streaming_copy(target, data.data(), data.size());
    } else {
      std::memcpy(target, data.data(), data.size());
    }
  }
  /// The receiver may still read memory that tiles refer to.
  [[nodiscard]] bool referring() const noexcept { return referred_ > known_released_; }
  bool has_room() noexcept {
    if (sent_ - known_released_ < ring_.slots()) return true;
    look_at_releases();
    return sent_ - known_released_ < ring_.slots();
  }
  /// Before the first tile, the ring has no slots, so that the path of later tiles needs no check. True where that was the
  /// cause.
  [[gnu::noinline]] bool start() noexcept {
    if (ring_.slots() != 0) return false;
    ring_.use_slots(limit_ == nullptr ? most_slots_ : limit_->start_ring());
    // Published with the first tile, by the store of its sequence word.
    ring_.control().slots.store(static_cast<std::uint32_t>(ring_.slots()), std::memory_order_relaxed);
    return true;
  }
  /// Reads the receiver's counter; true where tiles have been released since the last call.
  bool look_at_releases() noexcept {
    const auto start = Clock::now();
    // Acquires the receiver's reads of the slots that it released (RingReceiver::release()) before they are overwritten.
    const std::uint64_t released = ring_.control().released.load(std::memory_order_acquire);
    const bool changed = released != known_released_;
    known_released_ = released;
    // Changed: the receiver has written the line since this rank's last read, so the line came from the receiver's cache.
    if (changed) choice_.record(std::chrono::duration<double, std::nano>(Clock::now() - start).count() - clock_cost_ns_);
    return changed;
  }
  void start_waiting() noexcept {
    if (waits_) return;
    waits_ = true;
    // Read by RingReceiver::release(), which wakes the sender only where this is set. Ordered before this rank's `sleeping`
    // word (both seq_cst): a receiver that sees that word set sees this one set, too.
    ring_.control().sender_waits.store(1, std::memory_order_seq_cst);
  }
  void stop_waiting() noexcept {
    if (!waits_) return;
    waits_ = false;
    // Correctness does not depend on when this is seen: a receiver that still reads 1 wakes the sender once for nothing.
    ring_.control().sender_waits.store(0, std::memory_order_relaxed);
  }

  using Clock = std::chrono::steady_clock;

  RingView ring_;  ///< no slots before the first tile
  std::size_t most_slots_;
  LinkMemory* limit_;
  CopyChoice choice_;
  double clock_cost_ns_ = clock_cost_ns();
  std::uint64_t sent_ = 0;
  std::uint64_t known_released_ = 0;  ///< the last `released` read; saves the transfer of that line while there is room
  std::size_t position_ = 0;          ///< sent_ modulo slots
  std::uint64_t referred_ = 0;        ///< one more than the number of the last tile sent by reference; 0: none was
  std::uint64_t free_before_ = 0;     ///< tiles before the first reference since no reference was open
  bool wants_room_ = false;
  bool waits_ = false;  ///< for room, or for the end of references
};

/// The receiving end. Thread rule: one thread at a time.
class RingReceiver {
 public:
  /// `arena`: the sender's, to look up references in; it must outlive the ring.
  RingReceiver(std::byte* memory, RingShape shape, ArenaView& arena) noexcept
      : ring_(memory, shape, 1), most_slots_(shape.slots), arena_(arena) {}

  /// The oldest tile not released, as a view into the ring or the sender's arena; null where there is none, or where broken().
  const Arrival* peek() noexcept {
    if (shown_) return &arrival_;
    SlotLine& slot = ring_.slot(position_);
    if (!visible(slot, released_)) return nullptr;
    arrival_.header = slot.header;
    // A stray write of the peer may have changed the slot: no value in it is used as a length unchecked.
    if (arrival_.header.size_bytes >= size_limit_ && !start(arrival_.header.size_bytes)) [[unlikely]] {
      broken_ = true;
      return nullptr;
    }
    const std::byte* data = RingView::payload(slot, arrival_.header.size_bytes);
    arrival_.lent = (slot.sequence.load(std::memory_order_relaxed) & 1) != 0;  // visible() has acquired it
    if (arrival_.lent) {
      std::uint64_t reference;
      std::memcpy(&reference, slot.payload, sizeof reference);
      data = arena_.at(reference, arrival_.header.size_bytes);
    }
    if (data == nullptr) {
      broken_ = true;
      return nullptr;
    }
    arrival_.data = {data, arrival_.header.size_bytes};
    shown_ = true;
    return &arrival_;
  }

  /// Whether the sender has not reclaimed the payload that peek() shows; ordered after the caller's reads of the payload.
  [[nodiscard]] bool intact() const noexcept {
    return !shown_ || !arrival_.lent || ring_.control().taken_back.load(std::memory_order_seq_cst) <= released_;
  }

  /// Releases the slot of the tile shown by peek(). True where the sender waits for that: the caller wakes it if it sleeps.
  bool release() noexcept {
    if (!shown_) return false;
    shown_ = false;
    position_ = ring_.next(position_);
    ++released_;
    if (arrived_ < released_) arrived_ = released_, arrived_position_ = position_;
    // Orders this rank's reads of the slot before the sender's next write to it (RingSender::has_room()). Sequentially
    // consistent, so that neither the load below nor the caller's load of the sender's `sleeping` word can pass it.
    ring_.control().released.store(released_, std::memory_order_seq_cst);
    return ring_.control().sender_waits.load(std::memory_order_seq_cst) != 0;
  }

  /// True where tiles have arrived that earlier calls did not count.
  bool take_arrivals() noexcept {
    bool any = false;
    while (arrived_ - released_ < ring_.slots() && visible(ring_.slot(arrived_position_), arrived_)) {
      ++arrived_;
      arrived_position_ = ring_.next(arrived_position_);
      any = true;
    }
    return any;
  }

  /// Whether there is a tile that peek() has not shown or take_arrivals() has not counted; ordered after this rank's `sleeping`
  /// word.
  [[nodiscard]] bool news_before_sleep() const noexcept {
    return (!shown_ && present(position_, released_)) ||
           (arrived_ - released_ < ring_.slots() && present(arrived_position_, arrived_));
  }

  /// The sender wrote a size that does not fit a slot, a reference outside its arena, or a wrong number of slots; or the arena
  /// cannot be mapped.
  [[nodiscard]] bool broken() const noexcept { return broken_; }

 private:
  /// At the first tile `size_limit_` is 0, so that the path of later tiles needs no check: learns how many slots the sender
  /// uses. False where the tile is invalid.
  [[gnu::noinline]] bool start(std::size_t size_bytes) noexcept {
    if (size_limit_ != 0) return false;
    // Written before the first tile, which visible() has acquired.
    const std::size_t slots = ring_.control().slots.load(std::memory_order_relaxed);
    if (slots < kLeastSlots || slots > most_slots_ || size_bytes > ring_.tile_bytes()) return false;
    ring_.use_slots(slots);
    size_limit_ = ring_.tile_bytes() + 1;
    arrived_position_ = arrived_;  // until now take_arrivals() has counted one tile at most
    return true;
  }
  static bool visible(const SlotLine& slot, std::uint64_t tile) noexcept {
    // Acquires header and payload, written before the sequence word in RingSender::try_send().
    return slot.sequence.load(std::memory_order_acquire) >> 1 == tile + 1;
  }
  [[nodiscard]] bool present(std::size_t position, std::uint64_t tile) const noexcept {
    // Pairs with the seq_cst store in RingSender::try_send(): either this load sees the tile, or the sender sees that this
    // rank sleeps.
    return ring_.slot(position).sequence.load(std::memory_order_seq_cst) >> 1 == tile + 1;
  }

  RingView ring_;               ///< one slot until peek() has shown a tile
  std::size_t size_limit_ = 0;  ///< payloads are smaller; 0 until then
  std::size_t most_slots_;
  ArenaView& arena_;
  std::uint64_t released_ = 0;
  std::uint64_t arrived_ = 0;  ///< tiles that take_arrivals() has counted, at least released_
  std::size_t position_ = 0;
  std::size_t arrived_position_ = 0;
  bool shown_ = false;
  bool broken_ = false;
  Arrival arrival_;
};

}  // namespace shoal::shm
